"""A symbolic run on known values: the maps of a shape start filled, so every read is a term that has one value."""

from contextlib import contextmanager

import z3

from kvproof.proofs import sym


class Known:
    """The run in progress, with the questions that a test asks about it."""

    def __init__(self, run):
        self.run = run

    def _solver(self):
        solver = z3.Solver()
        solver.set("timeout", 20_000)
        solver.add(*self.run.log)
        return solver

    def value(self, x):
        """The one value that x can have, given the facts assumed so far."""
        e = z3.simplify(sym.raw(x))
        if not (z3.is_int_value(e) or z3.is_true(e) or z3.is_false(e)):
            solver = self._solver()
            assert solver.check() == z3.sat, "the facts contradict each other"
            found = solver.model().eval(e, model_completion=True)
            solver.add(e != found)
            assert solver.check() == z3.unsat, f"{e} may also be something else than {found}"
            e = found
        return z3.is_true(e) if z3.is_bool(e) else e.as_long()

    def allows(self, x, value):
        """Do the facts admit this value? Then it is one from now on."""
        solver = self._solver()
        solver.add(sym.raw(x) == sym.raw(value))
        assert solver.check() == z3.sat, f"the concrete value {value} contradicts what is assumed"
        self.run.assume_raw(sym.raw(x) == sym.raw(value))

    def settle(self):
        """Every obligation so far is met, and the facts are satisfiable: legal operations on true values."""
        for name, facts, goal in self.run.goals:
            if facts >= 0:
                solver = z3.Solver()
                solver.set("timeout", 20_000)
                solver.add(*self.run.log[:facts], z3.Not(goal))
                assert solver.check() == z3.unsat, f"{name} is not met"
        self.run.goals.clear()
        assert self._solver().check() == z3.sat, "the facts contradict each other"

    def refuses(self, call):
        """An illegal operation, on a copy: some obligation of it is false. What it assumed after that is forgotten."""
        start, known = len(self.run.goals), len(self.run.log)
        call()
        goals, log = self.run.goals[start:], list(self.run.log)
        del self.run.goals[start:], self.run.log[known:]
        for _, facts, goal in goals:
            solver = z3.Solver()
            solver.add(*log[: max(facts, 0)], z3.Not(goal))
            if facts >= 0 and solver.check() == z3.sat:
                return True
        return False


@contextmanager
def known():
    """A run without branches."""
    sym._current = sym.Run([], prune=False)
    try:
        yield Known(sym._current)
    finally:
        sym._current = None


def filled(shape, **values):
    """The shape with these maps and numbers; maps are filled with one value."""
    for name, value in values.items():
        part = getattr(shape, name)
        if isinstance(part, sym.ZMap):
            part.fill(value)
        else:
            setattr(shape, name, sym.SInt(z3.IntVal(value)))
    return shape
