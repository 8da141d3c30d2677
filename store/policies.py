"""Choices that the core leaves open."""

from typing import Protocol


class Policy(Protocol):
    """Choices that cannot break safety, whatever they are."""

    def swaps(self, g: int, sequences: int) -> bool:
        """Should victim g, which has so many live sequences, be swapped out rather than recomputed?"""


class BySize:
    """The policy of `preemption_mode: null`: recompute one sequence, swap several."""

    @staticmethod
    def swaps(g: int, sequences: int) -> bool:
        """If it has several."""
        return sequences > 1


class AlwaysRecompute:
    """The policy of `preemption_mode: recompute`."""

    @staticmethod
    def swaps(g: int, sequences: int) -> bool:
        """Never."""
        return False


class AlwaysSwap:
    """The policy of `preemption_mode: swap`."""

    @staticmethod
    def swaps(g: int, sequences: int) -> bool:
        """Always."""
        return True
