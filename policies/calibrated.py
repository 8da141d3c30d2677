"""`Costs` measured while an engine runs: prefill steps and transfers that it has timed.

    seconds of a prefill step = tokens x a + attended pairs x b + c        a, b, c >= 0
    seconds of a transfer     = blocks x s + o, out and in each for itself  s, o >= 0

Least squares of the *relative* error (a long step counts no more than a short one) over the last WINDOW observations of a kind,
older ones fading by DECAY each, and pulled a little towards the costs that one started from, scaled as the observations say: a
parameter about which they say nothing keeps its part. Against outliers: it begins with the median of observed / predicted and is
solved ROUNDS times, each time with less weight for what was far off the time before. So a hiccup of a second moves little, and a
lasting change is followed once it makes up half of the window.

A `Calibrated` never changes: `observe` gives the next one. So it can be kept in a snapshot, and the same observations in the same
order give the same costs. To observe costs O(1), to read `costs` O(WINDOW), some 0.5 ms after each observation.
"""

from functools import lru_cache
from itertools import product
from statistics import median

import attrs

from kvproof.policies.costs import OVERHEAD_SHARE, SECONDS_MAX, Costs

WINDOW = 32
DECAY = 0.97
ROUNDS = 3
NOISE = 0.05
"""Relative error of times that is always believed; beyond it, and beyond twice the median error, an observation loses weight."""
PULL = 1e-3
"""Weight of the costs that one started from, as a part of that of all observations."""
COUNT_MAX = 2**40
SHARE_MIN = 1e-6

Vector = tuple[float, ...]


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a small symmetric positive definite system, by elimination."""
    n = len(right)
    rows = [[*row, y] for row, y in zip(matrix, right, strict=True)]
    for i in range(n):
        for j in range(i + 1, n):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
    out = [0.0] * n
    for i in range(n - 1, -1, -1):
        out[i] = (rows[i][n] - sum(rows[i][j] * out[j] for j in range(i + 1, n))) / rows[i][i]
    return out


def nonnegative(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The same with no entry below 0: of all choices of those that are 0 the one with the least error."""
    n = len(right)
    best, least = [0.0] * n, float("inf")
    for used in product((True, False), repeat=n):
        at = [i for i in range(n) if used[i]]
        values = solve([[matrix[i][j] for j in at] for i in at], [right[i] for i in at])
        if any(v < 0 for v in values):
            continue
        error = sum(
            v * (sum(matrix[i][j] * w for j, w in zip(at, values, strict=True)) - 2 * right[i])
            for i, v in zip(at, values, strict=True)
        )
        if error < least:
            least, best = error, [0.0] * n
            for i, v in zip(at, values, strict=True):
                best[i] = v
        if len(at) == n:
            break  # nothing is below 0 anyway
    return best


@attrs.frozen
class Fit:
    """Robust least squares of few parameters. `start`: seconds of each to begin with; `seen`: (row, seconds), the latest last."""

    start: Vector
    seen: tuple[tuple[Vector, float], ...] = ()

    def observe(self, row: Vector, seconds: float) -> "Fit":
        """With one observation more: seconds = row x parameters."""
        return Fit(self.start, (*self.seen[1 - WINDOW :], (row, seconds)))

    def values(self) -> Vector:
        """Seconds of each parameter."""
        return solved(self)

    def fitted(self) -> Vector:
        """The same, computed anew."""
        guess = [max(v, 1e-15) for v in self.start]
        if not self.seen:
            return self.start
        scale = median(seconds / sum(x * v for x, v in zip(row, guess, strict=True)) for row, seconds in self.seen)
        start = guess = [v * scale for v in guess]
        for _ in range(ROUNDS):
            guess = self._solved(start, guess)
        return tuple(guess)

    def _solved(self, start: list[float], guess: list[float]) -> list[float]:
        """Better parameters than `guess`, in units of `start`."""
        n = len(start)
        scaled: list[tuple[list[float], float]] = []
        for row, seconds in self.seen:
            predicted = max(sum(x * v for x, v in zip(row, guess, strict=True)), 1e-15)
            scaled.append(([x * v / predicted for x, v in zip(row, start, strict=True)], seconds / predicted))
        believed = NOISE + 2 * median(abs(y - 1) for _, y in scaled)
        matrix, right = [[0.0] * n for _ in range(n)], [0.0] * n
        age = 1.0
        for entries, y in reversed(scaled):
            off = abs(y - 1)
            weight = age if off <= believed else age * (believed / off) ** 3
            age *= DECAY
            for i in range(n):
                part = weight * entries[i]
                right[i] += part * y
                for j in range(n):
                    matrix[i][j] += part * entries[j]
        for i in range(n):
            pull = PULL * (matrix[i][i] + 1e-9)
            matrix[i][i] += pull
            right[i] += pull
        return [v * x for v, x in zip(nonnegative(matrix, right), start, strict=True)]


