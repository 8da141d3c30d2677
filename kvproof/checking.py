"""The specification evaluated while the scheduler runs: `Scheduler(check=True)` and `Scheduler.check`."""

from kvproof.store.state import State


def violations(state: State) -> list[str]:
    """The names of the clauses of the specification that fail on this state. Costs O(state)."""
    from kvproof.spec import check  # nobody who does not check loads it

    return check.violations(state)


class InvariantViolation(AssertionError):  # noqa: N818  (the name of what happened)
    """The state that a call has led to breaks the specification: a fault of kvproof. The scheduler keeps that state.

    `call`: which one; `clauses`: the names of those that fail; `state`: what they fail on.
    """

    def __init__(self, call: str, clauses: list[str], state: State) -> None:
        super().__init__(f"after {call}, pass {state.epoch}: {'; '.join(clauses)}")
        self.call, self.clauses, self.state = call, tuple(clauses), state
