"""Mutants that are no faults. Some are shown to be so by machine, the others by an argument that a reader can follow."""

import importlib
import types
from typing import Any

from kvproof.proofs import mutate, sym
from kvproof.spec.logic import iff

Arguments = dict[tuple[str, str], str]
FORGOTTEN = (
    "drop_group, the next line, removes the status like every other entry of g, and a status that is not stored is ABSENT."
)
SAME = "Where the mutant takes the other branch the two numbers are equal, and both branches compute that many tokens."
ALL = "Either way there is not room before nobody runs: whoever runs holds a block."
LOOP = "d.repeat('displace', displace_next, g, d.config.num_gpu_blocks + 1): 1 -> "
RANKED = "One of them runs and g does not, so they are two groups; ranks of two groups differ, by priority or by id (< RANKS)."
WHOLE = "Where the mutant takes the other branch the prompt is as long as the whole budget, and fits exactly if nothing is spent."
EQUAL = "Where the mutant takes the other branch it sets the number to what it is."
EQUAL_NUMBERS = (
    "Where the mutant takes the other branch the two numbers are equal, and it returns one of them, or their difference."
)
NO_MORE = "Where the mutant takes the other branch it adds no block for each sequence."
NO_SLOTS = "Without lookahead slots look_ahead takes no block and sets the alarm, which the line before has set, to what it is."
ARGUMENTS: Arguments = {
    ("schedule.forward_next", "d.epoch >= last: to =="): "The epoch is never beyond `last` (case_forward).",
    ("schedule.forward_next", "if idle > 0:: 0 -> 1"): "One pass alone comes to the same either way (case_idle).",
    ("running.look_ahead_next", "wanted > d.config.max_model_len: to >="): EQUAL,
    ("running.look_ahead_next", "wanted > d.config.max_model_len: - 1"): EQUAL,
    ("schedule.accept", "room > d.config.num_lookahead_slots: to >="): EQUAL,
    ("schedule.accept", "room > d.config.num_lookahead_slots: - 1"): EQUAL,
    ("schedule.accept", "room > d.limit[g] - tokens - 1: to >="): EQUAL,
    ("schedule.accept", "room > d.limit[g] - tokens - 1: - 1"): EQUAL,
    ("schedule.accept", "if room > d.limit[g] - tokens - 1:: 1 -> 2"): EQUAL,
    **{
        ("swapping.swap_in", change): NO_SLOTS
        for change in (
            "d.config.vllm_v0 and d.config.num_lookahead_slots > 0: without d.config.num_lookahead_slots > 0",
            "d.config.num_lookahead_slots > 0: to >=",
            "if d.config.vllm_v0 and d.config.num_lookahead_slots > 0:: 0 -> -1",
        )
    },
    ("running.serve_v0", "d.config.num_lookahead_slots > 0: to >="): NO_SLOTS,
    ("running.serve_v0", "if d.config.num_lookahead_slots > 0:: 0 -> -1"): NO_SLOTS,
    (
        "running.schedule_running",
        "drop d.stopped = False",
    ): "A draft begins with `stopped` false (store/draft.py), and a pass runs one running phase. The line is read by the proofs.",
    (
        "running.can_append",
        "d.testing and d.may_go(g) and d.denies(g): without d.testing",
    ): "`testing` is false exactly if `denies` says no to every question (store/draft.py); it saves the asking.",
    ("schedule.accept", "more > room: to >="): EQUAL,
    ("schedule.accept", "more > room: - 1"): EQUAL,
    **{
        ("promises." + function, change): EQUAL_NUMBERS
        for function, comparison, changes in (
            ("most", "blocks > d.config.num_gpu_blocks", ("to >=", "- 1")),
            ("needed", "whole > blocks", ("to >=", "- 1")),
            ("promised", "most(d, g) <= d.table.distinct(g)", ("to <", "- 1")),
        )
        for change in (f"{comparison}: {c}" for c in changes)
    },
    ("groups.add", "drop d.preemptions[g] = 0"): "The map of `preemptions` holds what is not 0 (store/versions.py): a new group "
    "reads 0. The line is read by the proofs, for which nothing is known of a new group.",
    ("groups.add", "drop d.ungiven[g] = 1"): "The map of `ungiven` holds what is not 1 (store/versions.py): a new group reads 1. "
    "The line is read by the proofs, for which nothing is known of a new group.",
    ("admission.admit", "if d.members.count(g) == 1:: 1 -> 0"): "Of one sequence, which has nothing in common with another, "
    "`rebuild` makes the table that `allocate` makes: as many blocks for as many tokens, taken in the same order.",
    ("groups.add", "drop d.members.start(g)"): "Members.start stores nothing: a group that never forked has sequence 0. "
    "The line is read by the proofs, for which the group has no member before it.",
    (
        "blocks.move_group_out",
        "drop d.twin.clear()",
    ): "A draft starts with an empty twin and groups share no block, so what "
    "earlier victims of the pass left speaks of other blocks; none of those moves out again, for who took a block is no victim.",
    (
        "blocks.move_group_in",
        "drop d.twin.clear()",
    ): "As for move_group_out: a pass that brings a group in has moved nobody out, so the "
    "host blocks of groups brought in before are free and nobody takes them.",
    (
        "blocks.rebuild_sequence",
        "common >= tokens: to ==",
    ): "A sequence has no more tokens in common than it has: it was given `common` when it had so many, and tokens only grow.",
    (
        "blocks.rebuild_sequence",
        "common >= tokens: - 1",
    ): "Where the mutant takes the other branch, it sets common to what it is.",
    ("groups.forget", "drop d.status[g] = Status.ABSENT"): FORGOTTEN,
    ("groups.forget", "d.status[g] = Status.ABSENT: Status.ABSENT -> WAITING"): FORGOTTEN,
    ("groups.forget", "d.status[g] = Status.ABSENT: Status.ABSENT -> FINISHED_IGNORED"): FORGOTTEN,
    ("schedule.schedule", "drop d.charged = 0"): "As for `spent`: a draft begins with 0 charged.",
    (
        "schedule.schedule",
        "drop d.prefilled = False",
    ): "Only a step of prefills sets it, and where prompts are cut there is none: "
    "it is false from the first state on. The line is read by the proofs.",
    ("schedule.schedule", "drop d.spent = 0"): "A draft begins with 0 spent (store/draft.py). The line is read by the proofs.",
    ("admission.compute", "rest <= left: to <"): SAME,
    ("admission.compute", "rest <= left: - 1"): SAME,
    ("displacing.displace_v0", LOOP + "2"): ALL,
    ("displacing.displace_v0", LOOP + "0"): ALL,
    ("profiles.to_return", "d.config.vllm_v0 and d.config.num_lookahead_slots > 0: without d.config.num_lookahead_slots > 0"): (
        "Without lookahead slots the tables of a group that comes back hold its tokens but perhaps the last, for which "
        "`outgrown` takes one block off: `more` is not above 0."
    ),
    **dict.fromkeys(
        (
            ("profiles.to_return", "if d.config.vllm_v0 and d.config.num_lookahead_slots > 0:: 0 -> -1"),
            ("profiles.to_return", "d.config.num_lookahead_slots > 0: to >="),
        ),
        "As for the mutant without that condition: without lookahead slots `more` is not above 0.",
    ),
    (
        "displacing.displace",
        "not d.waiting.empty() and d.delayed(): without not d.waiting.empty()",
    ): "kept_back reads the delay only of a head that waits; then the queue is not empty.",
    **dict.fromkeys((("profiles.to_return", change) for change in ("more > 0: to >=", "if more > 0:: 0 -> -1")), NO_MORE),
    ("profiles.fits_budget", "tokens > d.config.max_num_batched_tokens: to >="): WHOLE,
    ("profiles.fits_budget", "tokens > d.config.max_num_batched_tokens: - 1"): WHOLE,
}
"""(module.function, change) -> why the functions that run do the same."""


