"""Choices that the core leaves open."""

from typing import Protocol

from kvproof.store.candidates import Candidate, Need


class Policy(Protocol):
    """Choices that cannot break safety, whatever they are. A policy may have methods of `Chooser` and `Weigher` besides."""

    def swaps(self, g: int, sequences: int) -> bool:
        """Should victim g, which has so many live sequences, be swapped out rather than recomputed?"""


class Weigher(Protocol):
    """A policy that is told more of a victim than how many sequences it has; it is asked in place of `swaps`."""

    def weigh(self, victim: Candidate) -> bool:
        """Should it be swapped out rather than recomputed?"""


class Chooser(Protocol):
    """A policy that names victims (`Config.choose_victims`)."""

    def victim(self, need: Need) -> int:
        """Who makes way next: a group among `need.candidates`. The tail of the queue goes if it is none of them."""


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
