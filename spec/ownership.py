"""Who owns which block, and where it lies: the clauses about tables, reference counts and free lists.

A clause reads a state through the names of the symbolic draft; `view.View` gives a concrete state the same names. `exempt` says
for which groups the clauses about placement are suspended, in the middle of a transition.
"""

from collections.abc import Callable
from typing import Any

from kvproof.core.status import Status
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate

R, W, S = Status.RUNNING, Status.WAITING, Status.SWAPPED
Clause = tuple[str, Truth]
Exempt = Callable[[Any], Truth]


def nobody(g: Any) -> Truth:
    """No group is exempt."""
    return g != g


def decodes(d: Any, g: Any) -> Truth:
    """Is g past its prefill and running?"""
    return both(d.status[g] == R, negate(d.prefilling.has_[g]))


def tokens_of(d: Any, g: Any) -> Any:
    """Tokens (prompt + generated) of an unfinished group."""
    return choose(decodes(d, g), d.clock - d.born[g], d.length[g])


def unfinished(d: Any, g: Any) -> Truth:
    """Is g in one of the three unfinished statuses?"""
    return either(d.status[g] == W, d.status[g] == R, d.status[g] == S)


def on_gpu(d: Any, b: Any) -> Truth:
    """Is b the id of a GPU block?"""
    return both(b >= 0, b < d.config.num_gpu_blocks)


def on_host(d: Any, b: Any) -> Truth:
    """Is b the id of a host block?"""
    return both(d.config.num_gpu_blocks <= b, b < d.config.num_gpu_blocks + d.config.num_cpu_blocks)


# --- blocks: these hold even in the middle of a transition -------------------------------------------------------------
def parameters(d: Any) -> Truth:
    """Sizes that `Config` accepts."""
    c = d.config
    return both(
        c.block_size >= 1,
        c.num_gpu_blocks >= 1,
        c.num_cpu_blocks >= 0,
        c.watermark_blocks >= 0,
        c.watermark_blocks < c.num_gpu_blocks,
        c.max_num_seqs >= 1,
        c.max_model_len >= 1,
        c.max_num_batched_tokens >= c.max_num_seqs,
        c.num_lookahead_slots >= 0,
        negate(both(c.vllm_v0, c.choose_victims)),
        either(negate(d.bounded), both(negate(c.vllm_v0), d.most_preemptions >= 0)),
        implies(both(c.vllm_v0, negate(c.enable_chunked_prefill)), c.max_num_batched_tokens >= c.max_model_len),
    )


def free_list(d: Any, pool: Any, on: Any) -> Truth:
    """Only blocks of its device are in a free list."""
    return d.forall("block", lambda b: implies(pool.holds(b), on(d, b)), lambda b: [[pool.holds(b)]])


def slots_are_counted(d: Any) -> Truth:
    """Every table entry is one of the counted references of its block."""
    t = d.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        b, k = t.at[g, q, i], t.rank[g, q, i]
        return implies(
            t.live(g, q, i),
            both(
                b >= 0,
                b < d.config.num_gpu_blocks + d.config.num_cpu_blocks,
                k >= 0,
                k < d.refs.of[b],
                t.owner_g[b, k] == g,
                t.owner_q[b, k] == q,
                t.owner_i[b, k] == i,
            ),
        )

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]], [t.rank[g, q, i]]])


def counts_are_slots(d: Any) -> Truth:
    """Every counted reference is a table entry."""
    t = d.table

    def clause(b: Any, k: Any) -> Truth:
        g, q, i = t.owner_g[b, k], t.owner_q[b, k], t.owner_i[b, k]
        return implies(
            both(k >= 0, k < d.refs.of[b]),
            lambda: both(t.live(g, q, i), t.at[g, q, i] == b, t.rank[g, q, i] == k),
        )

    return d.forall("reference", clause, lambda b, k: [[t.owner_g[b, k]], [t.owner_q[b, k]], [t.owner_i[b, k]]])


def free_iff_unreferenced(d: Any) -> Truth:
    """A block is free exactly when nothing refers to it; no other ids are referenced."""

    def clause(b: Any) -> Truth:
        return both(
            d.refs.of[b] >= 0,
            implies(on_gpu(d, b), iff(d.refs.of[b] == 0, d.gpu.holds(b))),
            implies(on_host(d, b), iff(d.refs.of[b] == 0, d.cpu.holds(b))),
            implies(either(b < 0, b >= d.config.num_gpu_blocks + d.config.num_cpu_blocks), d.refs.of[b] == 0),
        )

    return d.forall("block", clause, lambda b: [[d.refs.of[b]]])


