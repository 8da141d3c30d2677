"""Contracts of the two kinds of step, and the rules of their loops."""

from typing import Any

import z3

from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.pass_frames import EVICT, SERVE, in_pass, laws, others_same, who_goes_is_named
from kvproof.proofs.phase_rules import SWAP
from kvproof.proofs.prefill_phase import ADMIT, before_running, in_prefill_phase
from kvproof.proofs.prefill_rules import idle_blocked, leads
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, run
from kvproof.spec import decisions, effects, progress
from kvproof.spec.invariants import whole_prompts
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, decodes, unfinished
from kvproof.spec.promises import counted, protected_stay

STEP = tuple(dict.fromkeys((*SERVE, *SWAP, *ADMIT, "prefilled")))


# --- a step ----------------------------------------------------------------------------------------
def _step_pre(d: Any) -> Clauses:
    return [
        *before_running(d),
        ("helper: nothing spent", d.spent == 0),
        ("helper: before a mixed step no step of prefills", implies(d.config.enable_chunked_prefill, negate(d.prefilled))),
    ]


def _step_laws(d: Any) -> list[Any]:
    """Every finite set has a first: the running queue, and all that wait or are swapped."""
    head, h = run().notes["head"], run().notes["ahead"]
    runs = both(
        d.status[head] == R, forall(1, lambda t: implies(d.status[t] == R, d.key[head] <= d.key[t]), lambda t: [[d.status[t]]])
    )
    return [
        *laws(d),
        d.span_rises(),
        either(d.running.n == 0, runs),
        either(both(d.waiting.n == 0, d.swapped.n == 0), leads(d, h)),
    ]


def _step_post(d: Any, e: Any) -> Clauses:
    p, c = d.plan, d.config
    calm = both(e.plan.victims == 0, negate(d.testing))
    made_way = both(c.priority, e.running.n >= 1, d.running.n == 0, p.victims >= 1)
    return [
        *in_pass(d),
        ("budget_exact: the plan's sum", choose(d.prefilled, d.spent == p.total, effects.decode_budget(d)[1])),
        (
            "helper: who samples, and in which step",
            both(
                implies(d.prefilled, negate(c.enable_chunked_prefill)),
                forall(
                    1,
                    lambda t: implies(d.sampling.has_[t], iff(d.prefilled, negate(c.enable_chunked_prefill))),
                    lambda t: [[d.sampling.has_[t]]],
                ),
            ),
        ),
        (
            "helper: only V0 leaves anybody idle, and not in a step of prefills",
            forall(1, lambda t: implies(d.idle.has_[t], both(c.vllm_v0, negate(d.prefilled))), lambda t: [[d.idle.has_[t]]]),
        ),
        whole_prompts(d),
        ("table_length: the slots of the step exist", implies(negate(d.prefilled), effects.nobody_due(d)[1])),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        who_goes_is_named(d, e),
        counted(d, e),
        protected_stay(d, e),
        (
            "status_graph: who has ended stays so",
            forall(1, lambda t: implies(unfinished(d, t), unfinished(e, t)), lambda t: [[d.status[t]], [e.status[t]]]),
        ),
        (
            "helper: new tables only for who waited and is no victim",
            forall(
                2,
                lambda g, q: implies(
                    both(e.table.size_[g, q] == 0, d.table.size_[g, q] >= 1), both(e.status[g] == W, negate(e.plan.victim[g]))
                ),
                lambda g, q: [[d.table.size_[g, q]]],
            ),
        ),
        (
            "no_deadlock: a token, an end, or all that ran made way for the head",
            implies(
                both(negate(c.vllm_v0), calm, e.waiting.n + e.running.n + e.swapped.n >= 1),
                either(d.spent >= 1, p.ends >= 1, made_way),
            ),
        ),
    ]


def unchanged(m: Any, e: Any) -> tuple[Any, Any]:
    """Between e and m nothing runs and nothing has been done; nobody has moved."""
    idle = both(
        negate(m.config.vllm_v0),
        e.running.n == 0,
        m.running.n == 0,
        m.spent == 0,
        m.plan.ends == e.plan.ends,
        m.plan.victims == e.plan.victims,
    )
    same = forall(
        1,
        lambda t: both(m.status[t] == e.status[t], either(negate(unfinished(m, t)), m.key[t] == e.key[t])),
        lambda t: [[m.status[t]], [m.key[t]]],
    )
    return idle, same


