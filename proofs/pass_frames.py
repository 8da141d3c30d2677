"""What the phases of a pass have in common: what they may change, what holds all through, laws of finite sets."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.frames import BLOCKS, PLAN_NUMBERS, kept
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects
from kvproof.spec.invariants import whole_prompts
from kvproof.spec.logic import both, either, implies, negate
from kvproof.spec.ownership import R, S, W, decodes

QUEUES = ("waiting", "running", "swapped", "prefilling", "sampling", "idle")
KEEP = ("owed", "owing")
LEAVE = (*BLOCKS, *KEEP, "status", "length", "seqs", "decoders", "due", "expiry", *QUEUES, "plan")
EVICT = (*LEAVE, "computed", "key", "ticket", "twin")
PREEMPT = (*EVICT, "preemptions", "spent", "granted")
COMPUTE = ("computed", "spent", "decoders", "plan", "prefilling", "born", "alarm", "due", "expires", "expiry", "sampling")
SERVE = (*dict.fromkeys((*PREEMPT, *COMPUTE, "stopped", "ungiven", "charged")),)


PLAN_BUT_PIECES = (
    *("victims", "left", "ends", "outs", "ins", "copies"),
    *("victim", "ended_", "grown", "back", "out_of", "in_of", "copy_of", "copied_from"),
)


def laws(d: Any) -> list[Any]:
    """Laws of finite sets (`lemmas.py`), given the invariants: running groups, those in mid-prefill, their sequences."""
    w = fresh("decoding")
    m = d.members
    decoding = d.running.n - d.prefilling.n
    return [
        decoding >= 0,
        either(decoding == 0, decodes(d, w)),
        forall(1, lambda g: implies(decodes(d, g), decoding >= 1), lambda g: [[d.running.has_[g]], [d.status[g]]]),
        d.running.live - d.prefilling.live >= decoding,
        d.running.live <= d.running.weight,
        d.prefilling.live >= d.prefilling.n,
        d.sampling.live <= d.running.live - d.prefilling.live,
        d.sampling.live >= d.sampling.n,
        either(d.running.n != 0, both(d.running.weight == 0, d.running.live == 0)),
        forall(1, lambda g: implies(d.running.has_[g], d.seats[g] <= d.running.weight), lambda g: [[d.running.has_[g]]]),
        forall(
            1,
            lambda g: implies(decodes(d, g), m.n[g] <= d.running.live - d.prefilling.live),
            lambda g: [[d.running.has_[g]], [d.status[g]]],
        ),
        # all used GPU blocks are those of one group, or one is not
        *_alone(d),
    ]


def _alone(d: Any) -> list[Any]:
    b = fresh("foreign")
    g = run().notes.get("served")
    run().notes["foreign"] = b
    if g is None:
        return [
            either(
                d.refs.used_gpu == 0,
                both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1, fresh("o") == d.table.owner_g[b, 0]),
            )
        ]
    return [
        either(
            d.refs.used_gpu <= d.table.held[g],
            both(
                b >= 0,
                b < d.config.num_gpu_blocks,
                d.refs.of[b] >= 1,
                d.table.group_of[b] != g,
                fresh("o") == d.table.owner_g[b, 0],
            ),
        ),
    ]


def others_same(d: Any, e: Any, g: Any, maps: tuple[str, ...]) -> Clauses:
    """These maps have changed at g only."""
    return [kept(f"helper: others keep {n}", getattr(d, n), getattr(e, n), g) for n in maps]


def others_in_prefill(d: Any, e: Any, g: Any) -> Clauses:
    """Nobody else has entered or left its prefill."""
    return [
        (
            "helper: others' prefills",
            forall(1, lambda h: either(h == g, d.prefilling.has_[h] == e.prefilling.has_[h]), lambda h: [[d.prefilling.has_[h]]]),
        )
    ]


def plan_keeps(d: Any, e: Any, names: tuple[str, ...]) -> Clauses:
    """These parts of the plan have not changed."""
    pairs = [(f"helper: plan keeps {n}", n in PLAN_NUMBERS, getattr(d.plan, n), getattr(e.plan, n)) for n in names]
    return [(label, a == b) if number else kept(label, a, b) for label, number, a, b in pairs]


def bucket_shrinks(d: Any, e: Any) -> Clauses:
    """Nobody new is due now or expires now."""
    return [
        (
            "helper: buckets of now only shrink",
            both(
                forall(
                    1, lambda h: implies(d.due.has_[d.clock, h], e.due.has_[e.clock, h]), lambda h: [[d.due.has_[d.clock, h]]]
                ),
                forall(
                    1,
                    lambda h: implies(d.expiry.has_[d.clock, h], e.expiry.has_[e.clock, h]),
                    lambda h: [[d.expiry.has_[d.clock, h]]],
                ),
            ),
        ),
    ]


# --- what holds all through a pass -----------------------------------------------------------------
RUN_MOVES = ((R, W), (R, S), (R, Status.FINISHED_CAPACITY))


def in_pass(d: Any) -> Clauses:
    """What holds all through a pass, whatever it has decided so far."""
    p, c = d.plan, d.config
    return [
        *effects.everything(d, in_pass=True),
        ("helper: no step is issued", negate(d.issued)),
        *effects.victims(d),
        effects.prefills_exclusive(d),
        (
            "victim_not_in_plan: counted",
            both(
                either(p.victims >= 1, p.left == 0),
                either(p.left >= 1, p.outs == 0),
                forall(
                    1,
                    lambda t: implies(p.victim[t], both(p.victims >= 1, either(d.status[t] == W, p.left >= 1))),
                    lambda t: [[p.victim[t]]],
                ),
            ),
        ),
        ("no_swap_both_ways: nothing comes in after a preemption", either(c.vllm_v0, p.victims == 0, p.ins == 0)),
        (
            "victim_not_in_plan: who is in the plan runs",
            forall(
                1,
                lambda t: both(
                    implies(either(p.grown[t], p.back[t], p.piece[t] != 0), d.status[t] == R),
                    p.piece[t] >= 0,
                    implies(d.idle.has_[t], c.vllm_v0),
                ),
                lambda t: [[p.grown[t]], [p.back[t]], [p.piece[t]], [d.idle.has_[t]]],
            ),
        ),
        ("budget_exact: never above the limit", both(d.spent >= 0, d.spent <= c.max_num_batched_tokens)),
    ]


def in_running_phase(d: Any) -> Clauses:
    """What holds all through the running phase: nobody has come in; nobody but V0 has computed a part of a prompt."""
    p, c = d.plan, d.config
    pieces = both(c.vllm_v0, c.enable_chunked_prefill)
    return [
        *in_pass(d),
        whole_prompts(d),
        effects.decode_budget(d),
        ("no_swap_both_ways: nothing comes in", both(p.ins == 0, either(pieces, both(p.pieces == 0, p.total == 0)))),
        (
            "victim_not_in_plan: nobody resumed or prefilled",
            forall(
                1,
                lambda t: both(negate(p.back[t]), either(pieces, both(p.piece[t] == 0, negate(d.sampling.has_[t])))),
                lambda t: [[p.back[t]], [p.piece[t]], [d.sampling.has_[t]]],
            ),
        ),
    ]


def who_goes_is_named(d: Any, e: Any) -> tuple[str, Any]:
    """Who ran and waits or is swapped is a victim, and victims stay victims."""
    p, o = d.plan, e.plan

    def clause(t: Any) -> Any:
        gone = both(e.status[t] == R, either(d.status[t] == W, d.status[t] == S))
        return both(implies(gone, p.victim[t]), implies(o.victim[t], p.victim[t]))

    return (
        "victim_not_in_plan: who goes is named",
        forall(1, clause, lambda t: [[p.victim[t]], [o.victim[t]], [d.status[t]], [e.status[t]]]),
    )


def no_new_tables(d: Any, e: Any) -> tuple[str, Any]:
    """Who owned nothing owns nothing."""
    return (
        "helper: no new tables",
        forall(2, lambda g, q: implies(e.table.size_[g, q] == 0, d.table.size_[g, q] == 0), lambda g, q: [[d.table.size_[g, q]]]),
    )
