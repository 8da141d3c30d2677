"""Cores broken in one function each: groups of several sequences, priorities, cut prompts, lookahead, delay, denials, events."""

from kvproof.core import admission, blocks, displacing, groups, promises, running, schedule
from kvproof.store.collections import Members
from kvproof.store.draft import Draft


def fork_forgets_the_seat(d, g, parent, own):
    """A child takes no seat."""
    seats, seqs = d.seats[g], d.seqs
    child = REAL["fork"](d, g, parent, own)
    d.seats[g], d.seqs = seats, seqs
    return child


def trim_forgets_a_block(d, g, q):
    """A block of lookahead slots leaves the table and is lost."""
    if d.table.size(g, q) == 1 or d.capacity(g) - d.config.block_size < d.clock - d.born[g] - 1:
        return False
    d.table.pop_block(g, q)
    return True


def whoever_is_named_goes(d, g, blocks, last):
    """The policy is believed, whomever it names, if that one runs."""
    named = d.named(g, blocks)
    return named if d.config.choose_victims and d.running.has(named) else last


def make_way_in_vain(d, g, blocks):
    """What is kept for protected ones counts as free, when it is asked whether making way will do."""
    freed, seats = d.behind(g)
    return blocks <= d.gpu.n + freed and d.seqs - seats + d.seats[g] <= d.config.max_num_seqs


def rank_without_a_place(d, g, priority):
    """A new priority, and the old place in line."""
    d.priority[g] = priority


def trim_nothing(d, g, q):
    """Parent and child share slots that nobody has written."""
    return False


def beam_gives_its_seat_back(d, g, q):
    """The width of a beam search shrinks with each of its sequences that ends."""
    several = d.members.count(g) > 1 and d.seats[g] <= d.reserve[g]
    REAL["finish_sequence"](d, g, q)
    if several:
        d.seats[g] -= 1
        d.seqs -= 1


def arrival_only(d, prompt_tokens, limit, seats, reserve, priority):
    """Everybody has one priority."""
    return REAL["add"](d, prompt_tokens, limit, seats, reserve, 0)


def take_more(d, g, more):
    if more > 0:
        d.born[g] -= more
        d.ungiven[g] = more + 1
        d.due.move(g, groups.grown_until(d, g))
        d.expiry.move(g, d.born[g] + d.limit[g])


def accept_one_too_many(d, g, more, results):
    """Lookahead gives a token more than there are slots for."""
    if schedule.decoded(d, g) and results.has(g):
        tokens = d.clock - d.born[g]
        take_more(d, g, min(more, d.capacity(g) + 1 - tokens, d.limit[g] - tokens - 1))


def accept_without_a_result(d, g, more, results):
    """Lookahead gives tokens to one whose result did not come."""
    if schedule.decoded(d, g):
        tokens, slots = d.clock - d.born[g], d.config.num_lookahead_slots
        take_more(d, g, min(more, slots, d.capacity(g) - tokens, d.limit[g] - tokens - 1))


def displace_one_more(d, g, blocks):
    """The victim after the last that was needed goes too."""
    more = REAL["displace_next"](d, g, blocks)
    if not more and d.plan.victims and not d.running.empty() and d.rank(d.running.last()) > d.rank(g):
        victim = d.running.last()
        running.evict(d, victim, d.policy.swaps(victim, d.members.count(victim)))
        d.preemptions[victim] += 1
    return more


def displace_whoever_ranks_above(d, g, blocks):
    """The ranks are not looked at."""
    if d.running.empty() or (displacing.has_room(d, blocks) and displacing.has_seats(d, g)):
        return False
    victim = d.running.last()
    running.evict(d, victim, d.policy.swaps(victim, d.members.count(victim)))
    d.preemptions[victim] += 1
    return True


def cut_one_token_late(d, g, rest):
    """The last piece of a step is a token longer than the budget."""
    left = d.config.max_num_batched_tokens - d.spent
    tokens = min(rest, left + 1)
    start = d.computed[g]
    d.computed[g] = start + tokens
    d.spent += tokens
    d.plan.prefill(g, start, tokens)
    if tokens == rest:
        d.prefilling.remove(g)
        d.born[g] = d.clock - d.length[g]
        groups.set_alarms(d, g)
        d.sampling.add(g)


def look_ahead_is_a_need(d, g, blocks):
    """Nobody gets its next token if there is no room for a lookahead slot besides."""
    return REAL["can_append"](d, g, blocks + (d.config.num_lookahead_slots > 0))


def look_ahead_too_far(d, g):
    """More slots than there are to be tokens."""
    if d.capacity(g) >= d.clock - d.born[g] + d.config.num_lookahead_slots + d.config.block_size or d.gpu.n == 0:
        return False
    d.table.extend(g, d.members.first(g), d.gpu)
    return True


def victim_comes_back_at_once(d):
    """A victim is a candidate in its own pass."""
    if d.waiting.empty() or (not d.running.empty() and d.delayed()):
        return False
    g = d.waiting.first()
    tokens = d.length[g]
    blocks = d.blocks_for(tokens)
    if not admission.first_in_line(d, g) or not admission.fits_budget(d, g, tokens) or not admission.has_room(d, blocks):
        return False
    admission.admit(d, g, tokens, blocks)
    return True


def deny_never_ends(d, g):
    """Who is denied once is denied for ever."""
    return bool(d.deny.get(g, 0))


def delay_is_forgotten(d):
    """Whoever fits is admitted at once."""
    return False


