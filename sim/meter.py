"""What a simulation tells the scheduler's costs, and what it asks them: why was this victim recomputed?

With `preemption_mode="auto"` the scheduler reckons with costs that the times of steps and transfers correct. Other modes wish for
one and the same thing always and are told nothing.
"""

from typing import Any

from kvproof.policies.auto import Auto
from kvproof.policies.costs import pairs_of
from kvproof.scheduler import Scheduler
from kvproof.sim.cost import Piece
from kvproof.sim.metrics import RECOMPUTE, SWAP_IMPOSSIBLE


class Meter:
    """Of a mode that does not reckon. `wish`: why it recomputes somebody."""

    def __init__(self, wish: str) -> None:
        self.wish = wish

    def prefilled(self, pieces: tuple[Piece, ...], seconds: float) -> None:
        """A step that computed these pieces of prompts took so long."""

    def moved(self, blocks: int, seconds: float, direction: str) -> None:
        """Moving so many blocks "out" to the host, or "in", took so long."""

    def cause(self, computed: int, tokens: int) -> str:
        """Why a victim is recomputed that has `tokens` tokens, of which `computed` have been computed."""
        return self.wish


class AutoMeter(Meter):
    """Of "auto"."""

    def __init__(self, scheduler: Scheduler, block_size: int) -> None:
        super().__init__(RECOMPUTE)
        self.scheduler, self.block_size = scheduler, block_size

    def prefilled(self, pieces: tuple[Piece, ...], seconds: float) -> None:
        """`Scheduler.observe_step`. What took no time cannot be learned from."""
        if seconds > 0:
            tokens = sum(tokens for _, _, tokens in pieces)
            self.scheduler.observe_step(tokens, sum(pairs_of(tokens, first) for _, first, tokens in pieces), seconds)

    def moved(self, blocks: int, seconds: float, direction: str) -> None:
        """`Scheduler.observe_transfer`."""
        if blocks and seconds > 0:
            self.scheduler.observe_transfer(blocks, seconds, direction)

    def cause(self, computed: int, tokens: int) -> str:
        """A swap would have been cheaper: then it was wished for, and not possible.

        Costs change between passes only, so those are asked with which the scheduler has decided. The last token of a request
        that decodes has no slot yet; one that is computed in pieces has the blocks of all of its prompt.
        """
        costs = self.scheduler.costs
        if costs is None:
            return RECOMPUTE
        held = computed if computed == tokens - 1 else tokens
        return SWAP_IMPOSSIBLE if costs.swap_s(-(-held // self.block_size)) < costs.recompute_s(computed) else RECOMPUTE


def meter_of(scheduler: Any, preemption_mode: str | None, block_size: int) -> Meter:
    """The one for this scheduler, or for the gate before one."""
    if isinstance(scheduler, Scheduler) and isinstance(scheduler.policy, Auto):
        return AutoMeter(scheduler, block_size)
    return Meter(SWAP_IMPOSSIBLE if preemption_mode == "swap" else RECOMPUTE)
