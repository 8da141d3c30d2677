"""The rules of the named loops: an invariant holds on entry and is kept by a step, a measure falls; what a step may change is
declared and checked. Trusted (TRUSTED.md): each is the usual Hoare rule of the loop of that name in `store/loops.py`.
"""

from collections.abc import Callable
from typing import Any

import attrs

from kvproof.proofs.block_shapes import ZERO
from kvproof.proofs.sym import PathEnd, ZMap, forall, fresh, fresh_bool, run, same_version
from kvproof.spec.logic import both, either, implies, negate


class UndeclaredError(TypeError):
    """A loop or function changed a part of the state that it does not declare."""


@attrs.frozen
class Rule:
    """What is known of a loop. `inv(d, entry, *args)` gives clauses; `measure` pairs that fall lexicographically."""

    modifies: tuple[str, ...]
    inv: Callable[..., list[tuple[str, Any]]]
    measure: Callable[..., tuple[Any, Any]] | None = None
    laws: Callable[[Any], list[Any]] | None = None
    """Laws of finite sets (`lemmas.py`) about the state in the middle of the loop."""
    cuts: Callable[..., list[tuple[str, Any]]] | None = None
    """What follows when the loop has ended: proved there, one after the other, so that later proofs need not find it."""
    weigh: Callable[..., tuple[Any, Callable[[Any], Any]]] | None = None
    """A number for each element and their sum, of which the invariant is told what is left."""


RULES: dict[str, Rule] = {}


def falls(after: tuple[Any, Any], before: tuple[Any, Any]) -> Any:
    """Lexicographic descent in pairs of natural numbers."""
    return both(after[0] >= 0, after[1] >= 0, either(after[0] < before[0], both(after[0] == before[0], after[1] < before[1])))


def check_frame(name: str, d: Any, before: dict[str, Any], allowed: tuple[str, ...]) -> None:
    """Only declared parts have changed."""
    changed = {k for k, v in d.versions().items() if not same_version(v, before[k])}
    if not changed <= set(allowed):
        raise UndeclaredError(f"{name} changes {sorted(changed - set(allowed))} undeclared")


class Straight:
    """Loops of a symbolic draft in which there is nothing to do: that this is so is an obligation, and nothing changes."""

    def repeat(self, name: str, d: Any, step: Callable[..., Any], *args: Any) -> None:
        """The first step says that there is nothing to do."""
        if step(d, *args):
            run().prove(f"total: {name} has nothing to do", False)
            raise PathEnd

    def sweep(self, name: str, d: Any, has: Callable[[Any, Any], Any], body: Callable[..., None], ordered: bool) -> None:
        """Nobody is in the set."""
        run().prove(f"total: {name} has nothing to do", forall(1, lambda g: negate(has(d, g)), lambda g: [[d.status[g]]]))

    def each(self, name: str, d: Any, ids: Any, body: Callable[..., None], *args: Any) -> None:
        """Nobody is in the set."""
        run().prove(f"total: {name} has nothing to do", forall(1, lambda g: negate(ids.has(g)), lambda g: [[d.status[g]]]))

    def each_item(self, name: str, d: Any, items: Any, body: Callable[..., None], *args: Any) -> None:
        """There are none."""
        run().prove(f"total: {name} has nothing to do", items == {})

    def each_pair(self, name: str, d: Any, pairs: Any, body: Callable[..., None]) -> None:
        """There are none."""
        run().prove(f"total: {name} has nothing to do", pairs == ())