def force_as_the_policy_wishes(d, g, mode):
    """The mode of the event is not looked at."""
    REAL["force"](d, g, 0)


def siblings_share_their_last_block(d, q, g, origin, common, tokens):
    """A recompute lets two go on in one block."""
    shared = d.full_blocks(min(common, tokens))
    d.each_index("share_again", shared, blocks.share_block, g, origin, q)
    d.times("take_rest", d.blocks_for(tokens) - shared, blocks.take_block, q, g)


def siblings_share_nothing_again(d, q, g, origin, common, tokens):
    """A recompute takes blocks of its own for each."""
    d.times("take_rest", d.blocks_for(tokens), blocks.take_block, q, g)


def siblings_count_as_one(d, g, tokens):
    """Only the first of them is computed again."""
    return tokens


def a_child_has_nothing_in_common(members, g, parent, tokens):
    """Who its parent is, is forgotten."""
    return REAL["add_member"](members, g, parent, 0)


def preempt_without_counting(d, g):
    """Who is preempted by the pass has it not on its record."""
    REAL["preempt"](d, g)
    d.preemptions[g] -= 1


def force_counts_too(d, g, mode):
    """What an event forces counts like any other preemption."""
    ran = d.running.has(g)
    REAL["force"](d, g, mode)
    if ran and d.preemptions[g] < (d.config.max_preemptions_per_request or 0):
        d.preemptions[g] += 1


def keep_nothing(d, g):
    """No blocks are kept for who may not be preempted."""


def keep_what_it_had(d, g):
    """What is kept does not follow when blocks are taken: so much too much is kept."""
    if not d.owed[g]:
        REAL["keep_promise"](d, g)


def comes_in_for_less(d, g, blocks):
    """Who may not be preempted comes in like anybody else."""
    return blocks


def others_take_what_is_kept(d, g):
    """Blocks that are kept for somebody count as free for all."""
    return d.gpu.n


def own_blocks_are_kept_from_it(d, g):
    """What is kept for g is not for g either."""
    return d.gpu.n - d.owing


def protected_ones_go(d, g):
    """The tail goes, whether or not it may."""
    last = d.running.last()
    return last if d.key[g] < d.key[last] else g


REAL: dict = {
    f.__name__: f
    for f in (
        *(groups.fork, groups.finish_sequence, groups.add),
        *(displacing.displace_next, running.can_append, running.force, running.preempt, promises.keep_promise),
    )
}
REAL["add_member"] = Members.add

FEATURES = {
    fork_forgets_the_seat: (groups.fork, ("seats", "token counts")),
    trim_forgets_a_block: (groups.trim_next, ("conservation", "pool", "free blocks")),
    trim_nothing: (groups.trim_next, ("free blocks after a fork", "invariants", "announcements", "needless victim")),
    whoever_is_named_goes: (running.next_victim, ("victim_is_last", "KeyError", "IndexError", "no_deadlock")),
    make_way_in_vain: (displacing.can_make_way, ("displaced",)),
    rank_without_a_place: (groups.rerank, ("queues after a rank", "keys are distinct")),
    beam_gives_its_seat_back: (groups.finish_sequence, ("seats", "token counts")),
    arrival_only: (groups.add, ("policy order", "seats", "displaced")),
    accept_without_a_result: (schedule.accept, ("counted once", "tokens of")),
    accept_one_too_many: (schedule.accept, ("table_length", "tokens of", "invariants", "counted once")),
    displace_one_more: (displacing.displace_next, ("displaced",)),
    displace_whoever_ranks_above: (displacing.displace_next, ("displaced", "victim_is_last")),
    cut_one_token_late: (admission.compute, ("budget",)),
    look_ahead_is_a_need: (running.can_append, ("needless victim",)),
    look_ahead_too_far: (running.look_ahead_next, ("slots",)),
    victim_comes_back_at_once: (admission.admit_next, ("victim_not_in_plan", "status_graph", "infeasible_refused")),
    deny_never_ends: (Draft.denies, ("denials", "every_request_ends")),
    delay_is_forgotten: (Draft.delayed, ("delay",)),
    force_as_the_policy_wishes: (running.force, ("forced",)),
    preempt_without_counting: (running.preempt, ("bounded_preemptions", "preemptions of")),
    force_counts_too: (running.force, ("preemptions of",)),
    keep_nothing: (promises.keep_promise, ("bounded_preemptions",)),
    keep_what_it_had: (promises.keep_promise, ("bounded_preemptions", "needless victim", "who fits", "displaced")),
    comes_in_for_less: (promises.needed, ("bounded_preemptions", "infeasible_refused")),
    others_take_what_is_kept: (promises.free, ("bounded_preemptions", "IndexError")),
    own_blocks_are_kept_from_it: (promises.free, ("bounded_preemptions", "needless victim", "infeasible_refused")),
    protected_ones_go: (Draft.last_below, ("bounded_preemptions",)),
    siblings_share_their_last_block: (blocks.rebuild_sequence, ("invariants", "no_shared_write", "BackendError")),
    siblings_share_nothing_again: (blocks.rebuild_sequence, ("BackendError", "TypeError", "invariants")),
    siblings_count_as_one: (Draft.work, ("sequences that get a token", "cut prompts")),
    a_child_has_nothing_in_common: (
        Members.add,
        ("token budget", "sequences that get a token", "cut prompts", "BackendError", "who fits"),
    ),
}
"""Broken function -> the real one, and words of which one is in what the machine says of it."""
