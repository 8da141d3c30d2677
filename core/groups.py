"""Transitions of one group outside the pass (add, fork, finish, abort, forget) and the bookkeeping they share with the pass.

A decoding group's token count is not stored: it is `clock - born[g]`, so that a decode step, which gives every sequence one
token, is `clock += 1`. Who waits, is swapped or is in the middle of a prefill has its count in `length[g]`.

`alarm[g]` is the clock at which a decoding group must be looked at: no later than the step that needs a block, and now while
the tail of a table is shared. `expires[g]` is the clock at which it must be looked at for its length limit.
"""

from kvproof.core.blocks import drop_block, release, release_sequence, share_block
from kvproof.core.errors import require
from kvproof.core.promises import keep_promise, owe
from kvproof.core.status import Status
from kvproof.store.draft import Draft


def grown_until(d: Draft, g: int) -> int:
    """The clock at which g has outgrown its tables: tokens = capacity + 1."""
    return d.born[g] + d.capacity(g) + 1


def set_alarms(d: Draft, g: int) -> None:
    """g begins to decode: it enters both calendars."""
    d.decoders += d.members.count(g)
    d.due.add(g, grown_until(d, g))
    d.expiry.add(g, d.born[g] + d.limit[g])


def stop_running(d: Draft, g: int) -> None:
    """Out of the running queue and the calendars; its token count is kept. What becomes of its blocks is the caller's.

    A token that a step in flight may be computing is not counted: the commit gives it.
    """
    d.running.remove(g)
    d.seqs -= d.seats[g]
    owe(d, g, 0)
    if d.prefilling.has(g):
        d.prefilling.remove(g)
    else:
        d.decoders -= d.members.count(g)
        d.due.remove(g)
        d.expiry.remove(g)
        d.length[g] = d.clock - d.born[g]
        if d.sampling.has(g):
            d.sampling.remove(g)
        if d.idle.has(g):
            d.idle.remove(g)


def leave(d: Draft, g: int) -> None:
    """Out of the queue that its status says."""
    if d.status[g] == Status.WAITING:
        d.waiting.remove(g)
    elif d.status[g] == Status.SWAPPED:
        d.swapped.remove(g)
    else:
        stop_running(d, g)


def end(d: Draft, g: int, outcome: Status) -> None:
    """g ends: it leaves its queue and frees exactly what it holds."""
    leave(d, g)
    release(d, g)
    d.status[g] = outcome
    d.plan.ended(g, outcome)


def unfinished(d: Draft, g: int) -> bool:
    """Is g in one of the queues?"""
    return d.status[g] == Status.WAITING or d.status[g] == Status.RUNNING or d.status[g] == Status.SWAPPED


def add(d: Draft, prompt_tokens: int, limit: int, seats: int, reserve: int, priority: int) -> int:
    """A new request waits; returns its group id. `limit`: the number of tokens (prompt + generated) at which it ends.

    `seats`: the sequences that it will have once it has forked; it takes so many seats from its admission on. Each sequence that
    ends gives one back, but for the last `reserve` of them (a beam search, whose width stays). It ranks by (`priority`, arrival),
    smaller ones first.
    """
    require(prompt_tokens >= 1, "prompt_tokens must be >= 1")
    require(limit > prompt_tokens, "limit must exceed prompt_tokens")
    require(reserve >= 1, "reserve must be >= 1")
    require(reserve <= seats, "reserve must be <= seats")
    require(seats <= d.config.max_num_seqs, "more sequences than max_num_seqs")
    require(d.ticket < d.ranks, "no ids are left")
    g = d.ticket
    d.ticket += 1
    d.status[g] = Status.WAITING
    d.priority[g] = priority
    if d.config.vllm_v0:
        d.key[g] = g
    else:
        d.key[g] = d.rank(g)
    d.prompt[g] = prompt_tokens
    d.length[g] = prompt_tokens
    d.computed[g] = 0
    d.limit[g] = limit
    d.ungiven[g] = 1
    d.preemptions[g] = 0
    d.seats[g] = seats
    d.reserve[g] = reserve
    d.members.start(g)
    d.waiting.add(g)
    return g


