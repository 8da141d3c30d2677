"""What holds of every state. Each clause is named `theorem: what it says`; `helper` clauses carry the others.

A clause reads a state through the names of the symbolic draft; `view.View` gives a concrete state the same names. `exempt` says
for which groups the clauses about placement are suspended, in the middle of a transition.
"""

from typing import Any

from kvproof.core.status import Status
from kvproof.spec import promises
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, Exempt, R, S, W, blocks, decodes, nobody, placement, tokens_of, unfinished


# --- queues, calendars, counts ---------------------------------------------------------------------------------------------
def one_queue(d: Any, exempt: Exempt = nobody) -> Truth:
    """A group is in the queue that its status says, and in no other."""

    def clause(g: Any) -> Truth:
        return either(
            exempt(g),
            both(
                iff(d.running.has_[g], d.status[g] == R),
                iff(d.waiting.has_[g], d.status[g] == W),
                iff(d.swapped.has_[g], d.status[g] == S),
                implies(d.prefilling.has_[g], d.status[g] == R),
                implies(either(d.sampling.has_[g], d.idle.has_[g]), decodes(d, g)),
            ),
        )

    return d.forall(
        "group",
        clause,
        lambda g: [
            *([[d.status[g]], [d.running.has_[g]], [d.waiting.has_[g]], [d.swapped.has_[g]]]),
            *([[d.prefilling.has_[g]], [d.sampling.has_[g]], [d.idle.has_[g]]]),
        ],
    )


def legal_status(d: Any) -> Truth:
    """A status is one of the table's."""
    return d.forall("group", lambda g: both(d.status[g] >= 0, d.status[g] <= Status.FINISHED_IGNORED), lambda g: [[d.status[g]]])


def keys_distinct(d: Any) -> Truth:
    """No two unfinished groups have one key; V0's are below the ticket, kvproof's are (priority, arrival)."""

    def clause(g: Any, h: Any) -> Truth:
        return implies(both(unfinished(d, g), unfinished(d, h), d.key[g] == d.key[h]), g == h)

    def bound(g: Any) -> Truth:
        return both(
            implies(
                unfinished(d, g), choose(d.config.vllm_v0, both(-d.ticket < d.key[g], d.key[g] < d.ticket), d.key[g] == d.rank(g))
            ),
            implies(d.status[g] != Status.ABSENT, both(g >= 0, g < d.ticket)),
            d.ticket >= 0,
            either(d.config.vllm_v0, d.ticket <= d.ranks),
        )

    return both(
        d.forall("groups", clause, lambda g, h: [[d.key[g], d.key[h]]]),
        d.forall("group", bound, lambda g: [[d.status[g]], [d.key[g]], [d.sampling.has_[g]]]),
    )


def calendars(d: Any, exempt: Exempt = nobody) -> Truth:
    """Exactly the groups that decode are in both calendars, at their alarms."""

    def only(t: Any, g: Any) -> Truth:
        return implies(d.due.has_[t, g], both(either(exempt(g), decodes(d, g)), t == d.alarm[g]))

    def only_expiry(t: Any, g: Any) -> Truth:
        return implies(d.expiry.has_[t, g], both(either(exempt(g), decodes(d, g)), t == d.expires[g]))

    def everybody(g: Any) -> Truth:
        return implies(
            both(negate(exempt(g)), decodes(d, g)),
            lambda: both(d.due.has_[d.alarm[g], g], d.expiry.has_[d.expires[g], g]),
        )

    return both(
        d.forall("due", only, lambda t, g: [[d.due.has_[t, g]]]),
        d.forall("due", only_expiry, lambda t, g: [[d.expiry.has_[t, g]]]),
        d.forall("group", everybody, lambda g: [[d.status[g]]]),
    )


def not_missed(d: Any, exempt: Exempt = nobody, clock_passed: bool = False) -> Truth:
    """No alarm has been missed. After a decode pass nobody is due, nor is who has been prefilled; who is idle is looked at in
    the next."""

    def clause(g: Any) -> Truth:
        late = 0 if clock_passed else choose(either(both(d.issued, negate(d.prefilled)), d.sampling.has_[g]), 1, 0)
        again = implies(d.idle.has_[g], d.alarm[g] <= d.clock + (0 if clock_passed else 1))
        return implies(both(negate(exempt(g)), decodes(d, g)), lambda: both(d.alarm[g] >= d.clock + late, again))

    return d.forall("group", clause, lambda g: [[d.status[g]]])


def not_expired(d: Any, exempt: Exempt = nobody, clock_passed: bool = False) -> Truth:
    """Nobody has passed its limit; after a commit nobody has reached it, so who is looked at no later than then is in time.

    `clock_passed`: in the middle of a commit, when the clock has moved and limits are not yet looked at.
    """

    def clause(g: Any) -> Truth:
        late = 0 if clock_passed else 1
        return implies(
            both(negate(exempt(g)), decodes(d, g)),
            lambda: both(d.expires[g] >= d.clock + late, d.expires[g] <= d.born[g] + d.limit[g]),
        )

    return d.forall("group", clause, lambda g: [[d.status[g]]])


