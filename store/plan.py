"""What a pass decided: everything a backend and a model runner need for one step, and nothing they have to ask back."""

from collections.abc import Iterable, Mapping
from itertools import filterfalse
from typing import Any

import attrs


@attrs.frozen
class Recompute:
    """A prefill, or a piece of one, of a group of several sequences: of their different tokens, counted sequence by sequence in
    the order of `kin`, those from `start` on.

    kin: (sequence, common): it has its first `common` tokens in common with the one before it; the first has none.
    """

    group: int
    start: int
    tokens: int
    length: int
    """Tokens of each sequence."""
    kin: tuple[tuple[int, int], ...]

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """(sequence, first token, tokens) of each sequence that has a share in it, in order."""
        out, before = [], 0
        for q, common in self.kin:
            first = min(common, self.length)
            begin, end = max(self.start - before, 0), min(self.start + self.tokens - before, self.length - first)
            if begin < end:
                out.append((q, first + begin, end - begin))
            before += self.length - first
        return out

    @property
    def complete(self) -> bool:
        """Is it the last piece: has every sequence a next token after it?"""
        return self.start + self.tokens == sum(self.length - min(common, self.length) for _, common in self.kin)

    def shared(self, block_size: int) -> list[tuple[int, int, int, int]]:
        """(sequence, other, first token, tokens): what is computed for the sequence is stored in a block of the other as well.

        The other has these tokens too, in a block that it shares with nobody before it, since it goes on in it.
        """
        out = []
        order = [q for q, _ in self.kin]
        for q, first, tokens in self.parts:
            common = self.length
            for other, more in self.kin[order.index(q) + 1 :]:
                common = min(common, more)
                own = min(more, self.length - 1) // block_size * block_size  # what comes before is in blocks of the one before it
                begin, end = max(first, own), min(first + tokens, common)
                if begin < end:
                    out.append((q, other, begin, end - begin))
        return out


def recomputes(
    pieces: Iterable[tuple[int, int, int]], members: Mapping[int, Any], length: Mapping[int, int]
) -> tuple[Recompute, ...]:
    """What those of the pieces consist of that are of groups of several sequences."""
    return tuple(
        Recompute(g, start, n, length[g], members[g][2]) for g, start, n in pieces if g in members and len(members[g][0]) > 1
    )


@attrs.frozen(slots=False)
class Plan:
    """One step. Tables are cut as `trimmed` says and those of who is preempted or ended dropped; then effects happen in this
    order: `swap_out`, `swap_in`, `copy`, then compute.

    Groups are the ids that `add_request` returned; blocks are (GPU) 0 .. num_gpu_blocks - 1, host blocks follow.
    """

    epoch: int
    prefills: tuple[tuple[int, int, int], ...]
    """(group, first token, tokens) of each prefill or piece of one, in plan order."""
    running: tuple[int, ...]
    """Every running group after the pass, in queue order (shared with the state, so it costs nothing)."""
    resumed: tuple[int, ...]
    """Groups swapped in by this pass, in order; they decode in it."""
    preempted: tuple[tuple[int, str], ...]
    """(group, "recompute" or "swap"), in order."""
    ended: tuple[tuple[int, int], ...]
    """(group, Status) of the groups that the pass refused or ended for capacity."""
    swap_out: tuple[tuple[int, int], ...]
    """(GPU block, host block)."""
    swap_in: tuple[tuple[int, int], ...]
    """(host block, GPU block)."""
    copy: tuple[tuple[int, int], ...]
    """(source, target) GPU blocks, copy-on-write."""
    slots: tuple[tuple[int, int, int, int], ...]
    """(group, sequence, i, block): the i-th block of the sequence's table is now this one; i = its length appends."""
    decode: bool
    """Does every running group that is not in its prefill decode one token in this step?"""
    unfinished: tuple[int, ...] = ()
    """Running groups that are in the middle of their prefill: they do not decode."""
    idle: tuple[int, ...] = ()
    """Running groups that do nothing in this step (V0 leaves them out when the token budget is spent)."""
    recomputes: tuple[Recompute, ...] = ()
    """What the prefills of groups of several sequences consist of."""
    trimmed: tuple[tuple[int, int, int], ...] = ()
    """(group, sequence, n): its table keeps its first n blocks; lookahead slots that have not become tokens were given back."""

    @property
    def decodes(self) -> tuple[int, ...]:
        """The groups that decode, in plan order: those that ran on, then those swapped in. Costs O(running)."""
        if not self.decode:
            return ()
        away = {*self.unfinished, *self.idle, *(g for g, _, _ in self.prefills)}
        if not away and not self.resumed:
            return self.running
        late = {*self.resumed, *away}
        return (*filterfalse(late.__contains__, self.running), *filterfalse(away.__contains__, self.resumed))

    @property
    def scheduled(self) -> list[tuple[int, int]]:
        """(group, tokens) in plan order: the full view."""
        return [(g, n) for g, _, n in self.prefills] + [(g, 1) for g in self.decodes]

    @property
    def new_blocks(self) -> dict[int, dict[int, list[tuple[int, int]]]]:
        """Group -> sequence -> [(i, block)] from `slots`."""
        out: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for g, q, i, b in self.slots:
            out.setdefault(g, {}).setdefault(q, []).append((i, b))
        return out