def _chain(d: Any, e: Any) -> Clauses:
    """Who has a table before and after had it all along, and reads the same: from one part of the step to the next."""
    clauses: Clauses = []
    for m in (*run().notes.get("after", ()), d):
        t, s = m.table, e.table
        all_along = forall(
            2,
            lambda g, q, t=t, s=s: implies(both(s.size_[g, q] >= 1, d.table.size_[g, q] >= 1), t.size_[g, q] >= 1),
            lambda g, q, t=t: [[t.size_[g, q]], [d.table.size_[g, q]]],
        )
        clauses.append(("helper: cut: had its table all along", all_along))
    for (name, _), m in zip(run().notes.get("before", ()), run().notes.get("after", ()), strict=True):
        if name == "step_of_prefills":
            line = forall(
                1,
                lambda t, m=m: implies(e.status[t] == W, iff(d.status[t] == W, m.status[t] == W)),
                lambda t, m=m: [[d.status[t]], [m.status[t]]],
            )
            clauses.append(("one_queue: cut: the line stays while others decode", line))
    clauses += _progress_so_far(d, e)
    h = run().notes["ahead"]
    for number, m in enumerate((*run().notes.get("after", ()), d)):
        idle, same = unchanged(m, e)
        clauses.append((f"no_deadlock: cut {number}: nothing done, nothing changed", implies(idle, same)))
        clauses.append((f"no_deadlock: cut {number}: the line has its head", implies(both(idle, leads(e, h)), leads(m, h))))
    undone = both(negate(d.config.vllm_v0), e.plan.victims == 0, negate(d.testing), d.spent == 0, d.plan.ends == 0)
    for name, m in run().notes.get("before", ()):
        if name == "schedule_running":
            clauses.append(("no_deadlock: cut: who runs does something", implies(undone, m.running.n == 0)))
            idle = both(undone, m.plan.victims == 0)
            clauses.append(("no_deadlock: cut: or nobody ran", implies(idle, e.running.n == 0)))
            clauses.append(("no_deadlock: cut: and nobody runs", implies(idle, d.running.n == 0)))
        if name == "schedule_swapped":
            nobody = both(m.plan.victims == 0, m.running.n == 0)
            clauses.append(("no_deadlock: cut: nobody was preempted", implies(undone, nobody)))
            clauses.append(("no_deadlock: cut: the head is not swapped", implies(both(undone, leads(e, h)), e.status[h] != S)))
    clauses.append(
        (
            "no_deadlock: cut: the head does not wait",
            implies(both(undone, d.plan.victims == 0, d.running.n == 0, leads(e, h)), e.status[h] != W),
        )
    )
    for m in (*run().notes.get("after", ()), d):
        same = effects.contents_kept(m, e, lambda g: negate(had(d, e, g)))
        clauses.append(("swap_preserves_view: contents so far", same))
        clauses.append(effects.tokens_kept(m, e))
    return clauses


def in_v0(d: Any) -> bool:
    """Has this path decided that the profile is V0's, of whose progress nothing is said?"""
    decided = run().decided.get(z3.simplify(d.config.vllm_v0.e).get_id())
    return decided is not None and decided[1]


def _progress_so_far(d: Any, e: Any) -> Clauses:
    """What has been done for progress, after each part of the step."""
    head, clauses = run().notes["head"], list[Any]()
    calm = both(negate(d.config.vllm_v0), e.plan.victims == 0, negate(d.testing))
    if all(name != "schedule_running" for name, _ in run().notes.get("before", ())) or in_v0(d):
        return []  # the part that prefills needs none of it
    for number, m in enumerate((*run().notes.get("after", ()), d)):
        same = forall(
            1,
            lambda t, m=m: either(m.config.vllm_v0, negate(unfinished(m, t)), m.key[t] == e.key[t]),
            lambda t, m=m: [[m.key[t]], [m.status[t]]],
        )
        clauses.append(("one_queue: cut: kvproof keeps keys", same))
        charged = implies(decodes(m, head), m.members.n[head] <= m.running.live - m.prefilling.live)
        run().assume(charged)  # one of `laws`
        parts = (effects.victim_is_last(m, e), progress.order_kept(m, e), progress.kept(m, e), progress.head_stays(m, e, head))
        clauses.append((f"head_advances: so far ({number})", implies(calm, both(*[clause for _, clause in parts]))))
    return clauses


