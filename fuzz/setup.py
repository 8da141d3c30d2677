"""What a run starts from: sizes small enough that every limit is met within a few steps, and a policy."""

from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.scheduler import Scheduler, policy_of
from kvproof.store.draft import Draft, Policy

MODES = ("swap", "any", None, "recompute")
"""Values of `preemption_mode`, and "any": a policy that says now this, now that. Safety may not depend on it."""


class AnyPolicy:
    """Swaps or recomputes with no reason that a scheduler could rely on, the same in every run."""

    @staticmethod
    def swaps(g: int) -> bool:
        """Some bit of the id."""
        return (g * 2654435761 >> 7) & 1 == 1


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

    def scheduler(self) -> Watched:
        """A scheduler that knows nothing yet."""
        policy: Any = AnyPolicy if self.mode == "any" else policy_of(self.mode)
        chosen: Policy = policy
        return Watched(self.config, policy=chosen)

    @property
    def fields(self) -> dict[str, Any]:
        """Plain names and numbers: the arguments of `setup`."""
        return {**attrs.asdict(self.config), "mode": self.mode}


def setup(mode: str | None = None, **fields: Any) -> Setup:
    """A setup from plain names and numbers."""
    return Setup(Config(**fields), mode)
