"""`preemption_mode: auto`: swap or recompute, and who makes way, by estimated cost.

The price of a victim is the cheaper of its possible modes (`kvproof.policies.costs`): what it would compute again (tokens whose
keys and values it holds; a prompt that has not been computed must be anyway), or its blocks moved both ways if the host has
room. Victims go as a set: for a group that lacks k blocks the cheapest set that frees k, evicted from the lowest rank up, each of
them swapped if that is cheaper and the host has room left then. So what is priced is what happens.

Who frees less than AHEAD blocks for each that runs makes way only if nobody frees more: those that run fill so many in AHEAD x
block size steps, the next of the small ones would follow soon, and nobody is admitted past any of them. Who runs and ranks above
the group is not seen, and not counted.

The price counts once more for each time that the victim has been preempted before (`times`): who is always chosen because it
is cheap would be chosen again when it is back, so the next choice falls on somebody else. The mode does not depend on it.

Exact up to EXACT_MAX candidates (at most 2^EXACT_MAX sets, most of them cut off). Above, O(n log n): a greedy set by price for
each block that is lacking, without the members that turn out superfluous (the dearest is dropped first), or the best single
victim if that is no dearer.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

import attrs

from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import Costs, pairs_of
from kvproof.store.candidates import Candidate, Need

EXACT_MAX = 8
AHEAD = 3
"""0 against 3, 1,000 Azure requests at load 0.75: goodput 88.7 and 89.2 %, 68 and 51 preemptions, 5.6 and 6.2 GB swapped."""
Offer = tuple[float, float, int]
"""Seconds to recompute a candidate, seconds to swap it (infinity: impossible), blocks that it frees."""
NEVER = float("inf")


def pairs(c: Candidate) -> int:
    """Attended pairs of the tokens of a candidate that would be computed again.

    Of several sequences: as if what they have in common were one beginning of all of them.
    """
    n, length = c.sequences, c.length
    if n == 1:
        return pairs_of(c.computed)
    common = (n * length - c.work) // (n - 1)
    return (pairs_of(common) + n * pairs_of(length - common, common)) * c.computed // c.work


def never(g: int) -> int:
    """Nobody has been preempted before."""
    return 0


@attrs.frozen
class Auto:
    """The policy of `preemption_mode: auto`. Ties go to the lowest rank; equal questions have equal answers.

    known: what it reckons with, or observations from which that follows; they are not looked at before somebody must make way.
    ahead: blocks for each that runs which a victim should free; 0: what is lacking now decides alone.
    times: how often a group has been preempted so far (the scheduler gives its own count).
    """

    known: Costs | Calibrated = attrs.field(factory=Costs)
    ahead: int = AHEAD
    times: Callable[[int], int] = attrs.field(default=never, eq=False, repr=False)

    @property
    def costs(self) -> Costs:
        """What it reckons with now. After an observation O(WINDOW) once."""
        return self.known if isinstance(self.known, Costs) else self.known.costs

    def prices(self, victim: Candidate) -> tuple[float, float]:
        """(seconds to recompute it, seconds to swap it both ways). Whether the host has room is not looked at."""
        costs = self.costs
        return costs.recompute_s(victim.computed, pairs(victim)), costs.swap_s(victim.blocks)

    def weigh(self, victim: Candidate) -> bool:
        """Should it be swapped out rather than recomputed? If that is cheaper; where both cost the same it is recomputed."""
        recompute_s, swap_s = self.prices(victim)
        return victim.swappable and swap_s < recompute_s

    def swaps(self, g: int, sequences: int) -> bool:
        """Not asked, since there is `weigh`: as `preemption_mode: null`."""
        return sequences > 1

    def victim(self, need: Need) -> int:
        """The first to go of the cheapest set; the lowest in rank if even all of them do not free enough. -1: no candidates."""
        if not need.candidates:
            return -1
        chosen = self.cheapest(need)
        return need.candidates[chosen[0] if chosen else 0].group

    def cheapest(self, need: Need) -> tuple[int, ...]:
        """Which of the candidates make way (indices, lowest rank first); empty if all of them together do not suffice."""
        lacking = need.blocks - need.free
        costs, times, offers, freed = self.costs, self.times, [], 0
        for c in need.candidates:
            group, sequences, blocks, _, _, computed, swappable = c
            again = 1 + times(group)
            recompute_s = costs.recompute_s(computed, None if sequences == 1 else pairs(c)) * again
            swap_s = costs.swap_s(blocks) * again if swappable else NEVER
            offers.append((recompute_s, swap_s, blocks))
            freed += blocks
        if freed < lacking:
            return ()
        enough = max(lacking, self.ahead * (1 + len(offers)))
        large = [i for i in range(len(offers)) if offers[i][2] >= enough] if self.ahead else []
        if large:
            return (min(large, key=lambda i: (cost_of(offers, (i,), need.host_free), i)),)
        if len(offers) <= EXACT_MAX:
            return exact(offers, lacking, need.host_free)
        return greedy(offers, lacking, need.host_free)


def cost_of(offers: Sequence[Offer], chosen: Sequence[int], host_free: int) -> float:
    """Seconds that it costs to evict these in this order; the host room shrinks by those that are swapped."""
    total = 0.0
    for i in chosen:
        recompute_s, swap_s, blocks = offers[i]
        if swap_s < recompute_s and blocks <= host_free:
            host_free -= blocks
            total += swap_s
        else:
            total += recompute_s
    return total


def exact(offers: Sequence[Offer], lacking: int, host_free: int) -> tuple[int, ...]:
    """The cheapest set that frees `lacking` blocks; of several the smallest, then the one with the lowest ranks."""
    n = len(offers)
    rest = [0] * (n + 1)  # blocks of those from i on
    for i in range(n - 1, -1, -1):
        rest[i] = rest[i + 1] + offers[i][2]
    best: tuple[float, int, tuple[int, ...]] = (NEVER, n, ())

    def look(i: int, chosen: tuple[int, ...], freed: int, host: int, total: float) -> None:
        nonlocal best
        if (total, len(chosen)) >= best[:2] or freed + rest[i] < lacking:
            return
        if freed >= lacking:
            best = (total, len(chosen), chosen)
            return
        recompute_s, swap_s, blocks = offers[i]
        if swap_s < recompute_s and blocks <= host:
            look(i + 1, (*chosen, i), freed + blocks, host - blocks, total + swap_s)
        else:
            look(i + 1, (*chosen, i), freed + blocks, host, total + recompute_s)
        look(i + 1, chosen, freed, host, total)

    look(0, (), 0, host_free, 0.0)
    return best[2]


def greedy(offers: Sequence[Offer], lacking: int, host_free: int) -> tuple[int, ...]:
    """A cheap set that frees `lacking` blocks, of many."""
    price = [min(recompute_s, swap_s) if blocks <= host_free else recompute_s for recompute_s, swap_s, blocks in offers]
    heap = [(price[i] / max(1, min(offers[i][2], lacking)), i) for i in range(len(offers)) if offers[i][2]]
    heapify(heap)
    chosen: list[int] = []
    freed, host = 0, host_free
    while freed < lacking:
        _, i = heappop(heap)
        recompute_s, _, blocks = offers[i]
        if price[i] < recompute_s and blocks > host:  # others have taken the room
            price[i] = recompute_s
            heappush(heap, (recompute_s / max(1, min(blocks, lacking)), i))
            continue
        host -= blocks if price[i] < recompute_s else 0
        chosen.append(i)
        freed += blocks
    for i in sorted(chosen, key=lambda i: (-price[i], -i)):
        if freed - offers[i][2] >= lacking and len(chosen) > 1:
            chosen.remove(i)
            freed -= offers[i][2]
    chosen.sort()
    price = [min(recompute_s, swap_s) if blocks <= host_free else recompute_s for recompute_s, swap_s, blocks in offers]
    single = min((i for i in range(len(offers)) if offers[i][2] >= lacking), key=lambda i: (price[i], i), default=None)
    if single is not None and price[single] <= cost_of(offers, chosen, host_free):
        return (single,)
    return tuple(chosen)
