"""The embedding interface: a scheduler that an engine calls once per step. It holds one immutable state at a time.

Not thread-safe: call it from one thread. A call that raises has changed nothing.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import attrs

from kvproof.core import groups, schedule
from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.reasons import reason
from kvproof.store.draft import AlwaysRecompute, AlwaysSwap, Draft, Policy, State, initial
from kvproof.store.plan import Plan
from kvproof.store.queues import Results

first = itemgetter(0)  # the id in a result
EVERYBODY = Results()


@attrs.frozen
class Outcome:
    """How a request ended. `tokens`: prompt + generated tokens of the sequences that lived to its end."""

    group: int
    status: Status
    prompt_tokens: int
    tokens: int
    reason: str | None = None
    """One sentence that names the limit it met; None where it simply got its output or was stopped by the engine."""
    recomputed: int = 0
    """How often it was preempted by recompute."""
    swapped: int = 0
    """How often it was preempted by swap."""
    outputs: tuple[int, ...] = ()
    """Generated tokens of every sequence that it ever had, in the order of their indices."""

    @property
    def output_tokens(self) -> int:
        """Generated tokens of a sequence that lived to the end."""
        return self.tokens - self.prompt_tokens


def policy_of(preemption_mode: str | None) -> type[Policy]:
    """The policy for a `preemption_mode`: null recomputes a group of one sequence and swaps larger ones."""
    return AlwaysSwap if preemption_mode == "swap" else AlwaysRecompute


class Scheduler:
    """schedule() -> execute the plan -> commit(results), again and again; add_request and abort in between."""

    def __init__(self, config: Config, preemption_mode: str | None = None, policy: Policy | None = None) -> None:
        self.config = config
        self.policy: Policy = policy if policy is not None else policy_of(preemption_mode)  # type: ignore[assignment]
        self.state: State = initial(config)
        self._spare: Draft | None = None  # the last draft, if it can be reopened
        self._busy = False
        self._outcomes: list[Outcome] = []
        self._preemptions: dict[int, dict[str, int]] = {}  # of the unfinished groups that had any
        self._capped: set[int] = set()  # unfinished groups whose output max_model_len cuts short
        self._dropped: dict[int, dict[int, int]] = {}  # of unfinished groups: sequence that has ended -> its tokens

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes its own way from the same state."""
        return {**self.__dict__, "_spare": None}

    def _open(self) -> Draft:
        """A draft of the state. One call at a time: a policy or an iterable must not call back."""
        if self._busy:
            raise Rejected("a call is in progress")
        self._busy = True
        spare, self._spare = self._spare, None
        d = spare.reopen() if spare is not None and spare.base is self.state else None
        if d is None:
            return Draft(self.state, self.policy)
        d.policy = self.policy
        return d

    def _close(self, d: Draft) -> None:
        """Report who ended in this draft, forget them, and make the draft the state."""
        for g, q in d.plan.drops:
            self._dropped.setdefault(g, {})[q] = d.clock - d.born[g] if d.status[g] == Status.RUNNING else d.length[g]
        for g, status in d.plan.ends:
            self._outcomes.append(self._outcome(d, g, Status(status)))
            groups.forget(d, g)
        self.state = d.close()
        self._spare, self._busy = d, False

    def _undo(self, d: Draft) -> None:
        """The call was rejected, or the caller's policy raised: it has changed nothing."""
        d.abandon()
        self._busy = False

    def _outcome(self, d: Draft, g: int, status: Status) -> Outcome:
        """What there is to say about g, which has ended in this draft."""
        counts = self._preemptions.pop(g, {})
        why = reason(self.state, d, g, status, g in self._capped)
        self._capped.discard(g)
        prompt, length = d.prompt[g], d.length[g]
        tokens = self._dropped.pop(g, {}) | dict.fromkeys(d.members.of(g), length)
        outputs = tuple(tokens[q] - prompt for q in sorted(tokens))
        return Outcome(g, status, prompt, length, why, counts.get("recompute", 0), counts.get("swap", 0), outputs)

    def add_request(self, prompt_tokens: int, max_tokens: int, n: int = 1, beam_width: int | None = None) -> int:
        """A new request; returns its id. Each sequence ends after `max_tokens` generated tokens, or at `max_model_len` (not in V0).

        n: the sequences that it will have once it has forked; it takes as many of `max_num_seqs` from its admission on (in V0
        one for each that lives). `beam_width`: it keeps so many, however many of its sequences have ended.
        """
        width = n if beam_width is None else beam_width
        for name, value in (("prompt_tokens", prompt_tokens), ("max_tokens", max_tokens), ("n", n), ("beam_width", width)):
            if type(value) is not int or value < 1:
                raise Rejected(f"{name} must be an integer >= 1")
        seats = 1 if self.config.vllm_v0 else max(n, width)
        if seats > self.config.max_num_seqs:
            raise Rejected(f"{seats} sequences exceed max_num_seqs {self.config.max_num_seqs}")
        d = self._open()
        limit = prompt_tokens + max_tokens
        if not self.config.vllm_v0:
            limit = max(prompt_tokens + 1, min(limit, self.config.max_model_len))
        try:
            g = groups.add(d, prompt_tokens, limit, seats, 1 if beam_width is None else seats)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)
        if limit < prompt_tokens + max_tokens:
            self._capped.add(g)
        return g

    def schedule(self) -> Plan:
        """Decide one step. Execute the plan, then `commit`. Never raises but for calling it twice without a commit."""
        d = self._open()
        try:
            schedule.schedule(d)
        except BaseException:
            self._undo(d)
            raise
        plan = d.plan
        for g, mode in plan.victims:
            counts = self._preemptions.setdefault(g, {})
            counts[mode] = counts.get(mode, 0) + 1
        self._close(d)
        state = self.state
        return plan.close(state.epoch, state.running[1], state.prefilling[1], not state.prefilled)

    def commit(self, results: Iterable[Sequence[int]] | None = None, ended: Iterable[tuple[int, int]] = ()) -> list[Outcome]:
        """Take back the step's results: (id, token, ...) of each group that got a token, or None for "all of them".

        `ended`: (id, sequence) of those that the engine ended (a stop token, say). Returns everybody who ended since the last
        commit. Who was scheduled for a token and has no result does not advance. A result of an aborted request is dropped;
        one of a request that was never added raises Rejected.
        """
        ids = EVERYBODY if results is None else Results(map(first, results))
        ended = tuple(ended)
        d = self._open()
        try:
            if ids.ids and ids.ids != self.state.running[1]:
                for g in (max(ids.ids), min(ids.ids)):
                    if not 0 <= g < self.state.ticket:
                        raise Rejected(f"no request has the id {g}")
            schedule.commit(d, ids, ended)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abort(self, g: int) -> None:
        """End a request now, in whatever status it is; its outcome comes with the next commit."""
        d = self._open()
        try:
            groups.abort(d, g)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)

    def fork(self, g: int, parent: int = 0) -> int:
        """A sequence of running group g forks; returns the child's index. Legal between commit and schedule.

        The child's table is its parent's; no plan announces it.
        """
        d = self._open()
        try:
            child = groups.fork(d, g, parent)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)
        return child

    def finish(self, g: int, sequence: int = 0) -> None:
        """The engine ends one sequence of a running request between commit and schedule; the request goes with its last one.

        The outcome of a request that ends comes with the next commit.
        """
        d = self._open()
        try:
            groups.finish_sequence(d, g, sequence)
        except BaseException:
            self._undo(d)
            raise
        self._close(d)

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self.state.waiting[1]) + len(self.state.running[1]) + len(self.state.swapped[1])