class PlanDraft:
    """A plan in the making: what the core tells as it decides."""

    __slots__ = ("copy", "cuts", "drops", "ends", "pieces", "resumes", "slots", "swap_in", "swap_out", "victims")

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, int]] = []
        self.resumes: list[int] = []
        self.victims: list[tuple[int, str]] = []
        self.ends: list[tuple[int, int]] = []
        self.drops: list[tuple[int, int]] = []
        self.cuts: list[tuple[int, int, int]] = []
        self.swap_out: list[tuple[int, int]] = []
        self.swap_in: list[tuple[int, int]] = []
        self.copy: list[tuple[int, int]] = []
        self.slots: list[tuple[int, int, int, int]] = []

    def reopen(self) -> "PlanDraft":
        """One in which nothing is told: this one, if it tells at most of slots."""
        told: object = self.pieces or self.ends or self.victims or self.resumes or self.drops
        if told or self.cuts or self.swap_out or self.swap_in or self.copy:
            return PlanDraft()
        if self.slots:
            self.slots = []
        return self

    def nobody_preempted(self) -> bool:
        """Has the pass evicted nobody so far?"""
        return not self.victims

    def evictions(self) -> int:
        """How many the pass has evicted so far."""
        return len(self.victims)

    def evicted(self, g: int) -> bool:
        """Has the pass evicted g?"""
        return any(v == g for v, _ in self.victims)

    def evicted_groups(self) -> tuple[int, ...]:
        """Whom the pass has evicted so far, in order."""
        return tuple(g for g, _ in self.victims)

    def moves_out(self) -> bool:
        """Has the pass swapped anybody out?"""
        return any(mode == "swap" for _, mode in self.victims)

    def prefilled(self, g: int) -> bool:
        """Does the step compute a part of the prompt of g?"""
        return any(h == g for h, _, _ in self.pieces)

    def started(self, g: int) -> bool:
        """Is that its first part?"""
        return any(h == g and start == 0 for h, start, _ in self.pieces)

    def returned(self, g: int) -> bool:
        """Has g come back from the host?"""
        return g in self.resumes

    def trimmed(self, g: int, q: int, n: int) -> None:
        """The table of q has n blocks left: it gives back what nobody has written."""
        if self.cuts and self.cuts[-1][:2] == (g, q):
            self.cuts.pop()
        self.cuts.append((g, q, n))

    def slot(self, g: int, q: int, i: int, b: int) -> None:
        """The i-th block of q is b."""
        self.slots.append((g, q, i, b))

    def copied(self, source: int, target: int) -> None:
        """A copy-on-write pair."""
        self.copy.append((source, target))

    def copied_out(self, source: int, target: int) -> None:
        """A GPU block goes to a host block."""
        self.swap_out.append((source, target))

    def copied_in(self, source: int, target: int) -> None:
        """A host block goes to a GPU block."""
        self.swap_in.append((source, target))

    def prefill(self, g: int, start: int, tokens: int) -> None:
        """Tokens start .. start + tokens - 1 of g are computed."""
        self.pieces.append((g, start, tokens))

    def resumed(self, g: int) -> None:
        """g is back from the host and decodes."""
        self.resumes.append(g)

    def preempted(self, g: int, mode: str) -> None:
        """g is a victim."""
        self.victims.append((g, mode))

    def dropped(self, g: int, q: int) -> None:
        """One sequence of g has ended; its siblings go on."""
        self.drops.append((g, q))

    def ended(self, g: int, outcome: int) -> None:
        """g is refused or ended."""
        self.ends.append((g, outcome))

    def close(
        self,
        epoch: int,
        running: tuple[int, ...],
        unfinished: tuple[int, ...],
        decode: bool,
        idle: tuple[int, ...] = (),
        recomputes: tuple[Recompute, ...] = (),
    ) -> Plan:
        """The plan, final. In a step that decodes too, prompts that begin come before those that go on."""
        if decode and len(self.pieces) > 1:
            self.pieces.sort(key=lambda piece: piece[1] > 0)
        return Plan(
            epoch,
            tuple(self.pieces) if self.pieces else (),
            running,
            tuple(self.resumes) if self.resumes else (),
            tuple(self.victims) if self.victims else (),
            tuple(self.ends) if self.ends else (),
            tuple(self.swap_out) if self.swap_out else (),
            tuple(self.swap_in) if self.swap_in else (),
            tuple(self.copy) if self.copy else (),
            tuple(self.slots) if self.slots else (),
            decode,
            unfinished,
            idle,
            recomputes,
            tuple(self.cuts) if self.cuts else (),
        )
