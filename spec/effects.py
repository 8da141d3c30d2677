"""What a plan and a transition do: clauses over the state before (`e`), the state after (`d`) and the plan (`d.plan`)."""

from typing import Any

from kvproof.core.status import LEGAL_MOVES, Status
from kvproof.spec.invariants import invariants
from kvproof.spec.logic import Truth, both, choose, either, iff, implies, negate
from kvproof.spec.ownership import Clause, Exempt, R, S, W, decodes, filled_once, nobody, on_gpu, on_host, tokens_of, unfinished
from kvproof.spec.promises import may_go


# --- what the engine has been told -------------------------------------------------------------------------------------
def plan_reports_tables(d: Any, exempt: Exempt = nobody) -> Truth:
    """The announced tables are the tables of who runs; of everybody else nothing is announced."""
    t, p = d.table, d.plan

    def sizes(g: Any, q: Any) -> Truth:
        return either(exempt(g), p.told_n[g, q] == choose(d.status[g] == R, t.size_[g, q], 0))

    def entries(g: Any, q: Any, i: Any) -> Truth:
        return implies(both(negate(exempt(g)), d.status[g] == R, t.live(g, q, i)), lambda: p.told[g, q, i] == t.at[g, q, i])

    return both(
        d.forall("sequence", sizes, lambda g, q: [[p.told_n[g, q]], [t.size_[g, q]]]),
        d.forall("slot", entries, lambda g, q, i: [[t.at[g, q, i]]]),
    )


# --- where the contents of a block come from ---------------------------------------------------------------------------
def source(p: Any, b: Any) -> Any:
    """The block whose contents, before the plan, are in b after swap_out, swap_in and copy have been executed."""
    c = choose(p.copy_of[b] == -1, b, p.copy_of[b])
    i = choose(p.in_of[c] == -1, c, p.in_of[c])
    return choose(p.out_of[i] == -1, i, p.out_of[i])


def contents_kept(d: Any, e: Any, exempt: Exempt = nobody) -> Truth:
    """Whoever keeps its blocks reads the same contents through its tables after the plan as before."""
    t, s = d.table, e.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        return implies(
            both(negate(exempt(g)), s.live(g, q, i), t.size_[g, q] >= 1),
            lambda: both(t.size_[g, q] >= s.size_[g, q], source(d.plan, t.at[g, q, i]) == source(e.plan, s.at[g, q, i])),
        )

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]], [s.at[g, q, i]]])


def wishes(e: Any) -> Truth:
    """May a pass from e give back lookahead slots that nobody has written? V0 keeps them."""
    return both(e.config.num_lookahead_slots > 0, negate(e.config.vllm_v0))


def written_kept(d: Any, e: Any) -> Truth:
    """Whoever keeps its blocks reads the same contents after a whole pass; lookahead slots that it has not written may go."""
    t, s = d.table, e.table

    def clause(g: Any, q: Any, i: Any) -> Truth:
        stays = either(negate(wishes(e)), i == 0, e.span(i) < tokens_of(e, g) - 1)
        return implies(
            both(s.live(g, q, i), stays, t.size_[g, q] >= 1),
            lambda: both(t.size_[g, q] > i, source(d.plan, t.at[g, q, i]) == source(e.plan, s.at[g, q, i])),
        )

    return d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]], [s.at[g, q, i]]])


