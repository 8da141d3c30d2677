"""How Hypothesis draws a configuration and a request: every field, both profiles, and most features off in most runs."""

from typing import Any

from hypothesis import strategies as st

from kvproof.fuzz.orders import ORDERS
from kvproof.fuzz.setup import KVPROOF_MODES, MODES, Setup, setup

choices = st.integers(0, 11)
"""Which one, of a list that is not known yet."""
TOO_LONG = 50
"""A prompt that is refused."""
requests = st.tuples(
    st.integers(1, 11).map(lambda n: n if n < 11 else TOO_LONG),
    st.integers(1, 20),
    st.sampled_from((1, 1, 1, 2, 3)),
    st.sampled_from((None, None, None, None, 1, 2)),
    st.integers(-1, 1),
)
"""(prompt_tokens, max_tokens, n, beam_width, priority)"""
modes_of_force = st.sampled_from((None, "recompute", "swap"))
gaps = st.sampled_from((1, 1, 2, 0.5, 7))
"""Time from one pass to the next."""
acceptances = st.lists(st.tuples(choices, st.integers(1, 7)), max_size=4)
"""(who, tokens) that lookahead gave."""


ROOMY: dict[str, Any] = {
    "num_gpu_blocks": st.sampled_from((8, 10, 12, 16)),
    "num_cpu_blocks": st.sampled_from((16, 8, 4)),
    "max_num_seqs": st.sampled_from((6, 4, 3)),
    "max_num_batched_tokens": st.sampled_from((20, 12)),
    "max_model_len": st.just(40),
}
"""Sizes with which several requests get on together."""
TIGHT: dict[str, Any] = {
    "num_gpu_blocks": st.sampled_from((6, 8, 10, 12, 16, 4, 3, 2, 1)),
    "num_cpu_blocks": st.sampled_from((16, 8, 4, 2, 1, 0)),
    "max_num_seqs": st.sampled_from((8, 6, 4, 2, 1)),
    "max_num_batched_tokens": st.sampled_from((20, 12, 8, 6, 4, 2, 1)),
    "max_model_len": st.sampled_from((40, 40, 16, 6)),
}
"""Sizes with which limits are met at once."""
FEATURES: dict[str, Any] = {
    "block_size": st.sampled_from((2, 4, 3, 1)),
    "watermark_blocks": st.sampled_from((0, 0, 0, 1, 2)),
    "enable_chunked_prefill": st.sampled_from((False, False, True)),
    "num_lookahead_slots": st.sampled_from((0, 0, 0, 1, 3, 5)),
    "delay_factor": st.sampled_from((0, 0, 0, 0, 2, 0.5, 5)),
    "priority": st.sampled_from((False, False, True)),
    "choose_victims": st.sampled_from((False, False, True)),
    "max_preemptions_per_request": st.sampled_from((None, None, None, 0, 1, 2)),
}
RANKED = ROOMY | {
    "priority": st.just(True),
    "watermark_blocks": st.sampled_from((0, 1)),
    "max_model_len": st.sampled_from((40, 12)),
}
PRICED = ROOMY | {
    "num_cpu_blocks": st.sampled_from((0, 2, 4, 16)),
    "block_size": st.sampled_from((1, 2)),
    "watermark_blocks": st.just(0),
    "priority": st.just(False),
    "mode": st.just("auto"),
}
"""Requests of all sizes run side by side, and victims are chosen by cost."""
LIMITED = ROOMY | {
    "num_gpu_blocks": st.sampled_from((6, 8, 10, 12)),
    "block_size": st.sampled_from((2, 4)),
    "max_model_len": st.sampled_from((16, 24, 40)),
    "max_preemptions_per_request": st.sampled_from((1, 1, 2, 0)),
}
"""Who was preempted is protected; there is room for one whole request, or two."""
THEMES: tuple[dict[str, Any], ...] = (
    TIGHT,
    ROOMY,
    RANKED,
    RANKED | {"enable_chunked_prefill": st.just(True)},
    ROOMY | {"enable_chunked_prefill": st.just(True), "max_num_batched_tokens": st.sampled_from((6, 4, 3, 2))},
    ROOMY | {"num_lookahead_slots": st.sampled_from((3, 5, 1))},
    ROOMY | {"num_lookahead_slots": st.sampled_from((3, 5)), "enable_chunked_prefill": st.just(True)},
    ROOMY | {"delay_factor": st.sampled_from((2, 5))},
    ROOMY | {"num_cpu_blocks": st.just(0), "num_gpu_blocks": st.sampled_from((6, 4))},
    PRICED,
    PRICED | {"enable_chunked_prefill": st.just(True)},
    LIMITED,
    LIMITED | {"enable_chunked_prefill": st.just(True)},
    RANKED | LIMITED | {"priority": st.just(True)},
)
"""A run has one: the fields that it settles. The others are as in TIGHT, features off in most runs."""


@st.composite
def setups(draw: Any) -> Setup:
    """Both profiles, all modes, pools from one block up, host pools from none, budgets smaller than prompts."""
    theme = draw(st.sampled_from(THEMES))
    fields = {name: draw(values) for name, values in (TIGHT | FEATURES | theme).items()}
    given = fields.pop("mode", None)
    vllm_v0 = given is None and draw(st.booleans())
    if vllm_v0 and not fields["enable_chunked_prefill"]:
        fields["max_num_batched_tokens"] = max(fields["max_num_batched_tokens"], fields["max_model_len"])
    fields["choose_victims"] &= not vllm_v0
    if vllm_v0:
        fields["max_preemptions_per_request"] = None
    fields["max_num_seqs"] = min(fields["max_num_seqs"], fields["max_num_batched_tokens"])
    fields["watermark_blocks"] = min(fields["watermark_blocks"], fields["num_gpu_blocks"] - 1)
    test = draw(st.sampled_from((None,) * 7 + (True,))) and draw(artificial())
    if vllm_v0:
        return setup(draw(st.sampled_from(MODES)), test, vllm_v0=True, **fields)
    mode, order = (
        given or draw(st.sampled_from((*KVPROOF_MODES, "auto"))),
        draw(st.sampled_from((*ORDERS, *ORDERS, *[None] * 14))),
    )
    return setup(mode, test, order, draw(costs) if mode == "auto" else None, **fields)


costs = st.fixed_dictionaries(
    {
        "s_per_token": st.sampled_from((1, 0, 0.1, 7)),
        "s_per_pair": st.sampled_from((0, 0.01, 1)),
        "recompute_overhead_s": st.sampled_from((0, 2, 30)),
        "out_s_per_block": st.sampled_from((1, 0, 3, 0.2)),
        "in_s_per_block": st.sampled_from((1, 0, 3)),
        "transfer_overhead_s": st.sampled_from((0, 1, 20)),
    }
)
"""Now the one way is cheaper, now the other, now it depends on how much there is to move or to compute."""


def artificial() -> Any:
    """How a test mode denies room at random: never, now and then, always."""
    return st.fixed_dictionaries(
        {"seed": st.integers(0, 3), "probability": st.sampled_from((0.5, 0.2, 1, 0)), "max_count": st.sampled_from((4, 20, 0))}
    )
