"""Which phases a pass of concrete groups goes through: the calls of a function of core/schedule.py, not those within them."""

from types import SimpleNamespace
from typing import Any

from kvproof.core import schedule
from kvproof.spec.phases import Calls
from kvproof.store.draft import Draft

LOOPS = ("repeat", "each", "each_pair", "each_running", "each_due")
PARTS: dict[str, tuple[str, ...]] = {
    "schedule_prefills": ("go_on_with_prefills", "admit_waiting"),
    "step_of_prefills": ("schedule_prefills", "displace", "displace_v0", "admit_waiting"),
    "decode": ("schedule_running", "schedule_swapped"),
    "schedule_running": (),
    "schedule_either": ("step_of_prefills", "decode"),
    "schedule_mixed": ("decode", "displace", "schedule_running", "go_on_with_prefills", "schedule_swapped", "admit_waiting"),
    "schedule": ("schedule_either", "schedule_mixed"),
}
"""Which functions each calls; its loops, and V0's new order of the running queue, are phases too."""


def facts(d: Draft) -> Any:
    """What the specification of the phases reads of a draft."""
    plan = SimpleNamespace(victims=d.plan.evictions(), left=sum(mode == "swap" for _, mode in d.plan.victims))
    own = {name: getattr(d, name) for name in ("spent", "charged", "prefilled", "issued", "epoch", "config", "testing")}
    return SimpleNamespace(plan=plan, **own)


def recorded(d: Draft, name: str) -> tuple[Calls, Any]:
    """Run the function on d. Its phases, each with the facts before it, and those in the end."""
    out: Calls = []
    depth = 0

    def noted(phase: str, f: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal depth
            if depth == 0:
                out.append((phase, facts(d)))
            depth += 1
            try:
                return f(*arguments)
            finally:
                depth -= 1

        return call

    def loop(method: str) -> Any:
        return lambda self, phase, *arguments: noted(phase, getattr(kind, method))(self, phase, *arguments)

    kind = type(d)
    methods = {method: loop(method) for method in LOOPS}
    methods["arrange_running"] = lambda self, standing: noted("arrange_running", kind.arrange_running)(self, standing)
    real = {part: getattr(schedule, part) for part in PARTS[name]}
    try:
        d.__class__ = type("Noting", (kind,), {"__slots__": (), **methods})
        vars(schedule).update({part: noted(part, f) for part, f in real.items()})
        getattr(schedule, name)(d)
        return out, facts(d)
    finally:
        vars(schedule).update(real)
        d.__class__ = kind