def counted(d: Any) -> Truth:
    """Free + used = size, on each device."""
    return both(
        d.gpu.n + d.refs.used_gpu == d.config.num_gpu_blocks,
        d.cpu.n + d.refs.used_cpu == d.config.num_cpu_blocks,
    )


def shared_within_group(d: Any) -> Truth:
    """All entries that refer to one block belong to one group and stand at one index of its tables."""
    t = d.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        b = t.at[g, q, i]
        return implies(t.live(g, q, i), lambda: both(t.group_of[b] == g, t.index_of[b] == i))

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]]])


def only_members_own(d: Any) -> Truth:
    """A sequence that does not live has an empty table; indices are below the bound; sizes are not negative."""
    t, m = d.table, d.members

    def clause(g: Any, q: Any) -> Truth:
        return both(
            t.size_[g, q] >= 0,
            implies(negate(m.has_[g, q]), t.size_[g, q] == 0),
            implies(m.has_[g, q], both(q >= 0, q < m.bound[g])),
        )

    return d.forall("sequence", clause, lambda g, q: [[t.size_[g, q]], [m.has_[g, q]]])


def held_not_negative(d: Any) -> Truth:
    """A number of blocks is not negative."""
    return d.forall("group", lambda g: d.table.held[g] >= 0, lambda g: [[d.table.held[g]]])


def blocks(d: Any) -> list[Clause]:
    """The clauses about ownership itself."""
    return [
        ("helper: parameters", parameters(d)),
        ("conservation: GPU free list", free_list(d, d.gpu, on_gpu)),
        ("conservation: host free list", free_list(d, d.cpu, on_host)),
        ("refcount_exact: entries are counted", slots_are_counted(d)),
        ("refcount_exact: counts are entries", counts_are_slots(d)),
        ("conservation: free iff unreferenced", free_iff_unreferenced(d)),
        ("conservation: free + used = size", counted(d)),
        ("helper: shared within a group only", shared_within_group(d)),
        ("ownership_by_status: only live sequences own", only_members_own(d)),
    ]


# --- placement: what a group's status says about its blocks -------------------------------------------------------------
def ownership_by_status(d: Any, exempt: Exempt = nobody) -> Truth:
    """Who is neither running nor swapped owns nothing; who is owns at least a block per live sequence."""
    t = d.table

    def clause(g: Any, q: Any) -> Truth:
        own = either(d.status[g] == R, d.status[g] == S)
        return either(
            exempt(g),
            both(implies(negate(own), t.size_[g, q] == 0), implies(both(own, d.members.has_[g, q]), t.size_[g, q] >= 1)),
        )

    return d.forall("sequence", clause, lambda g, q: [[t.size_[g, q]], [d.members.has_[g, q]]])


def device_by_status(d: Any, exempt: Exempt = nobody) -> Truth:
    """A running group owns GPU blocks only, a swapped one host blocks only."""
    t = d.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        b = t.at[g, q, i]
        return implies(
            both(negate(exempt(g)), t.live(g, q, i)),
            lambda: both(implies(d.status[g] == R, on_gpu(d, b)), implies(d.status[g] == S, on_host(d, b))),
        )

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]]])


def group_together(d: Any, exempt: Exempt = nobody) -> Truth:
    """The entries of all sequences of a group are on one device."""
    t = d.table

    def clause(g: Any, p: Any, q: Any) -> Truth:
        return implies(
            both(negate(exempt(g)), t.size_[g, p] >= 1, t.size_[g, q] >= 1),
            lambda: iff(t.at[g, p, 0] < d.config.num_gpu_blocks, t.at[g, q, 0] < d.config.num_gpu_blocks),
        )

    return d.forall("siblings", clause, lambda g, p, q: [[t.size_[g, p], t.size_[g, q]]])


def lockstep(d: Any, exempt: Exempt = nobody) -> Truth:
    """The tables of the live sequences of a group have one size."""
    return d.uniform(
        lambda g, q: both(negate(exempt(g)), d.members.has_[g, q]),
        lambda g, q: d.table.size_[g, q],
        lambda g, q: [[d.members.has_[g, q]]],
    )


