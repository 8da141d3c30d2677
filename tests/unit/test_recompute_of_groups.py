"""Several sequences that are recomputed: every different token once, blocks shared again, the same tokens afterwards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.fake_engine import FakeEngine, alone
from kvproof.store.collections import row
from kvproof.store.plan import Recompute

PROMPT, OUTPUT = 5, 14
KIN = ((0, 0), (2, 6), (3, 7), (1, 4))
"""Of sequences of 7 tokens: 3 is 2 so far, and 0 but for one token."""


def test_parts_go_through_the_sequences_in_order():
    whole = Recompute(9, 0, 11, 7, KIN)
    assert whole.parts == [(0, 0, 7), (2, 6, 1), (1, 4, 3)] and whole.complete
    assert Recompute(9, 2, 3, 7, KIN).parts == [(0, 2, 3)]
    assert Recompute(9, 6, 4, 7, KIN).parts == [(0, 6, 1), (2, 6, 1), (1, 4, 2)]
    assert Recompute(9, 10, 1, 7, KIN).parts == [(1, 6, 1)] and not Recompute(9, 9, 1, 7, KIN).complete


def test_a_token_in_common_is_stored_in_every_block_that_is_not_shared():
    """In blocks of 4 the first is one for all; 2 and 3 begin their second with tokens 4 and 5 of 0, 3 goes on with 6 of 2."""
    assert Recompute(9, 0, 11, 7, KIN).shared(4) == [(0, 2, 4, 2), (0, 3, 4, 2), (2, 3, 6, 1)]
    assert Recompute(9, 5, 2, 7, KIN).shared(4) == [(0, 2, 5, 1), (0, 3, 5, 1)]
    assert Recompute(9, 0, 11, 7, KIN).shared(1) == [(2, 3, 6, 1)]


def engine(block_size: int, budget: int, chunked: bool, blocks: int = 60) -> FakeEngine:
    config = Config(
        num_gpu_blocks=blocks,
        num_cpu_blocks=0,
        block_size=block_size,
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        max_model_len=40,
        enable_chunked_prefill=chunked,
    )
    return FakeEngine(config)


def different(e: FakeEngine, g: int) -> int:
    """Different tokens of the sequences of g, by what the model has of them."""
    live = e.scheduler.state.members[g][0]
    texts = [tuple(s.tokens(0, s.length).tolist()) for s in (e.model.sequences[g, q] for q in live)]
    return len({text[:n] for text in texts for n in range(1, len(text) + 1)})


def blocks_held(e: FakeEngine, g: int) -> int:
    state = e.scheduler.state
    return len({b for q in state.members.get(g, ((0,),))[0] for b in row(state.table, g, q)})


def needed(e: FakeEngine, g: int) -> int:
    """Blocks that g holds after its next step, if nobody preempts it: each sequence has one of its own to write in."""
    state, size = e.scheduler.state, e.scheduler.config.block_size
    rows = [row(state.table, g, q) for q in state.members[g][0]]
    tokens = e.model.sequences[g, state.members[g][0][0]].length
    more = len(rows) if tokens > size * len(rows[0]) else len(rows) - len({blocks[-1] for blocks in rows})
    return blocks_held(e, g) + more


moves = st.lists(
    st.tuples(st.sampled_from(["fork", "fork", "finish", "recompute", "recompute", "go"]), st.integers(0, 9)), max_size=14
)


@settings(max_examples=60, deadline=None)
@given(moves, st.integers(1, 5), st.integers(4, 30), st.booleans())
def test_whatever_happened_before(moves, block_size, budget, chunked):
    """Each different token is computed once, in no more blocks than the displaced step would have needed, and all goes on as if
    nothing had happened."""
    e = engine(block_size, budget, chunked)
    g = e.add("a", PROMPT, OUTPUT, 1)
    scheduler = e.scheduler
    for what, choice in moves:
        runs = g in scheduler.state.running[1] and g not in scheduler.state.prefilling[1]
        live = scheduler.state.members.get(g, ((0,),))[0]
        if what == "fork" and runs:
            try:
                e.fork(g, live[choice % len(live)])
            except Rejected:
                assert len(live) == 4
        elif what == "finish" and runs and len(live) > 1:
            e.finish(g, live[choice % len(live)])
        elif what == "recompute" and runs and len(live) > 1:
            work, most = different(e, g), needed(e, g)
            scheduler.preempt(g, "recompute")
            plan = e.step().plan
            assert plan.preempted == ((g, "recompute"),) and not plan.prefills
            done = 0
            while done < work:
                plan = e.step().plan
                ((h, start, tokens),) = plan.prefills
                assert (h, start) == (g, done) and plan.recomputes[0].tokens == tokens <= budget
                done += tokens
                if done < work:
                    assert blocks_held(e, g) <= most and plan.recomputes[0].complete is False
                    for call in (scheduler.fork, scheduler.finish):
                        with pytest.raises(Rejected):
                            call(g, live[0])
            assert done == work and plan.recomputes[0].complete and blocks_held(e, g) <= most
        if scheduler.unfinished:
            e.step()
    while scheduler.unfinished:
        e.step()
    forks = tuple(e.forks.get(g, ()))
    expected = alone("a", PROMPT, OUTPUT, block_size, forks)
    for q in range(1 + len(forks)):
        got = tuple(e.model.output(g, q))
        assert got == expected[q][: len(got)]
    assert scheduler.state.gpu_free == scheduler.config.num_gpu_blocks


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_siblings_may_have_first_tokens_of_their_own(block_size, chunked):
    """Each samples its own from one prefill: they have only the prompt in common, whatever is recomputed."""

    def run(preempt_at: int) -> list[list[int]]:
        e = engine(block_size, 9, chunked)
        g = e.add("a", PROMPT, OUTPUT, 1)
        e.step()
        for child in (1, 2):
            assert e.scheduler.fork(g) == child
            e.model.fork(g, 0, child)
            e.model.output(g, child)[-1] += child
        for step in range(60):
            if step == preempt_at:
                work = different(e, g)
                e.scheduler.preempt(g, "recompute")
            plan = e.step().plan
            if step == preempt_at + 1:
                assert plan.recomputes[0].kin == ((0, 0), (2, PROMPT), (1, PROMPT))
                assert sum(plan.recomputes[0].length - common for _, common in plan.recomputes[0].kin) == work
        assert not e.scheduler.unfinished
        return [e.model.output(g, q) for q in range(3)]

    free = run(99)
    assert len({tuple(tokens) for tokens in free}) == 3
    assert all(run(step) == free for step in range(6))


def test_in_the_middle_of_it_the_group_is_not_swapped_and_may_be_aborted():
    e = FakeEngine(Config(num_gpu_blocks=30, num_cpu_blocks=30, block_size=2, max_num_seqs=4, max_num_batched_tokens=4), "swap")
    g = e.add("a", PROMPT, OUTPUT, 3)
    for _ in range(4):
        e.step()
    e.scheduler.preempt(g, "recompute")
    e.step()
    e.step()
    assert e.scheduler.state.prefilling[1] == (g,)
    e.scheduler.preempt(g, "swap")
    assert e.step().plan.preempted == ((g, "recompute"),)
    e.step()
    assert e.scheduler.state.prefilling[1] == (g,)
    e.scheduler.schedule()
    e.scheduler.commit(ended=[(g, 1)])
    assert e.scheduler.state.members[g][0] == (0, 1, 2)
    e.abort(g)
    assert e.scheduler.state.gpu_free == 30