def trim_next(d: Draft, g: int, q: int) -> bool:
    """Sequence q, the only one of g, gives back a block of lookahead slots, if it has any: one beyond those that the alarm knows
    of, which are written or were needed for a token that has no result yet."""
    if d.table.size(g, q) == 1 or d.capacity(g) - d.config.block_size < d.alarm[g] - d.born[g] - 1:
        return False
    drop_block(d, g, q)
    d.plan.trimmed(g, q, d.table.size(g, q))
    return True


def trim(d: Draft, g: int) -> None:
    """g, if it decodes and has no siblings, gives back its lookahead slots, but for those that have become tokens. Siblings have
    none."""
    if not d.prefilling.has(g) and d.members.count(g) == 1:
        d.repeat("trim", trim_next, g, d.members.first(g))
        keep_promise(d, g)
        d.due.move(g, grown_until(d, g))


def fork(d: Draft, g: int, parent: int, own: int) -> int:
    """A child of sequence `parent` joins running group g and shares all its blocks; returns its sequence index.

    It has the tokens of its parent, but for the last `own` of them: 0, or 1 if that one was sampled for it anew.
    Legal between a commit and the next pass, for a group that decodes, while it has a seat, or one is left and the group may be
    preempted. It costs no block; the only sequence of a group gives back the slots that nobody has written (of lookahead, or of
    a result that was lost), so that both tables end with the tokens so far.
    """
    require(not d.issued, "a step is in flight")
    require(d.status[g] == Status.RUNNING, "the group is not running")
    require(not d.prefilling.has(g), "the group is in its prefill")
    require(d.members.has(g, parent), "no such sequence")
    require(own == 0 or own == 1, "own must be 0 or 1")
    if d.members.count(g) == d.seats[g]:
        require(d.seqs < d.config.max_num_seqs, "max_num_seqs reached")
        require(d.may_go(g), "the request may not be preempted again: no blocks are kept for a further sequence")
        d.seats[g] += 1
        d.seqs += 1
    d.due.move(g, d.clock)
    trim(d, g)
    child = d.members.add(g, parent, d.clock - d.born[g] - own)
    d.decoders += 1
    d.each_index("share", d.table.size(g, parent), share_block, g, parent, child)
    d.due.move(g, d.clock)
    return child


def rerank(d: Draft, g: int, priority: int) -> None:
    """g ranks by (`priority`, arrival) from now on. Legal at any time; kvproof's queues follow at once."""
    require(unfinished(d, g), "the request has ended or is unknown")
    d.priority[g] = priority
    if not d.config.vllm_v0:
        d.rekey(g, d.rank(g))


def finish_sequence(d: Draft, g: int, q: int) -> None:
    """Sequence q of a running group has ended; the group goes with its last one. Not while several are being recomputed."""
    require(d.status[g] == Status.RUNNING, "the group is not running")
    require(d.members.has(g, q), "no such sequence")
    require(d.members.count(g) == 1 or not d.prefilling.has(g), "the group is being recomputed")
    if d.members.count(g) == 1:
        end(d, g, Status.FINISHED_STOPPED)
    else:
        release_sequence(d, q, g)
        d.members.remove(g, q)
        d.decoders -= 1
        if d.seats[g] > d.reserve[g]:
            d.seats[g] -= 1
            d.seqs -= 1
        keep_promise(d, g)
        d.plan.dropped(g, q)


def deny_append(d: Draft, g: int, count: int) -> None:
    """For tests of an engine: the next `count` times that the pass asks whether g can append, the answer is no."""
    require(unfinished(d, g), "the request has ended or is unknown")
    require(count >= 1, "count must be >= 1")
    d.refuse_appends(g, count)


def abort(d: Draft, g: int) -> None:
    """Legal in every unfinished status, at any time between passes."""
    require(unfinished(d, g), "the request has ended or is unknown")
    end(d, g, Status.FINISHED_ABORTED)


def forget(d: Draft, g: int) -> None:
    """An ended group leaves no trace: every id table loses it."""
    require(d.status[g] >= Status.FINISHED_STOPPED, "the request has not ended")
    d.status[g] = Status.ABSENT
    d.drop_group(g)
