"""The specification on concrete states: good ones break no clause, and every clause is broken by some state made for it."""

import random

import attrs
import pytest
from broken_states import broken, put

from kvproof import Config, Rejected, Scheduler
from kvproof.spec.check import (
    commit_violations,
    engine_violations,
    explain,
    failed,
    pass_violations,
    state_clauses,
    violations,
)
from kvproof.spec.told import Told
from kvproof.spec.view import View


def pressed():
    """Group 0 runs with two sequences that share blocks 0 and 1, group 1 is swapped, group 2 waits; between two passes."""
    config = Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=64)
    s = Scheduler(config, "swap")
    s.add_request(4, 20)
    s.add_request(4, 20)
    for k in range(4):
        s.schedule()
        s.commit()
        if k == 0:
            s.fork(0)
        if k == 1:
            s.add_request(12, 10)
    return s.state


def started():
    """Group 0 is in the middle of its prefill (8 of 12 tokens, blocks 0 to 5); between two passes."""
    s = Scheduler(Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8))
    s.add_request(12, 10)
    s.schedule()
    s.commit()
    return s.state


def sampled():
    """Groups 0 and 1 get their first token in the step that is in flight."""
    s = Scheduler(Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8))
    s.add_request(4, 10)
    s.add_request(4, 10)
    s.schedule()
    return s.state


def promised():
    """Nobody may be preempted: group 0 runs with 3 blocks, 2 more are kept for it; group 1 does not fit besides it, and waits."""
    config = Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8)
    s = Scheduler(attrs.evolve(config, max_preemptions_per_request=0))
    s.add_request(4, 6)
    s.add_request(6, 6)
    for _ in range(2):
        s.schedule()
        s.commit()
    return s.state


STATES = {"pressed": pressed(), "started": started(), "sampled": sampled(), "promised": promised()}


def test_the_states_that_are_broken_below_are_what_they_say():
    s, p, q, k = STATES.values()
    assert {k: row[0][: row[1]] for k, row in s.table.items()} == {0: [0, 1, 4, 7], (0, 1): [0, 1, 5, 8], 1: [9, 10, 11]}
    assert (s.running[1], s.swapped[1], s.waiting[1], s.clock, s.born[0], s.alarm[0]) == ((0,), (1,), (2,), 4, -4, 5)
    assert (s.expires[0], s.limit[0], s.seqs, s.gpu_free, s.cpu_free) == (20, 24, 2, 3, 3)
    assert (p.running[1], p.prefilling[1], p.sampling[1], p.issued, p.computed[0]) == ((0,), (0,), (), False, 8)
    assert (q.running[1], q.prefilling[1], q.sampling[1], q.issued, q.prefilled) == ((0, 1), (), (0, 1), True, True)
    assert (k.running[1], k.waiting[1], k.gpu_free, k.owed[0], k.owing, k.limit[0]) == ((0,), (1,), 6, 2, 2, 10)
    assert [violations(state) for state in STATES.values()] == [[], [], [], []]


ENTRIES, COUNTS = "refcount_exact: entries are counted", "refcount_exact: counts are entries"
FREE, SIZE = "conservation: free iff unreferenced", "conservation: free + used = size"
GPU, HOST = "conservation: GPU free list", "conservation: host free list"
DEAD, OWNS = "ownership_by_status: only live sequences own", "ownership_by_status: who owns"
DEVICE, ONE_SIZE, LENGTH = "ownership_by_status: on which device", "helper: tables of one size", "table_length: between passes"
WHOLE = "helper: V0 computes whole prompts"
DUE, TAILS = "helper: alarm in time for a block", "no_shared_write: tails are exclusive"
QUEUE, STATUS, KEYS = (
    "one_queue: the one that the status says",
    "status_graph: a status of the table",
    "helper: keys are distinct",
)
CALENDARS, MISSED, TOKENS = "helper: calendars hold who decodes", "helper: no alarm was missed", "helper: token counts"
EXPIRED, PROMPTS = "helper: nobody has reached its limit", "no_shared_write: prompts are exclusive, or filled once"
LINE, COMMON = "helper: the line of kin", "no_shared_write: kin have tokens in common"
KIN = "representation: who lives has its place among its kin"
SEATS, SAMPLING = "budget_exact: sequences counted", "helper: sampling only after a prefill"
TOGETHER, WITHIN = "group_together: on one device", "helper: shared within a group only"
ORDER, LISTS = "representation: queues are in order of their keys", "representation: free lists are as long as counted"
ROWS, ASCEND = "representation: a stored table is not empty", "representation: members ascend below their bound"
ABOVE_ONE, BUCKETS = "representation: only counts above 1 are stored", "representation: no bucket is empty"
PROMISED, OWING = "bounded_preemptions: blocks are kept for who may not be preempted", "bounded_preemptions: counted"
ARE_FREE, FEW = "bounded_preemptions: they are free", "bounded_preemptions: no more than a request may have"
FORGOTTEN = "representation: nothing is known of a forgotten group"


