"""The embedding interface: a scheduler that an engine calls once per step. It holds one immutable state at a time.

Not thread-safe: call it from one thread. A call that raises has changed nothing, but for InvariantViolation.
"""

from collections.abc import Callable, Iterable, Sequence
from logging import DEBUG, INFO
from typing import Any, ClassVar

from kvproof.choosing import POLICIES, choose, policy_of
from kvproof.core import groups, schedule
from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.inputs import (
    PRIORITY_MAX,
    accepted_tokens,
    check_hints,
    check_id,
    check_ids,
    check_known,
    check_priority,
    check_sequences,
    check_time,
    ends_of,
    ids_of,
    more_of,
)
from kvproof.logs import log, tell_pass
from kvproof.metrics import causes_of
from kvproof.order import Order
from kvproof.ordered import Ordered
from kvproof.outcome import Outcome
from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import Costs
from kvproof.policies.desk import Request
from kvproof.reasons import reason
from kvproof.store.draft import Draft
from kvproof.store.plan import Plan, recomputes
from kvproof.store.policies import Policy
from kvproof.store.queues import Results
from kvproof.store.state import State

__all__ = ["PRIORITY_MAX", "Outcome", "Scheduler", "policy_of"]

NO_REASONS: dict[int, str] = {}
EVERYBODY = Results(None)


