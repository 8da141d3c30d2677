"""Progress of profile kvproof: who goes forward in a pass, and in a pass with the commit of all its results.

Clauses over the state before (`e`) and after it (`d`), as in `effects`. `head` is the first of those that run, `line` the first
of those that wait or are swapped; a clause about them says nothing if there is no such one.
"""

from typing import Any

from kvproof.spec.logic import Truth, both, choose, either, implies, negate
from kvproof.spec.ownership import Clause, R, S, W, decodes, tokens_of, unfinished
from kvproof.spec.promises import nobody_protected_but


def in_line(d: Any, g: Any) -> Truth:
    """Does g wait, or is it swapped?"""
    return either(d.status[g] == W, d.status[g] == S)


def first_running(d: Any, g: Any) -> Truth:
    """Does g run, and rank before all others that do?"""
    first = d.forall("group", lambda t: implies(d.status[t] == R, d.key[g] <= d.key[t]), lambda t: [[d.status[t]]])
    return both(d.status[g] == R, first)


def first_in_line(d: Any, g: Any) -> Truth:
    """Is g first of all that wait or are swapped?"""
    first = d.forall("group", lambda t: implies(in_line(d, t), d.key[g] <= d.key[t]), lambda t: [[d.status[t]]])
    return both(in_line(d, g), first)


def first_prefill(d: Any, g: Any) -> Truth:
    """Is g in its prefill, and does it rank before all others that are?"""
    first = d.forall("group", lambda t: implies(d.prefilling.has_[t], d.key[g] <= d.key[t]), lambda t: [[d.prefilling.has_[t]]])
    return both(d.prefilling.has_[g], first)


def order_kept(d: Any, e: Any) -> Clause:
    """Nobody comes in past one that ranks before it and waits or is swapped in the end, be it a victim."""

    def clause(g: Any, h: Any) -> Truth:
        return implies(both(in_line(e, g), d.status[g] == R, in_line(d, h)), either(d.config.vllm_v0, e.key[g] < e.key[h]))

    return ("head_advances: nobody comes in past another", d.forall("groups", clause, lambda g, h: [[d.status[g], d.status[h]]]))


def kept(d: Any, e: Any) -> Clause:
    """Who runs on has computed no less, and does not go back into its prefill."""

    def clause(g: Any) -> Truth:
        same = both(d.computed[g] >= e.computed[g], implies(d.prefilling.has_[g], e.prefilling.has_[g]))
        return implies(both(e.status[g] == R, d.status[g] == R), same)

    return ("head_advances: who runs on keeps what it has computed", d.forall("group", clause, lambda g: [[d.status[g]]]))


def nobody_runs_on(d: Any, e: Any) -> Truth:
    """Has everybody left that ran?"""
    return d.forall("group", lambda t: negate(both(e.status[t] == R, d.status[t] == R)), lambda t: [[d.status[t]]])


def head_stays(d: Any, e: Any, head: Any) -> Clause:
    """The first of those that run runs on, or ends; for a head of the line with a higher priority it makes way, the last.

    It makes way if it lacks blocks while others run that may not be preempted any more.
    """
    made_way = both(d.config.priority, nobody_runs_on(d, e))
    kept = negate(nobody_protected_but(e, head))
    stays = either(d.status[head] == R, negate(unfinished(d, head)), made_way, kept)
    return (
        "head_advances: the first that runs is not preempted while another runs",
        either(negate(first_running(e, head)), stays),
    )


def prefill_goes_on(d: Any, e: Any, head: Any) -> Clause:
    """The first that runs, if it is in its prefill and nobody who ranks before it has come in, goes on in a step of prompts."""
    first = both(first_running(e, head), e.prefilling.has_[head], first_running(d, head))
    served = both(first, either(d.prefilled, d.config.enable_chunked_prefill))
    return ("head_advances: the first prefill goes on", implies(served, d.computed[head] > e.computed[head]))


def line_comes_in(d: Any, e: Any, line: Any) -> Clause:
    """If nothing runs, the first in line comes in, or ends."""
    comes = either(d.status[line] == R, negate(unfinished(d, line)))
    return (
        "head_advances: if nothing runs the first in line comes in",
        implies(both(e.running.n == 0, first_in_line(e, line)), comes),
    )


