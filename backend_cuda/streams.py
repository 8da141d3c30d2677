"""What the simulator is made of: buffers, events, streams with what is enqueued in them, and who decides when that runs."""

import random
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from kvproof.backend_cuda.races import Clock, Ranges
from kvproof.backend_cuda.runtime import Place

Bytes = NDArray[np.uint8]


@attrs.define(eq=False)
class SimBuffer:
    """Real bytes."""

    name: str
    place: Place
    size: int
    address: int
    data: Bytes
    ranges: Ranges
    live: bool = True


@attrs.define(eq=False)
class SimEvent:
    """Recorded so often; happened so often."""

    clock: Clock = attrs.field(factory=dict)
    recorded: int = 0
    happened: int = 0


@attrs.define(eq=False)
class Op:
    """Steps that may run in any order, once `after` has happened."""

    what: str
    steps: list[Callable[[], None]]
    after: tuple[SimEvent, int] | None = None

    def ready(self) -> bool:
        """May it run?"""
        return self.after is None or self.after[0].happened >= self.after[1]


@attrs.define(eq=False)
class SimStream:
    """What is enqueued and has not run."""

    name: str
    timeline: int
    clock: Clock = attrs.field(factory=dict)
    queue: deque[Op] = attrs.field(factory=deque)
    graph: list[Op] | None = None


class Adversary:
    """When operations run, by a seed: eagerly, as late as possible, at random, or one stream long before the others."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.style = self.random.choice(("eager", "lazy", "random", "random", "uneven"))
        self.weights = [self.random.choice((1, 1, 8, 64)) for _ in range(16)]

    def more(self) -> bool:
        """Shall something run now, though nobody waits for it?"""
        return self.style == "eager" or (self.style != "lazy" and self.random.random() < 0.5)

    def moves(self) -> bool:
        """Has something run since the host asked last? Now and then, even if nobody waits."""
        return self.random.random() < 0.3

    def waits(self) -> bool:
        """Does a copy that touches pageable memory wait until it is done?"""
        return self.style == "eager" or self.random.random() < 0.5

    def pick(self, timelines: Sequence[int]) -> int:
        """Which of these streams goes on: an index."""
        if self.style != "uneven":
            return self.random.randrange(len(timelines))
        weights = [self.weights[t % len(self.weights)] for t in timelines]
        return self.random.choices(range(len(timelines)), weights)[0]

    def step(self, n: int) -> int:
        """Which of n steps that may run in any order is next."""
        return self.random.randrange(n)

    def admits(self) -> bool:
        """Does the host see that something has happened that has?"""
        return self.style == "eager" or self.random.random() < 0.7
