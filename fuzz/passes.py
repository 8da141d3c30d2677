"""What a pass may decide, from what the engine knows: budget, cuts, who was forced, needless victims, delay, denials.

`Pass.needs` and `Pass.held` are the only arithmetic of blocks, written down a second time and not taken from the core.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.fuzz.faults import equal, fault
from kvproof.fuzz.memory import Key, Memory
from kvproof.store.candidates import Candidate
from kvproof.store.collections import row
from kvproof.store.plan import Plan
from kvproof.store.policies import Policy
from kvproof.store.state import State


@attrs.frozen(eq=False)
class Pass:
    """A pass that has been decided and not yet been computed."""

    m: Memory
    before: State
    after: State
    plan: Plan
    lengths: dict[Key, int]
    """Tokens of each sequence before it."""
    forced: dict[int, str | None]
    """Those that ran and that events preempt."""
    now: float
    auto: bool = False
    """Are modes and victims chosen by cost?"""

    @property
    def config(self) -> Config:
        """What the scheduler was made with."""
        return self.before.config

    @property
    def chosen(self) -> list[int]:
        """The victims that no event named, in order."""
        return [g for g, _ in self.plan.preempted if g not in self.forced]

    @property
    def admitted(self) -> list[int]:
        """Who waited and runs."""
        runs = set(self.after.running[1])
        return [g for g in self.before.waiting[1] if g in runs]

    @property
    def cut(self) -> list[int]:
        """Those whose prompt is not complete after this step."""
        return [g for g, start, n in self.plan.prefills if start + n < self.work(g)]

    @property
    def asked(self) -> bool:
        """Is the scheduler tested, so that the answer whether there is room may be no?"""
        return self.config.artificial_preemption is not None or bool(self.before.deny.to_dict())

    @property
    def line(self) -> bool:
        """Is there, with priorities, anybody for whom others may have to make way?"""
        return self.config.priority and bool(self.before.waiting[1] or self.before.swapped[1] or self.forced)

    @property
    def went(self) -> list[int]:
        """Who ran, was not named by an event, and was preempted or ended: the last in policy order first."""
        ended = [g for g, _ in self.plan.ended if g in self.before.running[1] and g not in self.forced]
        return sorted((*self.chosen, *ended), key=self.m.rank, reverse=True)

    @property
    def spent(self) -> int:
        """Tokens that the step computes."""
        decoded = sum(len(self.m.groups[g].live) for g in self.plan.decodes)
        return decoded + sum(n for _, _, n in self.plan.prefills)

    @property
    def wishes(self) -> bool:
        """Do lookahead slots that nobody has written count as free?"""
        return self.config.num_lookahead_slots > 0 and not self.config.vllm_v0

    @property
    def free(self) -> int:
        """GPU blocks that are free for what the pass decides."""
        if not self.wishes:
            return self.before.gpu_free
        alone = [g for g in self.decoders() if len(self.m.groups[g].live) == 1]
        unwritten = sum(len(row(self.before.table, g, self.m.groups[g].live[0])) - len(self.rows(g)[0]) for g in alone)
        return self.before.gpu_free + unwritten

    def tokens(self, g: int) -> int:
        """Tokens of a sequence of g before the pass."""
        return self.lengths[g, self.m.groups[g].live[0]]

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.config.block_size)

    def texts(self, g: int) -> list[tuple[int, ...]]:
        """The tokens of each live sequence of g before the pass."""
        return [tuple(self.m.model.sequences[g, q].tokens(0, self.tokens(g)).tolist()) for q in self.m.groups[g].live]

    def work(self, g: int) -> int:
        """Tokens that a prefill of g computes: those of its sequences, what they begin with in common once."""
        if len(self.m.groups[g].live) == 1:
            return self.tokens(g)
        texts = sorted(self.texts(g))
        common = [
            next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), self.tokens(g)) for pair in pairwise(texts)
        ]
        return self.tokens(g) * len(texts) - sum(common)

    def takes(self, g: int) -> int:
        """Blocks that g, which waits, takes: one for all that begin alike up to its end; the last is each one's own."""
        full, size = self.blocks(self.tokens(g)), self.config.block_size
        if len(self.m.groups[g].live) == 1:
            return full
        texts = self.texts(g)
        return sum(len({text[: (i + 1) * size] for text in texts}) for i in range(full - 1)) + len(texts)

    def rows(self, g: int) -> list[list[int]]:
        """The tables of g before the pass, without slots that kvproof reserves as a wish and that have not become tokens."""
        rows = [row(self.before.table, g, q) for q in self.m.groups[g].live]
        if self.wishes and len(rows) == 1 and g in self.decoders():
            return [rows[0][: max(1, self.blocks(self.tokens(g) - (not self.m.groups[g].unheard)))]]
        return rows

    def held(self, gs: Iterable[int]) -> int:
        """Blocks of these before the pass."""
        return sum(len({b for blocks in self.rows(g) for b in blocks}) for g in gs)

    def needs(self, g: int) -> int:
        """Blocks that g takes for its next token: one for each sequence at a block boundary, else copies of shared tails."""
        rows = self.rows(g)
        if self.blocks(self.tokens(g)) > len(rows[0]):
            return len(rows)
        return len(rows) - len({blocks[-1] for blocks in rows})

    def protected(self, g: int) -> bool:
        """May g, with a limit, not be preempted?"""
        return self.m.protected(g, self.config)

    def whole(self, g: int) -> int:
        """Blocks of g when each of its sequences has a token less than its limit, none shared."""
        group = self.m.groups[g]
        return group.seats * self.blocks(group.limit - 1)

    def entry(self, g: int, blocks: int) -> int:
        """Blocks that must be free for g, which takes `blocks`, to come in: the whole, if it is protected."""
        if not self.protected(g):
            return blocks
        whole = self.whole(g)
        return max(blocks, whole if self.m.groups[g].seats == 1 else min(whole, self.config.num_gpu_blocks))

    def kept(self, runs: Iterable[int], rows: Callable[[int], list[list[int]]]) -> int:
        """Blocks that are kept for the protected ones among these, which have these tables."""
        pool, out = self.config.num_gpu_blocks, 0
        for g in runs:
            if self.protected(g):
                out += max(0, min(pool, self.whole(g)) - len({b for blocks in rows(g) for b in blocks}))
        return out

    def kept_before(self, runs: Iterable[int]) -> int:
        """The same when the pass begins."""
        return self.kept(runs, self.rows)

    def kept_after(self) -> int:
        """The same of all that run after the pass, without slots that are a wish."""
        return self.kept(self.after.running[1], self.rows_after)

    def rows_after(self, g: int) -> list[list[int]]:
        """The tables of g after the pass, without slots that are a wish."""
        rows = [row(self.after.table, g, q) for q in self.m.groups[g].live]
        return [blocks[: self.blocks(self.tokens(g))] for blocks in rows] if self.wishes and len(rows) == 1 else rows

    def wanted(self, gs: Iterable[int]) -> int:
        """Blocks that these need for their next tokens, but for protected ones, whose blocks are kept."""
        return sum(self.needs(g) for g in gs if not self.protected(g))

    def wish(self, g: int, policy: Any, host: int) -> bool:
        """Does the policy wish to swap g? Who goes by cost is told what g holds, has computed, and would compute again."""
        live, size, work, cut = len(self.m.groups[g].live), self.held([g]), self.work(g), g in self.before.prefilling[1]
        if not self.auto:
            return bool(policy.swaps(g, live))
        done = self.before.computed[g] if cut else work - live
        movable = size <= host and not (live > 1 and cut)
        return bool(policy.weigh(Candidate(g, live, size, work, self.tokens(g), done, movable)))

    def waited(self, gs: Iterable[int]) -> bool:
        """If these wait: has the first of them waited long enough to be admitted while others run?"""
        factor = self.config.delay_factor
        return not factor or self.now - min((self.m.groups[g].arrival for g in gs), default=0) > factor * self.m.took

    def decoders(self) -> list[int]:
        """Who ran and was past its prefill before the pass."""
        return [g for g in self.before.running[1] if g not in self.before.prefilling[1]]


