"""States of the bank that walks hardly come to, each with the calls that lead there."""

from typing import Any

from kvproof.proofs.walks import Action, Edits
from kvproof.store.measures import RANKS

BATCH: dict[str, Any] = {
    "num_gpu_blocks": 8,
    "num_cpu_blocks": 0,
    "block_size": 1,
    "watermark_blocks": 0,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 3,
    "max_model_len": 40,
    "vllm_v0": False,
}
PASS: list[Action] = [("schedule",), ("commit", None, (), ())]
RANKED = BATCH | {"max_num_batched_tokens": 12, "max_num_seqs": 4, "num_gpu_blocks": 12, "num_cpu_blocks": 12, "priority": True}
SHORT = RANKED | {"max_num_batched_tokens": 5, "max_model_len": 5, "vllm_v0": True, "num_gpu_blocks": 8}
MANY = BATCH | {"max_num_batched_tokens": 2, "vllm_v0": True, "enable_chunked_prefill": True, "num_gpu_blocks": 30}
PIECES = MANY | {"vllm_v0": False, "num_cpu_blocks": 30, "max_num_seqs": 3, "max_num_batched_tokens": 4}
AHEAD = BATCH | {"num_lookahead_slots": 4, "max_num_batched_tokens": 40, "num_gpu_blocks": 20, "num_cpu_blocks": 20}
RARE: list[tuple[dict[str, Any], list[Action]]] = [
    (  # a prefill is cut, then the only one that decodes, and ranks after it, finds no block
        BATCH,
        [("add", 1, 11, 1, 1, 0), ("add", 2, 12, 1, 1, 0), *PASS * 3, ("preempt", 0, "recompute"), *PASS],
    ),
    (  # one that waits ranks between two that are swapped
        BATCH | {"num_gpu_blocks": 12, "num_cpu_blocks": 12, "max_num_seqs": 3, "max_num_batched_tokens": 12},
        [*[("add", 3, 20, 1, 1, 0)] * 3, *PASS, ("preempt", 0, "swap"), ("preempt", 1, "recompute"), ("preempt", 2, "swap")],
    ),
    *(  # in V0, a prompt as long as the limit, and longer by one
        (
            BATCH | {"num_gpu_blocks": 12, "max_num_batched_tokens": 12, "max_model_len": 5, "vllm_v0": True},
            [("add", n, 20, 1, 1, 0)],
        )
        for n in (5, 6)
    ),
    *(  # with priorities, one runs, and those in line are swapped, or one that waits stands between them
        (RANKED, [*[("add", 2, 20, 1, 1, 0)] * 4, *PASS, *gone])
        for gone in (
            [("preempt", 0, "swap"), ("preempt", 1, "swap")],
            [("preempt", 0, "swap"), ("preempt", 1, "recompute"), ("preempt", 2, "swap")],
        )
    ),
    *(  # one that is swapped lacks a seat, which who ranks below it has got by a fork; nobody waits, so nothing is delayed
        (
            RANKED | {"max_num_seqs": 2, "delay_factor": delay},
            [*[("add", 2, 20, 1, 1, 0)] * 2, *PASS * 4, ("preempt", 0, "swap"), ("fork", 1, 0, 1)],
        )
        for delay in (0, 1)
    ),
    (  # one that has come just now lacks the only seat, and ranks above who has it
        RANKED | {"max_num_seqs": 1, "delay_factor": 1},
        [("add", 2, 20, 1, 1, 0), *PASS * 2, ("add", 2, 20, 1, 1, -1)],
    ),
    (SHORT, [*[("add", 2, 9, 1, 1, 1)] * 2, *PASS, ("add", 5, 9, 1, 1, -5)]),  # V0: as long as the budget, and longer
    (SHORT, [("add", 1, 9, 1, 1, 1), *PASS, ("add", 6, 9, 1, 1, -5)]),
    (SHORT, [("add", 2, 9, 1, 1, 1), ("add", 2, 9, 1, 1, -1), *PASS]),  # V0: those that run are not in policy order
    (  # two are in their prefill: one comes back from the host in a step of decodes, while one of higher rank is computed
        RANKED | {"max_num_batched_tokens": 3, "max_num_seqs": 3, "num_gpu_blocks": 30},
        [
            *[("add", 1, 20, 1, 1, 0), *PASS, ("add", 9, 20, 1, 1, 0), *PASS * 2],
            *[("preempt", 1, "swap"), ("add", 9, 20, 1, 1, -1), *PASS * 3],
        ],
    ),
    (  # V0: two sequences have more different tokens than the budget, by one, though neither has
        SHORT | {"max_num_batched_tokens": 12, "max_model_len": 12, "num_gpu_blocks": 30},
        [("add", 2, 20, 2, 1, 0), *PASS, ("fork", 0, 0, 0), *PASS * 5, ("preempt", 0, "recompute")],
    ),
    *(  # lookahead gave tokens to one, and it left, or it goes on
        (AHEAD | {"vllm_v0": v0}, [("add", 2, 20, 1, 1, 0), *PASS, ("schedule",), ("commit", None, (), ((0, 2),)), *gone])
        for v0 in (False, True)
        for gone in ([], [("preempt", 0, "swap")], [("preempt", 0, "recompute")])
    ),
    *(  # slots that nobody has written, of blocks of one and of two
        (AHEAD | {"block_size": size}, [*[("add", 2, 20, 1, 1, 0)] * 2, *PASS * passes]) for size in (1, 2) for passes in (2, 3)
    ),
    (AHEAD | {"vllm_v0": True}, [("add", 2, 20, 1, 1, 0), *PASS * 2]),  # V0 reserves one more with each token
    (AHEAD | {"block_size": 2}, [("add", 3, 20, 2, 1, 0), *PASS, ("fork", 0, 0, 0), ("finish_sequence", 0, 1)]),  # a sibling left
    (AHEAD | {"enable_chunked_prefill": True}, [("add", 2, 20, 1, 1, 0)]),  # a prefill reserves none
    (AHEAD, [("add", 2, 20, 1, 1, 0), *PASS * 2, ("schedule",)]),  # a step is in flight, and seats are left
    (AHEAD, [("add", 1, 20, 1, 1, 0), *[("schedule",), ("commit", (), (), ())] * 2]),  # the same of one that has no result yet
    (  # two need blocks in one step: the first takes what the last held, the second must go
        BATCH | {"num_gpu_blocks": 3, "block_size": 2, "max_num_seqs": 3, "max_num_batched_tokens": 12},
        [*[("add", n, 12, 1, 1, 0) for n in (2, 2, 1)], *PASS],
    ),
    (  # a test of an engine says no once
        BATCH | {"num_gpu_blocks": 3, "max_num_batched_tokens": 12},
        [*[("add", 1, 12, 1, 1, 0)] * 2, *PASS, ("deny_append", 0, 1)],
    ),
    *(  # V0, with prompts in pieces: one that waits finds a seat in this pass, or none
        (
            MANY | {"max_num_batched_tokens": 4, "max_num_seqs": 3},
            [*[("add", 1, 12, 1, 1, 0)] * n, *PASS, ("add", 1, 12, 1, 1, 0)],
        )
        for n in (2, 3)
    ),
    *(  # V0 in the middle of a prompt, beside one that decodes, with a block free or none
        (
            MANY | {"block_size": 2, "max_num_batched_tokens": 4, "num_gpu_blocks": blocks, "max_num_seqs": 4},
            [("add", 1, 12, 1, 1, 0), *PASS, ("add", n, 20, seats, 1, 0), *PASS],
        )
        for blocks in (5, 6, 30)
        for n, seats in ((7, 1), (8, 2), (9, 2))
    ),
    *(  # prompts in pieces: one is on the host, decoding or in its prefill, while another computes as much as the budget takes
        (
            PIECES,
            [
                *[("add", 2, 20, 1, 1, 0), *PASS, ("add", n, 30, 1, 1, 0), *PASS, ("add", 12, 30, 1, 1, 0)],
                *[*PASS * passes, ("preempt", g, "swap")],
            ],
        )
        for n in (7, 12)
        for passes in (0, 1, 2, 3)
        for g in (0, 1)
    ),
    (  # V0 leaves one idle, and the step is in flight
        MANY,
        [("add", 1, 12, 2, 1, 0), ("add", 1, 12, 1, 1, 0), *PASS * 2, ("fork", 0, 0, 1), ("schedule",)],
    ),
]
"""Those of all sizes of the configuration that `Config` accepts."""
EDITED: list[tuple[dict[str, Any], list[Action], Edits]] = [
    *(  # ids run out
        (BATCH | {"vllm_v0": more > 0, "max_num_batched_tokens": 40}, [("add", 2, 9, 1, 1, 0)], (("ticket", 0, RANKS + more),))
        for more in (-1, 0, 1)
    ),
    (MANY, [*[("add", 1, 12, 1, 1, 0)] * 3, *PASS * 2], (("max_num_seqs", 0, 1),)),  # V0: more run than have seats
]
"""Those that a call leads to only in theory, or after more of them than anybody waits for."""