@lru_cache(maxsize=64)
def solved(fit: Fit) -> Vector:
    """The parameters of a fit: one observation changes one of several fits."""
    return fit.fitted()


def _count(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= COUNT_MAX:
        raise ValueError(f"{name}: must be an integer from {least} to {COUNT_MAX}, got {value!r}")


def _time(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= SECONDS_MAX:
        raise ValueError(f"seconds: must be a number > 0, at most {SECONDS_MAX:g}, got {value!r}")


@attrs.frozen
class Calibrated:
    """Costs, and what they follow from. `overhead_share`: the part of a step's fixed time that one recompute answers for."""

    steps: Fit
    out: Fit
    back: Fit
    overhead_share: float = OVERHEAD_SHARE

    @classmethod
    def begin(cls, costs: Costs | None = None, overhead_share: float = OVERHEAD_SHARE) -> "Calibrated":
        """Nothing has been observed: these costs (the default ones)."""
        c = Costs() if costs is None else costs
        if (
            isinstance(overhead_share, bool)
            or not isinstance(overhead_share, (int, float))
            or not SHARE_MIN <= overhead_share <= 1
        ):
            raise ValueError(f"overhead_share: must be a number from {SHARE_MIN} to 1, got {overhead_share!r}")
        return cls(
            Fit((c.s_per_token, c.s_per_pair, c.recompute_overhead_s / overhead_share)),
            Fit((c.out_s_per_block, c.transfer_overhead_s)),
            Fit((c.in_s_per_block, c.transfer_overhead_s)),
            overhead_share,
        )

    def observe(self, prefill_tokens: int, attended_pairs: int, seconds: float) -> "Calibrated":
        """A step that computed so many tokens of prompts took so long. attended_pairs: `costs.pairs_of` each piece, added up.

        Raises ValueError, which names the argument. A step that decodes too is not told: its decodes take time as well.
        """
        _count("prefill_tokens", prefill_tokens, 1)
        _count("attended_pairs", attended_pairs, 1)
        _time(seconds)
        return attrs.evolve(self, steps=self.steps.observe((float(prefill_tokens), float(attended_pairs), 1.0), seconds))

    def observe_transfer(self, blocks: int, seconds: float, direction: str) -> "Calibrated":
        """A transfer of so many blocks took so long. direction: "out" (to the host) or "in". Raises ValueError."""
        _count("blocks", blocks, 1)
        _time(seconds)
        if direction not in ("out", "in"):
            raise ValueError(f'direction: must be "out" or "in", got {direction!r}')
        if direction == "out":
            return attrs.evolve(self, out=self.out.observe((float(blocks), 1.0), seconds))
        return attrs.evolve(self, back=self.back.observe((float(blocks), 1.0), seconds))

    @property
    def costs(self) -> Costs:
        """What the observations say so far."""
        token, pair, step = self.steps.values()
        out, out_fixed = self.out.values()
        back, back_fixed = self.back.values()
        return Costs(
            s_per_token=min(token, SECONDS_MAX),
            s_per_pair=min(pair, SECONDS_MAX),
            recompute_overhead_s=min(step * self.overhead_share, SECONDS_MAX),
            out_s_per_block=min(out, SECONDS_MAX),
            in_s_per_block=min(back, SECONDS_MAX),
            transfer_overhead_s=min((out_fixed + back_fixed) / 2, SECONDS_MAX),
        )