def budget(p: Pass, spent: int) -> None:
    """The step computes no more tokens than it may, and as many as the scheduler thinks. Only one prompt is cut, to fill it."""
    equal("token budget", spent, p.spent)
    if p.spent > p.config.max_num_batched_tokens:
        fault("token budget", f"{p.spent} tokens in a step of {p.config.max_num_batched_tokens}")
    if len(p.cut) > 1 or (p.cut and p.spent < p.config.max_num_batched_tokens):
        fault("cut prompts", f"{p.cut} are cut in a step of {p.spent} tokens of {p.config.max_num_batched_tokens}")


def force(p: Pass, policy: Policy) -> None:
    """Whom events preempt goes first, in the order of the events and in the mode asked for, if that is possible."""
    told, host = list(p.plan.preempted), p.before.cpu_free
    for g, mode in p.forced.items():
        live, size = len(p.m.groups[g].live), p.held([g])
        wish = p.wish(g, policy, host) if mode is None else mode == "swap"
        swaps = wish and size <= host and (live == 1 or g not in p.before.prefilling[1])
        if p.config.vllm_v0 and swaps and told[:1] != [(g, "swap")]:
            swaps = False  # it asks for more host blocks than it uses
        equal("forced preemption", told[:1], [(g, "swap" if swaps else "recompute")])
        told = told[1:]
        host -= size * swaps


