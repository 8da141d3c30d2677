"""When each transition is enabled and what it does, on concrete views: the clauses that `transitions.py` proves, for the refuter.

`e` is the view before, `d` the view after, `x` the arguments and `r` what the transition returned.
"""

from collections.abc import Callable
from typing import Any

from kvproof.core import schedule
from kvproof.core.status import Status
from kvproof.proofs import walks
from kvproof.proofs.walks import STEP
from kvproof.spec import decisions, displacing, effects, phases, serving
from kvproof.spec.check import first, head, lists, representation
from kvproof.spec.ownership import Clause, R, W, decodes, group_together, tokens_of, unfinished
from kvproof.spec.passes import of_commit, of_pass
from kvproof.spec.promises import may_go
from kvproof.spec.readings import Default, Has
from kvproof.spec.view import View
from kvproof.store.draft import Draft
from kvproof.store.queues import Results
from kvproof.store.state import State
from kvproof.store.versions import NAMES

ENABLED: dict[str, Callable[..., bool]] = {
    "add": lambda e, prompt, limit, seats, reserve, priority: (
        prompt >= 1 and limit > prompt and 1 <= reserve <= seats <= e.config.max_num_seqs and e.ticket < e.ranks
    ),
    "abort": lambda e, g: bool(unfinished(e, g)),
    "fork": lambda e, g, parent, own: bool(
        not e.issued
        and own in (0, 1)
        and decodes(e, g)
        and e.members.has_[g, parent]
        and (e.members.n[g] != e.seats[g] or (e.seqs < e.config.max_num_seqs and may_go(e, g)))
    ),
    "finish_sequence": lambda e, g, q: (
        e.status[g] == R and e.members.has_[g, q] and (e.members.n[g] == 1 or not e.prefilling.has_[g])
    ),
    "forget": lambda e, g: e.status[g] >= Status.FINISHED_STOPPED,
    "schedule": lambda e, forced=(): not e.issued,
    "commit": lambda e, got, ended, more: e.issued,
    "deny_append": lambda e, g, count: bool(unfinished(e, g)) and count >= 1,
    "rerank": lambda e, g, priority: bool(unfinished(e, g)),
    "forward": lambda e, passes: not e.issued and passes >= 1,
    **dict.fromkeys(STEP, lambda e, *x: True),
}


def _nobody_else(d: Any, e: Any, g: int) -> Clause:
    same = d.forall("group", lambda h: h == g or d.status[h] == e.status[h])
    return ("status_graph: nobody else moves", same)


def _add(d: Any, e: Any, x: Any, g: int) -> list[Clause]:
    right = (Status.ABSENT, W, x[0], x[0], x[1], x[2], x[3], x[4], e.ticket, e.ticket + 1)
    before = d.forall(
        "group",
        lambda t: t == g or not unfinished(d, t) or not (d.config.vllm_v0 or d.priority[t] <= x[4]) or d.key[t] < d.key[g],
    )
    return [
        (
            "status_graph: it waits, with its prompt",
            (e.status[g], d.status[g], d.length[g], d.prompt[g], d.limit[g], d.seats[g], d.reserve[g], d.priority[g], g, d.ticket)
            == right,
        ),
        effects.moves(d, e, (Status.ABSENT, W)),
        _nobody_else(d, e, g),
        ("one_queue: at its place in line", before),
    ]


