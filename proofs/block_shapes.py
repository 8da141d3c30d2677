"""Symbolic readings of the collections that own blocks: free lists, reference counts, tables, and who lives in a group.

Ghosts live only here: the bijection (group, sequence, index) <-> (block, k) with 0 <= k < references, which makes "the count is
the number of table entries" a first-order statement, and counters of finite sets, whose laws `lemmas.py` proves by induction.
"""

from typing import Any

import z3

from kvproof.proofs.sym import SBool, SInt, ZMap, forall, fresh, fresh_bool, quantified, run
from kvproof.spec.logic import both, choose, either, implies, negate

ZERO = SInt(z3.IntVal(0))


def prove(name: str, c: Any) -> None:
    """An obligation of the run in progress."""
    run().prove(name, c)


def assume(c: Any) -> None:
    """A fact of the run in progress."""
    run().assume(c)


class Shape:
    """Parts named in `parts` are maps, integers or truth values; havoc, snap and version act on all of them."""

    parts: tuple[str, ...] = ()

    def havoc(self) -> None:
        """Forget the contents; only the contract is known of them."""
        for p in self.parts:
            x = getattr(self, p)
            if isinstance(x, ZMap):
                x.havoc()
            else:
                setattr(self, p, fresh_bool(p) if isinstance(x, (SBool, bool)) else fresh(p))
        self.contract()

    def contract(self) -> None:
        """Facts that hold of any contents."""

    def snap(self) -> Any:
        """A copy that later edits do not change."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        for p in self.parts:
            x = getattr(self, p)
            if isinstance(x, ZMap):
                setattr(new, p, x.snap())
        return new

    def version(self) -> tuple[Any, ...]:
        """Equal exactly when nothing was written in between."""
        return tuple(x.read if isinstance(x := getattr(self, p), ZMap) else x for p in self.parts)


class ZPool(Shape):
    """The free blocks of one device: a finite set and its size. Any of them may be the one that is taken."""

    parts = ("has_", "n")
    refs: "ZRefs"

    def __init__(self, name: str) -> None:
        self.has_, self.n = ZMap(name, 1, truth=True), fresh(name + "_n")
        self.contract()

    def contract(self) -> None:
        """A size is not negative."""
        assume(self.n >= 0)

    def holds(self, b: Any) -> Any:
        """Is b free?"""
        return self.has_[b]

    def take(self) -> Any:
        """One of them, with its first reference. Obligations: there is one, and nothing refers to it."""
        prove("requires: take: the free list is not empty", self.n > 0)
        b = fresh("taken")
        assume(self.has_[b])  # a set whose size is not 0 has an element
        self.has_[b] = False
        self.n = self.n - 1
        self.refs.take(b)
        return b

    def push(self, b: Any) -> None:
        """b is free. Obligation: it was not."""
        prove("no_double_free: push: not free already", negate(self.holds(b)))
        self.has_[b] = True
        self.n = self.n + 1


class ZRefs(Shape):
    """Block -> number of references, with the number of used blocks of each device."""

    parts = ("of", "used_gpu", "used_cpu")

    def __init__(self, num_gpu_blocks: Any) -> None:
        self.of, self.used_gpu, self.used_cpu = ZMap("refs"), fresh("used_gpu"), fresh("used_cpu")
        self.num_gpu_blocks = num_gpu_blocks
        self.table: ZTable | None = None
        self.contract()

    def contract(self) -> None:
        """Counting: not negative, and if not 0 then some block of that device is used."""
        w, v = fresh("used"), fresh("used_host")
        assume(both(self.used_gpu >= 0, either(self.used_gpu == 0, both(w >= 0, w < self.num_gpu_blocks, self.of[w] != 0))))
        assume(both(self.used_cpu >= 0, either(self.used_cpu == 0, both(v >= self.num_gpu_blocks, self.of[v] != 0))))

    def _write(self, b: Any, n: Any) -> None:
        change = choose(self.of[b] == 0, 0, -1) + choose(n == 0, 0, 1)
        on_gpu = b < self.num_gpu_blocks
        self.used_gpu = self.used_gpu + choose(on_gpu, change, 0)
        self.used_cpu = self.used_cpu + choose(on_gpu, 0, change)
        self.of[b] = n

    def take(self, b: Any) -> None:
        """0 -> 1, of a block just taken from its pool."""
        prove("refcount_exact: take: not referenced", self.of[b] == 0)
        self._write(b, 1)

    def share(self, b: Any) -> None:
        """One more. Obligation: the block is used."""
        prove("refcount_exact: share: referenced", self.of[b] >= 1)
        self._write(b, self.of[b] + 1)

    def drop(self, b: Any) -> Any:
        """One less; was it the last? Obligation: the block is used."""
        prove("no_double_free: drop: referenced", self.of[b] >= 1)
        self._write(b, self.of[b] - 1)
        return self.of[b] == 0

    def shared(self, b: Any) -> Any:
        """More than one reference? Obligation: the block is used (the concrete reading stores only counts above 1)."""
        prove("requires: shared: a used block", self.of[b] >= 1)
        if "slot" in run().notes and self.table is not None:  # a cut: if it is shared, then with a sibling, at the same index
            t, (g, q, i) = self.table, run().notes["slot"]
            k = choose(t.rank[g, q, i] == 0, 1, 0)
            other = (t.owner_g[b, k], t.owner_q[b, k], t.owner_i[b, k])
            sibling = both(
                other[0] == g, other[1] != q, other[2] == i, t.live(*other), t.at[other] == b, t.members.has_[g, other[1]]
            )
            prove("helper: cut: shared with a sibling", implies(self.of[b] > 1, sibling))
            assume(implies(self.of[b] > 1, sibling))
        return self.of[b] > 1


class ZMembers(Shape):
    """Group -> live sequences: a finite set of indices below `bound`, with its size, and the line of its kin.

    Ghosts: `prefix[g, q, n]` stands for the first n tokens of q, those to come included; a child has those of its parent so far.
    `line[g]` is another number whenever the line of g changes, so that what depends on the line is a function of it.
    """

    parts = ("has_", "n", "bound", "origin", "after", "common", "prefix", "line")

    def __init__(self) -> None:
        self.has_, self.n, self.bound = ZMap("member", 2, truth=True), ZMap("members"), ZMap("bound")
        self.origin, self.after, self.common = ZMap("origin", 2), ZMap("after", 2), ZMap("common", 2)
        self.prefix, self.line = ZMap("prefix", 3), ZMap("line")
        self.queues: tuple[Any, ...] = ()  # they count the live sequences of their groups

    def has(self, g: Any, q: Any) -> Any:
        """Is q a live sequence of g?"""
        return self.has_[g, q]

    def count(self, g: Any) -> Any:
        """How many live."""
        self._law(g)
        return self.n[g]

    def _law(self, g: Any) -> None:
        """The size of a finite set is not negative, and 0 exactly when nobody is in it."""
        w = fresh("sequence")
        assume(both(self.n[g] >= 0, either(self.n[g] == 0, self.has_[g, w])))
        assume(forall(1, lambda q: implies(self.has_[g, q], self.n[g] >= 1), lambda q: [[self.has_[g, q]]]))

    def sole(self, g: Any) -> Any:
        """Law: in a set of size 1 all are the same."""
        w = fresh("sole")
        return forall(1, lambda q: implies(both(self.n[g] == 1, self.has_[g, q]), q == w), lambda q: [[self.has_[g, q]]])

    def first(self, g: Any) -> Any:
        """The smallest live index. Obligation: there is one."""
        self._law(g)
        prove("requires: members.first: somebody lives", self.n[g] >= 1)
        w = fresh("first")
        assume(self.has_[g, w])
        assume(self.sole(g))
        assume(forall(1, lambda q: implies(self.has_[g, q], w <= q), lambda q: [[self.has_[g, q]]]))
        return w

    def some(self, g: Any) -> Any:
        """One that lives, if any does."""
        assert not quantified(), "one witness for all"
        self._law(g)
        w = fresh("some")
        assume(implies(self.n[g] >= 1, self.has_[g, w]))
        return w

    def start(self, g: Any) -> None:
        """g has sequence 0 alone."""
        self.has_.update(lambda old, t, q: choose(t == g, q == 0, old))
        self.n[g] = 1
        self.bound[g] = 1
        self.origin[g, 0], self.after[g, 0], self.common[g, 0] = -1, -1, 0
        self.line[g] = fresh("line")

    def add(self, g: Any, parent: Any, tokens: Any) -> Any:
        """A new index, after its parent in the line; queues that g is in have one sequence more. Obligation: the parent lives."""
        prove("requires: members.add: the parent lives", self.has_[g, parent])
        q, rest = self.bound[g], self.after[g, parent]
        self.origin[g, q], self.after[g, q], self.common[g, q] = parent, rest, tokens
        self.after[g, parent], self.origin[g, rest] = q, q
        self.common[g, rest] = choose(self.common[g, rest] <= tokens, self.common[g, rest], tokens)
        known, own = self.prefix.snap(), ZMap("own_prefix")
        self.prefix.update(
            lambda old, t, p, n: choose(both(t == g, p == q), choose(n <= tokens, known[g, parent, n], own[n]), old)
        )
        self.line[g] = fresh("line")
        self.has_[g, q] = True
        self.n[g] = self.n[g] + 1
        self.bound[g] = q + 1
        for queue in self.queues:
            queue.live = queue.live + choose(queue.has_[g], 1, 0)
        return q

    def remove(self, g: Any, q: Any) -> None:
        """q lives no more. Obligation: it did."""
        prove("requires: members.remove: lives", self.has_[g, q])
        before, rest, mine = self.origin[g, q], self.after[g, q], self.common[g, q]
        self.after[g, before], self.origin[g, rest] = rest, before
        self.common[g, rest] = choose(self.common[g, rest] <= mine, self.common[g, rest], mine)
        self.line[g] = fresh("line")
        self.has_[g, q] = False
        self.n[g] = self.n[g] - 1
        for queue in self.queues:
            queue.live = queue.live - choose(queue.has_[g], 1, 0)


class ZTable(Shape):
    """(group, sequence, index) -> block, with the ghost bijection to (block, k), the group and index of each used block, the
    tokens up to its end that its first holder expects, and how many different blocks each group holds."""

    parts = ("at", "size_", "rank", "owner_g", "owner_q", "owner_i", "group_of", "index_of", "text", "held")
    plan: Any

    def __init__(self, refs: ZRefs, members: ZMembers, span: Any) -> None:
        self.at, self.size_, self.rank = ZMap("table", 3), ZMap("size", 2), ZMap("rank", 3)
        self.owner_g, self.owner_q, self.owner_i = ZMap("owner_g", 2), ZMap("owner_q", 2), ZMap("owner_i", 2)
        self.group_of, self.index_of, self.held = ZMap("group_of"), ZMap("index_of"), ZMap("held")
        self.text = ZMap("text")
        self.refs, self.members, self.span = refs, members, span

    def live(self, g: Any, q: Any, i: Any) -> Any:
        """Is (g, q, i) a table entry?"""
        return both(i >= 0, i < self.size_[g, q])

    def size(self, g: Any, q: Any) -> Any:
        """Length of a table."""
        return self.size_[g, q]

    def block(self, g: Any, q: Any, i: Any) -> Any:
        """An entry. Obligation: it is one."""
        prove("requires: table.block: in the table", self.live(g, q, i))
        run().notes["slot"] = (g, q, i)
        return self.at[g, q, i]

    def _link(self, g: Any, q: Any, i: Any, b: Any) -> None:
        """The entry (g, q, i) is the last of the references to b, which counts it already."""
        k = self.refs.of[b] - 1
        self.at[g, q, i] = b
        self.rank[g, q, i] = k
        self.owner_g[b, k], self.owner_q[b, k], self.owner_i[b, k] = g, q, i
        self.held[g] = self.held[g] + choose(k == 0, 1, 0)
        self.group_of[b], self.index_of[b] = g, i
        self.text[b] = choose(k == 0, self.members.prefix[g, q, self.span(i + 1)], self.text[b])

    def _unlink(self, g: Any, q: Any, i: Any) -> None:
        """The last reference moves into the place of this one; the count still includes it."""
        b = self.at[g, q, i]
        r, last = self.rank[g, q, i], self.refs.of[b] - 1
        og, oq, oi = self.owner_g[b, last], self.owner_q[b, last], self.owner_i[b, last]
        self.rank[og, oq, oi] = r
        self.owner_g[b, r], self.owner_q[b, r], self.owner_i[b, r] = og, oq, oi
        self.held[g] = self.held[g] - choose(last == 0, 1, 0)

    def height(self, g: Any) -> Any:
        """Length of the table of the first live sequence."""
        return self.size_[g, self.members.first(g)]

    def extend(self, g: Any, q: Any, pool: ZPool) -> None:
        """The last entry of q is taken from the pool."""
        self.append(g, q, pool.take())

    def append(self, g: Any, q: Any, b: Any) -> None:
        """b is the last entry of q, and the plan says so."""
        n = self.size_[g, q]
        self.plan.slot(g, q, n, b)
        self.span(n)
        self._link(g, q, n, b)
        self.size_[g, q] = n + 1

    def put(self, g: Any, q: Any, i: Any, b: Any) -> None:
        """Entry i of q is now b. Obligation: it is an entry."""
        prove("requires: table.put: in the table", self.live(g, q, i))
        self._unlink(g, q, i)
        self._link(g, q, i, b)

    def pop_block(self, g: Any, q: Any) -> Any:
        """Take the last entry. Obligation: there is one."""
        n = self.size_[g, q] - 1
        prove("requires: table.pop_block: not empty", n >= 0)
        self._unlink(g, q, n)
        self.size_[g, q] = n
        return self.at[g, q, n]

    def distinct(self, g: Any) -> Any:
        """How many different blocks g holds."""
        return self.held[g]

    def tail(self, g: Any, q: Any) -> Any:
        """The last entry of a table that is not empty."""
        return self.at[g, q, self.size_[g, q] - 1]

    def same_tail(self, g: Any, p: Any, q: Any) -> Any:
        """Do two live sequences of g share their last block?"""
        return both(self.members.has_[g, p], self.members.has_[g, q], self.tail(g, p) == self.tail(g, q))

    def pending_copies(self, g: Any) -> Any:
        """Live sequences of g less their different tails. A function of which live sequences share their last block."""
        members, n = self.members, self.members.n[g]
        copies = fresh("copies")
        assume(both(copies >= 0, implies(n >= 1, copies < n)))
        now = self.snap()
        now.members = members.snap()
        for h, before, table in run().notes.setdefault("copies", []):
            p, q = fresh("p"), fresh("q")
            assume(
                either(
                    g != h,
                    copies == before,
                    both(now.same_tail(g, p, q), negate(table.same_tail(g, p, q))),
                    both(negate(now.same_tail(g, p, q)), table.same_tail(g, p, q)),
                )
            )
        run().notes["copies"].append((g, copies, now))
        return copies
