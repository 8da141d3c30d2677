"""An engine around a scheduler: requests, and steps with the checks of each. It also counts what happens."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvproof.backend_fake.model import request_key
from kvproof.core.status import Status
from kvproof.fuzz import happened, passes, priorities
from kvproof.fuzz.faults import equal, fault, nothing
from kvproof.fuzz.memory import Ending, Group, Key, Memory
from kvproof.fuzz.oracle import next_token
from kvproof.fuzz.orders import Said, hints_of, reranked
from kvproof.fuzz.passes import Pass
from kvproof.fuzz.setup import Setup
from kvproof.scheduler import Outcome
from kvproof.spec.check import commit_violations, pass_violations
from kvproof.store.state import State

Groups = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


class Engine:
    """The operations on requests, and the two of a step. What is legal is up to the caller.

    `spec`: check the clauses of the specification too, which takes most of the time.
    """

    def __init__(self, start: Setup, spec: bool = True) -> None:
        self.start, self.config, self.spec = start, start.config, spec
        self.said: Said = []
        """What the order has answered in the call that is made now."""
        self.scheduler = start.scheduler(self.said)
        self.memory = Memory.of(self.config)
        self.events: Counter[str] = Counter()

    @property
    def state(self) -> State:
        """The scheduler's."""
        return self.scheduler.state

    # Requests.

    def _add(self, prompt: int, output: int, n: int = 1, width: int | None = None, priority: int = 0) -> None:
        """`width`: a beam search, which forks as it likes; else it forks to n sequences as soon as it has a token."""
        m, c = self.memory, self.config
        i = len(m.ids)
        hints: Any = {} if c.vllm_v0 else hints_of(i, output)
        self.said.clear()
        g = self.scheduler.add_request(prompt, output, n, width, priority, m.now, **hints)
        seats = 1 if c.vllm_v0 else max(n, width or 1)
        limit = prompt + output if c.vllm_v0 else max(prompt + 1, min(prompt + output, c.max_model_len))
        children = n - 1 if width is None else 0
        reserve = 1 if width is None else seats
        rank = dict(self.said)[g] if self.start.order else priority if c.priority else 0
        m.groups[g] = Group(prompt, limit, rank, m.now, seats, reserve, children)
        m.model.add(g, request_key(str(i)), prompt)
        m.ids.append(g)
        equal(f"limit of {g}", self.state.limit[g], limit)

    def _abort(self, g: int) -> None:
        state = self.state
        where = "in a prefill" if g in state.prefilling[1] else Status(state.status[g]).name.lower()
        self.events[f"aborted {where}"] += 1
        self.events["siblings aborted in a prefill"] += not self.may_finish(g)
        self.events["aborted in flight"] += state.issued
        self.scheduler.abort(g)
        self._end_by_call(g)

    def _finish(self, g: int, q: int) -> None:
        """One sequence ends outside of a commit: a beam is dropped."""
        self.events["finished in flight"] += self.state.issued
        self.scheduler.finish(g, q)
        self.memory.take_back({(g, q)})
        if len(self.memory.groups[g].live) > 1:
            self._drop(g, q)
        else:
            self._end_by_call(g)

    def _fork(self, g: int, parent: int) -> None:
        m, before = self.memory, self.state
        group = m.groups[g]
        kept = size = len(m.told.rows[g][parent])
        if len(group.live) == 1:
            kept = max(1, -(-(m.length(g, parent) - 1) // self.config.block_size))
        child = self.scheduler.fork(g, parent, same_token=True)
        self.events["forks"] += 1
        self.events["forks of a child"] += parent > 0
        self.events["slots given back by a fork"] += kept < size
        free = (before.gpu_free + size - kept, before.cpu_free)
        equal("free blocks after a fork", (self.state.gpu_free, self.state.cpu_free), free)
        equal("index of a child", child, group.bound)
        m.model.fork(g, parent, child, kept)
        m.told.forked(g, parent, child, kept)
        group.seats += len(group.live) == group.seats
        group.live.append(child)
        group.bound += 1

    def may_finish(self, g: int) -> bool:
        """Can one of its sequences end now, others going on? It runs."""
        return len(self.memory.groups[g].live) == 1 or g not in self.state.prefilling[1]

    def may_fork(self, g: int, parent: int) -> bool:
        """Is this legal now?"""
        m, state = self.memory, self.state
        group = m.groups[g]
        if state.issued or g not in state.running[1] or g in state.prefilling[1] or parent not in group.live:
            return False
        if len(group.live) < group.seats:
            return True
        seat = sum(m.groups[h].seats for h in state.running[1]) < self.config.max_num_seqs
        return seat and not m.protected(g, self.config)

    def _preempt(self, g: int, mode: str | None) -> None:
        self.scheduler.preempt(g, mode)
        self.memory.forced[g] = mode

    def _deny(self, g: int, count: int) -> None:
        self.scheduler.deny_append(g, count)
        self.memory.groups[g].deny += count

    def _rerank(self, g: int, priority: int) -> None:
        group, v0 = self.memory.groups[g], self.config.vllm_v0
        before = [*self.state.waiting[1], *self.state.swapped[1], *self.state.running[1]]
        self.scheduler.rerank(g, priority)
        group.priority = priority
        self.events["reranked in flight"] += self.state.issued
        after = [*self.state.waiting[1], *self.state.swapped[1], *self.state.running[1]]
        self.events["overtaken by a rank"] += before != after
        line = [list(queue[1]) for queue in (self.state.waiting, self.state.swapped, self.state.running)]
        equal("queues after a rank", line, line if v0 else [sorted(queue, key=self.memory.rank) for queue in line])

    # A step.

    def _schedule(self, gap: float = 1) -> None:
        """`gap`: how long this step takes."""
        m, before = self.memory, self.state
        forced = {g: mode for g, mode in m.forced.items() if g in before.running[1]}
        if m.admitted is not None:
            m.took = m.now - m.admitted
        self.said.clear()
        plan = self.scheduler.schedule(m.now)
        before = self._ranked(before)
        p = Pass(m, before, self.state, plan, m.lengths(), forced, m.now, self.start.mode == "auto")
        m.plan, m.forced, m.now = plan, {}, m.now + gap
        m.admitted = p.now if p.admitted else None
        if self.spec:
            nothing("pass", pass_violations(before, self.state, plan, self.scheduler.spent, len(forced)))
        passes.check(p, self.scheduler.spent, self.scheduler.policy)
        priorities.check(p)
        m.backend.execute(plan)
        m.told.plan(plan)
        self.events.update(happened.of_pass(p))
        for g, mode in plan.preempted:
            group = m.groups[g]
            group.recomputed += mode == "recompute"
            group.swapped += mode == "swap"
            group.often += g not in forced
            equal(f"preemptions of {g}", self.scheduler.preemptions(g), (group.recomputed, group.swapped))
        for g, group in m.groups.items():
            group.deny = self.state.deny.get(g, 0)
        for g, _ in plan.ended:
            m.close(g)
        self._compute(p)

    def _ranked(self, before: State) -> State:
        """The state in which the pass began: with the ranks that the order has just given."""
        ranks = {g: rank for g, rank in self.said if g in self.memory.groups}
        changed = {g: rank for g, rank in ranks.items() if self.memory.groups[g].priority != rank}
        if not changed:
            return before
        self.events["ranks changed by an order"] += len(changed)
        for g, rank in changed.items():
            self.memory.groups[g].priority = rank
        return reranked(before, changed)

    def _compute(self, p: Pass) -> None:
        """Who is scheduled for a token gets it, nobody else."""
        m, plan = self.memory, p.plan
        m.results = m.model.run(plan)
        lengths = {key: n for key, n in p.lengths.items() if key[0] in m.groups}
        m.made = [key for key, old in lengths.items() if m.length(*key) > old]
        whole = {g for g, _, _ in plan.prefills} - set(p.cut)
        wanted = sorted((g, q) for g in {*whole, *plan.decodes} for q in m.groups[g].live)
        equal("sequences that get a token", sorted(m.made), wanted)
        m.asked = sorted({*whole, *plan.decodes})
        self._compare(m.made)

    def _compare(self, keys: Iterable[Key]) -> None:
        """Their last token is the one that the request gets on its own."""
        for g, q in keys:
            sequence = self.memory.model.sequences[g, q]
            old = sequence.length - 1
            equal(f"token {old} of sequence {q} of group {g}", sequence.output[-1], next_token(sequence, q, old))

    def _commit(
        self, drop: Groups = (), stops: Pairs = (), extra: Groups = (), everything: bool = False, accepted: Pairs = ()
    ) -> None:
        """Results of all but `drop`, some more of `extra`, who were not scheduled; the sequences `stops` end.

        `accepted`: (group, tokens) that lookahead gave, as the engine says, which may be more than there were slots for.
        """
        m, before, accepted = self.memory, self.state, tuple(dict(accepted).items())
        again = {g for g in before.prefilling[1] if len(m.groups[g].live) > 1}  # none of these can be stopped alone
        m.take_back({key for key in m.made if key[0] in drop})
        for g, tokens in accepted:
            self._look_ahead(g, tokens)
        got = [*((g,) for g in extra), *(r for r in reversed(m.results) if r[0] not in drop)]
        outcomes = self.scheduler.commit(None if everything else got, stops, accepted)
        named = None if everything else [g for g, *_ in got]
        for g in m.groups.keys() & m.asked:
            m.groups[g].unheard = named is not None and g not in named
        if self.spec:
            nothing("commit", commit_violations(before, self.state, named, accepted))
        self.events["results missing"] += len(drop)
        self.events["results of strangers"] += len(extra)
        m.plan, m.results, m.made, m.asked = None, [], [], []
        for g, q in dict.fromkeys(stops):
            if g in m.groups and g not in again and q in m.groups[g].live and len(m.groups[g].live) > 1:
                self._drop(g, q)
        for outcome in outcomes:
            g = outcome.group
            if g in m.groups:
                m.close(g)
            self._check_outcome(outcome, m.ending.pop(g))
            m.release(g)
        nothing("outcomes that did not come", m.ending)
        self._fork_new()

    def _look_ahead(self, g: int, tokens: int) -> None:
        """The engine makes the tokens beyond the first for which there are slots: the position of each must be in the table."""
        m = self.memory
        if (g, m.groups[g].live[0]) not in m.made if g in m.groups else True:
            self.events["accepted of strangers"] += 1
            return
        group = m.groups[g]
        assert m.plan is not None
        written = m.length(g, group.live[0]) - 1
        slots = self.config.block_size * len(m.told.rows[g][group.live[0]])
        decoded = m.plan.decode and g not in {h for h, _, _ in m.plan.prefills}
        most = min(slots - written, group.limit - written - 1, self.config.num_lookahead_slots) if decoded else 0
        more = max(0, min(tokens - 1, most))
        self.events["accepted > 1"] += more > 0
        self.events["accepted too many"] += tokens - 1 > most
        for _ in range(more):
            m.model.decode([g])
            self._compare((g, q) for q in group.live)

    def _fork_new(self) -> None:
        """Whoever is to have several sequences and has its first token forks, as far as there are seats."""
        m = self.memory
        for g, group in m.groups.items():
            if group.children and m.model.output(g):
                for _ in range(group.children):
                    if self.may_fork(g, 0):
                        self._fork(g, 0)
                        self.events["forks to n"] += 1
                    else:
                        self.events["forks not reached"] += 1
                group.children = 0

    # Ends.

    def _check_outcome(self, outcome: Outcome, ending: Ending) -> None:
        """The tokens, the limit and the reason of an end."""
        g, group = outcome.group, ending.group
        self.events[f"ended: {happened.name(outcome.status)}"] += 1
        equal(f"tokens of {g} at its end", outcome.tokens, ending.tokens)
        equal(f"outputs of {g}", outcome.outputs, ending.outputs)
        equal(f"prompt of {g}", outcome.prompt_tokens, group.prompt)
        equal(f"preemptions of {g} at its end", (outcome.recomputed, outcome.swapped), (group.recomputed, group.swapped))
        if outcome.status == Status.FINISHED_LENGTH_CAPPED:
            equal(f"tokens of {g} at its limit", outcome.tokens, group.limit)
        refused = outcome.status in (Status.FINISHED_CAPACITY, Status.FINISHED_IGNORED)
        if refused and not outcome.reason:
            fault("reason", f"group {g} ends as {outcome.status.name} without one")

    def _drop(self, g: int, q: int) -> None:
        """The engine knows that q has ended and others of g go on."""
        self.events["dropped sequences"] += 1
        self.events["seat kept for a beam"] += not self.memory.drop(g, q)

    def _end_by_call(self, g: int) -> None:
        """g ended between two commits; a token that a step in flight is making does not count."""
        m = self.memory
        m.take_back({(g, q) for q in m.groups[g].live})
        m.close(g)
        m.release(g)
