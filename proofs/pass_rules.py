"""Contracts of the functions that end, preempt and serve one group, and the rules of the loops of the running phase."""

from typing import Any

from kvproof.core.status import Status
from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.frames import kept
from kvproof.proofs.group_rules import COMPUTE_CONTRACT, END, EVICT_CONTRACT
from kvproof.proofs.pass_frames import (
    PREEMPT,
    RUN_MOVES,
    SERVE,
    bucket_shrinks,
    in_running_phase,
    laws,
    no_new_tables,
    who_goes_is_named,
)
from kvproof.proofs.promise_rules import ceiling_laws
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, fresh, run
from kvproof.spec import effects, progress, serving
from kvproof.spec.logic import both, choose, either, iff, implies, negate
from kvproof.spec.ownership import R, W, decodes, unfinished
from kvproof.spec.promises import counted, free, may_go, nobody_protected_but


# --- serve -----------------------------------------------------------------------------------------
def since(d: Any, e: Any) -> Clauses:
    """What the running phase has done between e and d, whoever was served."""
    p, o = d.plan, e.plan
    head = run().notes["head"]
    first = both(
        e.status[head] == R, forall(1, lambda t: implies(e.status[t] == R, e.key[head] <= e.key[t]), lambda t: [[e.status[t]]])
    )
    return [
        effects.moves(d, e, *RUN_MOVES),
        effects.tokens_kept(d, e),
        (
            "helper: who runs keeps its key and phase",
            forall(
                1,
                lambda t: implies(d.status[t] == R, both(d.key[t] == e.key[t], phase(d, e, t))),
                lambda t: [[d.status[t]]],
            ),
        ),
        (
            "victim_is_last: none below keeps running",
            forall(
                2,
                lambda v, t: implies(
                    both(p.victim[v], negate(o.victim[v]), d.status[t] == R, may_go(e, t)),
                    either(d.config.choose_victims, e.key[t] < e.key[v]),
                ),
                lambda v, t: [[p.victim[v], d.status[t]]],
            ),
        ),
        (
            "victim_is_last: victims ran",
            forall(1, lambda v: implies(both(p.victim[v], negate(o.victim[v])), e.status[v] == R), lambda v: [[p.victim[v]]]),
        ),
        (
            "helper: only more preempted or ended",
            both(p.victims >= o.victims, p.ends >= o.ends, d.swapped.n >= e.swapped.n, p.total >= o.total),
        ),
        progress.kept(d, e),
        ("helper: nobody enters its prefill", d.prefilling.n <= e.prefilling.n),
        (
            "no_deadlock: the head keeps running or ends",
            implies(
                both(negate(d.config.vllm_v0), negate(d.testing), first, nobody_protected_but(e, head)),
                both(
                    negate(both(p.victim[head], negate(o.victim[head]))),
                    either(d.status[head] == R, both(p.ends > o.ends, negate(unfinished(d, head)))),
                ),
            ),
        ),
        counted(d, e),
        (
            "bounded_preemptions: who was preempted as often as it may be runs on",
            forall(
                1,
                lambda t: implies(
                    both(e.status[t] == R, negate(may_go(e, t))),
                    either(d.status[t] == R, both(p.ends > o.ends, negate(unfinished(d, t)))),
                ),
                lambda t: [[d.status[t]], [e.status[t]]],
            ),
        ),
        ("helper: nobody runs, nobody is preempted", either(e.running.n >= 1, both(p.victims == o.victims, p.ends == o.ends))),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        who_goes_is_named(d, e),
        *bucket_shrinks(d, e),
        (
            "helper: nobody runs, nothing changes",
            implies(
                e.running.n == 0,
                both(
                    d.waiting.n == e.waiting.n,
                    d.swapped.n == e.swapped.n,
                    d.running.n == 0,
                    forall(
                        1, lambda t: both(d.status[t] == e.status[t], d.key[t] == e.key[t]), lambda t: [[d.status[t]], [d.key[t]]]
                    ),
                ),
            ),
        ),
    ]


def phase(d: Any, e: Any, t: Any) -> Any:
    """t is in its prefill if it was; V0 computes parts of prompts in the running phase."""
    ended = both(d.config.vllm_v0, d.config.enable_chunked_prefill, e.prefilling.has_[t])
    return either(d.prefilling.has_[t] == e.prefilling.has_[t], ended)


def _same_g(d: Any, e: Any, g: Any) -> Any:
    return both(
        d.prefilling.has_[g] == e.prefilling.has_[g],
        d.computed[g] == e.computed[g],
        d.length[g] == e.length[g],
        d.plan.piece[g] == e.plan.piece[g],
        d.sampling.has_[g] == e.sampling.has_[g],
        d.idle.has_[g] == e.idle.has_[g],
    )


