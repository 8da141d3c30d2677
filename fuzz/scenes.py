"""Situations that chance seldom leads to: a run may begin with one of them and go on as it likes."""

from typing import Any

from hypothesis import strategies as st

from kvproof.fuzz.draws import setups
from kvproof.fuzz.setup import MODES, Setup, setup
from kvproof.fuzz.world import Operation

Log = tuple[Operation, ...]
STEP: Log = (("schedule", ()), ("commit", ()))
SIZES: dict[str, Any] = {
    "num_gpu_blocks": 12,
    "num_cpu_blocks": 12,
    "block_size": 2,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 40,
    "max_model_len": 40,
}
CUT = SIZES | {"enable_chunked_prefill": True, "max_num_batched_tokens": 4}

SCENES: dict[str, tuple[dict[str, Any], Log]] = {
    "whom a policy names is the one that lacks the block": (
        SIZES | {"num_gpu_blocks": 9, "block_size": 2, "choose_victims": True},
        (*[("add", (3, 9))] * 4, *STEP, *STEP, *STEP, *STEP),
    ),
    "who cannot be preempted ends": (
        SIZES | {"num_cpu_blocks": 0},
        (
            *(("add", (2, 9)), *STEP, ("fork", (0, 0)), ("refused", ("preempt in no such mode", 0, 0))),
            *(("preempt", (0, "swap")), ("schedule", ())),
        ),
    ),
    "a prefill comes back before those that decode, and takes the budget": (
        CUT,
        (
            *(("add", (1, 12)), *STEP, ("add", (12, 2)), *STEP, ("refused", ("fork in a prefill", 1, 0))),
            *(("preempt", (1, "swap")), *STEP, *STEP, *STEP),
        ),
    ),
    "room is denied at random": (
        SIZES | {"artificial_preemption": {"seed": 1, "probability": 0.5, "max_count": 20}},
        (("add", (3, 9)), ("add", (4, 9)), *STEP, *STEP, *STEP),
    ),
    "lookahead slots are given back": (
        SIZES | {"num_lookahead_slots": 5},
        (("add", (3, 20)), *STEP, *STEP, ("fork", (0, 0)), ("fork", (0, 1)), *STEP),
    ),
    "a beam keeps its seats": (
        SIZES,
        (
            ("add", (2, 9, 1, 2, 0)),
            *STEP,
            ("fork", (0, 0)),
            ("fork", (0, 1)),
            *STEP,
            ("finish", (0, 1)),
            ("finish", (0, 0)),
            *STEP,
        ),
    ),
    "there is room for what is needed, and for no lookahead slots": (
        SIZES | {"num_lookahead_slots": 3, "num_gpu_blocks": 4},
        (("add", (2, 5)), ("add", (2, 5)), *STEP, *STEP),
    ),
    "an urgent request displaces": (
        SIZES | {"priority": True},
        (("add", (8, 9)), ("add", (8, 9)), *STEP, *STEP, ("add", (14, 3, 1, None, -9)), *STEP, *STEP),
    ),
    "an urgent request displaces others from their seats": (
        SIZES | {"priority": True, "max_num_seqs": 2},
        (
            *(("add", (1, 9)), ("add", (1, 9)), *STEP, *STEP, ("refused", ("fork without a seat", 0, 0))),
            *(("add", (2, 3, 2, None, -9)), *STEP),
        ),
    ),
    "requests are aborted in a prefill and on the host": (
        CUT,
        (
            *(("add", (12, 2)), *STEP, ("abort", (0,)), *STEP, ("add", (12, 2)), *STEP),
            *(("preempt", (1, "swap")), *STEP, ("abort", (1,))),
        ),
    ),
    "siblings are aborted while they are recomputed": (
        CUT,
        (
            *(("add", (3, 9)), *STEP, ("fork", (0, 0)), *STEP, *STEP),
            *(("preempt", (0, "recompute")), *STEP, *STEP, ("abort", (0,)), *STEP),
        ),
    ),
    "admission waits": (
        SIZES | {"delay_factor": 5},
        (("add", (3, 9)), ("schedule", (3,)), ("commit", ()), ("add", (3, 9)), *STEP, *STEP),
    ),
    "somebody is swapped": (
        SIZES | {"num_gpu_blocks": 7},
        (("add", (4, 9)), ("add", (4, 9)), *STEP, *STEP, ("preempt", (1, "swap")), *STEP),
    ),
    "the cheapest makes way": (
        SIZES | {"num_gpu_blocks": 10, "num_cpu_blocks": 0, "mode": "auto", "costs": {"s_per_token": 1}},
        (("add", (4, 9)), ("add", (2, 9)), ("add", (8, 9)), *STEP * 6),
    ),
    "the cheapest is swapped": (
        SIZES | {"num_gpu_blocks": 10, "mode": "auto", "costs": {"s_per_token": 1, "out_s_per_block": 0.1}},
        (("add", (4, 9)), ("add", (2, 9)), ("add", (8, 9)), *STEP * 6),
    ),
    "who was preempted as often as it may be goes on": (
        SIZES | {"num_gpu_blocks": 10, "max_preemptions_per_request": 1},
        (
            *(("add", (4, 9)), ("add", (4, 9)), ("add", (4, 9)), *STEP, ("preempt", (0, "swap")), *STEP * 4),
            *(("add", (3, 12)), *STEP * 6),
            *(("refused", ("fork of who is protected", 2, 0)), *STEP * 4),
        ),
    ),
    "blocks that are kept are not for others": (
        SIZES | {"num_gpu_blocks": 8, "max_preemptions_per_request": 1},
        (("add", (2, 21)), ("add", (8, 3)), ("add", (2, 9)), *STEP * 20),
    ),
    "a protected one stays when others make way": (
        SIZES
        | {"num_gpu_blocks": 10, "block_size": 1, "watermark_blocks": 2, "priority": True, "max_preemptions_per_request": 1},
        (
            *(("add", (1, 6, 1, None, 5)), *STEP, ("add", (8, 1, 1, None, 0)), *STEP * 3, ("add", (1, 6, 1, None, 6)), *STEP),
            *(("add", (4, 2, 1, None, 0)), *STEP * 3),
        ),
    ),
    "nobody may be preempted": (
        SIZES | {"max_preemptions_per_request": 0},
        (
            *(("add", (4, 9)), ("add", (4, 9)), *STEP, ("refused", ("fork of who is protected", 0, 0))),
            *(("preempt", (0, "swap")), *STEP, ("add", (9, 40)), *STEP * 8),
        ),
    ),
    "ranks change": (
        SIZES | {"num_gpu_blocks": 7, "order": "mlfq"},
        (("add", (4, 9)), ("add", (4, 9)), ("add", (4, 9)), ("refused", ("rerank by hand", 0, 0)), *STEP * 8),
    ),
    "ranks change without a reason": (
        SIZES | {"num_gpu_blocks": 7, "order": "restless"},
        (("add", (4, 9)), ("add", (4, 9)), ("keep", ()), ("add", (4, 9)), *STEP * 4, ("back", (0,)), *STEP * 4),
    ),
}


def begin(name: str, mode: str | None, vllm_v0: bool) -> tuple[Setup, Log]:
    """The scene of this name, in a mode and a profile."""
    fields, log = SCENES[name]
    return setup(**{"mode": mode, "vllm_v0": vllm_v0 and name not in KVPROOF} | fields), log


KVPROOF_ONLY = {"mode", "order", "choose_victims", "max_preemptions_per_request"}
KVPROOF = frozenset(name for name, (fields, _) in SCENES.items() if KVPROOF_ONLY & fields.keys())
"""Scenes of what profile vllm_v0 does not have."""
scenes = st.builds(begin, st.sampled_from(sorted(SCENES)), st.sampled_from(MODES), st.booleans())
starts = st.integers(0, 3).flatmap(lambda i: setups().map(lambda start: (start, ())) if i else scenes)
"""A setup; one run in four begins with a scene."""


def all_scenes() -> list[tuple[Setup, Log]]:
    """Each of them in both profiles, in one mode or another."""
    names = sorted(SCENES)
    both = [(v0, i, name) for v0 in (False, True) for i, name in enumerate(names) if not (v0 and name in KVPROOF)]
    return [begin(name, MODES[i % len(MODES)], v0) for v0, i, name in both]
