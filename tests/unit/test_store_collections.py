"""Each collection of the draft against a naive model, on a tree of states: no branch disturbs another, no edit an old state."""

from hypothesis import given
from hypothesis import strategies as st
from store_tree import BLOCKS, CLOCKS, GROUPS, SEQUENCES, TOKENS, drafts, grow, seed

from kvproof.store.collections import STALE, Pool, cell_blocks, cells
from kvproof.store.draft import Draft
from kvproof.store.queues import Queue, Results, Twin
from kvproof.store.versions import NAMES, maps_of


def push_and_pop(d, model, op):
    kind, b, after, _ = op
    assert d.gpu.n == len(model.gpu)
    if kind % 2 and model.gpu:
        before = after if kind > 4 else d.gpu.last
        right = before + 1 if before + 1 in model.gpu else model.gpu[0]
        assert (d.gpu.after(after) if kind > 4 else d.gpu.take()) == right
        model.gpu.remove(right)
    elif b not in model.gpu:
        d.gpu.push(b)
        model.gpu.insert(0, b)


@given(drafts)
def test_pool(plan):
    grow(plan, push_and_pop)


def pool(blocks, end=99):
    """One with these blocks, the first on top."""
    free = maps_of([dict.fromkeys(blocks, True) if name == "free" else {} for name in NAMES])[-1]
    free.journal.undo = {}
    return Pool(cells(blocks), len(blocks), free, end)


def test_a_pool_of_cells_and_back():
    assert cell_blocks(cells([3, 1, 2, 3]), {1, 3}) == [3, 1]
    p = pool([3, 1, 2, 4])
    assert [p.take() for _ in range(4)] == [3, 4, 1, 2] and p.n == 0


def test_a_pool_does_not_reach_beyond_its_device():
    p = pool([3, 7, 8], end=8)
    assert p.after(7) == 3 and p.after(7) == 7  # 8 is the first of the host


def test_a_stack_does_not_grow_for_ever():
    p = pool(range(20))
    for k in range(5000):
        b = p.after(k % 19)
        p.push(b)
        assert k % 100 or sorted(cell_blocks(p.cell, p.free)) == list(range(20))
        assert p.cell[2] <= 4 * p.n + STALE + 1
    assert sorted(p.take() for _ in range(20)) == list(range(20))


def test_a_table_goes_on_where_it_is_while_it_can():
    p = pool(range(40))
    one, two = [p.after(-2)], []
    one += [p.after(one[-1]) for _ in range(9)]
    for b in reversed(one[4:]):
        p.push(b)
    two += [p.after(-2)]
    one = [*one[:4], p.after(one[3])]
    assert one == [0, 1, 2, 3, 5] and two == [4]
    assert [p.after(b) for b in (two[-1], one[-1])] == [6, 7]


def count_references(d, model, op):
    kind, b, _, _ = op
    assert d.refs.shared(b) == (model.refs.get(b, 0) > 1)
    if b not in model.refs:
        model.refs[b] = 1  # taken from a pool: only counts above 1 are stored
    elif kind % 2:
        d.refs.share(b)
        model.refs[b] += 1
    else:
        model.refs[b] -= 1
        assert d.refs.drop(b) == (model.refs[b] == 0)
        if model.refs[b] == 0:
            del model.refs[b]


@given(drafts)
def test_refs(plan):
    grow(plan, count_references)


def live_of(model, g):
    return model.members.get(g, ([0], 1))[0]


def join_and_leave(d, model, op):
    kind, g, q, b = op
    g = g % GROUPS
    live, bound = model.members.get(g, ([0], 1))
    assert (d.members.of(g), d.members.first(g), d.members.count(g)) == (tuple(live), live[0], len(live))
    assert d.members.has(g, q) == (q in live)
    seen = []
    d.each_member("seen", g, lambda d, q, g: seen.append(q))
    assert seen == live
    if kind % 2:
        tokens = model.tokens[g] = min(model.tokens.get(g, 0) + b % 4, TOKENS + 1)  # they only grow
        parent = live[q % len(live)]
        assert d.members.add(g, parent, tokens) == bound
        model.members[g] = ([*live, bound], bound + 1)
        model.texts[g, bound] = (*text(model, g, parent)[:tokens], *[(bound, i) for i in range(tokens, TOKENS)])
    elif q in live and len(live) > 1:
        d.members.remove(g, q)
        model.members[g] = ([x for x in live if x != q], bound)