def had(d: Any, e: Any, g: Any) -> Any:
    """Has g, which had a table, one in the end? Then it runs or is swapped."""
    return both(either(e.status[g] == R, e.status[g] == S), either(d.status[g] == R, d.status[g] == S))


def _progress(d: Any, e: Any) -> Clauses:
    """What the step does for progress, if nothing strikes it."""
    head, line = run().notes["head"], run().notes["ahead"]
    calm = both(negate(d.config.vllm_v0), e.plan.victims == 0, negate(d.testing))
    clauses = [effects.victim_is_last(d, e), *progress.of_pass(d, e, head, line)]
    return [(name, True if in_v0(d) else implies(calm, clause)) for name, clause in clauses]


def _either_post(d: Any, e: Any) -> Clauses:
    calm = both(e.plan.victims == 0, negate(d.testing))
    return [*_step_post(d, e), *decisions.turns(d, e, run().notes["line"], calm), *_progress(d, e)]


def _first_progress(d: Any, e: Any) -> Clauses:
    """The part that prefills: who is first in line and waits comes in if nothing runs."""
    head, h = run().notes["head"], run().notes["ahead"]
    calm = both(negate(d.config.vllm_v0), e.plan.victims == 0, negate(d.testing))
    idle = both(e.running.n == 0, progress.first_in_line(e, h))
    clauses = [
        effects.victim_is_last(d, e),
        progress.order_kept(d, e),
        progress.kept(d, e),
        progress.head_stays(d, e, head),
        ("head_advances: the first prefill goes on", progress.prefill_goes_on(d, e, head)[1]),
        ("head_advances: if nothing runs the first in line comes in", implies(idle, d.status[h] != W)),
        ("head_advances: nobody comes in past a swapped head of the line", implies(both(idle, e.status[h] == S), d.spent == 0)),
        (
            "head_advances: in no step of prefills, nobody comes in and who runs on is where it was in its prefill",
            either(
                d.prefilled,
                forall(
                    1,
                    lambda t: implies(
                        d.status[t] == R,
                        both(e.status[t] == R, d.prefilling.has_[t] == e.prefilling.has_[t], d.key[t] == e.key[t]),
                    ),
                    lambda t: [[d.status[t]]],
                ),
            ),
        ),
        (
            "head_advances: nobody is preempted but for a head of higher priority",
            forall(1, lambda t: implies(d.plan.victim[t], d.config.priority), lambda t: [[d.plan.victim[t]]]),
        ),
    ]
    return [(name, implies(calm, clause)) for name, clause in clauses]