class Hoare:
    """Loops of a symbolic draft."""

    @staticmethod
    def _prove(name: str, when: str, clauses: list[tuple[str, Any]]) -> None:
        for label, c in clauses:
            run().prove(f"{label} [{name}, {when}]", c)

    @staticmethod
    def _assume(clauses: list[tuple[str, Any]]) -> None:
        for _, c in clauses:
            run().assume(c)

    @staticmethod
    def _laws(rule: Rule, d: Any) -> None:
        for c in rule.laws(d) if rule.laws else []:
            run().assume(c)

    def repeat(self, name: str, d: Any, step: Callable[..., Any], *args: Any) -> None:
        """While step(d, *args)."""
        rule = RULES[name]
        entry = d.snap()
        self._prove(name, "entry", rule.inv(d, entry, *args))
        d.havoc(rule.modifies)
        self._assume(rule.inv(d, entry, *args))
        self._laws(rule, d)
        before = d.versions()
        assert rule.measure is not None
        measure = rule.measure(d, *args)
        if step(d, *args):
            check_frame(name, d, before, rule.modifies)
            self._prove(name, "step", rule.inv(d, entry, *args))
            run().prove(
                f"{'preempt_terminates' if name == 'make_room' else 'total'}: {name} ends", falls(rule.measure(d, *args), measure)
            )
            raise PathEnd
        for label, c in rule.cuts(d, entry, *args) if rule.cuts else []:
            run().prove(f"{label} [after {name}]", c)
            run().assume(c)

    def times(self, name: str, d: Any, n: Any, body: Callable[..., None], *args: Any) -> None:
        """n times; the invariant is told how often already."""
        self._counted(name, d, n, lambda i: body(d, *args), *args)

    def each_index(self, name: str, d: Any, n: Any, body: Callable[..., None], *args: Any) -> None:
        """For i in range(n); the invariant is told i."""
        self._counted(name, d, n, lambda i: body(d, i, *args), *args)

    def each_member(self, name: str, d: Any, g: Any, body: Callable[..., None]) -> None:
        """For the live sequences of g in ascending order; the invariant is told a cursor below which all are done."""

        def step(q: Any) -> None:
            if d.members.has(g, q):
                body(d, q, g)

        self._counted(name, d, d.members.bound[g], step, g)

    def each_kin(self, name: str, d: Any, g: Any, body: Callable[..., None], *args: Any) -> None:
        """For the live sequences of g in the order of their line: each after its origin.

        The invariant is told which are done, and the sum of the weights of those that are not.
        """
        rule, m = RULES[name], d.members
        entry = d.snap()
        assert rule.weigh is not None
        total, weight = rule.weigh(d, g, *args)
        done = ZMap(name + "_done", 1, truth=True)
        done.fill(False)
        self._prove(name, "entry", rule.inv(d, entry, done, total, g, *args))
        w = fresh("any")
        run().prove(f"helper: weights are not negative [{name}]", implies(m.has_[g, w], weight(w) >= 0))
        d.havoc(rule.modifies)
        done.havoc()
        left = fresh("left")
        run().assume(left >= 0)
        self._assume(rule.inv(d, entry, done, left, g, *args))
        self._laws(rule, d)
        if fresh_bool("iterate"):
            q, before = fresh("q"), d.versions()
            origin = m.origin[g, q]
            run().assume(both(m.has_[g, q], negate(done[q]), either(origin == -1, done[origin]), left >= weight(q)))
            body(d, q, g, origin, m.common[g, q], *args)
            check_frame(name, d, before, rule.modifies)
            done[q] = True
            self._prove(name, "step", rule.inv(d, entry, done, left - weight(q), g, *args))
            raise PathEnd
        run().assume(forall(1, lambda q: implies(m.has_[g, q], done[q]), lambda q: [[done[q]], [m.has_[g, q]]]))

    def _counted(self, name: str, d: Any, n: Any, step: Callable[[Any], None], *args: Any) -> None:
        rule = RULES[name]
        entry, zero = d.snap(), ZERO
        self._prove(name, "entry", rule.inv(d, entry, zero, *args))
        d.havoc(rule.modifies)
        if fresh_bool("iterate"):
            i = fresh("i")
            run().assume(both(i >= 0, i < n))
            self._assume(rule.inv(d, entry, i, *args))
            before = d.versions()
            step(i)
            check_frame(name, d, before, rule.modifies)
            self._prove(name, "step", rule.inv(d, entry, i + 1, *args))
            raise PathEnd
        last = fresh("n")
        run().assume(either(both(n >= 0, last == n), both(n < 0, last == 0)))
        self._assume(rule.inv(d, entry, last, *args))

    def sweep(self, name: str, d: Any, has: Callable[[Any, Any], Any], body: Callable[..., None], ordered: bool) -> None:
        """For the groups in a set as it was on entry, smallest key first if ordered, skipping who has left.

        The invariant is told `passed(g)`: g was in the set on entry and its turn has come and gone.
        """
        rule = RULES[name]
        entry = d.snap()
        members = ZMap(name, 1, truth=True)
        members.update(lambda old, g: has(entry, g))
        passed = ZMap(name + "_passed", 1, truth=True)
        passed.fill(False)
        self._prove(name, "entry", rule.inv(d, entry, passed))
        d.havoc(rule.modifies)
        passed.havoc()
        self._assume(rule.inv(d, entry, passed))
        self._laws(rule, d)
        run().assume(forall(1, lambda t: implies(passed[t], members[t]), lambda t: [[passed[t]]]))
        key = entry.key
        if fresh_bool("iterate"):
            g, before = fresh("g"), d.versions()
            run().assume(both(members[g], negate(passed[g])))
            if ordered:
                run().assume(
                    forall(
                        1,
                        lambda t: implies(both(members[t], negate(passed[t])), key[g] <= key[t]),
                        lambda t: [[passed[t]], [key[t]]],
                    )
                )
                run().assume(forall(1, lambda t: implies(passed[t], key[t] <= key[g]), lambda t: [[passed[t]]]))
            if has(d, g):
                body(d, g)
                check_frame(name, d, before, rule.modifies)
            passed[g] = True
            self._prove(name, "step", rule.inv(d, entry, passed))
            raise PathEnd
        run().assume(forall(1, lambda t: implies(members[t], passed[t]), lambda t: [[entry.status[t]], [d.status[t]]]))

    def each(self, name: str, d: Any, ids: Any, body: Callable[..., None], *args: Any) -> None:
        """For the groups of a set, each once, in any order; the invariant is told which are done."""
        rule = RULES[name]
        entry = d.snap()
        done = ZMap(name + "_done", 1, truth=True)
        done.fill(False)
        self._prove(name, "entry", rule.inv(d, entry, done, ids, *args))
        d.havoc(rule.modifies)
        done.havoc()
        self._assume(rule.inv(d, entry, done, ids, *args))
        if fresh_bool("iterate"):
            g, before = fresh("g"), d.versions()
            run().assume(both(ids.has(g), negate(done[g])))
            body(d, g)
            check_frame(name, d, before, rule.modifies)
            done[g] = True
            self._prove(name, "step", rule.inv(d, entry, done, ids, *args))
            raise PathEnd
        run().assume(forall(1, lambda t: implies(ids.has(t), done[t]), lambda t: [[done[t]]]))

    def each_item(self, name: str, d: Any, items: Any, body: Callable[..., None], *args: Any) -> None:
        """For the groups of a finite map, each once, in any order, with their numbers."""
        if items == {}:
            return
        self.each(name, d, items, lambda d, g: body(d, g, items.of[g], *args), *args)

    def each_pair(self, name: str, d: Any, pairs: Any, body: Callable[..., None]) -> None:
        """For a finite list of pairs, in any order; the invariant is told which are done. Of no pair at all: nothing happens."""
        if pairs == ():
            return
        rule = RULES[name]
        entry = d.snap()
        done = ZMap(name + "_done", 2, truth=True)
        done.fill(False)
        self._prove(name, "entry", rule.inv(d, entry, done))
        d.havoc(rule.modifies)
        done.havoc()
        self._assume(rule.inv(d, entry, done))
        if fresh_bool("iterate"):
            g, q, before = fresh("g"), fresh("q"), d.versions()
            run().assume(pairs[g, q])
            body(d, g, q)
            check_frame(name, d, before, rule.modifies)
            done[g, q] = True
            self._prove(name, "step", rule.inv(d, entry, done))
            raise PathEnd
        run().assume(forall(2, lambda g, q: implies(pairs[g, q], done[g, q]), lambda g, q: [[done[g, q]], [pairs[g, q]]]))