def set_config(c, name, value):
    object.__setattr__(c.config, name, value)


def keep(c, g, blocks):
    """So many blocks are kept for g, consistently in map and sum."""
    c.owing += blocks - c.owed.get(g, 0)
    c.owed[g] = blocks


def move_alarm(c, g, t):
    """The alarm of g, consistently in map and calendar, is at clock t."""
    c.due = {t: {g}}
    c.alarm[g] = t


def two_of_a_prompt(c, common):
    """The prompt of 12 tokens in blocks of 2 is that of two sequences, which share all of their blocks but the last two."""
    c.members[0], c.seats[0], c.seqs = ((0, 1), 2, ((0, 0), (1, common))), 2, 2
    put(c, (0, 1), 0, 1, 2, 3, c.gpu.pop(), c.gpu.pop())
    c.refs.update(dict.fromkeys(range(4), 2))


# (state, edit, the clauses that fail): the first is the one aimed at, the others follow from it by arithmetic.
BREAKS = {
    "a negative watermark": ("pressed", lambda c: set_config(c, "watermark_blocks", -1), ["helper: parameters"]),
    "free twice": ("pressed", lambda c: c.gpu.append(c.gpu[0]), [LISTS, SIZE]),
    "a host block among the free GPU blocks": ("pressed", lambda c: c.gpu.append(c.cpu.pop()), [GPU, FREE, SIZE]),
    "free twice on the host": ("pressed", lambda c: c.cpu.append(c.cpu[0]), [LISTS, SIZE]),
    "a GPU block among the free host blocks": ("pressed", lambda c: c.cpu.append(c.gpu.pop()), [HOST, FREE, SIZE]),
    "a block is lost": ("pressed", lambda c: c.gpu.pop(), [FREE, SIZE]),
    "a host block is lost": ("pressed", lambda c: c.cpu.pop(), [FREE, SIZE]),
    "free and used": ("pressed", lambda c: c.gpu.append(7), [FREE, SIZE]),
    "a count is too low": ("pressed", lambda c: c.refs.pop(1), [ENTRIES]),
    "a count is too high": ("pressed", lambda c: c.refs.update({1: 3}), [COUNTS]),
    "a count of nobody": ("pressed", lambda c: (c.refs.update({2: 2}), c.gpu.remove(2)), [COUNTS]),
    "a count of a block that does not exist": ("pressed", lambda c: c.refs.update({99: 2}), [COUNTS, FREE, SIZE]),
    "one count too many in the sum": ("pressed", lambda c: set_config(c, "num_cpu_blocks", 7), [FREE, SIZE]),
    "shared by two groups": (
        "pressed",
        lambda c: (put(c, 1, 9, 10, 7), c.refs.update({7: 2}), c.cpu.append(11)),
        [WITHIN, DEVICE, TAILS],
    ),
    "shared at two indices": (
        "pressed",
        lambda c: (put(c, (0, 1), 1, 0, 5, 8), None),
        [WITHIN],
    ),
    "a dead sequence owns": ("pressed", lambda c: (put(c, (0, 7), 2), c.gpu.remove(2)), [DEAD]),
    "an index at the bound": ("pressed", lambda c: c.members.update({0: ((0, 1), 1, ((0, 0), (1, 5)))}), [DEAD, ASCEND]),
    "no place among its kin": ("pressed", lambda c: c.members.update({0: ((0, 1), 2, ((0, 0),))}), [KIN]),
    "a first of kin with tokens in common": ("pressed", lambda c: c.members.update({0: ((0, 1), 2, ((0, 1), (1, 5)))}), [LINE]),
    "fewer than no tokens in common": ("pressed", lambda c: c.members.update({0: ((0, 1), 2, ((0, 0), (1, -1)))}), [LINE]),
    "who waits owns": ("pressed", lambda c: (put(c, 2, 2), c.gpu.remove(2)), [OWNS]),
    "who runs owns nothing": ("started", lambda c: (c.table.clear(), c.gpu.extend(range(6))), [OWNS, LENGTH]),
    "swapped but on the GPU": (
        "pressed",
        lambda c: (put(c, 1, 2, 3, 6), c.gpu.clear(), c.cpu.extend([9, 10, 11])),
        [DEVICE],
    ),
    "tables of two sizes": (
        "pressed",
        lambda c: (
            put(c, (1, 1), 9, 10, 12, 13),
            c.members.update({1: ((0, 1), 2, ((0, 0), (1, 5)))}),
            c.seats.update({1: 2}),
            c.refs.update({9: 2, 10: 2}),
            c.cpu.remove(12),
            c.cpu.remove(13),
        ),
        [ONE_SIZE],
    ),
    "a table too short": (
        "pressed",
        lambda c: (put(c, 1, 9, 10), c.cpu.append(11)),
        [LENGTH],
    ),
    "a table too long": ("pressed", lambda c: (put(c, 1, 9, 10, 11, 12, 13), c.cpu.remove(12), c.cpu.remove(13)), [LENGTH]),
    "a prefill without all its slots": ("started", lambda c: (put(c, 0, 0, 1, 2, 3, 4), c.gpu.append(5)), [LENGTH]),
    "an alarm too late": ("pressed", lambda c: move_alarm(c, 0, 6), [DUE]),
    "an alarm missed": ("pressed", lambda c: move_alarm(c, 0, 3), [MISSED]),
    "a limit missed": (
        "pressed",
        lambda c: (c.expires.update({0: 4}), c.expiry.clear(), c.expiry.update({4: {0}})),
        [EXPIRED],
    ),
    "looked at after its limit": (
        "pressed",
        lambda c: (c.expires.update({0: 21}), c.expiry.clear(), c.expiry.update({21: {0}})),
        [EXPIRED],
    ),
    "a shared tail": (
        "pressed",
        lambda c: (put(c, (0, 1), 0, 1, 5, 7), c.gpu.append(8), c.refs.update({7: 2})),
        [TAILS],
    ),
    "the end of a prompt that somebody shares": ("started", lambda c: c.refs.update({5: 2}), [PROMPTS, COUNTS]),
    "a prompt filled for two that expect different tokens": ("started", lambda c: two_of_a_prompt(c, 7), [PROMPTS]),
    "in no queue": ("pressed", lambda c: c.waiting.clear(), [QUEUE]),
    "in two queues": ("pressed", lambda c: c.swapped.append(2), [QUEUE]),
    "twice in its queue": ("pressed", lambda c: c.waiting.append(2), [ORDER]),
    "prefilling and waiting": ("pressed", lambda c: c.prefilling.append(2), [QUEUE, SEATS]),
    "an unknown group waits": ("pressed", lambda c: (c.waiting.append(3), c.key.update({3: 3})), [QUEUE, FORGOTTEN]),
    "a status out of the table": ("pressed", lambda c: (c.status.update({2: 9}), c.waiting.clear()), [STATUS]),
    "two with one key": ("pressed", lambda c: c.key.update({2: 1}), [KEYS]),
    "a key beyond the ticket": ("pressed", lambda c: c.key.update({2: 3}), [KEYS]),
    "an id beyond the ticket": ("pressed", lambda c: (setattr(c, "ticket", 2), c.key.update({2: -1})), [KEYS]),
    "in no calendar": ("pressed", lambda c: c.due.clear(), [CALENDARS]),
    "not to expire": ("pressed", lambda c: c.expiry.clear(), [CALENDARS]),
    "who waits is due": ("pressed", lambda c: c.due.update({7: {2}}), [CALENDARS]),
    "who waits is to expire": ("pressed", lambda c: c.expiry.update({7: {2}}), [CALENDARS]),
    "in the bucket of another clock": ("pressed", lambda c: c.due.update({7: {0}}), [CALENDARS]),
    "no prompt": ("pressed", lambda c: c.prompt.update({2: 0}), [TOKENS]),
    "a prompt up to the limit": ("pressed", lambda c: c.prompt.update({1: 24}), [TOKENS]),
    "a token lost": ("pressed", lambda c: c.length.update({2: 11}), [TOKENS]),
    "beyond the limit": ("pressed", lambda c: c.length.update({2: 22}), [TOKENS]),
    "computed while waiting": ("pressed", lambda c: c.computed.update({2: 1}), [TOKENS]),
    "a whole prefill computed": ("started", lambda c: c.computed.update({0: 12}), [TOKENS]),
    "more sequences than seats": ("pressed", lambda c: c.members.update({2: ((0, 1), 2, ((0, 0), (1, 5)))}), [TOKENS]),
    "a first token that is the prompt": (
        "sampled",
        lambda c: (c.prompt.update({0: 5}), c.length.update({0: 5})),
        [TOKENS],
    ),
    "a seat too many": ("pressed", lambda c: setattr(c, "seqs", 3), [SEATS]),
    "a decoding sequence too many": ("pressed", lambda c: setattr(c, "decoders", 3), [SEATS]),
    "more seats than there are": ("pressed", lambda c: set_config(c, "max_num_seqs", 1), [SEATS, TOKENS]),
    "a prompt cut in V0": ("started", lambda c: set_config(c, "vllm_v0", True), [WHOLE, "helper: parameters"]),
    "sampling between passes": ("pressed", lambda c: c.sampling.append(0), [SAMPLING, TOKENS]),
    "sampled before all was computed": ("sampled", lambda c: c.computed.update({0: 1}), [TOKENS]),
    "an unknown group samples": ("sampled", lambda c: c.sampling.append(2), [QUEUE, ORDER]),
    "sequences on two devices": (
        "pressed",
        lambda c: (put(c, (0, 1), 12, 13, 14, 8), c.cpu.clear(), c.gpu.append(5), c.refs.clear()),
        [TOGETHER, DEVICE],
    ),
    "queues out of order": ("sampled", lambda c: c.running.reverse(), [ORDER]),
    "more free than counted": ("pressed", lambda c: (c.gpu.append(2), setattr(c, "gpu_free", 3)), [LISTS, FREE]),
    "fewer free than counted": ("pressed", lambda c: setattr(c, "gpu_free", 4), [LISTS, SIZE]),
    "too few blocks are kept": ("promised", lambda c: keep(c, 0, 1), [PROMISED]),
    "blocks are kept for somebody who waits": ("promised", lambda c: keep(c, 1, 1), [PROMISED]),
    "a negative number of blocks is kept": ("promised", lambda c: keep(c, 1, -1), [PROMISED]),
    "more is kept than is counted": ("promised", lambda c: c.owed.update({0: 3}), [OWING]),
    "what is kept is not free": ("promised", lambda c: keep(c, 0, 7), [ARE_FREE]),
    "preempted more often than it may be": ("promised", lambda c: c.preemptions.update({1: 1}), [FEW]),
    "preempted less than never": ("promised", lambda c: c.preemptions.update({1: -1}), [FEW]),
    "an empty table is stored": ("pressed", lambda c: put(c, 2), [ROWS]),
    "a table shorter than it says": (
        "pressed",
        lambda c: c.table.update({1: ([9, 10], 3)}),
        [ROWS, ENTRIES, WITHIN, DEVICE, FREE, SIZE],
    ),
    "members out of order": ("pressed", lambda c: c.members.update({0: ((1, 0), 2, ((0, 0), (1, 5)))}), [ASCEND]),
    "a count of 1 is stored": ("pressed", lambda c: c.refs.update({7: 1}), [ABOVE_ONE]),
    "an empty bucket": ("pressed", lambda c: c.due.update({7: set()}), [BUCKETS]),
    "a trace of somebody forgotten": ("pressed", lambda c: c.limit.update({5: 9}), [FORGOTTEN]),
}


