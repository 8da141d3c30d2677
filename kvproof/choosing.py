"""What the arguments of a `Scheduler` mean: which policy chooses modes and victims, and which order ranks requests."""

from typing import Any, NamedTuple

import attrs

from kvproof.core.config import Config, ConfigError
from kvproof.order import Order, check_order, has, is_order, load
from kvproof.policies.auto import Auto
from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import Costs
from kvproof.store.policies import AlwaysRecompute, AlwaysSwap, BySize, Policy

POLICIES: dict[str | None, type[Policy]] = {None: BySize, "recompute": AlwaysRecompute, "swap": AlwaysSwap}
V0_ORDERS = ("fcfs", "priority")
"""Those that profile vllm_v0 has itself."""


def policy_of(preemption_mode: str | None) -> type[Policy] | Policy:
    """The policy for a `preemption_mode`: null recomputes a group of one sequence and swaps larger ones."""
    if preemption_mode == "auto":
        return Auto()
    try:
        return POLICIES[preemption_mode]
    except (KeyError, TypeError):
        shown = ascii(preemption_mode)[:60]
        raise ConfigError(f'preemption_mode: must be None, "recompute", "swap" or "auto", got {shown}') from None


class Chosen(NamedTuple):
    """What a scheduler begins with."""

    config: Config
    """With `priority` as the order says, and `choose_victims` if the policy names victims."""
    policy: Policy
    order: Order | None
    costs: Calibrated | None
    """What the policy reckons with, and is told of; None: it does not reckon."""


def check_costs(costs: object) -> Calibrated:
    """Costs that observations may change. Raises ConfigError."""
    if costs is None or isinstance(costs, Costs):
        return Calibrated.begin(costs)
    if isinstance(costs, Calibrated):
        return costs
    raise ConfigError(f"costs: must be Costs or Calibrated, got {ascii(costs)[:60]}")


def ranked(config: Config, order: Order) -> Config:
    """The configuration under this order."""
    if config.vllm_v0:
        raise ConfigError(f'policy: "{order.name}" needs the profile kvproof, vllm_v0 has {" and ".join(V0_ORDERS)} only')
    return config if config.priority == order.displaces else attrs.evolve(config, priority=order.displaces)


def choose(config: Config, preemption_mode: str | None, policy: Any, costs: object) -> Chosen:
    """Raises ConfigError for what does not go together."""
    if not isinstance(config, Config):
        raise ConfigError(f"config: must be a Config, got {config!r}")
    if type(policy) is str and config.vllm_v0 and policy in V0_ORDERS:
        config, policy = attrs.evolve(config, priority=policy == "priority"), None
    if type(policy) is str:
        policy = load(policy)
    order = check_order(policy) if is_order(policy) else None
    if order is not None:
        config = ranked(config, order)
    chooses = has(policy, "swaps")
    if policy is not None and order is None and not chooses:
        raise ConfigError(
            f"policy: must have a method swaps(group, sequences), or those of an order, arrive and rank, got {ascii(policy)[:60]}"
        )
    if chooses and preemption_mode is not None:
        raise ConfigError("preemption_mode: must be None beside a policy, which chooses the mode")
    if order is not None and chooses:
        policy = order  # of a class, the object that it gave
    chooser: Any = policy if chooses else policy_of(preemption_mode)
    known = None
    if isinstance(chooser, Auto):
        if config.vllm_v0:
            raise ConfigError('preemption_mode: "auto" needs the profile kvproof')
        known = check_costs(chooser.known if costs is None else costs)
        chooser = attrs.evolve(chooser, known=known)
    elif costs is not None:
        raise ConfigError('costs: are for preemption_mode "auto" only')
    if has(chooser, "victim") and not config.vllm_v0:
        config = attrs.evolve(config, choose_victims=True)
    return Chosen(config, chooser, order, known)
