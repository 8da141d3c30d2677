"""`Costs` measured while an engine runs: prefill steps and transfers that it has timed.

    seconds of a prefill step = tokens x a + attended pairs x b + c        a, b, c >= 0
    seconds of a transfer     = blocks x s + o, out and in each for itself  s, o >= 0

Least squares of the *relative* error (a long step counts no more than a short one), older observations fading by DECAY each, and
pulled a little towards the costs that one starts from, so that a parameter about which the observations say nothing keeps its
value. Against outliers: after WARM_UP observations of a kind, one that is more than OUTLIER times off the prediction, in either
direction, counts as just so many times off, and only by OUTLIER_WEIGHT. So a hiccup of a second moves little, and a lasting
change is followed all the same.

A `Calibrated` never changes: `observe` gives the next one. So it can be kept in a snapshot, and the same observations in the same
order give the same costs. An observation costs O(1).
"""

from itertools import product

import attrs

from kvproof.policies.costs import OVERHEAD_SHARE, SECONDS_MAX, Costs

DECAY = 0.98
"""Weight of an observation falls by this factor with each later one: about the last 50 count."""
WARM_UP = 8
OUTLIER = 2.0
OUTLIER_WEIGHT = 0.2
PULL = 1e-3
"""Weight of the costs that one starts from, as a part of that of all observations."""
COUNT_MAX = 2**40

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


@attrs.frozen
class Fit:
    """Faded least squares of few parameters that are 0 or more.

    `sums`: products of the entries of a row, `ones`: products of them and the seconds, both relative to the seconds expected.
    """

    start: Vector
    """Seconds of each parameter to begin with."""
    value: Vector
    """Seconds of each parameter now."""
    sums: tuple[Vector, ...]
    ones: Vector
    count: int = 0

    @classmethod
    def begin(cls, *start: float) -> "Fit":
        """Nothing has been observed."""
        n = len(start)
        return cls(start, start, ((0.0,) * n,) * n, (0.0,) * n)

    def observe(self, row: Vector, seconds: float) -> "Fit":
        """With one observation more: seconds = row x parameters."""
        predicted = sum(x * v for x, v in zip(row, self.value, strict=True))
        scale, weight = seconds, 1.0
        if self.count >= WARM_UP and predicted > 0:
            scale, taken = predicted, min(max(seconds, predicted / OUTLIER), predicted * OUTLIER)
            weight = 1.0 if taken == seconds else OUTLIER_WEIGHT
            seconds = taken
        scaled = [x / scale for x in row]
        sums = tuple(
            tuple(DECAY * s + weight * x * y for s, y in zip(line, scaled, strict=True))
            for line, x in zip(self.sums, scaled, strict=True)
        )
        ones = tuple(DECAY * s + weight * x * seconds / scale for s, x in zip(self.ones, scaled, strict=True))
        return attrs.evolve(self, value=self._best(sums, ones), sums=sums, ones=ones, count=self.count + 1)

    def _best(self, sums: tuple[Vector, ...], ones: Vector) -> Vector:
        """The parameters: of all choices of those that are 0 the one with the least error that makes none negative."""
        n = len(ones)
        pulls = [PULL * sums[i][i] for i in range(n)]  # in the scale of each parameter
        matrix = [[sums[i][j] + (pulls[i] if i == j else 0.0) for j in range(n)] for i in range(n)]
        right = [ones[i] + pulls[i] * self.start[i] for i in range(n)]
        best, least = self.value, float("inf")
        for used in product((True, False), repeat=n):
            at = [i for i in range(n) if used[i] and matrix[i][i] > 0]
            values = dict(zip(at, solve([[matrix[i][j] for j in at] for i in at], [right[i] for i in at]), strict=True))
            if any(v < 0 for v in values.values()):
                continue
            error = sum(values[i] * (sum(matrix[i][j] * values[j] for j in at) - 2 * right[i]) for i in at)
            if error < least:
                least = error
                best = tuple(values.get(i, 0.0 if matrix[i][i] > 0 else self.start[i]) for i in range(n))
        return best


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
        if isinstance(overhead_share, bool) or not isinstance(overhead_share, (int, float)) or not 0 < overhead_share <= 1:
            raise ValueError(f"overhead_share: must be a number > 0, at most 1, got {overhead_share!r}")
        return cls(
            Fit.begin(c.s_per_token, c.s_per_pair, c.recompute_overhead_s / overhead_share),
            Fit.begin(c.out_s_per_block, c.transfer_overhead_s),
            Fit.begin(c.in_s_per_block, c.transfer_overhead_s),
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
        token, pair, step = self.steps.value
        out, out_fixed = self.out.value
        back, back_fixed = self.back.value
        return Costs(
            s_per_token=min(token, SECONDS_MAX),
            s_per_pair=min(pair, SECONDS_MAX),
            recompute_overhead_s=min(step * self.overhead_share, SECONDS_MAX),
            out_s_per_block=min(out, SECONDS_MAX),
            in_s_per_block=min(back, SECONDS_MAX),
            transfer_overhead_s=min((out_fixed + back_fixed) / 2, SECONDS_MAX),
        )
