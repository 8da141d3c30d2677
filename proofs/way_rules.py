"""Before a step: contracts and rules of what events preempt by force, and of who makes way for a request of higher priority."""

from typing import Any

from kvproof.proofs.block_rules import CONTRACTS
from kvproof.proofs.contracts import Clauses, Contract
from kvproof.proofs.pass_frames import EVICT, RUN_MOVES, laws, no_new_tables, who_goes_is_named
from kvproof.proofs.prefill_phase import before_running
from kvproof.proofs.prefill_rules import leads
from kvproof.proofs.rules import RULES, Rule
from kvproof.proofs.sym import forall, run
from kvproof.spec import displacing, effects
from kvproof.spec.logic import both, either, iff, implies, negate
from kvproof.spec.ownership import R, S, W, unfinished
from kvproof.spec.promises import counted, may_go, protected_stay


def nothing_changed(d: Any, e: Any) -> Any:
    """Nobody has moved, and nobody was named."""
    return both(
        d.plan.victims == e.plan.victims,
        d.plan.ends == e.plan.ends,
        d.waiting.n == e.waiting.n,
        d.swapped.n == e.swapped.n,
        d.running.n == e.running.n,
        forall(
            1,
            lambda t: both(d.status[t] == e.status[t], either(d.config.vllm_v0, d.key[t] == e.key[t])),
            lambda t: [[d.status[t]], [d.key[t]]],
        ),
    )


def evicted_since(d: Any, e: Any) -> Clauses:
    """Between e and d running groups were evicted, and nothing else has happened."""
    p, o = d.plan, e.plan
    return [
        effects.moves(d, e, *RUN_MOVES),
        effects.tokens_kept(d, e),
        ("swap_preserves_view: contents", effects.contents_kept(d, e)),
        no_new_tables(d, e),
        who_goes_is_named(d, e),
        (
            "helper: only more preempted or ended",
            both(
                p.victims >= o.victims,
                p.ends >= o.ends,
                d.running.n <= e.running.n,
                d.waiting.n >= e.waiting.n,
                d.swapped.n >= e.swapped.n,
            ),
        ),
        (
            "helper: who ran runs or is gone",
            either(d.running.n == e.running.n, p.victims > o.victims, p.ends > o.ends),
        ),
        (
            "head_advances: who runs on keeps what it has computed",
            forall(
                1,
                lambda t: implies(
                    both(d.status[t] == R, e.status[t] == R),
                    both(d.computed[t] == e.computed[t], d.prefilling.has_[t] == e.prefilling.has_[t]),
                ),
                lambda t: [[d.status[t]]],
            ),
        ),
        ("helper: nobody runs, nobody is evicted", either(e.running.n >= 1, nothing_changed(d, e))),
        (
            "helper: kvproof keeps keys",
            either(
                d.config.vllm_v0, forall(1, lambda t: implies(unfinished(d, t), d.key[t] == e.key[t]), lambda t: [[d.key[t]]])
            ),
        ),
        (
            "victim_not_in_plan: victims ran",
            forall(
                1,
                lambda v: both(
                    implies(o.victim[v], p.victim[v]), implies(both(p.victim[v], negate(o.victim[v])), e.status[v] == R)
                ),
                lambda v: [[p.victim[v]], [o.victim[v]]],
            ),
        ),
    ]


RULES["force"] = Rule(EVICT, lambda d, e, done: [*before_running(d), *evicted_since(d, e)])


def _displaced(d: Any, e: Any, g: Any) -> Clauses:
    p, o = d.plan, e.plan
    return [
        *before_running(d),
        *evicted_since(d, e),
        counted(d, e),
        protected_stay(d, e),
        (
            "victim_is_last: who is displaced ranks below the head",
            forall(
                1, lambda v: implies(both(p.victim[v], negate(o.victim[v])), e.rank(g) <= e.rank(v)), lambda v: [[p.victim[v]]]
            ),
        ),
        (
            "victim_is_last: none below keeps running",
            forall(
                2,
                lambda v, t: implies(
                    both(p.victim[v], negate(o.victim[v]), d.status[t] == R, may_go(e, t)),
                    either(d.config.vllm_v0, e.key[t] < e.key[v]),
                ),
                lambda v, t: [[p.victim[v], d.status[t]]],
            ),
        ),
        ("helper: the head stays where it is", both(d.status[g] == e.status[g], iff(d.plan.victim[g], e.plan.victim[g]))),
    ]


def asked_for(g: Any, blocks: Any) -> Clauses:
    """Nothing, but it is noted for whom others make way, and how many blocks that one is said to need."""
    run().notes["way"] = g, blocks
    return []


DISPLACE = (*EVICT, "preemptions")
RULES["displace"] = Rule(
    DISPLACE,
    lambda d, e, g, blocks: [
        *asked_for(g, blocks),
        *_displaced(d, e, g),
        ("helper: the head does not run", either(e.status[g] == W, e.status[g] == S)),
        ("one_queue: V0's queues in policy order", either(negate(d.config.vllm_v0), displacing.in_policy_order(d, "running"))),
        (
            "victim_is_last: nobody goes for a head that has room",
            either(
                displacing.lacks(e, g, blocks),
                both(
                    d.gpu.n - d.owing == e.gpu.n - e.owing,
                    d.seqs == e.seqs,
                    d.charged == e.charged,
                    d.running.n == e.running.n,
                    forall(1, lambda t: d.status[t] == e.status[t], lambda t: [[d.status[t]]]),
                ),
            ),
        ),
    ],
    lambda d, g, blocks: (d.running.n, 0),
    laws,
)


def _displace_post(d: Any, e: Any) -> Clauses:
    h, p, o = run().notes["ahead"], d.plan, e.plan
    ahead = leads(e, h)
    return [
        *before_running(d),
        *evicted_since(d, e),
        counted(d, e),
        protected_stay(d, e),
        (
            "no_deadlock: who is displaced ranks below the head of the line",
            either(
                d.config.vllm_v0,
                implies(
                    ahead,
                    both(
                        d.status[h] == e.status[h],
                        iff(p.victim[h], o.victim[h]),
                        either(both(p.victims == o.victims, p.ends == o.ends), negate(p.victim[h])),
                        forall(
                            1,
                            lambda v: implies(both(p.victim[v], negate(o.victim[v])), e.key[h] < e.key[v]),
                            lambda v: [[p.victim[v]]],
                        ),
                    ),
                ),
            ),
        ),
        (
            "victim_is_last: none below keeps running",
            forall(
                2,
                lambda v, t: implies(
                    both(p.victim[v], negate(o.victim[v]), d.status[t] == R, may_go(e, t)),
                    either(d.config.vllm_v0, e.key[t] < e.key[v]),
                ),
                lambda v, t: [[p.victim[v], d.status[t]]],
            ),
        ),
    ]


for _name in ("displace", "displace_v0"):
    CONTRACTS[_name] = Contract(
        "displacing",
        _name,
        (*DISPLACE, "delay"),
        lambda d, v0=_name == "displace_v0": [*before_running(d), ("helper: in its profile", d.config.vllm_v0 == v0)],
        _displace_post,
        lambda d: (),
        uses=("evict",),
    )
