"""How the pool was used over time: a series of bounded length, thinned as it grows, the same way on every run."""

from typing import Any

POINTS_MAX = 512

Point = tuple[float, int, int, int, int]
"""Simulated seconds; GPU blocks used; requests that run, wait and are swapped."""


class Series:
    """Points at least `interval_s` apart. When there are `points_max`, every second one goes and the interval doubles.

    So memory is bounded, adding costs O(1) on average, and the points kept lie evenly over the time so far.
    """

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self.points: list[Point] = []
        self.points_max = points_max
        self.interval_s = 0.0
        self.next_s = 0.0
        """From this simulated time on a point is wanted; asked before each call of `add`."""

    def add(self, now_s: float, blocks_used: int, running: int, waiting: int, swapped: int) -> None:
        """A point at `now_s`, which must not go backwards."""
        points = self.points
        points.append((now_s, blocks_used, running, waiting, swapped))
        if len(points) >= self.points_max:
            del points[1::2]
            self.interval_s = max(2 * self.interval_s, 2 * (now_s - points[0][0]) / self.points_max)
        self.next_s = now_s + self.interval_s

    def summary(self) -> dict[str, list[Any]]:
        """The columns, for JSON and for figures."""
        names = ("time_s", "blocks_used", "running", "waiting", "swapped")
        columns = zip(*self.points, strict=True) if self.points else ((),) * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}
