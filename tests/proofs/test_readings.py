"""The two readings of every collection agree: the same operations on the concrete and on the symbolic one give the same answers.

What the symbolic one assumes (sizes of finite sets, smallest elements, copies to come) must be true of the concrete values, and
what it demands must be met by every legal operation and broken by an illegal one. TRUSTED.md rests on this.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from symbolic_run import filled, known

from kvproof.proofs import block_shapes, shapes
from kvproof.proofs.plan_shape import ZPlan
from kvproof.proofs.sym import ZMap
from kvproof.store.collections import Pool, cell_blocks, cells
from kvproof.store.queues import Queue, Results, Twin
from kvproof.store.versions import NAMES, NUMBER, Version, maps_of

FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None)
numbers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=12)
"""Each triple is one operation: what, on whom, with what."""


def fresh_maps():
    """The concrete maps of a state in which nothing is known, open for editing."""
    version = Version(maps_of([{} for _ in NAMES])).open()
    return version.maps


def pool_of(blocks):
    """A concrete pool with these blocks free, open for editing."""
    free = fresh_maps()[-1]
    for b in blocks:
        free.set(b, True)
    return Pool(cells(blocks), len(blocks), free, 99)


def empty_pool():
    """The symbolic reading of a pool with nothing free; nothing is referenced."""
    pool = filled(block_shapes.ZPool("s"), has_=False, n=0)
    pool.refs = filled(block_shapes.ZRefs(8), of=0, used_gpu=0, used_cpu=0)
    return pool


@FEW
@given(numbers)
def test_pool(steps):
    with known() as run:
        concrete, symbolic = pool_of([]), empty_pool()
        for what, b, _ in steps:
            held = cell_blocks(concrete.cell, concrete.free)
            if what < 6 and b not in held:
                concrete.push(b)
                symbolic.push(b)
            elif what >= 6 and held:
                b = concrete.take()
                run.allows(symbolic.take(), b)
                assert run.value(symbolic.refs.drop(b))
            elif what < 6:
                assert run.refuses(lambda b=b: symbolic.snap().push(b))
            held = cell_blocks(concrete.cell, concrete.free)
            assert run.value(symbolic.n) == concrete.n == len(held)
            assert [run.value(symbolic.holds(x)) for x in range(4)] == [x in held for x in range(4)]
        run.settle()


def test_take_of_an_empty_pool_is_refused():
    with known() as run:
        assert run.refuses(lambda: empty_pool().take())


def symbolic_members():
    """Nobody lives anywhere but in groups that were started."""
    return filled(block_shapes.ZMembers(), has_=False, n=0, bound=0, origin=-9, after=-9, common=-9, prefix=-9, line=0)


def line(run, members, g):
    """The kin of g as the symbolic reading has it, from its head on."""
    heads = [q for q in range(9) if run.value(members.has_[g, q]) and run.value(members.origin[g, q]) == -1]
    assert len(heads) == 1
    kin, q = [], heads[0]
    while q != -1:
        kin.append((q, run.value(members.common[g, q])))
        assert run.value(members.after[g, q]) == -1 or run.value(members.origin[g, members.after[g, q]]) == q
        q = run.value(members.after[g, q])
    return tuple(kin)


@FEW
@given(numbers)
def test_members(steps):
    with known() as run:
        concrete, symbolic = fresh_maps()[NUMBER["members"]], symbolic_members()
        for g in range(2):
            concrete.start(g)
            symbolic.start(g)
        for what, g, q in steps:
            g %= 2
            live = concrete.of(g)
            if what < 5:
                parent, old = live[q % len(live)], symbolic.line[g]
                assert run.value(symbolic.add(g, parent, what)) == concrete.add(g, parent, what)
                assert symbolic.line[g] is not old
                assert run.refuses(lambda g=g: symbolic.snap().add(g, 8, 1))
            elif q in live and len(live) > 1:
                concrete.remove(g, q)
                symbolic.remove(g, q)
            elif q not in live:
                assert run.refuses(lambda g=g, q=q: symbolic.snap().remove(g, q))
            assert run.value(symbolic.first(g)) == concrete.first(g)
            assert run.value(symbolic.count(g)) == concrete.count(g)
            assert [run.value(symbolic.has(g, x)) for x in range(7)] == [concrete.has(g, x) for x in range(7)]
            assert run.value(symbolic.bound[g]) > max(concrete.of(g))
            assert line(run, symbolic, g) == concrete.kin(g)
        run.settle()


@FEW
@given(numbers)
def test_sums(steps):
    """What is kept for each: a write changes the sum by the change, each is at most the sum, and one is not 0 unless it is 0."""
    with known() as run:
        concrete, symbolic = dict.fromkeys(range(4), 0), filled(shapes.ZSum("kept"), of=0, total=0)
        for n, g, _ in steps:
            concrete[g] = n
            symbolic[g] = n
            assert run.value(symbolic.total) == sum(concrete.values())
            assert [run.value(symbolic[x]) for x in range(4)] == list(concrete.values())
        run.settle()


class Blocks:
    """Tables, counts and members of two groups, both readings; blocks are taken as the core takes them."""

    def __init__(self):
        maps = fresh_maps()
        self.members, self.table, self.refs = (maps[NUMBER[name]] for name in ("members", "table", "refs"))
        self.zmembers = symbolic_members()
        self.zrefs = filled(block_shapes.ZRefs(8), of=0, used_gpu=0, used_cpu=0)
        self.ztable = filled(
            block_shapes.ZTable(self.zrefs, self.zmembers, lambda n: n),
            **dict.fromkeys(("at", "rank", "owner_g", "owner_q", "owner_i", "group_of", "index_of", "text"), -1),
            size_=0,
            held=0,
        )
        self.zrefs.table = self.ztable
        self.ztable.plan = self.zplan = filled(ZPlan(), told=-1, told_n=0)
        for g in range(2):
            self.members.start(g)
            self.zmembers.start(g)
            self.members.add(g, 0, 1)
            self.zmembers.add(g, 0, 1)

    def rows(self):
        """(group, sequence) -> blocks, as stored."""
        sizes = {(g, q): self.table.size(g, q) for g in range(2) for q in range(2)}
        return {(g, q): [self.table.block(g, q, i) for i in range(n)] for (g, q), n in sizes.items()}

    def append(self, run, g, q, b, shared):
        """A new block, or one more reference to a block of a sibling."""
        n = self.table.size(g, q)
        if shared:
            for refs, table in ((self.refs, self.table), (self.zrefs, self.ztable)):
                refs.share(b)
                table.append(g, q, b)
        else:
            pool = empty_pool()
            pool.refs = self.zrefs
            pool.push(b)
            self.table.extend(g, q, pool_of([b]))
            self.ztable.extend(g, q, pool)
        assert self.table.slots[-1] == (g, q, n, b) and run.value(self.zplan.told[g, q, n]) == b

    def drop(self, run, b):
        """One reference less; both say whether it was the last."""
        assert run.value(self.zrefs.drop(b)) == self.refs.drop(b)

    def pop(self, run, g, q):
        """The last block of a table goes."""
        b = self.table.pop_block(g, q)
        assert run.value(self.ztable.pop_block(g, q)) == b
        self.drop(run, b)

    def put(self, run, g, q, i, b):
        """Another block takes the place of the i-th."""
        old = self.table.block(g, q, i)
        self.zrefs.take(b)
        for table in (self.table, self.ztable):
            table.put(g, q, i, b)
        self.drop(run, old)

    def compare(self, run):
        """All reads, and the ghosts: rank and owner are inverse, each entry is counted, held and used are numbers of blocks."""
        rows, z = self.rows(), self.ztable
        entries = [(g, q, i, b) for (g, q), row in rows.items() for i, b in enumerate(row)]
        used = {b for *_, b in entries}
        assert {k: run.value(z.size(*k)) for k in rows} == {k: len(row) for k, row in rows.items()}
        assert [run.value(z.at[g, q, i]) for g, q, i, _ in entries] == [b for *_, b in entries]
        for g, q, i, b in entries:
            k = run.value(z.rank[g, q, i])
            assert 0 <= k < run.value(self.zrefs.of[b]) == sum(b == c for *_, c in entries)
            assert [run.value(owner[b, k]) for owner in (z.owner_g, z.owner_q, z.owner_i)] == [g, q, i]
            assert (run.value(z.group_of[b]), run.value(z.index_of[b])) == (g, i)
            assert run.value(self.zrefs.shared(b)) == self.refs.shared(b)
        for g in range(2):
            assert run.value(z.distinct(g)) == self.table.distinct(g)
            if all(rows[g, q] for q in range(2)):
                run.allows(z.pending_copies(g), self.table.pending_copies(g))
        assert run.value(self.zrefs.used_gpu) == sum(b < 8 for b in used)
        assert run.value(self.zrefs.used_cpu) == sum(b >= 8 for b in used)


@FEW
@given(numbers)
def test_table_and_counts(steps):
    with known() as run:
        both = Blocks()
        for what, g, q in steps:
            g, q = g % 2, q % 2
            rows = both.rows()
            used = {b for row in rows.values() for b in row}
            new = min(set(range(6, 30)) - used)
            row, sibling = rows[g, q], rows[g, 1 - q]
            n = len(row)
            if what < 4 or (what < 6 and len(sibling) <= n):
                both.append(run, g, q, new, shared=False)
            elif what < 6:
                both.append(run, g, q, sibling[n], shared=True) if sibling[n] not in row else None
            elif what < 8 and n:
                both.pop(run, g, q)
            elif n:
                both.put(run, g, q, n - 1, new)
            else:
                assert run.refuses(lambda g=g, q=q, both=both: both.ztable.snap().pop_block(g, q))
            both.compare(run)
        run.settle()


def test_counts_refuse_what_is_illegal():
    with known() as run:
        refs = filled(block_shapes.ZRefs(8), of=0, used_gpu=0, used_cpu=0)
        for call in (lambda: refs.snap().share(1), lambda: refs.snap().drop(1), lambda: refs.snap().shared(1)):
            assert run.refuses(call)
        refs.take(1)
        assert run.refuses(lambda: refs.snap().take(1))
        run.settle()


@FEW
@given(numbers, st.permutations(range(4)))
def test_queue(steps, keys):
    with known() as run:
        maps, members = fresh_maps(), symbolic_members()
        key, zkey = maps[NUMBER["key"]], ZMap("key")
        zkey.fill(0)
        for g, k in enumerate(keys):
            key[g], zkey[g] = k, k
            members.start(g)
        members.add(1, 0, 1)
        zseats = ZMap("seats")
        zseats.fill(3)
        symbolic = filled(shapes.ZQueue("q", zkey, members, zseats), has_=False, n=0, weight=0, live=0)
        concrete, sequences = Queue(((), ()), key), [1, 2, 1, 1]
        for what, g, _ in steps:
            if what == 9:
                concrete.clear()
                symbolic.clear()
            elif not concrete.has(g):
                assert run.refuses(lambda g=g: symbolic.snap().remove(g))
                concrete.add(g)
                symbolic.add(g)
            else:
                assert run.refuses(lambda g=g: symbolic.snap().add(g))
                concrete.remove(g)
                symbolic.remove(g)
            assert [run.value(symbolic.has(x)) for x in range(4)] == [concrete.has(x) for x in range(4)]
            assert run.value(symbolic.count()) == concrete.count()
            assert run.value(symbolic.empty()) == concrete.empty()
            inside = [g for g in range(4) if concrete.has(g)]
            assert [run.value(symbolic.weight), run.value(symbolic.live)] == [3 * len(inside), sum(sequences[g] for g in inside)]
            if not concrete.empty():
                assert (run.value(symbolic.first()), run.value(symbolic.last())) == (concrete.first(), concrete.last())
            results = shapes.ZResults()
            results.of.fill(False)
            results.of[g] = True
            idle, zidle = Queue(((keys[g],), (g,)), key), filled(shapes.ZQueue("i", zkey, members, zseats), has_=False, n=0)
            nobody = Queue(((), ()), key)
            for late, zlate in ((nobody, zidle.snap()), (idle, zidle)):
                zlate.has_[g] = late is idle
                left, without = symbolic.minus(results, zlate), concrete.minus(Results([g]), late)
                assert [x for x in range(4) if run.value(left.has(x))] == sorted(without)
            both = symbolic.meet(results)
            assert [x for x in range(4) if run.value(both.has(x))] == sorted(concrete.meet(Results([g])))
        if concrete.empty():
            assert run.refuses(symbolic.first)
        run.settle()


@FEW
@given(numbers)
def test_calendar(steps):
    with known() as run:
        concrete = fresh_maps()[NUMBER["due"]]
        symbolic = filled(shapes.ZCalendar("due", ZMap("alarm")), has_=False)
        where = {}
        for what, t, g in steps:
            if g not in where:
                assert run.refuses(lambda g=g: symbolic.snap().remove(g))
                concrete.add(g, t)
                symbolic.add(g, t)
                where[g] = t
            elif what < 5:
                concrete.remove(g)
                symbolic.remove(g)
                del where[g]
            elif what < 8:
                concrete.move(g, t)
                symbolic.move(g, t)
                where[g] = t
            else:
                other = symbolic.snap()
                other.at = symbolic.at.snap()
                assert run.refuses(lambda t=t, g=g, other=other: other.add(g, t))
            places = [(t, g) for t in range(4) for g in range(4)]
            assert [run.value(symbolic.has(*x)) for x in places] == [concrete.has(*x) for x in places]
            assert [run.value(symbolic.at[g]) for g in where] == [concrete.at[g] for g in where] == list(where.values())
        run.settle()


@FEW
@given(numbers)
def test_twin(steps):
    with known() as run:
        concrete, symbolic = Twin(), filled(shapes.ZTwin(), dom=False, of=-1, inverse=-1, n=0)
        for what, b, c in steps:
            if what == 9:
                concrete.clear()
                symbolic.clear()
            elif concrete.has(b):
                assert run.value(symbolic[b]) == concrete[b]
                assert run.refuses(lambda b=b, c=c: symbolic.snap().__setitem__(b, c))
            else:
                assert run.refuses(lambda b=b: symbolic[b])
                concrete[b] = c
                symbolic[b] = c
                assert run.value(symbolic.inverse[c]) == b
            assert [run.value(symbolic.has(x)) for x in range(4)] == [concrete.has(x) for x in range(4)]
            assert run.value(symbolic.n) == len(concrete)
        run.settle()


@FEW
@given(numbers)
def test_map_of_integers(steps):
    with known() as run:
        concrete, symbolic = fresh_maps()[NUMBER["length"]], ZMap("length")
        symbolic.fill(0)
        for what, g, v in steps:
            old = symbolic.snap()
            before = {x: concrete.get(x, 0) for x in range(4)}
            if what < 8:
                concrete[g], symbolic[g] = v, v
            assert {x: run.value(symbolic[x]) for x in range(4)} == {x: concrete.get(x, 0) for x in range(4)}
            assert {x: run.value(old[x]) for x in range(4)} == before
        run.settle()
