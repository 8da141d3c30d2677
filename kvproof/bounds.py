"""Within how many passes a request ends: the bound of the theorem `every_request_ends`, from a state (docs/progress.md).

Let all results be committed, no event preempt by force, and nobody arrive, or be ranked, before the request. Then the first of
all in policy order is never preempted once it runs, and each two passes bring it a token nearer to its end
(`spec.progress.head_falls`). While it waits, the first of those that run in spite of it comes nearer to its end in the same way,
and nobody else comes in (`order_kept`). When it has ended, the next one is the first of all.

So the bound is the sum of
- two passes for each token of the whole life of each request that ranks up to this one (it may be preempted until it is the
  first), and two for its coming in; only what is left, of the first of all, if it runs;
- two passes for each token that is left of those that run though somebody in line ranks before them. Where the policy names
  victims (`choose_victims`) such ones may come about again, each time that the first of all has ended: as many as there are
  seats.

With `max_preemptions_per_request` those that may not be preempted keep their blocks, whoever ranks before them: the first of all
may be preempted itself while such ones run, and have to wait for them. So each request has as many lives as it may be preempted
again, and one, and such ones may run before each of them.
"""

from typing import Any

from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.store.state import State


def ends_within(state: State, g: int) -> int:
    """Passes, each with the commit of all its results, within which unfinished g ends. O(state).

    Raises Rejected if g has ended or is unknown, and in profile vllm_v0, where nobody is sure to end.
    """
    return bounds(state, g)[g]


def bounds(state: State, g: int | None = None) -> dict[int, int]:
    """The bound of every unfinished request, in policy order (of those up to g, if it is given). O(state)."""
    from kvproof.spec.progress import in_line, left, steps
    from kvproof.spec.view import View

    c = state.config
    if c.vllm_v0:
        raise Rejected("profile vllm_v0 may hang: no request is sure to end")
    d = View(state)
    line = sorted((*d.waiting.ids, *d.swapped.ids), key=lambda h: d.key[h])
    everybody = sorted((*line, *d.running.ids), key=lambda h: d.key[h])
    if g is not None and g not in everybody:
        raise Rejected("the request has ended or is unknown")

    def nearest(h: int) -> int:
        """Of the first that runs; while a step is in flight, whatever it brings."""
        return int(2 * left(d, h) if state.issued else steps(d, h))

    late = [h for h in d.running.ids if line and d.key[h] > d.key[line[0]]]
    waits = bool(everybody) and bool(in_line(d, everybody[0]))
    again = 2 * most(c) if c.choose_victims or d.bounded else 0
    passes = 0
    if waits or not again:
        passes = sum(nearest(h) if waits and h == d.running.ids[0] else 2 * int(left(d, h)) for h in late)
    out: dict[int, int] = {}
    for h in everybody:
        if out:
            passes += life(d, h) + again
        else:
            passes += life(d, h) if waits else nearest(h)
        if d.bounded:
            passes += (d.most_preemptions - d.preemptions[h]) * (life(d, h) + again)
        out[h] = passes
        if h == g:
            break
    return out


def life(d: Any, h: int) -> int:
    """Passes for a whole life of h, once it is the first of all: two for its coming in, and two for each token."""
    return int(2 * d.seats[h] * d.limit[h] + 2)


def most(config: Config) -> int:
    """Tokens that all who run may have to compute together, prompts included."""
    return config.max_num_seqs * (config.max_model_len + 1)
