"""The specification on concrete states: names of the clauses that fail. For the simulator, replay, tests and fuzzing."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from kvproof.spec import progress
from kvproof.spec.decisions import exceeds
from kvproof.spec.effects import plan_reports_tables
from kvproof.spec.invariants import invariants
from kvproof.spec.ownership import Clause, group_together
from kvproof.spec.passes import of_commit, of_pass
from kvproof.spec.readings import Default, Has
from kvproof.spec.told import Told
from kvproof.spec.view import View
from kvproof.store.plan import Plan
from kvproof.store.state import QUEUES, State
from kvproof.store.versions import GROUP_MAPS


def failed(clauses: Iterable[Clause]) -> list[str]:
    """The names of those that do not hold, in order."""
    return [name for name, true in clauses if not true]


def in_order(xs: Any) -> bool:
    """Is each larger than the one before?"""
    return all(a < b for a, b in pairwise(xs))


def representation(state: State) -> Iterator[Clause]:
    """What the collections of the store promise and the symbolic ones take for granted: how sets, rows and counts are kept."""
    key, known = state.key.to_dict(), state.status.to_dict()
    queues = [getattr(state, name) for name in QUEUES]
    sorted_queues = all(
        in_order(keys) and list(keys) == [key.get(g, k) for k, g in zip(keys, ids, strict=True)] for keys, ids in queues
    )
    yield "representation: queues are in order of their keys", sorted_queues
    gpu, cpu = state.free_blocks()
    counted = (len(gpu), len(cpu)) == (state.gpu_free, state.cpu_free)
    yield "representation: free lists are as long as counted", counted and len(gpu) + len(cpu) == len(state.free)
    rows = state.table.to_dict().values()
    yield "representation: a stored table is not empty", all(1 <= n <= len(blocks) for blocks, n in rows)
    members = state.members.to_dict().values()
    lives = all(live and in_order(live) and live[0] >= 0 and live[-1] < bound for live, bound, _ in members)
    yield "representation: members ascend below their bound", lives
    kin = all(sorted(q for q, _ in kin) == sorted(live) for live, _, kin in members)
    yield "representation: who lives has its place among its kin", kin
    yield "representation: only counts above 1 are stored", all(n >= 2 for n in state.refs.to_dict().values())
    buckets = (bucket for calendar in (state.due, state.expiry) for bucket in calendar.to_dict().values())
    yield "representation: no bucket is empty", all(buckets)
    maps = [getattr(state, name).to_dict() for name in (*GROUP_MAPS, "members")]
    yield "representation: nothing is known of a forgotten group", all(m.keys() <= known.keys() for m in maps)


def state_clauses(d: View) -> list[Clause]:
    """Everything that is said of one state."""
    return [*invariants(d), ("group_together: on one device", group_together(d)), *representation(d.state)]


def violations(state: State) -> list[str]:
    """The clauses that fail on a state between two calls."""
    return failed(state_clauses(View(state)))


def explain(state: State) -> list[str]:
    """Of each violated clause with a quantifier: which body is false, and of what."""
    d = View(state)
    state_clauses(d)
    return [f"{body} of {x}" for body, x in d.failures]


def engine_violations(state: State, told: Told) -> list[str]:
    """Does the engine know the tables? `told`: all plans and notices so far."""
    d = View(state, told=told)
    return failed([("plan_reports_tables: announced = owned", plan_reports_tables(d))])


def lists(plan: Plan) -> Iterator[Clause]:
    """What a list of pairs can break and a map from targets to sources cannot."""
    for name, theorem in (
        ("swap_out", "swap_map_bijective"),
        ("swap_in", "swap_map_bijective"),
        ("copy", "copy_target_exclusive"),
    ):
        targets = [target for _, target in getattr(plan, name)]
        yield f"{theorem}: the targets of {name} differ", len(set(targets)) == len(targets)
    named = [g for groups in (plan.preempted, plan.ended) for g, _ in groups]
    yield "victim_not_in_plan: nobody goes twice", len(set(named)) == len(named)
    yield "budget_exact: nobody is prefilled twice", len({g for g, _, _ in plan.prefills}) == len(plan.prefills)


def head(d: View, e: View) -> Iterator[Clause]:
    """kvproof, infeasible_refused the other way: the head of waiting was looked at, so it is one that can be served.

    It was looked at if the pass could prefill, nobody swapped ranked ahead, and nobody was preempted into the queue since.
    """
    could_prefill = not (e.prefilled and e.running.n != e.prefilling.n)
    if d.config.delay_factor or d.config.vllm_v0 or d.plan.victims or not could_prefill or not d.waiting.n:
        return
    g = d.waiting.ids[0]
    if all(d.key[g] < e.key[h] for h in e.swapped.ids):
        fits = not exceeds(d, g, d.config.num_gpu_blocks) and d.prompt[g] <= d.config.max_model_len
        yield "infeasible_refused: who cannot be served does not wait", fits


def first(d: View, e: View) -> Iterator[Clause]:
    """kvproof: of who ran and is first in rank, and of who is first in line."""
    if d.config.vllm_v0:
        return
    line = min((*e.waiting.ids[:1], *e.swapped.ids[:1]), key=lambda g: e.key[g], default=-1)
    yield from progress.of_pass(d, e, e.running.ids[0] if e.running.ids else -1, line)


def pass_violations(before: State, after: State, plan: Plan, spent: int | None = None, forced: int = 0) -> list[str]:
    """The clauses that fail of the pass that led from `before` to `after` and made `plan`.

    `spent`: the token budget that the draft of the pass had used in the end. A state does not keep it; None: as the plan says.
    `forced`: how many events preempted by force. Some clauses say nothing of such a pass, nor of one that tests an engine.
    """
    e = View(before)
    d = View(after, plan, before=e)
    if spent is not None:
        d.spent = spent
    calm = not forced and not e.testing
    return failed([*of_pass(d, e, calm), *lists(plan), *((*head(d, e), *first(d, e)) if calm else ())])


def commit_violations(
    before: State, after: State, got: Iterable[int] | None, accepted: Iterable[tuple[int, int]] = ()
) -> list[str]:
    """The clauses that fail of a commit with results for the groups in `got` (None: all), and (group, tokens) of lookahead."""
    e = View(before)
    d = View(after, before=e)
    more = Default({g: tokens - 1 for g, tokens in accepted}, 0)
    return failed(of_commit(d, e, Has(before.running[1] if got is None else got), more))