def lengths(d: Any) -> Truth:
    """Token counts: positive, below the limit while unfinished, the prompt inside; who waits has computed nothing."""

    def clause(g: Any) -> Truth:
        stored = either(d.status[g] == W, d.status[g] == S, both(d.status[g] == R, d.prefilling.has_[g]))
        return both(
            implies(
                unfinished(d, g),
                lambda: both(
                    d.prompt[g] >= 1,
                    d.prompt[g] < d.limit[g],
                    d.members.n[g] >= 1,
                    d.members.n[g] <= d.seats[g],
                    d.reserve[g] >= 1,
                    d.reserve[g] <= d.seats[g],
                    d.seats[g] <= d.config.max_num_seqs,
                ),
            ),
            implies(stored, lambda: both(d.prompt[g] <= d.length[g], d.length[g] < d.limit[g])),
            implies(d.status[g] == W, d.computed[g] == 0),
            implies(
                both(d.status[g] == R, d.prefilling.has_[g]),
                lambda: both(d.computed[g] >= 0, d.computed[g] < d.work(g, d.length[g])),
            ),
            implies(d.status[g] == S, lambda: d.computed[g] <= d.length[g]),
            implies(both(d.status[g] == S, d.computed[g] < d.length[g]), lambda: both(d.computed[g] >= 0, d.members.n[g] == 1)),
            implies(
                decodes(d, g),
                lambda: both(
                    d.prompt[g] <= d.clock - d.born[g],
                    implies(d.sampling.has_[g], both(d.computed[g] >= d.length[g], d.clock - d.born[g] == d.length[g])),
                ),
            ),
            implies(unfinished(d, g), both(d.ungiven[g] >= 1, d.ungiven[g] <= tokens_of(d, g))),
        )

    return d.forall("group", clause, lambda g: [[d.status[g]], [d.sampling.has_[g]]])


def sampling_only_after_prefill(d: Any) -> Truth:
    """Nobody's prefill has just ended, and nobody is idle, but between a pass and its commit; only V0 leaves anybody idle."""

    def clause(g: Any) -> Truth:
        return both(
            implies(d.sampling.has_[g], both(d.issued, iff(d.prefilled, negate(d.config.enable_chunked_prefill)))),
            implies(d.idle.has_[g], both(d.issued, d.config.vllm_v0, negate(d.prefilled))),
        )

    return d.forall("group", clause, lambda g: [[d.sampling.has_[g]], [d.idle.has_[g]]])


def kin(d: Any) -> list[Clause]:
    """The live sequences of a group stand in a line, each after one with whose tokens its own begin."""
    m = d.members

    def line(g: Any, q: Any) -> Truth:
        before, after = m.origin[g, q], m.after[g, q]
        return implies(
            m.has_[g, q],
            lambda: both(
                m.common[g, q] >= 0,
                either(both(before == -1, m.common[g, q] == 0), both(m.has_[g, before], m.after[g, before] == q)),
                either(after == -1, both(m.has_[g, after], m.origin[g, after] == q)),
            ),
        )

    def same(g: Any, q: Any, n: Any) -> Truth:
        shared = both(m.has_[g, q], m.origin[g, q] != -1, n <= m.common[g, q])
        return implies(shared, lambda: m.prefix[g, q, n] == m.prefix[g, m.origin[g, q], n])

    return [
        ("helper: the line of kin", d.forall("sequence", line, lambda g, q: [[m.has_[g, q]], [m.origin[g, q]], [m.after[g, q]]])),
        ("no_shared_write: kin have tokens in common", d.forall("slot", same, lambda g, q, n: [[m.prefix[g, q, n]]])),
    ]


def whole_prompts(d: Any) -> Clause:
    """Without chunked prefill V0 computes every prompt in one step."""

    def clause(g: Any) -> Truth:
        return both(negate(d.prefilling.has_[g]), implies(d.status[g] == S, d.computed[g] == d.length[g]))

    whole = both(d.config.vllm_v0, negate(d.config.enable_chunked_prefill))
    everybody = d.forall("group", clause, lambda g: [[d.status[g]], [d.prefilling.has_[g]]])
    return ("helper: V0 computes whole prompts", either(negate(whole), both(d.prefilling.n == 0, everybody)))


def seats(d: Any) -> Truth:
    """Seats and decoding sequences are counted, within the limit (with chunked prefill V0 counts only what it schedules)."""
    return both(
        d.seqs == d.running.weight,
        d.decoders == d.running.live - d.prefilling.live,
        either(both(d.config.vllm_v0, d.config.enable_chunked_prefill), d.seqs <= d.config.max_num_seqs),
        implies(d.config.enable_chunked_prefill, negate(d.prefilled)),
    )


def bookkeeping(d: Any, exempt: Exempt = nobody, clock_passed: bool = False) -> list[Clause]:
    """The clauses about queues, calendars and counts."""
    return [
        ("one_queue: the one that the status says", one_queue(d, exempt)),
        ("status_graph: a status of the table", legal_status(d)),
        ("helper: keys are distinct", keys_distinct(d)),
        ("helper: calendars hold who decodes", calendars(d, exempt)),
        ("helper: no alarm was missed", not_missed(d, exempt, clock_passed)),
        ("helper: nobody has reached its limit", not_expired(d, exempt, clock_passed)),
        ("helper: token counts", lengths(d)),
        ("budget_exact: sequences counted", seats(d)),
        ("bounded_preemptions: no more than a request may have", promises.bounded(d)),
        *promises.kept(d, exempt),
    ]


def invariants(d: Any, in_pass: bool = False, clock_passed: bool = False) -> list[Clause]:
    """All of them; some are suspended in the middle of a pass or of a commit."""
    between = [] if in_pass else [("helper: sampling only after a prefill", sampling_only_after_prefill(d)), whole_prompts(d)]
    return blocks(d) + placement(d) + bookkeeping(d, clock_passed=clock_passed) + kin(d) + between