def others_planned(d: Any, e: Any, g: Any) -> Any:
    """Nobody else has got slots or a piece, or become idle."""
    p, o = d.plan, e.plan
    return forall(
        1,
        lambda h: either(
            h == g,
            both(
                implies(p.grown[h], o.grown[h]),
                p.piece[h] == o.piece[h],
                implies(d.idle.has_[h], e.idle.has_[h]),
                implies(d.sampling.has_[h], e.sampling.has_[h]),
            ),
        ),
        lambda h: [[p.grown[h]], [p.piece[h]], [d.idle.has_[h]], [d.sampling.has_[h]]],
    )


def _make_room_inv(d: Any, e: Any, g: Any, blocks: Any) -> Clauses:
    run().notes["served"] = g
    t, s = d.table, e.table
    return [
        *in_running_phase(d),
        *since(d, e),
        ("helper: g still runs", both(d.status[g] == R, _same_g(d, e, g), negate(d.plan.grown[g]))),
        (
            "total: granted if there is room",
            both(implies(d.granted, blocks <= free(d, g)), either(d.testing, d.granted, blocks > free(d, g))),
        ),
        (
            "total: granted when somebody has left",
            implies(d.granted, either(d.plan.victims > e.plan.victims, d.plan.ends > e.plan.ends)),
        ),
        (
            "victim_is_last: nobody is preempted for one of lower rank",
            forall(
                1,
                lambda v: implies(both(d.plan.victim[v], negate(e.plan.victim[v])), e.key[g] < e.key[v]),
                lambda v: [[d.plan.victim[v]]],
            ),
        ),
        ("victim_not_in_plan: nobody enters the plan", others_planned(d, e, g)),
        ("budget_exact: V0 charges as it goes", either(negate(d.config.vllm_v0), d.spent == e.spent)),
        ("helper: the tables of g stay", forall(1, lambda q: t.size_[g, q] == s.size_[g, q], lambda q: [[t.size_[g, q]]])),
        (
            "helper: the entries of g stay",
            forall(2, lambda q, i: implies(s.live(g, q, i), t.at[g, q, i] == s.at[g, q, i]), lambda q, i: [[t.at[g, q, i]]]),
        ),
        ("helper: g holds as much", t.held[g] == s.held[g]),
        ("bounded_preemptions: g may go", may_go(d, g)),
    ]


def _make_room_cuts(d: Any, e: Any, g: Any, blocks: Any) -> Clauses:
    head = run().notes["head"]
    alone = forall(1, lambda t: implies(d.status[t] == R, t == g), lambda t: [[d.status[t]]])
    first = both(head == g, forall(1, lambda t: implies(e.status[t] == R, e.key[head] <= e.key[t]), lambda t: [[e.status[t]]]))
    first = both(first, nobody_protected_but(e, g))
    fits = d.table.held[g] + blocks <= d.config.num_gpu_blocks
    b, t = run().notes["foreign"], d.table
    foreign = both(b >= 0, b < d.config.num_gpu_blocks, d.refs.of[b] >= 1, t.group_of[b] != g)
    h, q, i = t.owner_g[b, 0], t.owner_q[b, 0], t.owner_i[b, 0]
    return [
        (
            "no_deadlock: a used block has an owner",
            implies(foreign, both(t.live(h, q, i), t.at[h, q, i] == b, h == t.group_of[b])),
        ),
        ("no_deadlock: the owner of a GPU block runs", implies(foreign, d.status[h] == R)),
        ("no_deadlock: first and last is alone", implies(both(first, negate(d.granted)), alone)),
        ("no_deadlock: alone, it holds all that is used", implies(alone, d.refs.used_gpu <= d.table.held[g])),
        ("no_deadlock: alone, nothing is kept for others", implies(alone, d.owing == 0)),
        ("no_deadlock: alone, it finds room", implies(both(first, fits, negate(d.testing)), d.granted)),
    ]


RULES["make_room"] = Rule(PREEMPT, _make_room_inv, lambda d, g, blocks: (d.running.n, 0), laws, _make_room_cuts)


def stops_late(d: Any) -> tuple[str, Any]:
    """V0 stops only when it has spent some of the budget."""
    return ("budget_exact: V0 stops late", implies(both(d.config.vllm_v0, d.stopped), d.spent >= 1))