def wishes(p: Pass) -> None:
    """Nobody has more slots than it needs and may wish for. Who decodes, the only one of its group, may wish for some."""
    c = p.config
    computed = {g for g, _, _ in p.plan.prefills}
    for g in p.after.running[1]:
        tokens, live = p.tokens(g), p.m.groups[g].live
        alone = len(live) == 1 and g not in computed and g not in p.after.prefilling[1]
        wish = tokens + c.num_lookahead_slots * alone
        if not c.vllm_v0:
            wish = max(tokens, min(wish, c.max_model_len))
        for q in live:
            size = len(row(p.after.table, g, q))
            if size > p.blocks(wish):
                fault("slots", f"{size} blocks of sequence {q} of group {g} are more than {wish} tokens need")


def needless(p: Pass) -> None:
    """kvproof evicts for blocks only, and only while somebody lacks them: without the last victim there would not be enough."""
    if p.config.vllm_v0 or p.asked or p.line or not p.chosen:
        return
    *others, last = p.chosen
    stayed = [g for g in p.before.running[1] if g not in p.forced]
    free = p.free + p.held(p.forced) + p.held(others) - p.kept_before(stayed)
    asked = {*p.after.running[1], *(g for g, _ in p.plan.ended), last}
    need = p.wanted(g for g in p.decoders() if g in asked)
    if free >= need:
        fault("needless victim", f"{last} is preempted, {free} blocks are free and {need} are needed")


def delay(p: Pass) -> None:
    """While anything runs nobody is admitted before the first arrival has waited long enough."""
    if not p.admitted or p.plan.ended:
        return
    line = {*p.before.waiting[1], *p.after.waiting[1]}
    runs = [g for g in p.before.running[1] if g in p.after.running[1]] + list(p.plan.resumed)
    for g in sorted(p.admitted, key=[h for h, _, _ in p.plan.prefills].index):
        if runs and not p.waited(line):
            first = min(p.m.groups[h].arrival for h in line)
            fault("delay", f"{g} is admitted at {p.now}, the first arrived at {first} and the last prefill took {p.m.took}")
        line.remove(g)
        runs.append(g)