def _first_post(d: Any, e: Any) -> Clauses:
    """After the part of a step that prefills: nothing is planned yet, or the step is one of prefills."""
    p, c, line = d.plan, d.config, run().notes["line"]
    plain = both(e.plan.victims == 0, negate(d.testing), negate(c.priority))
    stays = both(e.status[line] == W, d.status[line] == W)
    head = both(stays, decisions.first_of(e, line, lambda t: both(e.status[t] == W, d.status[t] == W)))
    blocked = both(negate(decisions.refusable(e, line)), negate(decisions.admissible(e, line, 0)))
    before = either(decisions.waits_its_turn(e, line, d.delay), blocked)
    unplanned = [(name, either(d.prefilled, clause)) for name, clause in before_running(d)]
    turn = decisions.prefill_turn(e)
    return [
        *in_pass(d),
        whole_prompts(d),
        *unplanned,
        ("budget_exact: the plan's sum", both(d.spent == p.total, iff(d.prefilled, d.spent >= 1))),
        (
            "helper: who samples, and nobody is idle",
            forall(
                1,
                lambda t: both(implies(d.sampling.has_[t], d.prefilled), negate(d.idle.has_[t])),
                lambda t: [[d.sampling.has_[t]], [d.idle.has_[t]]],
            ),
        ),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        who_goes_is_named(d, e),
        counted(d, e),
        protected_stay(d, e),
        (
            "status_graph: who has ended stays so",
            forall(1, lambda t: implies(unfinished(d, t), unfinished(e, t)), lambda t: [[d.status[t]], [e.status[t]]]),
        ),
        (
            "helper: new tables only for who waited and is no victim",
            forall(
                2,
                lambda g, q: implies(
                    both(e.table.size_[g, q] == 0, d.table.size_[g, q] >= 1), both(e.status[g] == W, negate(e.plan.victim[g]))
                ),
                lambda g, q: [[d.table.size_[g, q]]],
            ),
        ),
        (
            "one_queue: no step of prefills, nobody admitted",
            either(
                d.prefilled,
                forall(
                    1,
                    lambda t: implies(both(e.status[t] == W, d.status[t] == R), False),
                    lambda t: [[d.status[t]], [e.status[t]]],
                ),
            ),
        ),
        (
            "one_queue: who waited is not swapped",
            forall(
                1,
                lambda t: implies(d.status[t] == S, either(e.status[t] == S, e.status[t] == R)),
                lambda t: [[d.status[t]], [e.status[t]]],
            ),
        ),
        ("no_deadlock: nothing done, nothing changed", implies(*unchanged(d, e))),
        ("one_queue: a step of prefills in its turn", implies(d.prefilled, turn)),
        ("one_queue: an unfinished prefill goes first", implies(both(turn, e.prefilling.n >= 1), d.prefilled)),
        (
            "one_queue: nobody waits in vain",
            implies(
                both(plain, head, turn),
                either(both(d.prefilled, decisions.left_waiting(d, line)[1]), both(negate(d.prefilled), before)),
            ),
        ),
        ("no_deadlock: if nothing runs, the head of the line is swapped", either(d.prefilled, idle_blocked(d))),
        *_first_progress(d, e),
        (
            "no_deadlock: only a head of higher rank evicts",
            both(
                p.victims >= e.plan.victims,
                p.ends >= e.plan.ends,
                either(p.victims == e.plan.victims, both(c.priority, e.running.n >= 1)),
                either(d.prefilled, d.running.n == e.running.n, p.victims > e.plan.victims, p.ends > e.plan.ends),
            ),
        ),
        ("helper: the plan keeps counting", either(c.priority, both(p.victims == e.plan.victims, p.left == e.plan.left))),
    ]


CONTRACTS["step_of_prefills"] = Contract(
    "schedule",
    "step_of_prefills",
    tuple(dict.fromkeys((*ADMIT, *EVICT, "preemptions", "prefilled"))),
    lambda d: [*_step_pre(d), ("helper: not a mixed step", negate(d.config.enable_chunked_prefill))],
    _first_post,
    lambda d: (),
    uses=("schedule_prefills", "displace", "displace_v0", "admit_waiting"),
    cuts=_chain,
    laws=_step_laws,
)
CONTRACTS["schedule_either"] = Contract(
    "schedule",
    "schedule_either",
    STEP,
    lambda d: [*_step_pre(d), ("helper: not a mixed step", negate(d.config.enable_chunked_prefill))],
    _either_post,
    lambda d: (),
    uses=("schedule_running", "step_of_prefills", "schedule_swapped"),
    cuts=_chain,
    laws=_step_laws,
)
RULES["to_front"] = Rule(
    ("key", "ticket", "waiting"),
    lambda d, e, done, ids: [
        *in_prefill_phase(d),
        ("helper: nothing else has changed", both(d.waiting.n == e.waiting.n, d.ticket >= e.ticket)),
        *others_same(d, e, -1, ("status",)),
        (
            "one_queue: V0 puts whom it recomputes before all that ever came, the last of them first",
            forall(
                1,
                lambda g: choose(
                    both(done[g], d.status[g] == W), both(d.key[g] <= -e.ticket, d.key[g] > -d.ticket), d.key[g] == e.key[g]
                ),
                lambda g: [[d.key[g]], [done[g]]],
            ),
        ),
    ],
)
CONTRACTS["schedule_mixed"] = Contract(
    "schedule",
    "schedule_mixed",
    STEP,
    lambda d: [*_step_pre(d), ("helper: a mixed step", both(d.config.enable_chunked_prefill, negate(d.prefilled)))],
    _either_post,
    lambda d: (),
    uses=("schedule_running", "schedule_swapped", "displace", "admit_waiting", "go_on_with_prefills"),
    cuts=_chain,
    laws=_step_laws,
)