def serve_pre(d: Any, g: Any) -> Clauses:
    """When a group is served: in the running phase, it decodes, and who has slots already ranks before it."""
    return [
        *in_running_phase(d),
        ("helper: g decodes", either(decodes(d, g), both(d.config.vllm_v0, d.status[g] == R))),
        stops_late(d),
        ("budget_exact: g is charged already", either(d.config.vllm_v0, d.members.n[g] <= d.spent)),
        (
            "victim_not_in_plan: g has no new slots",
            both(negate(d.plan.grown[g]), d.plan.piece[g] == 0, negate(d.sampling.has_[g]), negate(d.idle.has_[g])),
        ),
        (
            "victim_not_in_plan: who has slots ranks before g",
            forall(
                1,
                lambda t: implies(
                    either(d.plan.grown[t], d.plan.piece[t] != 0, d.sampling.has_[t], d.idle.has_[t]), d.key[t] < d.key[g]
                ),
                lambda t: [[d.plan.grown[t]], [d.plan.piece[t]], [d.sampling.has_[t]], [d.idle.has_[t]], [d.key[t]]],
            ),
        ),
    ]


def _serve_post(d: Any, e: Any, g: Any) -> Clauses:
    return [
        *in_running_phase(d),
        *since(d, e),
        ("table_length: g has its slots", implies(decodes(d, g), d.alarm[g] > d.clock)),
        ("helper: others' alarms", forall(1, lambda h: either(h == g, d.alarm[h] == e.alarm[h]), lambda h: [[d.alarm[h]]])),
        stops_late(d),
        ("victim_not_in_plan: only g enters the plan", others_planned(d, e, g)),
        ("budget_exact: V0 counts the sequences of the pass", d.charged == e.charged + serving.counted(d, e, g)),
        kept("helper: others keep what was given", d.ungiven, e.ungiven, g),
    ]


def _find_post(d: Any, e: Any, g: Any, blocks: Any, found: Any) -> Clauses:
    t, s = d.table, e.table
    exceeds = s.held[g] + blocks > d.config.num_gpu_blocks
    return [
        *in_running_phase(d),
        *since(d, e),
        (
            "total: if it found them g goes on, else it has left",
            choose(
                found, both(d.status[g] == R, _same_g(d, e, g), negate(d.plan.grown[g]), free(d, g) >= blocks), d.status[g] != R
            ),
        ),
        ("budget_exact: V0 charges as it goes", either(negate(d.config.vllm_v0), d.spent == e.spent)),
        ("total: somebody has left", either(d.plan.victims > e.plan.victims, d.plan.ends > e.plan.ends)),
        (
            "victim_not_in_plan: nobody enters the plan",
            both(others_planned(d, e, g), implies(d.status[g] != R, d.plan.piece[g] == 0)),
        ),
        (
            "helper: the tables of g stay",
            forall(1, lambda q: implies(d.status[g] == R, t.size_[g, q] == s.size_[g, q]), lambda q: [[t.size_[g, q]]]),
        ),
        (
            "helper: the entries of g stay",
            forall(
                2,
                lambda q, i: implies(both(d.status[g] == R, s.live(g, q, i)), t.at[g, q, i] == s.at[g, q, i]),
                lambda q, i: [[t.at[g, q, i]]],
            ),
        ),
        (
            "infeasible_refused: it ends exactly if it exceeds the pool",
            iff(d.status[g] == Status.FINISHED_CAPACITY, both(negate(d.config.vllm_v0), exceeds)),
        ),
        (
            "victim_is_last: it is recomputed only if blocks lack without it",
            implies(both(d.status[g] == W, negate(d.testing)), d.gpu.n - d.owing - s.held[g] < blocks),
        ),
        (
            "infeasible_refused: nobody is evicted for it",
            implies(both(negate(d.config.vllm_v0), exceeds), d.plan.victims == e.plan.victims),
        ),
    ]


def _find_pre(d: Any, g: Any, blocks: Any) -> Clauses:
    ceiling_laws(d, g)
    return [
        *serve_pre(d, g),
        ("total: they are missing", either(both(d.testing, may_go(d, g)), blocks > free(d, g))),
        (
            "bounded_preemptions: who may not be preempted is promised them",
            either(may_go(d, g), d.table.held[g] + blocks <= d.ceiling(g)),
        ),
    ]


FIND_CONTRACT = Contract(
    "running",
    "find_blocks",
    PREEMPT,
    _find_pre,
    _find_post,
    lambda d: (fresh("g"), fresh("blocks")),
    uses=("evict", "end"),
    answers=True,
)
SERVE_CONTRACT, SERVE_V0_CONTRACT = (
    Contract(
        "running",
        name,
        SERVE,
        lambda d, g, v0=v0: [*serve_pre(d, g), ("helper: in its profile", d.config.vllm_v0 == v0)],
        _serve_post,
        lambda d: (fresh("g"),),
        uses=("append_slots", "find_blocks", "compute", "look_ahead"),
        laws=(lambda d: [*laws(d), d.span_rises()]) if v0 else laws,
    )
    for name, v0 in (("serve", False), ("serve_v0", True))
)
for _c in (END, COMPUTE_CONTRACT, EVICT_CONTRACT, FIND_CONTRACT, SERVE_CONTRACT, SERVE_V0_CONTRACT):
    CONTRACTS[_c.function] = _c