def hazards(d: Any) -> list[Clause]:
    """Blocks that the plan copies from or to stay with the group they were decided for until the pass ends."""
    p, t = d.plan, d.table

    def stays(b: Any) -> Truth:
        owner = t.group_of[b]
        return both(on_gpu(d, b), d.refs.of[b] >= 1, p.grown[owner], d.status[owner] == R)

    def sources(b: Any) -> Truth:
        return implies(p.copied_from[b], lambda: stays(b))

    def targets(b: Any) -> Truth:
        return implies(p.copy_of[b] != -1, lambda: both(stays(b), p.copied_from[p.copy_of[b]], p.copy_of[b] != b))

    def exclusive(b: Any) -> Truth:
        return implies(p.copy_of[b] != -1, lambda: d.refs.of[b] == 1)

    def returned(b: Any) -> Truth:
        return implies(p.in_of[b] != -1, lambda: both(stays(b), on_host(d, p.in_of[b])))

    def moved_out(b: Any) -> Truth:
        owner = t.group_of[b]
        return implies(
            p.out_of[b] != -1,
            lambda: both(on_host(d, b), on_gpu(d, p.out_of[b]), d.refs.of[b] >= 1, p.victim[owner], d.status[owner] == S),
        )

    return [
        ("no_hazard_ordered: copy sources stay", d.forall("block", sources, lambda b: [[p.copied_from[b]]])),
        ("no_hazard_ordered: copy targets stay", d.forall("block", targets, lambda b: [[p.copy_of[b]]])),
        ("copy_target_exclusive: referenced once, by its writer", d.forall("block", exclusive, lambda b: [[p.copy_of[b]]])),
        ("no_hazard_ordered: swap-in targets stay", d.forall("block", returned, lambda b: [[p.in_of[b]]])),
        ("no_hazard_ordered: swap-out targets stay", d.forall("block", moved_out, lambda b: [[p.out_of[b]]])),
        ("no_swap_both_ways: no plan swaps out and in", either(p.outs == 0, p.ins == 0)),
        (
            "no_swap_both_ways: none means none",
            both(
                implies(p.outs == 0, d.forall("block", lambda b: p.out_of[b] == -1, lambda b: [[p.out_of[b]]])),
                implies(p.ins == 0, d.forall("block", lambda b: p.in_of[b] == -1, lambda b: [[p.in_of[b]]])),
            ),
        ),
    ]


def engine_knows(d: Any, exempt: Exempt = nobody) -> list[Clause]:
    """The clauses about plans that hold whenever the invariants do."""
    return [("plan_reports_tables: announced = owned", plan_reports_tables(d, exempt)), *hazards(d)]


def everything(d: Any, in_pass: bool = False, clock_passed: bool = False) -> list[Clause]:
    """The invariants and what the engine knows."""
    return invariants(d, in_pass, clock_passed) + engine_knows(d)


# --- moves and counts ---------------------------------------------------------------------------------------------------
def legal_moves(d: Any, e: Any) -> Truth:
    """A group keeps its status or makes a move of the table; inside one transition it may make two in a row."""

    def clause(g: Any) -> Truth:
        one = [both(e.status[g] == a, d.status[g] == b) for a, b, _ in LEGAL_MOVES]
        return either(d.status[g] == e.status[g], *one)

    return d.forall("group", clause, lambda g: [[d.status[g]]])


def moves(d: Any, e: Any, *legal: tuple[Status, Status]) -> Clause:
    """Since e a group kept its status or made one of these moves."""

    def clause(g: Any) -> Truth:
        return either(d.status[g] == e.status[g], *[both(e.status[g] == a, d.status[g] == b) for a, b in legal])

    return ("status_graph: legal moves", d.forall("group", clause, lambda g: [[d.status[g]]]))


def tokens_kept(d: Any, e: Any) -> Clause:
    """Nothing generated is lost or counted twice, whatever a pass does to who goes on."""

    def clause(g: Any) -> Truth:
        return implies(
            both(unfinished(e, g), unfinished(d, g)),
            lambda: both(
                tokens_of(d, g) == tokens_of(e, g),
                d.prompt[g] == e.prompt[g],
            ),
        )

    return ("recompute_keeps_output: tokens are kept", d.forall("group", clause, lambda g: [[d.status[g]]]))


def prefills_exclusive(d: Any) -> Clause:
    """A block that a prefill of this pass writes is one sequence's own, or filled once for all that refer to it."""
    t, p = d.table, d.plan

    def clause(g: Any, q: Any, i: Any) -> Truth:
        return implies(both(p.piece[g] != 0, t.live(g, q, i)), lambda: filled_once(d, g, q, i))

    return ("no_shared_write: what is prefilled is exclusive", d.forall("slot", clause, lambda g, q, i: [[t.at[g, q, i]]]))