def same_code(mutant: mutate.Mutant) -> bool:
    """Does the compiler make the same of both?"""
    names = [mutate._code(s, mutant.module).get(mutant.function) for s in (mutate.text(mutant.module), mutant.source)]
    old, new = names
    return old is not None and new is not None and _bare(old) == _bare(new)


def _bare(c: types.CodeType) -> Any:
    consts = tuple(_bare(x) if isinstance(x, types.CodeType) else repr(x) for x in c.co_consts)
    return c.co_code, consts, c.co_names, c.co_varnames


def same_(old: Any, new: Any) -> Any:
    """Stands for an expression and its mutant: both are evaluated, they must be equal, the old one counts."""
    equal = iff(old, new) if isinstance(old, (bool, sym.SBool)) else old == new
    sym.run().prove("equivalent: the expression has one value", equal)
    return old


def install(module: str) -> None:
    """Let code of this module find `same_`."""
    vars(importlib.import_module(f"kvproof.core.{module}"))["same_"] = same_


REASONS: Arguments = {
    ("running.next_victim", "d.named(g, blocks): g <-> blocks"): "The proofs leave open what a policy answers, whatever it is "
    "told; what it is told is tested (tests/unit/test_auto.py).",
}
"""(module.function, change) -> why a survivor is no gap that matters, or which obligation would kill it."""
