"""The phases of a pass, in their order: which there are, and when each has its turn.

`calls`: (name of the phase, what there was before it) in order; `e` and `d`: what there was in the beginning and is in the end.
Of these only the budget, the plan and the configuration are read.
"""

from typing import Any

from kvproof.spec import decisions, effects
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause

Calls = list[tuple[str, Any]]


def names(calls: Calls) -> list[str]:
    """Which phases there were."""
    return [name for name, _ in calls]


def before(calls: Calls, name: str, d: Any) -> Any:
    """What there was before this phase; if there was none of it, what is in the end."""
    return next((state for called, state in calls if called == name), d)


def in_order(calls: Calls, *allowed: str) -> bool:
    """Are they some of these, each at most once, in this order?"""
    return names(calls) == [name for name in allowed if name in names(calls)]


def schedule_prefills(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """Unfinished prefills go first."""
    return [("one_queue: unfinished prefills, then who waits", names(calls) == ["go_on_with_prefills", "admit_waiting"])]


def step_of_prefills(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """Prefills in their turn; if there were none and requests have priorities, who ranks below the head of the line makes way."""
    first = names(calls)[:1] == ["schedule_prefills"]
    rest = calls[1:] if first else calls
    then = rest[0][1] if rest else d
    asks = both(decisions.prefill_turn(e), then.spent == 0, e.config.priority)
    way = choose(e.config.vllm_v0, names(rest) == ["displace_v0"], names(rest) == ["displace", "admit_waiting"])
    return [
        ("one_queue: prefills in their turn", iff(decisions.prefill_turn(e), first)),
        ("victim_is_last: who ranks below makes way if nobody was prefilled", choose(asks, way, not rest)),
        ("one_queue: it is a step of prefills if there was one", iff(d.prefilled, d.spent > 0)),
    ]


def decode(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """The running phase; then swap-ins if nobody was preempted (V0: in this phase)."""
    came = names(calls) == ["schedule_running", "schedule_swapped"]
    m = before(calls, "schedule_swapped", d)
    quiet = both(e.config.vllm_v0, m.plan.victims == e.plan.victims, m.plan.left == 0)
    return [
        ("one_queue: who runs is served first", came or names(calls) == ["schedule_running"]),
        ("no_swap_both_ways: swap-ins if nobody was preempted", iff(came, either(m.plan.victims == 0, quiet))),
    ]


def schedule_running(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """V0 serves all that run. kvproof serves whose alarm rings, and in tests of an engine asks everybody."""
    mine = choose(e.testing, names(calls) == ["serve_asked"], names(calls) == ["serve"])
    return [("table_length: who is looked at", choose(e.config.vllm_v0, names(calls) == ["serve_all"], mine))]


def schedule_either(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """A step of prefills, or one of decodes; if that computes nothing, unfinished prefills go on."""
    m, n = before(calls, "decode", d), before(calls, "go_on", d)
    went_on = "go_on" in names(calls)
    return [
        ("one_queue: prefills, decodes, prefills", in_order(calls, "step_of_prefills", "decode", "go_on") and bool(calls)),
        ("one_queue: a step of prefills or one of decodes", iff("decode" in names(calls), negate(m.prefilled))),
        (
            "no_deadlock: a step that computes nothing goes on with prefills",
            iff(went_on, both(negate(m.prefilled), n.spent == 0)),
        ),
        (
            "one_queue: it is a step of prefills if there was one",
            iff(d.prefilled, either(m.prefilled, both(went_on, d.spent > 0))),
        ),
    ]


def schedule_mixed(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """Decodes, then parts of prompts. V0 puts whom it recomputes in front of the line when it has admitted whom it could."""
    kvproof = ("displace", "schedule_running", "go_on_with_prefills", "schedule_swapped", "admit_waiting")
    m = before(calls, "schedule_swapped", before(calls, "admit_waiting", d))
    here = names(calls)
    mine = both(
        in_order(calls, *kvproof) and {*kvproof[1:3], "admit_waiting"} <= {*here},
        iff("displace" in here, e.config.priority),
        iff("schedule_swapped" in here, m.plan.victims == 0),
    )
    v0 = here == ["decode", "admit_waiting", "to_front", "arrange_running"]
    return [("one_queue: the phases of a mixed step", choose(e.config.vllm_v0, v0, mine))]


def schedule(d: Any, e: Any, calls: Calls) -> list[Clause]:
    """kvproof's unwritten lookahead slots go back; forced preemptions; a step of one kind or a mixed one; lookahead slots again
    for those that decode (V0 gives them as it goes, and keeps them)."""
    wishes = effects.wishes(e)
    freed = names(calls)[:1] == ["trim_all"]
    calls = calls[1:] if freed else calls
    kind = "schedule_mixed" if "schedule_mixed" in names(calls) else "schedule_either"
    m, n = before(calls, kind, d), before(calls, "look_ahead_all", d)
    ahead = both(wishes, negate(n.prefilled))
    return [
        ("table_length: a pass decides as if nobody had unwritten lookahead slots", iff(freed, wishes)),
        ("one_queue: the phases of a pass", names(calls) in (["force", kind], ["force", kind, "look_ahead_all"])),
        ("one_queue: a mixed step if prompts are cut", iff(kind == "schedule_mixed", e.config.enable_chunked_prefill)),
        ("one_queue: no step of prefills before a mixed one", implies(e.config.enable_chunked_prefill, negate(m.prefilled))),
        ("budget_exact: nothing is spent before", both(m.spent == 0, m.charged == 0)),
        ("table_length: lookahead slots in a step of decodes", iff("look_ahead_all" in names(calls), ahead)),
        ("total: a step is issued", both(d.issued, d.epoch == e.epoch + 1)),
    ]