def _abort(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    return [
        ("ownership_by_status: aborted", d.status[x[0]] == Status.FINISHED_ABORTED),
        _nobody_else(d, e, x[0]),
        ("recompute_keeps_output: its tokens stay", d.length[x[0]] == tokens_of(e, x[0])),
    ]


def _row(d: Any, g: int, q: int) -> list[int]:
    return [d.table.at[g, q, i] for i in range(d.table.size_[g, q])]


def _fork(d: Any, e: Any, x: Any, child: int) -> list[Clause]:
    g, parent, own = x
    born = d.members.has_[g, child] and not e.members.has_[g, child] and d.members.n[g] == e.members.n[g] + 1
    return [
        (
            "fork_shares: both read the same",
            _row(d, g, child) == _row(d, g, parent) == _row(e, g, parent)[: d.table.size_[g, parent]],
        ),
        ("fork_shares: it costs no block", d.gpu.n >= e.gpu.n and d.cpu.n == e.cpu.n),
        ("fork_shares: it is a new live sequence", born),
        (
            "fork_shares: it has its parent's tokens, but for its own",
            d.members.origin[g, child] == parent and d.members.common[g, child] == tokens_of(e, g) - own,
        ),
        (
            "budget_exact: it takes a seat of its group, or one more",
            d.seats[g] == e.seats[g] + (e.members.n[g] == e.seats[g]),
        ),
        ("fork_shares: both end with the tokens so far", _trimmed(d, e, g, child)),
        _nobody_else(d, e, -1),
    ]


def _trimmed(d: Any, e: Any, g: int, child: int) -> bool:
    """The only sequence of a group gives back the blocks that it has not written, before it is forked."""
    if e.members.n[g] > 1:
        return True
    size = d.table.size_[g, child]
    return bool(size == 1 or d.span(size) < d.clock - d.born[g] - 1 + d.config.block_size)


def _finish_sequence(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    g, q = x
    last = e.members.n[g] == 1
    fewer = last or (not d.members.has_[g, q] and d.members.n[g] == e.members.n[g] - 1)
    return [
        ("ownership_by_status: the sequence owns nothing", d.table.size_[g, q] == 0),
        ("status_graph: the group goes with its last sequence", d.status[g] == (Status.FINISHED_STOPPED if last else R)),
        _nobody_else(d, e, g),
        ("helper: one sequence less", fewer),
        (
            "budget_exact: it gives its seat back, but for what is reserved",
            last or d.seats[g] == e.seats[g] - (e.seats[g] > e.reserve[g]),
        ),
    ]


def _forget(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    maps = [getattr(d.state, name).to_dict() for name in NAMES]
    return [
        ("status_graph: it is absent", d.status[x[0]] == Status.ABSENT),
        _nobody_else(d, e, x[0]),
        ("status_graph: no trace is left", all(x[0] not in m for m in maps[: NAMES.index("refs")])),
    ]


def _heads(d: Any) -> list[int]:
    """Whoever may be first in line."""
    line = [*d.waiting.ids[:2], *d.swapped.ids[:2]]
    stayed = [g for g in d.waiting.ids if not d.plan.victim[g]]
    return [*line, *stayed[:1], -1]


def _stands(d: Any, places: dict[int, int]) -> bool:
    """V0, after a step of decodes and prompts: those that run stand in the order of `serving.standing`."""
    if not (d.config.vllm_v0 and d.config.enable_chunked_prefill):
        return True
    right = [int(serving.standing(d, g)) for g in d.running.ids]
    return right == sorted(right) == [places[g] for g in d.running.ids]


def _schedule(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    p = d.plan
    calm = not e.testing and not (x and x[0])
    return [
        *of_pass(d, e, calm),
        *lists(p.source),
        *((*head(d, e), *first(d, e)) if calm else ()),
        *(c for g in _heads(d) for c in decisions.turns(d, e, g, calm)),
        ("budget_exact: V0 stops late", not d.stopped or d.spent >= 1),
        ("total: a step is issued", d.issued and d.epoch == e.epoch + 1),
        ("one_queue: the order of V0's running queue", _stands(d, r)),
        effects.prefills_exclusive(d),
        ("table_length: a prefill reserves no lookahead slots", d.forall("sequence", lambda g, q: not _reserves(d, g, q))),
    ]


def _reserves(d: Any, g: int, q: int) -> bool:
    """Has a sequence whose prefill ended in this pass a block beyond those of its tokens?"""
    slots, tokens = d.span(d.table.size_[g, q]), d.clock - d.born[g]
    return bool(d.sampling.has_[g] and d.members.has_[g, q] and slots >= tokens + d.config.block_size)


def _commit(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    got, ended, more = x
    below = d.forall("group", lambda g: not decodes(d, g) or d.clock - d.born[g] < d.limit[g])

    def asked(g: int) -> bool:
        return d.status[g] != Status.FINISHED_STOPPED or e.status[g] == d.status[g] or any(g == h for h, _ in ended)

    def obeyed(g: int, q: int) -> bool:
        again = d.prefilling.has_[g] and d.members.n[g] > 1
        return e.status[g] != R or not e.members.has_[g, q] or d.status[g] != R or not d.members.has_[g, q] or again

    return [
        *of_commit(d, e, Has(e.running.ids if got is None else got), Default(dict(more), 0)),
        ("total: no step is in flight", not d.issued),
        effects.moves(d, e, (R, Status.FINISHED_STOPPED), (R, Status.FINISHED_LENGTH_CAPPED)),
        ("helper: everybody is below its limit", below),
        effects.capped(d, e),
        ("status_graph: only who is said to have stopped has", d.forall("group", asked)),
        ("status_graph: who is said to have ended has", all(obeyed(g, q) for g, q in ended)),
    ]


def _last(e: Any, g: int) -> int:
    """Who goes next for g."""
    return int(e.running.ids[-1] if e.config.vllm_v0 else e.last_below(g))


STEPS: dict[str, Callable[..., list[Clause]]] = {
    "admit_next": lambda d, e, x, r: decisions.admission(d, e, e.waiting.ids[0], r, e.delay),
    "to_front": lambda d, e, x, r: decisions.in_front(d, e, x[0]),
    "swap_in_next": lambda d, e, x, r: decisions.comeback(d, e, e.swapped.ids[0], r),
    "compute_next": lambda d, e, x, r: decisions.piece(d, e, e.prefilling.ids[0], r),
    "trim": lambda d, e, x, r: serving.trimmed(d, e, x[0], e.members.some(x[0])),
    "look_ahead": lambda d, e, x, r: serving.ahead(d, e, x[0], e.members.some(x[0])),
    "make_more": lambda d, e, x, r: [("victim_is_last: nobody goes when there is room", not r and not d.plan.victims)],
    "displace": lambda d, e, x, r: [
        *_made_way(d, e),
        ("victim_is_last: the last that went was needed", _needed(d, e)),
    ],
    "ask": lambda d, e, x, r: _ask(d, e, x, r),
    "displace_next": lambda d, e, x, r: displacing.step(d, e, x[0], x[1], _last(e, x[0]), r),
    "serve": lambda d, e, x, r: (serving.prompt_v0 if e.prefilling.has_[x[0]] else serving.service)(d, e, x[0]),
}


def _needs(e: Any, g: int) -> int:
    """Blocks that g, the head of the line, needs; -1 is nobody."""
    return int((displacing.needed_v0 if e.config.vllm_v0 else displacing.needed)(e, g)) if g >= 0 else 0


def _needed(d: Any, e: Any) -> bool:
    """Did the head of the line lack room before the last victim went?"""
    gone, g = [v for v, _ in d.plan.source.preempted], walks.head(e)
    if not gone or g < 0:
        return not gone
    c, v = e.config, gone[-1]
    seats = (0 if c.vllm_v0 and c.enable_chunked_prefill else d.seqs + e.seats[v]) + e.seats[g]
    free = d.gpu.n - d.owing - e.table.held[v]
    return bool(_needs(e, g) > free - c.watermark_blocks or seats > c.max_num_seqs)


def _made_way(d: Any, e: Any) -> list[Clause]:
    g = walks.head(e)
    last = _last(d, g) if d.running.ids and g >= 0 else -1
    if e.config.vllm_v0:
        return displacing.way_v0(d, e, g, _needs(e, g), last)
    return displacing.way(d, e, g, _needs(e, g), e.delay, last)


def _ask(d: Any, e: Any, x: Any, r: Any) -> list[Clause]:
    g, blocks, gone = x
    if gone:
        return [("victim_is_last: who would not come in, as the text says", r == (e.running.ids[-1], True))]
    kept = [bool(displacing.kept_back(e, g, delay)) for delay in (False, True)]
    room = bool(displacing.makes_way(e, g, blocks))
    return [("victim_is_last: asked, as the text says", r == (walks.head(e), *kept, displacing.needed(e, g), room))]


def _rerank(d: Any, e: Any, g: int, priority: int) -> list[Clause]:
    key = e.key[g] if e.config.vllm_v0 else priority * d.ranks + g
    same = d.forall("group", lambda t: t == g or (d.priority[t] == e.priority[t] and d.key[t] == e.key[t]))
    return [
        _nobody_else(d, e, -1),
        ("one_queue: at its place in line", d.priority[g] == priority and d.key[g] == key),
        ("one_queue: nobody else moves", same),
    ]


def one_by_one(state: State, passes: int) -> State:
    """The state after so many passes and the commits of all their results, each in a draft of its own."""
    for _ in range(passes):
        d = Draft(state)
        schedule.schedule(d)
        d = Draft(d.close())
        schedule.commit(d, Results(None), schedule.NOBODY)
        state = d.close()
    return state


def visible(state: State, name: str) -> dict[Any, Any]:
    """What a map says: of a row, the part that this version sees."""
    contents: dict[Any, Any] = getattr(state, name).to_dict()
    return {k: blocks[:n] for k, (blocks, n) in contents.items()} if name == "table" else contents


def _forward(d: Any, e: Any, passes: int) -> list[Clause]:
    made = d.epoch - e.epoch
    singly = View(one_by_one(e.state, made)) if 0 <= made <= passes else e
    same = [(name, visible(singly.state, name) == visible(d.state, name)) for name in NAMES]
    numbers = ("clock", "ticket", "seqs", "decoders", "issued", "prefilled", "epoch", "gpu_free", "cpu_free")
    return [
        _nobody_else(d, e, -1),
        ("total: no more passes than asked for", 0 <= made <= passes),
        ("total: none but where there is nothing to decide", made == passes or not decisions.quiet(d)),
        (
            "total: the numbers are those of as many single passes",
            all(getattr(singly.state, n) == getattr(d.state, n) for n in numbers),
        ),
        *((f"total: {name} is that of as many single passes", true) for name, true in same),
    ]


def _asked_more(d: Any, e: Any, g: int, count: int) -> bool:
    old, new = e.state.deny.to_dict(), d.state.deny.to_dict()
    return bool(new == {**old, g: old.get(g, 0) + count})


WISHED: dict[str, Callable[..., list[Clause]]] = {"preempt": serving.mode, "force": serving.forced}
"""Those that ask the policy."""
AFTER: dict[str, Callable[..., list[Clause]]] = {
    "add": _add,
    "abort": _abort,
    "fork": _fork,
    "finish_sequence": _finish_sequence,
    "forget": _forget,
    "schedule": _schedule,
    "commit": _commit,
    "rerank": lambda d, e, x, r: _rerank(d, e, *x),
    "forward": lambda d, e, x, r: _forward(d, e, *x),
    "deny_append": lambda d, e, x, r: [
        _nobody_else(d, e, -1),
        ("total: so many more of its questions", _asked_more(d, e, *x)),
    ],
}


def _room(d: Any, e: Any, x: Any, named: int, went_on: Any) -> list[Clause]:
    g, blocks = x
    return serving.victim(d, e, g, blocks, _last(e, g), named, went_on, e.state.deny.get(g, 0) > 0)


def after(name: str, alone: Any, d: Any, e: Any, arguments: tuple[Any, ...], result: Any, wish: int) -> list[Clause]:
    """Everything that is said of the state after a transition or a step of a pass, in which a policy has one `wish`: to swap, or
    whom to preempt.

    `alone`: the view of it that ranges over nothing of `e`.
    """
    if name == "phase":
        calls, end = result
        return list(getattr(phases, arguments[0])(end, e, calls))
    if name in STEP:
        wished = WISHED.get(name)
        if name == "make_room":
            exact = _room(d, e, arguments, wish, result)
        else:
            exact = wished(d, e, *arguments, wish) if wished else STEPS[name](d, e, arguments, result)
        return [*effects.everything(alone, in_pass=True), *exact, *lists(d.plan.source), *representation(d.state)]
    return [
        *effects.everything(alone),
        ("group_together: one device", group_together(alone)),
        *AFTER[name](d, e, arguments, result),
        *representation(d.state),
    ]