def lookahead(d: Any, g: Any) -> Any:
    """Lookahead slots that each sequence of g may have: siblings get none."""
    return choose(d.members.n[g] == 1, d.config.num_lookahead_slots, 0)


def table_length(d: Any, exempt: Exempt = nobody) -> Truth:
    """The tables hold the slots of all tokens but perhaps the last one, and not a block more than those of all tokens."""
    t = d.table

    def clause(g: Any, q: Any) -> Truth:
        slots = d.span(t.size_[g, q])
        tokens = d.clock - d.born[g]
        whole = both(d.status[g] == R, d.prefilling.has_[g])
        most = d.config.block_size + lookahead(d, g)
        return implies(
            both(negate(exempt(g)), d.members.has_[g, q]),
            both(
                implies(decodes(d, g), lambda: both(tokens - 1 <= slots, slots < tokens + most)),
                implies(d.status[g] == S, both(d.length[g] - 1 <= slots, slots < d.length[g] + most)),
                implies(
                    either(whole, both(d.status[g] == S, d.computed[g] < d.length[g])),
                    both(d.length[g] <= slots, slots < d.length[g] + d.config.block_size),
                ),
            ),
        )

    return d.forall("sequence", clause, lambda g, q: [[t.size_[g, q]], [d.members.has_[g, q]]])


def due_in_time(d: Any, exempt: Exempt = nobody) -> Truth:
    """The alarm rings no later than the step that needs a block, and it has not been missed."""

    def clause(g: Any, q: Any) -> Truth:
        slots = d.span(d.table.size_[g, q])
        return implies(
            both(negate(exempt(g)), decodes(d, g), d.members.has_[g, q]),
            d.alarm[g] <= d.born[g] + slots + 1 + choose(d.idle.has_[g], 1, 0),
        )

    return d.forall("sequence", clause, lambda g, q: [[d.table.size_[g, q]], [d.members.has_[g, q]]])


def writes_own(d: Any, g: Any) -> Truth:
    """Does decoding g write its next token into blocks of its own: it is not looked at before, or was prefilled just now?"""
    return either(both(d.alarm[g] > d.clock, negate(d.idle.has_[g])), d.sampling.has_[g])


def tails_exclusive(d: Any, exempt: Exempt = nobody) -> Truth:
    """Whose alarm does not ring now, and who is not idle, writes its next token into a block that nobody else refers to."""
    t = d.table

    def clause(g: Any, q: Any) -> Truth:
        return implies(
            both(negate(exempt(g)), decodes(d, g), writes_own(d, g), d.members.has_[g, q]),
            lambda: d.refs.of[t.at[g, q, t.size_[g, q] - 1]] == 1,
        )

    return d.forall("sequence", clause, lambda g, q: [[t.size_[g, q]], [d.members.has_[g, q]]])


def filled_once(d: Any, g: Any, q: Any, i: Any) -> Truth:
    """Does nobody else refer to the i-th block of q, or do all that do expect it to hold the same tokens, and go on elsewhere?

    `text[b]` stands for the tokens, from the first on up to the end of b, that its first holder expects.
    """
    t = d.table
    b = t.at[g, q, i]
    same = both(i + 1 < t.size_[g, q], t.text[b] == d.members.prefix[g, q, d.span(i + 1)])
    return either(d.refs.of[b] == 1, same)


def prompts_exclusive(d: Any, exempt: Exempt = nobody) -> Truth:
    """A prefill writes all slots of the tables of its group: each block is one sequence's own, or filled once for all of its
    holders."""
    t = d.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        return implies(
            both(negate(exempt(g)), d.status[g] == R, d.prefilling.has_[g], t.live(g, q, i)), lambda: filled_once(d, g, q, i)
        )

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]]])


def placement(d: Any, exempt: Exempt = nobody) -> list[Clause]:
    """The clauses about where the blocks of a group are and how many it has."""
    return [
        ("ownership_by_status: who owns", ownership_by_status(d, exempt)),
        ("ownership_by_status: on which device", device_by_status(d, exempt)),
        ("helper: tables of one size", lockstep(d, exempt)),
        ("table_length: between passes", table_length(d, exempt)),
        ("helper: alarm in time for a block", due_in_time(d, exempt)),
        ("no_shared_write: tails are exclusive", tails_exclusive(d, exempt)),
        ("no_shared_write: prompts are exclusive, or filled once", prompts_exclusive(d, exempt)),
    ]