def text(model, g, q):
    return model.texts.get((g, q), tuple((0, i) for i in range(TOKENS)))


def in_common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def line_up(d, model, op):
    """Each sequence stands after one with which it has most in common, so that each different token counts once."""
    join_and_leave(d, model, op)
    for g in range(GROUPS):
        texts = {q: text(model, g, q) for q in live_of(model, g)}
        seen = []

        def visit(d, q, g, origin, common, word, texts=texts, seen=seen):
            assert word == "word" and origin == (seen[-1] if seen else -1)
            assert min(common, TOKENS) == max((in_common(texts[q], texts[p]) for p in seen), default=0)
            assert not seen or in_common(texts[q], texts[origin]) == min(common, TOKENS)
            seen.append(q)

        d.each_kin("seen", g, visit, "word")
        assert sorted(seen) == list(texts)
        for n in range(1, TOKENS + 1):
            assert d.work(g, n) == len({tokens[:k] for tokens in texts.values() for k in range(1, n + 1)})
            size, full = d.config.block_size, -(-n // d.config.block_size)
            # all blocks but the last are one for all that expect the same tokens up to their end
            shared = sum(len({tokens[: (i + 1) * size] for tokens in texts.values()}) for i in range(full - 1))
            assert d.rows(g, n) == shared + len(texts)


@given(drafts)
def test_members(plan):
    grow(plan, join_and_leave)


@given(drafts)
def test_kin(plan):
    grow(plan, line_up)


def edit_tables(d, model, op):
    kind, g, q, b = op
    g, q, b = g % 2, q % SEQUENCES, b % BLOCKS
    if kind % 4 == 3:  # a sequence more or less, so that distinct() and pending_copies() have something to count
        join_and_leave(d, model, (b, g, q, 0))
    row = model.tables.get((g, q), [])
    assert d.table.size(g, q) == len(row)
    assert [d.table.block(g, q, i) for i in range(len(row))] == row
    tables = [model.tables.get((g, x), []) for x in live_of(model, g)]
    assert d.table.distinct(g) == len({x for table in tables for x in table})
    if all(tables):
        assert d.table.pending_copies(g) == len(tables) - len({table[-1] for table in tables})
    live = live_of(model, g)
    assert d.table.height(g) == len(model.tables.get((g, live[0]), []))
    assert d.capacity(g) == d.config.block_size * d.table.height(g)
    if kind % 4 == 0 and b not in row:  # the blocks of one table differ
        if kind:
            d.table.append(g, q, b)
        else:
            d.table.extend(g, q, pool([b]))
        model.tables[(g, q)] = [*row, b]
        assert d.plan.slots[-1] == (g, q, len(row), b)
    elif kind % 4 == 1 and row:
        assert d.table.pop_block(g, q) == row[-1]
        model.tables[(g, q)] = row[:-1]
        if not row[:-1]:
            del model.tables[(g, q)]
    elif kind % 4 == 2 and row and b not in row:
        i = kind % len(row)
        d.table.put(g, q, i, b)
        model.tables[(g, q)] = [*row[:i], b, *row[i + 1 :]]


@given(drafts)
def test_table(plan):
    grow(plan, edit_tables)


def test_put_copies_the_row_once_in_each_draft():
    def put_twice(d, model, op):
        for b in op[:2]:
            d.table.put(0, 0, 1, b)
        model.tables[(0, 0)] = [model.tables[(0, 0)][0], op[1], *model.tables[(0, 0)][2:]]

    def fill_then_put(d, model, op):
        if op[3]:
            for b in (0, 1, 2):
                d.table.append(0, 0, b)
            model.tables[(0, 0)] = [0, 1, 2]
        put_twice(d, model, op)

    fill, then = (3, 4, 0, 1), [(5, 6, 0, 0)]
    for ending in ("close", "abandon", "drop"):
        grow([(0, "close", [fill]), (0, ending, then), (0, "close", [(7, 3, 0, 0)]), (5, "close", [(4, 7, 0, 0)])], fill_then_put)


def stand_in_line(d, model, op):
    kind, g, key, _ = op
    g = g % GROUPS
    ids = sorted(model.queue, key=model.key.__getitem__)
    queue = d.waiting
    assert (queue.count(), queue.empty(), queue.has(g)) == (len(ids), not ids, g in ids)
    if ids:
        assert (queue.first(), queue.last()) == (ids[0], ids[-1])
    with_result = tuple(ids[:: 1 + kind % 3])
    for results in (with_result, with_result[::-1]):
        assert sorted(queue.minus(Results(results), d.idle)) == sorted(model.queue - set(with_result))
        assert sorted(queue.meet(Results(results))) == sorted(with_result)
        idle = Queue((tuple(model.key[g] for g in ids[:1]), tuple(ids[:1])), d.key)
        assert sorted(queue.minus(Results(results), idle)) == sorted(model.queue - set(with_result) | set(ids[:1]))
    assert queue.minus(Results(), d.idle) == () and queue.meet(Results()) == tuple(ids)
    if kind == 7:
        queue.clear()
        model.queue.clear()
    elif g in model.queue:
        queue.remove(g)
        model.queue.remove(g)
    else:
        if kind % 2:  # V0 gives a group a new key while it is in no queue
            d.key[g] = model.key[g] = 100 * (key + 1) + g
        queue.add(g)
        model.queue.add(g)


@given(drafts)
def test_queue(plan):
    grow(plan, stand_in_line)


def ring(d, model, op):
    kind, t, u, g = op
    t, u, g = t % CLOCKS, u % CLOCKS, g % GROUPS
    there = [x for x in sorted(model.key, key=model.key.__getitem__) if (t, x) in model.calendar]
    assert d.due.ordered(t) == there
    assert d.due.has(t, g) == (g in there)
    old = next((s for s, x in model.calendar if x == g), None)
    if old is None:
        d.due.add(g, t)
        model.calendar.add((t, g))
    else:
        assert d.alarm[g] == old
        model.calendar.remove((old, g))
        if kind % 2:
            d.due.remove(g)
        else:
            d.due.move(g, u)
            model.calendar.add((u, g))


@given(drafts)
def test_calendar(plan):
    grow(plan, ring)


def everything(d, model, op):
    for i, apply in enumerate((push_and_pop, count_references, edit_tables, stand_in_line, ring)):
        if (sum(op) >> i) % 2:
            apply(d, model, op)


@given(drafts)
def test_all_together(plan):
    grow(plan, everything)


def test_who_leaves_during_a_due_round_is_not_served():
    served = []

    def serve(d, g):
        served.append(g)
        if g == 0:
            d.due.remove(1)
            d.due.move(0, d.clock + 1)

    def two_are_due(d, model, op):
        for g in (0, 1, 2):
            d.due.add(g, d.clock)
        d.each_due("serve", serve)
        for g in (2, 0):
            if d.due.has(d.clock + (g == 0), g):
                d.due.remove(g)

    grow([(0, "close", [(0, 0, 0, 0)])], two_are_due)
    assert served == [0, 2]


def test_twin():
    twin = Twin()
    twin[3] = 5
    assert twin.has(3) and not twin.has(5) and twin[3] == 5
    twin.clear()
    assert not twin.has(3)


@given(st.lists(st.integers(0, 9), max_size=10), st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)), st.booleans())
def test_comparing_results_first_changes_no_answer(results, running, away, ordered):
    """`compare` says yes of groups in the queue only, and `minus` answers as it does without."""
    pair = tuple(10 * g for g in sorted(running)), tuple(sorted(running))
    late = tuple(10 * g for g in sorted(away)), tuple(sorted(away))
    given_ids = tuple(g for g in pair[1] if g not in away) if ordered else tuple(results)
    compared, plain = Results(given_ids), Results(given_ids)
    if compared.compare(pair, late):
        assert set(given_ids) <= running
    elif 2 * len(set(given_ids)) >= len(running):
        assert not set(given_ids) <= running
    key = Draft(seed()[0]).key
    queue, idle = Queue(pair, key), Queue(((), ()), key)
    for r in (compared, plain):
        assert sorted(queue.minus(r, idle)) == sorted(running - set(given_ids))
