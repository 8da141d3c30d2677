"""What a run starts from: sizes small enough that every limit is met within a few steps, and a policy."""

from typing import Any

import attrs

from kvproof.core.config import ArtificialPreemption, Config
from kvproof.fuzz.orders import ORDERS, Said, heard
from kvproof.policies.costs import Costs
from kvproof.scheduler import Scheduler, policy_of
from kvproof.store.candidates import Need
from kvproof.store.draft import Draft
from kvproof.store.policies import Policy

MODES = ("swap", "any", None, "recompute")
"""Values of `preemption_mode`, and "any": a policy that says now this, now that. Safety may not depend on it."""
KVPROOF_MODES = (*MODES, "auto")


class AnyPolicy:
    """Swaps or recomputes with no reason that a scheduler could rely on, the same in every run."""

    @staticmethod
    def swaps(g: int, sequences: int) -> bool:
        """Some bit of the id."""
        return (g * 2654435761 >> 7) & 1 == 1


@attrs.frozen
class Names:
    """A policy that names victims, now a right one, now one that may not go or does not exist."""

    mode: Policy

    def swaps(self, g: int, sequences: int) -> bool:
        """As another policy wishes."""
        return self.mode.swaps(g, sequences)

    def victim(self, need: Need) -> int:
        """Some bits of who asks and who could go."""
        other = -1 if need.free % 2 else need.group + 1
        some = [need.group, other, *[c.group for c in need.candidates] * 3]
        return some[(need.group * 7 + need.free * 3 + need.blocks + len(some)) % len(some)]


class Watched(Scheduler):
    """A scheduler that shows how much of its token budget the last call used: the only thing a draft has and no state keeps."""

    spent = 0

    def _close(self, d: Draft) -> None:
        self.spent = d.spent
        super()._close(d)


@attrs.frozen
class Setup:
    """A configuration and a mode; `fields` is what a script writes down."""

    config: Config
    mode: str | None = None
    order: str | None = None
    """One of `orders.ORDERS`."""
    costs: Costs | None = None
    """What the mode "auto" reckons with."""

    def scheduler(self, said: Said) -> Watched:
        """A scheduler that knows nothing yet. Its order, if it has one, writes what it answers to `said`."""
        if self.mode == "auto":
            order = None if self.order is None else heard(self.order, said, None)
            return Watched(self.config, "auto", order, costs=self.costs)
        policy: Any = AnyPolicy if self.mode == "any" else policy_of(self.mode)
        chosen: Policy = Names(policy) if self.config.choose_victims else policy
        return Watched(self.config, policy=chosen if self.order is None else heard(self.order, said, chosen))

    @property
    def by_hand(self) -> bool:
        """May the engine give ranks?"""
        return self.order is None or ORDERS[self.order].overtakes is None

    @property
    def fields(self) -> dict[str, Any]:
        """Plain names and values, where they are not the defaults: the arguments of `setup`."""
        values = attrs.asdict(self.config)
        same = {f.name for f in attrs.fields(Config) if values[f.name] == f.default}
        out = {**{name: value for name, value in values.items() if name not in same}, "mode": self.mode}
        if self.order is not None:
            out["order"] = self.order
        if self.costs is not None:
            out["costs"] = attrs.asdict(self.costs)
        return out

    @property
    def column(self) -> str:
        """Where the report counts what happens: profile and mode."""
        return f"{'vllm_v0' if self.config.vllm_v0 else 'kvproof'} {self.mode or 'null'}"


def setup(
    mode: str | None = None,
    artificial_preemption: dict[str, Any] | None = None,
    order: str | None = None,
    costs: dict[str, float] | None = None,
    **fields: Any,
) -> Setup:
    """A setup from plain names and values. An order says whether anybody is displaced; auto names victims."""
    test = None if artificial_preemption is None else ArtificialPreemption(**artificial_preemption)
    if order is not None:
        fields["priority"] = ORDERS[order].displaces
    if mode == "auto":
        fields["choose_victims"] = True
    config = Config(**fields, artificial_preemption=test)
    return Setup(config, mode, order, None if costs is None else Costs(**costs))
