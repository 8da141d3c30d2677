"""FakeBackend: executes a plan on host memory and refuses any that is not safe, before anything is moved.

The order of effects is swap_out, swap_in, copy, compute; a block freed by a plan may be reused by it. `execute` does the first
three; `write` and `read` are the computing, and take sequences, never blocks: they go through the tables.
"""

from collections.abc import Sequence
from itertools import count

import attrs
import numpy as np

from kvproof.backend_fake.checks import Pairs, Sizes, check_lists
from kvproof.backend_fake.errors import Misuse, fail
from kvproof.backend_fake.ledger import Ledger, Page
from kvproof.backend_fake.memory import Bools, Ints, Memory, Words
from kvproof.store.plan import Plan, Recompute


@attrs.frozen(eq=False)
class Histories:
    """Several histories as read: rows of block_size slots; history k owns rows starts[k] .. starts[k + 1] - 1."""

    contents: Words
    positions: Ints
    wanted: Bools
    starts: Ints


class FakeBackend:
    """GPU and host pools. It is told of every plan (`execute`) and of what plans do not say (`release`, `fork`, ...)."""

    def __init__(self, num_gpu_blocks: int, num_cpu_blocks: int, block_size: int) -> None:
        self.sizes = Sizes(num_gpu_blocks, num_cpu_blocks)
        self.block_size = block_size
        self.gpu = Memory("GPU", num_gpu_blocks, block_size)
        self.host = Memory("host", num_cpu_blocks, block_size)
        self.ledger = Ledger()
        self.step = 0
        self._numbers = count(1)
        self._serials: dict[int, dict[int, int]] = {}
        self._lineage: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of forked sequences only

    # Plans.

    def execute(self, plan: Plan) -> None:
        """Take over the tables that the plan announces and move the blocks. A `BackendError` has changed nothing."""
        check_lists(self.sizes, plan)
        page = Page(self.ledger)
        self._cut(page, plan)
        self._leave(page, plan)
        self._arrive(page, plan)
        fresh = self._assign(page, plan)
        page.close()
        self.step += 1
        for g, mode in plan.preempted:
            if mode == "recompute":
                self._forget_lineage(g)
        for recompute in plan.recomputes:
            if recompute.start == 0:
                self._relate(recompute)
        n = self.sizes.gpu
        self._transfer(self.gpu, self.host, plan.swap_out, 0, n)
        self._transfer(self.host, self.gpu, plan.swap_in, n, 0)
        self._transfer(self.gpu, self.gpu, plan.copy, 0, 0)
        self.gpu.hand_out(fresh, self.step)

    def _transfer(self, origin: Memory, goal: Memory, pairs: Pairs, source_base: int, target_base: int) -> None:
        if pairs:
            goal.receive(origin, [s - source_base for s, _ in pairs], [t - target_base for _, t in pairs], self.step)

    def _cut(self, page: Page, plan: Plan) -> None:
        """Lookahead slots that nobody has written go back."""
        for i, (g, q, n) in enumerate(plan.trimmed):
            row = page.tables(g).get(q, [])
            if type(n) is not int or not 0 < n < len(row):
                fail(Misuse.BAD_INDEX, f"trimmed[{i}]: {n} blocks are to be kept of a table of {len(row)}")
            while len(row) > n:
                self.sizes.on("gpu", row[-1], f"trimmed[{i}]")
                page.drop(row.pop())

    def _leave(self, page: Page, plan: Plan) -> None:
        """Who ends or is preempted gives its blocks back, or moves them to the host."""
        moves = dict(plan.swap_out)
        if len(moves) != len(plan.swap_out):
            fail(Misuse.WRONG_MAP, "swap_out moves one block to two places")
        moved: set[int] = set()
        for g, _ in plan.ended:
            page.release(g)
        for g, mode in plan.preempted:
            if not page.knows(g):
                fail(Misuse.UNKNOWN_GROUP, f"group {g} is preempted and has no table")
            if mode == "recompute":
                page.release(g)
            else:
                moved |= page.move(g, moves)
        self._all_moved("swap_out", set(moves), moved)

    def _arrive(self, page: Page, plan: Plan) -> None:
        """Who is swapped in moves its blocks back."""
        moves = dict(plan.swap_in)
        if len(moves) != len(plan.swap_in):
            fail(Misuse.WRONG_MAP, "swap_in moves one block to two places")
        arriving = set(moves.values())
        for i, (source, _) in enumerate(plan.copy):
            if source in arriving and page.count(source):
                fail(Misuse.OVERWRITTEN_SOURCE, f"copy[{i}] reads block {source} after a swap-in wrote it")
        moved: set[int] = set()
        for g in plan.resumed:
            if not page.knows(g):
                fail(Misuse.UNKNOWN_GROUP, f"group {g} is resumed and has no table")
            moved |= page.move(g, moves)
        self._all_moved("swap_in", set(moves), moved)

    def _all_moved(self, name: str, sources: set[int], moved: set[int]) -> None:
        for b in sorted(sources - moved):
            if b not in self.ledger.refs:
                fail(Misuse.FREE_BLOCK, f"{name} reads block {b}, which is free")
            fail(Misuse.WRONG_MAP, f"{name} reads block {b} of group {self.ledger.holder[b]}, which does not move")

    def _assign(self, page: Page, plan: Plan) -> list[int]:
        """The slots of the plan: new blocks at the ends of tables, copies in place of what was shared. Returns the new blocks."""
        origin = {target: source for source, target in plan.copy}
        resumed = set(plan.resumed)
        rebuilt = {r.group for r in plan.recomputes if r.start == 0}
        for i, (source, _) in enumerate(plan.copy):
            if not page.count(source):
                fail(Misuse.FREE_BLOCK, f"copy[{i}] reads block {source}, which is free")
        fresh: list[int] = []
        for n, (g, q, i, b) in enumerate(plan.slots):
            row = page.tables(g).setdefault(q, [])
            if i == len(row):
                if b in origin:
                    fail(Misuse.TWO_WRITERS, f"slots[{n}]: block {b} is new and the target of a copy")
                if g in rebuilt and any(i < len(other) and other[i] == b for other in page.tables(g).values()):
                    page.share(b)
                else:
                    page.take(g, b)
                    fresh.append(b)
                row.append(b)
            elif i > len(row):
                fail(Misuse.BAD_INDEX, f"slots[{n}]: index {i} in a table of {len(row)} blocks")
            elif row[i] == b and g in resumed:
                continue  # said already by the swap map
            elif origin.get(b) == row[i]:
                page.take(g, b)
                page.drop(row[i])
                row[i] = b
            elif page.count(b):
                fail(Misuse.TWO_OWNERS, f"slots[{n}]: block {b} of group {page.holder_of(b)} is handed to group {g}")
            else:
                fail(Misuse.BAD_INDEX, f"slots[{n}]: block {b} replaces block {row[i]} without a copy")
        for source, target in plan.copy:
            if not page.count(target):
                fail(Misuse.UNOWNED_TARGET, f"the copy of block {source} in block {target} is in no table")
        return fresh

    # Notices: what plans do not say.

    def release(self, g: int) -> None:
        """g has finished or was aborted: it owns nothing any more. Harmless for one that a plan ended already.

        An abort while a plan is in flight is told after that plan was executed and before the next one.
        """
        page = Page(self.ledger)
        page.release(g)
        page.close()
        self._forget_lineage(g)
        self._serials.pop(g, None)

    def release_sequence(self, g: int, q: int) -> None:
        """Sequence q of g has ended, others of the group go on."""
        page = Page(self.ledger)
        page.release(g, q)
        page.close()

    def fork(self, g: int, parent: int, child: int, written: int, blocks: int | None = None) -> None:
        """The child shares the blocks of its parent, which has written the positions below `written`; blocks beyond go back.

        blocks: so many are kept, if not those that are written (None): after lost results there may be more.
        """
        page = Page(self.ledger)
        row = page.tables(g)[parent]
        while len(row) > (max(1, -(-written // self.block_size)) if blocks is None else blocks):
            page.drop(row.pop())
        page.tables(g)[child] = list(row)
        for b in row:
            page.share(b)
        page.close()
        line = [part for part in self._line(g, parent) if part[0] < written]
        self._lineage[g, child] = [*line, (written, self._writer(g, child))]

    def close(self) -> None:
        """Give back what was taken from the machine: nothing."""

    # Computing.

    def sequences(self, g: int) -> list[int]:
        """The live sequences of g, as announced."""
        return self.ledger.sequences(g)

    @property
    def gpu_used(self) -> int:
        """GPU blocks that are in a table."""
        return sum(b < self.sizes.gpu for b in self.ledger.refs)

    @property
    def host_used(self) -> int:
        """Host blocks that are in a table."""
        return len(self.ledger.refs) - self.gpu_used

    def write(self, runs: Sequence[tuple[int, int, int]], tokens: Sequence[Words], owners: Sequence[int] | None = None) -> None:
        """The k-th run (group, sequence, first position) stores tokens[k] in consecutive slots of the table of its sequence.

        owners: sequences whose tables they go to, where these are others. A block that several share is written only if they all
        expect to read just that.
        """
        size = self.block_size
        cells: list[tuple[int, int, int, int]] = []
        for k, ((g, q, start), part) in enumerate(zip(runs, tokens, strict=True)):
            stop, owner = start + len(part), q if owners is None else owners[k]
            row = self._gpu_row(g, owner, stop)
            for i in range(start // size, len(row)):
                if self.ledger.refs[row[i]] > 1:
                    self._same_for_all(g, i, row[i], owner, range(max(start, i * size), min(stop, (i + 1) * size)))
            writer = self._writer(g, q)
            if owner == q:
                cells += [(row[p // size], p % size, writer, p) for p in range(start, stop)]
            else:
                cells += [(row[p // size], p % size, self._expected(g, owner, p), p) for p in range(start, stop)]
        if cells:
            blocks, offsets, writers, positions = np.array(cells, dtype=np.int64).T
            self.store(blocks, offsets, writers, positions, np.concatenate(tokens))

    def read(self, wishes: Sequence[tuple[int, int, int]]) -> Histories:
        """Positions 0 .. length - 1 of each (group, sequence, length), every slot of them, with every check."""
        size = self.block_size
        cells: list[tuple[int, int, int, int]] = []
        starts: list[int] = []
        for g, q, length in wishes:
            starts.append(len(cells))
            writer = self._writer(g, q)
            cells += [(b, i * size, length, writer) for i, b in enumerate(self._gpu_row(g, q, length))]
        blocks, first, lengths, serials = np.array(cells, dtype=np.int64).T
        positions = first[:, None] + np.arange(size)
        wanted = positions < lengths[:, None]
        writers = serials[:, None]
        if any((g, q) in self._lineage for g, q, _ in wishes):
            writers = self._ancestors(wishes, [*starts, len(cells)], positions, writers)
        return Histories(self.load(blocks, writers, positions, wanted), positions, wanted, np.array(starts))

    def store(self, blocks: Ints, offsets: Ints, writers: Ints, positions: Ints, words: Words) -> None:
        """Store one word in each of these slots of GPU blocks."""
        self.gpu.write(blocks, offsets, writers, positions, words, self.step)

    def load(self, blocks: Ints, writers: Ints, positions: Ints, wanted: Bools) -> Words:
        """[len(blocks), block_size]: what is in these GPU blocks, of which the wanted slots are read."""
        return self.gpu.read(blocks, writers, positions, wanted)

    def _same_for_all(self, g: int, i: int, b: int, owner: int, positions: range) -> None:
        """Block b, the i-th of several sequences of g, is written for one of them: do all of them expect the same?"""
        for q in self.sequences(g):
            row = self.ledger.row(g, q)
            if i < len(row) and row[i] == b and any(self._expected(g, q, p) != self._expected(g, owner, p) for p in positions):
                fail(Misuse.TWO_WRITERS, f"group {g} writes block {b}, which {self.ledger.refs[b]} sequences share")

    def _expected(self, g: int, q: int, position: int) -> int:
        """Who must have written this position of q."""
        return [serial for since, serial in self._line(g, q) if since <= position][-1]

    def _ancestors(self, wishes: Sequence[tuple[int, int, int]], bounds: list[int], positions: Ints, writers: Ints) -> Ints:
        """Who must have written each slot, where a history begins with that of the sequence it was forked from."""
        out: Ints = np.broadcast_to(writers, positions.shape).copy()
        for (g, q, _), start, stop in zip(wishes, bounds[:-1], bounds[1:], strict=True):
            part, place = out[start:stop], positions[start:stop]
            for since, serial in self._lineage.get((g, q), ()):
                part[place >= since] = serial
        return out

    def _gpu_row(self, g: int, q: int, length: int) -> list[int]:
        """The blocks that hold positions 0 .. length - 1 of q, all of them on the GPU."""
        row = self.ledger.row(g, q)
        blocks = -(-length // self.block_size)
        if blocks > len(row):
            fail(Misuse.NO_SLOT, f"group {g}, sequence {q}: position {length - 1} in a table of {len(row)} blocks")
        if row[0] >= self.sizes.gpu:
            fail(Misuse.WRONG_DEVICE, f"group {g} computes while its blocks are on the host")
        return row[:blocks]

    def _writer(self, g: int, q: int) -> int:
        """The serial number under which q writes, never used by anybody else."""
        serials = self._serials.setdefault(g, {})
        if q not in serials:
            serials[q] = next(self._numbers)
        return serials[q]

    def _line(self, g: int, q: int) -> list[tuple[int, int]]:
        """Who wrote the history of q: from which position on, under which serial number."""
        return self._lineage.get((g, q), [(0, self._writer(g, q))])

    def _relate(self, recompute: Recompute) -> None:
        """What two sequences have in common is written by the first of them, but for the last token: if its result is lost, each
        writes it again."""
        g = recompute.group
        line: list[tuple[int, int]] = []
        for q, common in recompute.kin:
            since = min(common, recompute.length - 1)
            line = [part for part in line if part[0] < since]
            line.append((since, self._writer(g, q)))
            self._lineage[g, q] = list(line)

    def _forget_lineage(self, g: int) -> None:
        """What g computes from now on it writes itself."""
        for key in [key for key in self._lineage if key[0] == g]:
            del self._lineage[key]