def capped(d: Any, e: Any) -> Clause:
    """Who ended for its length since e has as many tokens as its limit says."""

    def clause(g: Any) -> Truth:
        capped_now = both(d.status[g] == Status.FINISHED_LENGTH_CAPPED, e.status[g] == R)
        return implies(capped_now, lambda: d.length[g] == d.limit[g])

    return ("recompute_keeps_output: capped at the limit", d.forall("group", clause, lambda g: [[d.status[g]]]))


# --- the decode phase ---------------------------------------------------------------------------------------------------
def victims(d: Any) -> list[Clause]:
    """Who was preempted is out of the plan, and ranks below all that keep running."""
    p = d.plan

    def out(g: Any) -> Truth:
        return implies(
            p.victim[g],
            lambda: both(either(d.status[g] == W, d.status[g] == S), negate(p.grown[g]), negate(p.back[g]), p.piece[g] == 0),
        )

    return [
        (
            "victim_not_in_plan: nothing scheduled, admitted, resumed",
            d.forall("group", out, lambda g: [[p.victim[g]], [d.status[g]]]),
        )
    ]


def victim_is_last(d: Any, e: Any) -> Clause:
    """kvproof: no group that keeps running and may be preempted ranks below a victim, unless the policy names victims."""
    p = d.plan

    def clause(v: Any, g: Any) -> Truth:
        return implies(both(p.victim[v], d.status[g] == R, e.status[g] == R, may_go(e, g)), lambda: e.key[g] < e.key[v])

    none = d.forall("groups", clause, lambda v, g: [[p.victim[v], d.status[g]]])
    return ("victim_is_last: none below keeps running", either(d.config.choose_victims, none))


def decode_budget(d: Any) -> Clause:
    """kvproof: a step that decodes costs a token for each sequence that decodes, and those of the pieces of prompts."""
    exact = d.spent == d.decoders - d.sampling.live + d.plan.total
    return ("budget_exact: a token per decoding sequence", either(d.config.vllm_v0, exact))


def granted(e: Any, g: Any, q: Any, more: Any) -> Any:
    """Of `more` tokens beyond the next one of g: those that its lookahead slots and its limit allow. q: any sequence of g."""
    tokens = tokens_of(e, g)
    room = e.span(e.table.size_[g, q]) - tokens
    for most in (e.config.num_lookahead_slots, e.limit[g] - tokens - 1, more):
        room = choose(most < room, most, room)
    return choose(room > 0, room, 0)


def known_slots(d: Any, e: Any, got: Any) -> Clause:
    """kvproof, with lookahead: who decoded and has no result (`got(g)`) keeps the slots that its alarm knows of, as it would
    without lookahead."""

    def clause(g: Any) -> Truth:
        held = both(decodes(e, g), decodes(d, g), negate(e.idle.has_[g]), negate(e.prefilled), negate(got(g)))
        return implies(both(wishes(e), held), d.alarm[g] - d.born[g] == e.alarm[g] - e.born[g])

    return ("table_length: a lost result costs no slot", d.forall("group", clause, lambda g: [[d.alarm[g]], [d.status[g]]]))


def nobody_due(d: Any) -> Clause:
    """After the running phase everybody who decodes has its slots."""

    def clause(g: Any) -> Truth:
        return implies(decodes(d, g), d.alarm[g] > d.clock)

    return ("table_length: every slot to be written exists", d.forall("group", clause, lambda g: [[d.status[g]]]))


__all__ = [
    "capped",
    "contents_kept",
    "decode_budget",
    "engine_knows",
    "everything",
    "iff",
    "legal_moves",
    "moves",
    "nobody_due",
    "prefills_exclusive",
    "source",
    "tokens_kept",
    "victim_is_last",
    "victims",
    "wishes",
    "written_kept",
]