def turn_taken(d: Any, e: Any, head: Any) -> Clause:
    """The first that runs is left out by a step of the other kind only after one of its own kind."""
    runs = both(first_running(e, head), d.status[head] == R, negate(d.config.enable_chunked_prefill))
    turns = choose(e.prefilling.has_[head], either(d.prefilled, e.prefilled), negate(both(d.prefilled, e.prefilled)))
    return ("head_advances: steps take turns", implies(runs, turns))


def of_pass(d: Any, e: Any, head: Any, line: Any) -> list[Clause]:
    """What a pass that no event strikes does for progress. For both choices of whom to preempt, and every order."""
    return [
        order_kept(d, e),
        kept(d, e),
        head_stays(d, e, head),
        prefill_goes_on(d, e, head),
        line_comes_in(d, e, line),
        turn_taken(d, e, head),
    ]


# --- a pass and the commit of all its results ----------------------------------------------------------------------------
def left(d: Any, g: Any) -> Any:
    """Tokens that g, which runs, is swapped or waits, has to compute until it has reached its limit, if it is not preempted."""
    rest = d.work(g, d.length[g]) - d.computed[g]
    return choose(decodes(d, g), 0, rest) + d.limit[g] - tokens_of(d, g)


def steps(d: Any, g: Any) -> Any:
    """Passes within which g ends, if it is the first that runs: two for each token that is left, for steps of the other kind come
    between; one less if its kind is next."""
    next_kind = choose(decodes(d, g), d.prefilled, negate(d.prefilled))
    return left(d, g) + left(d, g) - choose(next_kind, 1, 0)


def advances(d: Any, e: Any, got: Any) -> Clause:
    """A commit: who was scheduled for a token and has a result (`got`) has one more at least; what is left of a prefill stays."""

    def clause(g: Any) -> Truth:
        scheduled = choose(e.prefilled, e.sampling.has_[g], both(decodes(e, g), negate(e.idle.has_[g])))
        tokens = tokens_of(e, g) + choose(both(scheduled, got(g)), 1, 0)
        stays = both(
            d.status[g] == e.status[g],
            d.length[g] == e.length[g],
            d.prefilling.has_[g] == e.prefilling.has_[g],
            d.computed[g] == e.computed[g],
            implies(d.prefilling.has_[g], d.work(g, d.length[g]) == e.work(g, e.length[g])),
        )
        return implies(both(unfinished(e, g), unfinished(d, g)), lambda: both(tokens_of(d, g) >= tokens, stays))

    return ("head_advances: who has a result goes forward", d.forall("group", clause, lambda g: [[d.status[g]]]))


def head_falls(d: Any, m: Any, e: Any, head: Any) -> Clause:
    """From e over a pass to m and the commit of all its results to d: the first that runs is a step nearer to its end, or has
    ended, if nobody that ranks before it has come in."""
    first = both(first_running(e, head), first_running(m, head))
    falls = both(steps(e, head) >= 1, steps(d, head) < steps(e, head))
    return (
        "every_request_ends: the first that runs comes nearer to its end",
        implies(first, either(negate(unfinished(d, head)), falls)),
    )


def nobody_falls_back(d: Any, e: Any) -> Clause:
    """Who runs on has no more to compute than before."""

    def clause(g: Any) -> Truth:
        return implies(both(e.status[g] == R, d.status[g] == R), lambda: left(d, g) <= left(e, g))

    return ("every_request_ends: who runs on has no more to compute", d.forall("group", clause, lambda g: [[d.status[g]]]))


def order_regained(d: Any, e: Any, line: Any) -> Clause:
    """Whoever runs in spite of one in line that ranks before it ran so already: `line` was first in line, and ranks before it.

    Not if the policy names victims, or one may not be preempted any more.
    """

    def clause(x: Any, y: Any) -> Truth:
        late = both(d.status[x] == R, in_line(d, y), d.key[y] < d.key[x])
        before = both(e.status[x] == R, either(negate(first_in_line(e, line)), e.key[line] < e.key[x]))
        return implies(late, before)

    ordered = d.forall("groups", clause, lambda x, y: [[d.status[x], d.status[y]]])
    return ("every_request_ends: the order is not lost", either(d.config.choose_victims, d.bounded, ordered))