class Whole(View):
    """A view that leaves out no block and no place."""

    def _block(self):
        mentioned = {*self.refs.of, *self.plan.blocks, *self.gpu.free(), *self.cpu.free()}
        return ((b,) for b in {*range(-1, self.config.num_gpu_blocks + self.config.num_cpu_blocks + 1), *mentioned})

    def _place(self):
        return ((k,) for k in range(max(self.gpu.n, self.cpu.n)))


@pytest.mark.parametrize("what", BREAKS)
def test_leaving_out_what_is_just_free_changes_nothing(what):
    name, edit, _ = BREAKS[what]
    state = broken(STATES[name], edit)
    assert failed(state_clauses(Whole(state))) == violations(state)


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_state_breaks_its_clause_and_no_other(what):
    name, edit, clauses = BREAKS[what]
    assert set(violations(broken(STATES[name], edit))) == set(clauses)


def test_every_clause_is_broken_by_a_state_made_for_it():
    aimed_at = {clauses[0] for _, _, clauses in BREAKS.values()}
    named = {name for name, _ in state_clauses(View(STATES["pressed"]))}
    # SIZE follows from the free lists and `free iff unreferenced`; COMMON is true of every line of kin: helpers of the proofs
    assert named - aimed_at == {SIZE, COMMON}