def denials(p: Pass) -> None:
    """Each answer no is followed by a victim, or an end; who got its slots has used up its denials."""
    given = p.after.denied - p.before.denied
    gone = {g for g, _ in p.plan.ended}
    for g in p.m.groups.keys() - gone:
        used = p.before.deny.get(g, 0) - p.after.deny.get(g, 0)
        given += used
        if used < 0:
            fault("denials", f"{g} has more to come than before")
    if given > len(p.chosen) + len(gone):
        fault("denials", f"{given} answers were no, {len(p.chosen)} were preempted and {len(gone)} ended")
    served = [g for g in p.plan.decodes if g not in p.plan.resumed and not p.protected(g)]
    equal("denials to come of who was served", [g for g in served if p.after.deny.get(g, 0)], [])
    runs = p.before.running[1] if p.config.vllm_v0 else p.decoders()
    asked = [g for g in runs if g not in p.forced and not p.protected(g)][:1]
    ordered = not p.config.priority if p.config.vllm_v0 else not p.line
    if not p.after.prefilled and ordered:
        gone.update(p.plan.idle)
        unused = [g for g in asked if g not in gone and 0 < p.before.deny.get(g, 0) <= p.after.deny.get(g, 0)]
        equal("denials to come of who was asked first are fewer than before, but for", unused, [])
    test = p.config.artificial_preemption
    if p.after.denied < p.before.denied or p.after.denied > (test.max_count if test else 0):
        fault("artificial preemption", f"{p.after.denied} answers were no, {p.before.denied} before")


def fitting(p: Pass) -> None:
    """kvproof: who is first in line is not left waiting if it fits in every respect, or never will.

    It may be, if somebody was preempted or ended.
    """
    c, m = p.config, p.m
    waiting, runs = p.after.waiting[1], bool(p.after.running[1])
    if c.vllm_v0 or p.plan.preempted or p.plan.ended or not waiting:
        return
    g = waiting[0]
    tokens = p.tokens(g)
    if c.enable_chunked_prefill:
        turn, fits, swapped = True, p.spent < c.max_num_batched_tokens, p.after.swapped[1]
    else:
        turn, swapped = not p.before.prefilled or not p.decoders(), p.before.swapped[1]
        fits = not p.after.prefilled or p.spent + p.work(g) <= c.max_num_batched_tokens
    first = all(m.rank(g) < m.rank(h) for h in swapped)
    late = not runs or p.waited(waiting)
    need = p.entry(g, p.takes(g))
    room = p.after.gpu_free - p.kept_after() - need >= (c.watermark_blocks if runs else 0)
    seats = sum(m.groups[h].seats for h in p.after.running[1]) + m.groups[g].seats
    if not (turn and first and late):
        return
    if need > c.num_gpu_blocks or m.groups[g].prompt > c.max_model_len:
        fault("infeasible_refused", f"group {g} of {tokens} tokens waits, which can never come in")
    if fits and room and seats <= c.max_num_seqs:
        fault("who fits is admitted", f"group {g} of {tokens} tokens waits, {p.after.gpu_free} blocks are free")


def limited(p: Pass) -> None:
    """Nobody is preempted more often than it may be, and what protected ones may still take is free."""
    often = [g for g in p.chosen if p.protected(g)]
    if often:
        fault(
            "bounded_preemptions", f"{often} are preempted once more, {p.config.max_preemptions_per_request} times is the limit"
        )
    if p.kept_after() > p.after.gpu_free:
        fault("bounded_preemptions", f"{p.after.gpu_free} blocks are free, {p.kept_after()} are to be kept")


def check(p: Pass, spent: int, policy: Policy) -> None:
    """All of these."""
    limited(p)
    budget(p, spent)
    force(p, policy)
    wishes(p)
    needless(p)
    delay(p)
    denials(p)
    fitting(p)