class Scheduler(Ordered):
    """schedule() -> execute the plan -> commit(results), again and again; add_request and abort in between.

    `preemption_mode`: None (recompute one sequence, swap several), "recompute", "swap", "auto" (by `costs`: `policies/auto.py`).
    `policy`: an order of requests by name, built in or of an installed package, or an object: an order (`kvproof.order`), or one
    that chooses modes and victims instead of `preemption_mode` (`kvproof.store.policies`), or both. `costs`: `Costs`, or
    `Calibrated`. `keep_history`: of how many passes `history` can tell; `check`: evaluate the specification after every call
    (docs/embedding.md says what both cost). An order sets `config.priority`, who names victims `config.choose_victims`.
    """

    SMALL: ClassVar = {**Ordered.SMALL, "_forced": {}}

    def __init__(
        self,
        config: Config,
        preemption_mode: str | None = None,
        policy: Policy | Order | str | None = None,
        *,
        costs: Costs | Calibrated | None = None,
        keep_history: int = 0,
        check: bool = False,
    ) -> None:
        super().__init__(choose(config, preemption_mode, policy, costs), keep_history, check)
        self._spare: Draft | None = None  # the last draft, if it can be reopened
        self._forced: dict[int, int] = {}  # whom the next pass preempts first, and how
        self._why = NO_REASONS  # what the engine says of those that it ends in this call

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes its own way from the same state."""
        return {**super().__getstate__(), "_spare": None}

    def _open(self) -> Draft:
        """A draft of the state. One call at a time: a policy or an iterable must not call back."""
        if self._busy:
            raise Rejected("a call is in progress")
        spare, state = self._spare, self.state
        if spare is None or spare.base is not state:
            if not isinstance(state, State) or state.config != self.config:
                raise Rejected("state: must be a State of the same configuration")
            draft = Draft(state, self.policy)
        else:
            draft = spare.reopen() or Draft(state, self.policy)
            draft.policy = self.policy
        self._busy = True
        return draft

    def _close(self, d: Draft) -> None:
        """Report who ended in this draft, forget them, and make the draft the state."""
        plan = d.plan
        if plan.drops:
            for g, q in plan.drops:
                self._accounts.dropped(g, q, d.clock - d.born[g] if d.status[g] == Status.RUNNING else d.length[g])
        if plan.ends:
            self._close_with_ends(d)
        else:
            self.state = d.close()
            self._spare, self._busy = d, False

    def _close_with_ends(self, d: Draft) -> None:
        """The same, where somebody has ended."""
        before, ended = self.state, []
        for g, status in d.plan.ends:
            ended.append(self._outcome(d, g, Status(status)))
            groups.forget(d, g)
        self.state = d.close()
        self._spare, self._busy = d, False
        self._report(before, ended)
        if self._order is not None:
            for o in ended:
                self._left(o.group, o.output_tokens)

    def _undo(self, d: Draft) -> None:
        """The call was rejected, or the caller's policy raised: it has changed nothing."""
        d.abandon()
        self._busy = False
        if self._moment is not None:
            self._notes.go_to(self._moment)
            self._moment = None

    def _edit(self, call: str, transition: Callable[..., Any], *arguments: Any) -> Any:
        """One transition outside a pass, from its draft to the checked state."""
        d = self._open()
        try:
            answer = transition(d, *arguments)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)
        if self._check:
            self._verify(call)
        return answer

    def _outcome(self, d: Draft, g: int, status: Status) -> Outcome:
        """What there is to say about g, which has ended in this draft."""
        account = self._accounts.close(g)
        why = reason(self.state, d, g, status, account.capped)
        if status == Status.FINISHED_STOPPED:
            why = why or self._why.get(g)
        prompt, length = d.prompt[g], d.length[g]
        tokens = dict(account.dropped) | dict.fromkeys(d.members.of(g), length)
        outputs = tuple(tokens[q] - prompt for q in sorted(tokens))
        return Outcome(g, status, prompt, length, why, account.recomputed, account.swapped, outputs)

    def add_request(
        self,
        prompt_tokens: int,
        max_tokens: int,
        n: int = 1,
        beam_width: int | None = None,
        priority: int = 0,
        now: float = 0,
        *,
        tenant: str | None = None,
        expected_tokens: int | None = None,
    ) -> int:
        """A new request; returns its id. A sequence ends after `max_tokens` generated tokens, or at `max_model_len` (not in V0).

        n: the sequences that it will have once it has forked; it takes as many of `max_num_seqs` from its admission on (in V0
        one for each that lives). `beam_width`: it keeps so many, however many of its sequences have ended.
        priority: smaller ones first, with `Config.priority`. now: the time of arrival, on the clock of `schedule`.
        tenant, expected_tokens: for orders; on whose account it is, and how many tokens it will probably generate.
        """
        width = n if beam_width is None else beam_width
        for name, value in (("prompt_tokens", prompt_tokens), ("max_tokens", max_tokens), ("n", n), ("beam_width", width)):
            if type(value) is not int or value < 1:
                raise Rejected(f"{name} must be an integer >= 1, got {ascii(value)[:40]}")
        seats = 1 if self.config.vllm_v0 else max(n, width)
        if seats > self.config.max_num_seqs:
            raise Rejected(f"{seats} sequences exceed max_num_seqs {self.config.max_num_seqs}")
        check_priority(priority)
        check_hints(tenant, expected_tokens)
        d = self._open()
        limit = prompt_tokens + max_tokens
        if not self.config.vllm_v0:
            limit = max(prompt_tokens + 1, min(limit, self.config.max_model_len))
        try:
            reserve = 1 if beam_width is None else seats
            rank = priority if self.config.priority else 0
            if self._order is not None:
                told = (d.ticket, prompt_tokens, limit - prompt_tokens, tenant or "", expected_tokens, priority)
                rank = self._arrive(self._order, d, Request(*told))
            g = groups.add(d, prompt_tokens, limit, seats, reserve, rank)
            if self.config.delay_factor:
                check_time(now)
                d.arrival[g] = now
        except BaseException:
            self._undo(d)
            raise
        if limit < prompt_tokens + max_tokens:
            self._accounts.cap(g)
        self._moment = None
        self._close(d)
        if self._check:
            self._verify("add_request")
        return g

    def schedule(self, now: float = 0) -> Plan:
        """Decide one step. Execute the plan, then `commit`. Raises Rejected if it is called twice without a commit, or `now` is
        needed and no number.

        now: the time on any clock that does not go back; needed for `delay_factor` only.
        """
        d = self._open()
        order = self._order
        try:
            if self.config.delay_factor:
                check_time(now)
                d.begin(now)
            forced = tuple(self._forced.items()) if self._forced else schedule.NOBODY
            if order is not None:
                self._before_pass(order, d)
            schedule.schedule(d, forced)
            if order is not None:
                self._after_pass(order, d, bool(forced))
                self._moment = None
            if forced:
                self._forced = {}
        except BaseException:
            self._undo(d)
            raise
        draft, before = d.plan, self.state
        if draft.victims:
            for g, mode in draft.victims:
                self._accounts.preempted(g, mode)
        self._close(d)
        state = self.state
        again = recomputes(draft.pieces, state.members, state.length) if draft.pieces else ()
        plan = draft.close(state.epoch, state.running[1], state.prefilling[1], not state.prefilled, state.idle[1], again)
        tally = self._tally
        tally.passes += 1
        if draft.pieces or draft.victims or draft.resumes or draft.copy:
            causes = causes_of(plan, dict(forced), self.config.priority) if plan.preempted else ()
            tally.passed(plan, causes, d.spent, len(state.sampling[1]))
        else:
            tally.decode_tokens += d.spent
        if log.isEnabledFor(INFO if draft.victims else DEBUG):
            tell_pass(before, state, plan, causes_of(plan, dict(forced), self.config.priority))
        if self._watched:
            self._keep(plan)
        return plan

    def forward(self, passes: int) -> int:
        """At most so many times schedule and commit of all results, as long as nothing is decided in them: everybody runs and
        decodes, gets the blocks that it needs, and nobody ends. Returns how many were made; the next one may have something
        to decide, or is beyond those asked for. For simulations: no engine is told of the blocks.

        None are made in profile vllm_v0, with lookahead slots, a delay, an order that ranks anew, or where history is kept.
        """
        if type(passes) is not int or passes < 0:
            raise Rejected("passes must be an integer >= 0")
        if self.state.issued:
            raise Rejected("a step is in flight")
        plain = self._order is None and not self._keep_history and not self.config.delay_factor
        if not passes or not plain or self._forced:
            return 0
        d = self._open()
        before = self.state
        try:
            schedule.forward(d, passes, EVERYBODY)
        except BaseException:
            self._undo(d)
            raise
        made = d.epoch - before.epoch
        self._close(d)
        if not made:
            return 0
        self._moment = None
        self._tally.passes += made
        self._tally.decode_tokens += made * before.decoders
        if self._check:
            self._verify("forward")
        return made

    def commit(
        self,
        results: Iterable[Sequence[int]] | None = None,
        ended: Iterable[tuple[int, int] | tuple[int, int, str]] = (),
        accepted: Iterable[tuple[int, int]] = (),
    ) -> list[Outcome]:
        """Take back the step's results: (id, token, ...) of each group that got a token, or None for "all of them".

        `ended`: (id, sequence), or (id, sequence, why), of those that the engine ended (a stop token, say). Returns everybody who
        ended since the last commit. `accepted`: (id, tokens) of groups whose sequences got several tokens each, thanks to
        lookahead slots; what exceeds their slots or their limit is left out. Who was scheduled for a token and has no result does
        not advance. What is said of an aborted request is dropped; of one that was never added it raises Rejected.
        """
        ids = ids_of(results)
        pairs, why = ends_of(ended) if ended else (schedule.NOBODY, NO_REASONS)
        more = more_of(accepted) if accepted else schedule.NOTHING
        d = self._open()
        try:
            check_ids(ids, self.state)
            if pairs or more:
                check_known((*(g for g, _ in pairs), *more), self.state)
                check_sequences(pairs, self.state)
            schedule.commit(d, ids, pairs, more)
            if more:
                self._tally.accepted_tokens += accepted_tokens(d, self.state, more)
        except BaseException:
            self._undo(d)
            raise
        self._why = why
        self._close(d)
        self._why = NO_REASONS
        if self._check:
            self._verify("commit")
        if not self._outcomes:
            return []
        outcomes, self._outcomes = self._outcomes, ()
        return list(outcomes)

    def abort(self, g: int) -> None:
        """End a request now, in whatever status it is; its outcome comes with the next commit."""
        check_id(g)
        self._edit("abort", groups.abort, g)

    def fork(self, g: int, parent: int = 0, same_token: bool = False) -> int:
        """A sequence of running group g forks; returns the child's index. Legal between commit and schedule.

        The child's table is its parent's, cut to what is written (docs/embedding.md); no plan announces it. It has its parent's
        tokens, but perhaps not the last one, which no slot holds yet: siblings may sample one each. `same_token`: it has that
        too, and a recompute computes it once.
        """
        check_id(g, parent)
        if type(same_token) is not bool:
            raise Rejected("same_token must be True or False")
        child: int = self._edit("fork", groups.fork, g, parent, 0 if same_token else 1)
        return child

    def rerank(self, g: int, priority: int) -> None:
        """Unfinished request g ranks by (`priority`, arrival) from now on, smaller ones first, whatever it was added with.

        Queues follow at once, passes from the next one on. With `Config.priority` a head of the line displaces who ranks below.
        An order may change it again. Raises Rejected if it has ended, or the order bounds overtakes and so must rank alone.
        """
        check_id(g)
        check_priority(priority)
        if self._order is not None and self._order.overtakes is not None:
            raise Rejected(f'the order "{self._order.name}" bounds overtakes and must rank alone')
        self._edit("rerank", groups.rerank, g, priority)

    def preempt(self, g: int, mode: str | None = None) -> None:
        """The next pass preempts running request g before all else, by "recompute", by "swap", or (None) as the policy wishes."""
        if self._busy:
            raise Rejected("a call is in progress")
        check_id(g)
        if self.state.issued:
            raise Rejected("a step is in flight")
        if self.state.status[g] != Status.RUNNING:
            raise Rejected("the request is not running")
        if mode not in list(POLICIES):
            raise Rejected(f'mode must be None, "recompute" or "swap", got {mode!r}')
        self._forced = {**self._forced, g: list(POLICIES).index(mode)}

    def deny_append(self, g: int, count: int = 1) -> None:
        """For tests: the next `count` times that a pass asks whether g can append, the answer is no, as if blocks lacked."""
        check_id(g)
        if type(count) is not int:
            raise Rejected("count must be an integer >= 1")
        self._edit("deny_append", groups.deny_append, g, count)

    def finish(self, g: int, sequence: int = 0) -> None:
        """The engine ends one sequence of a running request; the request goes with its last one.

        The outcome of a request that ends comes with the next commit. While a step is in flight, the token that it computes for
        the sequence does not count.
        """
        check_id(g, sequence)
        self._edit("finish", groups.finish_sequence, g, sequence)

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self.state.waiting[1]) + len(self.state.running[1]) + len(self.state.swapped[1])
