"""What one can ask a scheduler beside its calls, and how it goes back: snapshots, history, counters, the specification.

`Scheduler` is built on this class and adds the calls that change something.
"""

import copy
import os
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from kvproof.books import Ledger, Past, Snapshot
from kvproof.bounds import ends_within
from kvproof.checking import InvariantViolation, violations
from kvproof.core.config import ArtificialPreemption, Config, ConfigError
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.inputs import check_id
from kvproof.logs import tell_end
from kvproof.metrics import Metrics, Tally
from kvproof.store.plan import Plan
from kvproof.store.state import State, initial

if TYPE_CHECKING:
    from kvproof.outcome import Outcome


TEST_VARIABLE = "KVPROOF_TEST_ENABLE_ARTIFICIAL_PREEMPT"
"""Environment variable; "1": every scheduler whose configuration does not say how tests its engine by artificial preemption."""

HISTORY_MAX = 10**9
"""Passes that `keep_history` may ask for."""


class Observed:
    """The state of a scheduler and the books that it keeps beside it.

    `keep_history`: of how many passes `history` can tell; `check`: evaluate the specification after every call.
    """

    SMALL: ClassVar[dict[str, Any]] = {"_outcomes": ()}
    """What a moment consists of beside state, accounts and history: attribute -> its first value. Never edited, only replaced."""

    def __init__(self, config: Config, keep_history: int, check: bool) -> None:
        if not isinstance(config, Config):
            raise ConfigError(f"config: must be a Config, got {config!r}")
        if os.environ.get(TEST_VARIABLE) == "1" and config.artificial_preemption is None:
            config = attrs.evolve(config, artificial_preemption=ArtificialPreemption())
        if type(keep_history) is not int or not 0 <= keep_history <= HISTORY_MAX:
            raise ConfigError(f"keep_history: must be an integer from 0 to {HISTORY_MAX}, got {keep_history!r}")
        if type(check) is not bool:
            raise ConfigError(f"check: must be True or False, got {check!r}")
        self.config = config
        self.state: State = initial(config)
        self._busy = False
        self._outcomes: tuple[Outcome, ...] = ()  # of those that ended since the last commit, which the next one returns
        self._accounts = Ledger()  # of the unfinished groups of which there is anything to say
        self._tally = Tally()
        self._check = check
        self._keep_history = keep_history
        self._watched = check or keep_history > 0
        self._past: Past = deque(maxlen=keep_history)
        self._past_shared = False  # a snapshot has it too: copy before writing

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes its own way from the same state."""
        own = {"_accounts": Ledger(self._accounts.point()), "_tally": copy.deepcopy(self._tally), "_past": self._past.copy()}
        return {**self.__dict__, **own}

    def __copy__(self) -> "Observed":
        new = object.__new__(type(self))
        new.__dict__.update(self.__getstate__())
        return new

    def __deepcopy__(self, memo: Any) -> "Observed":
        new = object.__new__(type(self))
        memo[id(self)] = new
        new.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__getstate__().items()})
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """No pickling: a state is a tree of versions."""
        raise TypeError("a scheduler cannot be pickled; kvproof.serial writes its state as JSON")

    def _report(self, before: State, ended: "list[Outcome]") -> None:
        """These have ended in a draft over `before`."""
        self._outcomes += tuple(ended)
        for o in ended:
            self._tally.finished(o.status, o.recomputed + o.swapped)
            tell_end(before, o.group, o.status, o.tokens, o.reason)

    def _keep(self, plan: Plan) -> None:
        """Keep and check the pass that has made this plan."""
        if self._keep_history:
            if self._past_shared:
                self._past, self._past_shared = deque(self._past, self._keep_history), False
            self._past.append((self.state, plan))
        if self._check:
            self._verify("schedule")

    def _verify(self, call: str) -> None:
        """Raise InvariantViolation if the state that `call` has led to is not what the specification says."""
        failed = self.check()
        if failed:
            raise InvariantViolation(call, failed, self.state)

    def check(self) -> list[str]:
        """The names of the clauses of the specification that fail on the state: none, unless kvproof has a fault. O(state)."""
        return violations(self.state)

    def metrics(self) -> Metrics:
        """Counters and gauges. O(1), and may be called from any thread."""
        return self._tally.read(self.state)

    def preemptions(self, g: int) -> tuple[int, int]:
        """How often unfinished request g has been preempted: (by recompute, by swap). Raises Rejected if there is no such one."""
        check_id(g)
        if not Status.WAITING <= self.state.status[g] <= Status.SWAPPED:
            raise Rejected("the request has ended or is unknown")
        account = self._accounts.of(g)
        return account.recomputed, account.swapped

    def ends_within(self, g: int) -> int:
        """Passes, each with the commit of all its results, within which unfinished request g ends (docs/progress.md). O(state).

        If nobody arrives, or is ranked, before it, and no event preempts by force. Raises Rejected if there is no such request,
        or in profile vllm_v0, where nobody is sure to end.
        """
        check_id(g)
        return ends_within(self.state, g)

    def history(self, k: int) -> tuple[tuple[State, Plan], ...]:
        """The last k passes, oldest first: the state that each left (before its results came) and its plan.

        Fewer, if fewer were made or kept. Raises Rejected if k is not a whole number >= 0.
        """
        if type(k) is not int or k < 0:
            raise Rejected("k must be an integer >= 0")
        past = tuple(self._past)
        return past[max(0, len(past) - min(k, self._keep_history)) :]

    def snapshot(self) -> Snapshot:
        """This moment, immutable. O(1); as long as it is kept, so is what later calls change of it."""
        self._past_shared = True
        small = {name: getattr(self, name) for name in self.SMALL}
        return Snapshot(self.state, self._accounts.point(), self._past, small)

    def restore(self, moment: Snapshot | State) -> None:
        """Go on from there: every answer is that of then, but for the counters of `metrics`, which never fall.

        O(1) now; unless nothing has happened since, the next call copies the state. A bare state has no preemptions counted and
        no outcomes to come. Raises Rejected while a call is in progress, and if the configuration is another.
        """
        if isinstance(moment, State):
            moment = Snapshot(moment)
        if self._busy:
            raise Rejected("a call is in progress")
        if not isinstance(moment, Snapshot):
            raise Rejected(f"moment must be a Snapshot or a State, got {type(moment).__name__}")
        if moment.state.config != self.config:
            raise Rejected("the snapshot is of another configuration")
        self.state = moment.state
        for name, value in {**self.SMALL, **moment.small}.items():
            setattr(self, name, value)
        self._accounts.go_to(moment.accounts)
        self._past, self._past_shared = moment.past, True