def test_a_prompt_may_be_filled_once_for_two_that_expect_the_same():
    assert violations(broken(STATES["started"], lambda c: two_of_a_prompt(c, 8))) == []


def configs(r):
    """A random small configuration and preemption mode."""
    v0, max_model_len, tokens = r.random() < 0.4, r.choice([8, 16, 40]), r.randint(1, 20)
    tokens, blocks = max(tokens, max_model_len) if v0 else tokens, r.randint(1, 12)
    config = Config(
        num_gpu_blocks=blocks,
        num_cpu_blocks=r.choice([0, 1, 3, 8]),
        block_size=r.randint(1, 4),
        watermark_blocks=r.choice([0, 0, *range(min(2, blocks))]),
        max_num_seqs=r.randint(1, min(tokens, 6)),
        max_num_batched_tokens=tokens,
        max_model_len=max_model_len,
        max_preemptions_per_request=None if v0 else r.choice([None, 0, 1, 2]),
        vllm_v0=v0,
    )
    return config, r.choice([None, "recompute", "swap"])


@pytest.mark.parametrize("seed", range(40))
def test_reachable_states_and_passes_break_nothing(seed):
    r = random.Random(seed)
    config, mode = configs(r)
    s, told = Scheduler(config, mode), Told()
    for _ in range(25):
        for _ in range(r.choice([0, 0, 1, 2])):
            s.add_request(r.randint(1, 10), r.randint(1, 12))
        for g in s.state.running[1]:
            if r.random() < 0.2:
                try:
                    child = s.fork(g)
                    written = -(-(s.state.clock - s.state.born[g] - 1) // config.block_size)
                    told.forked(g, 0, child, max(1, written) if len(told.rows[g]) == 1 else None)
                except Rejected:
                    break
        before = s.state
        plan = s.schedule()
        told.plan(plan)
        assert violations(s.state) == pass_violations(before, s.state, plan) == engine_violations(s.state, told) == []
        before, got = s.state, [g for g in s.state.running[1] if r.random() < 0.8]
        for outcome in s.commit([(g,) for g in got]):
            told.ended(outcome.group)
        assert violations(s.state) == commit_violations(before, s.state, got) == engine_violations(s.state, told) == []


def test_old_states_are_checked_as_they_were():
    s = Scheduler(Config(num_gpu_blocks=9, num_cpu_blocks=6, block_size=2, max_num_seqs=4, max_num_batched_tokens=8), "swap")
    states = [s.state]
    for _ in range(3):
        s.add_request(3, 20)
    while s.unfinished:
        s.schedule()
        s.commit()
        states.append(s.state)
    assert len(states) > 20 and [violations(state) for state in states] == [[]] * len(states)


def test_an_explanation_names_the_clause_body_and_where_it_fails():
    assert explain(broken(STATES["pressed"], lambda c: move_alarm(c, 0, 6))) == ["due_in_time.<locals>.clause of (0, 0)"]
