"""What a preemption costs: formulas, figures from a model's shape, and figures that are measured."""

from random import Random

import attrs
import pytest

from kvproof.policies.calibrated import Calibrated
from kvproof.policies.costs import Costs, pairs_of, parameters_of


def test_a_recompute_grows_with_the_square_of_the_context_and_a_swap_does_not():
    moving = {"out_s_per_block": 7, "in_s_per_block": 11, "transfer_overhead_s": 13}
    costs = Costs(s_per_token=2, s_per_pair=3, recompute_overhead_s=5, **moving)
    assert costs.recompute_s(4) == 2 * 4 + 3 * 10 + 5
    assert costs.recompute_s(4, 6) == 2 * 4 + 3 * 6 + 5
    assert costs.swap_s(4) == 4 * (7 + 11) + 2 * 13


def test_pairs_are_those_of_causal_attention():
    for tokens, first in ((1, 0), (5, 0), (3, 7)):
        assert pairs_of(tokens, first) == sum(range(first + 1, first + tokens + 1))


def test_a_model_of_the_shape_of_llama_2_7b():
    assert parameters_of(32, 32, 128, 32) == pytest.approx(6.48e9, rel=0.01)  # of 6.74e9 with embeddings and output
    costs = Costs.of_model(layers=2, heads=4, head_dim=8, layer_parameters=1000, block_size=4, flop_per_s=100, out_bytes_per_s=64)
    assert costs.s_per_token == 20 and costs.s_per_pair == 4 * 2 * 4 * 8 / 100
    assert costs.out_s_per_block == pytest.approx(2 * 4 * 2 * 32 * 2 / 64 + 5e-6) == costs.in_s_per_block
    fewer = Costs.of_model(layers=2, heads=4, kv_heads=1, head_dim=8, layer_parameters=1000, block_size=4, in_bytes_per_s=1e11)
    assert fewer.in_s_per_block < fewer.out_s_per_block < costs.out_s_per_block
    pieces = Costs.of_model(fragment_bytes=2**15)
    whole = Costs.of_model()
    assert pieces.out_s_per_block - whole.out_s_per_block == pytest.approx(255 * 5e-6)


def test_the_defaults_are_those_of_that_model():
    for field in attrs.fields(Costs):
        default = getattr(Costs(), field.name)
        assert field.name == "transfer_overhead_s" or getattr(Costs.of_model(), field.name) == pytest.approx(default, rel=0.02)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, None, 1e7])
def test_a_parameter_that_is_no_time(value):
    with pytest.raises(ValueError, match="s_per_token: must be a number of seconds from 0"):
        Costs(s_per_token=value)
    with pytest.raises(ValueError, match="flop_per_s: must be a number > 0"):
        Costs.of_model(flop_per_s=value if value != 1e7 else 0)


# --- measured -----------------------------------------------------------------------------------------------------------


TOKEN, PAIR, STEP, BLOCK, FIXED = 2e-4, 8e-9, 4e-3, 1e-4, 2e-5


def measured(seed: int, count: int, outliers: float, c: Calibrated | None = None, slower: float = 1.0) -> Calibrated:
    """After steps and transfers whose times are off by up to 5 %, some of them by a factor of 20 either way."""
    r, c = Random(seed), c or Calibrated.begin()
    for _ in range(count):
        tokens, blocks = r.randrange(10, 4000), r.randrange(1, 100)
        odd = r.choice((20, 0.05)) if r.random() < outliers else 1
        c = c.observe(tokens, pairs_of(tokens), slower * odd * r.uniform(0.95, 1.05) * predicted(tokens))
        c = c.observe_transfer(blocks, slower * odd * r.uniform(0.95, 1.05) * (blocks * BLOCK + FIXED), "out")
    return c


def predicted(tokens: int) -> float:
    return tokens * TOKEN + pairs_of(tokens) * PAIR + STEP


@pytest.mark.parametrize("outliers", [0, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_times_are_learnt_in_spite_of_outliers(seed, outliers):
    costs = measured(seed, 150, outliers).costs
    for tokens in (300, 1000, 3500):
        learnt = costs.recompute_s(tokens) + 3 * costs.recompute_overhead_s  # a quarter of a step's fixed time is a recompute's
        assert learnt == pytest.approx(predicted(tokens), rel=0.15)
    assert costs.out_s_per_block == pytest.approx(BLOCK, rel=0.1)
    assert costs.in_s_per_block == Costs().in_s_per_block, "nothing came back"


def test_a_lasting_change_is_followed():
    c = measured(1, 60, 0)
    assert measured(2, 100, 0, c, slower=8).costs.recompute_s(2000) == pytest.approx(8 * predicted(2000), rel=0.2)


def test_one_outlier_moves_little():
    c = measured(1, 60, 0)
    before, after = c.costs.recompute_s(1000), c.observe(1000, pairs_of(1000), 900.0).costs.recompute_s(1000)
    assert after == pytest.approx(before, rel=0.05)
    assert Calibrated.begin().observe(1000, pairs_of(1000), 900.0).costs.recompute_s(1000) > 10, (
        "there is nothing else to believe"
    )


def test_observing_changes_nothing_that_was_and_is_repeatable():
    c = Calibrated.begin()
    assert measured(3, 20, 0.1, c) == measured(3, 20, 0.1, c) != c == Calibrated.begin()
    assert hash(c) == hash(Calibrated.begin())


def test_no_parameter_becomes_negative():
    c = Calibrated.begin()
    for tokens in (100, 1000, 4000) * 20:
        c = c.observe(tokens, pairs_of(tokens), 1 / tokens)  # longer ones are faster
    values = [getattr(c.costs, field.name) for field in attrs.fields(Costs)]
    assert all(value >= 0 for value in values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("observe", 0, 1, 1.0), "prefill_tokens: must be an integer from 1"),
        (("observe", 1, True, 1.0), "attended_pairs: must be an integer from 1"),
        (("observe", 1, 1, 0), "seconds: must be a number > 0"),
        (("observe", 1, 1, float("nan")), "seconds: must be a number > 0"),
        (("observe_transfer", -1, 1.0, "in"), "blocks: must be an integer from 1"),
        (("observe_transfer", 1, 1.0, "up"), 'direction: must be "out" or "in", got \'up\''),
    ],
)
def test_an_observation_that_is_none(call, message):
    name, *arguments = call
    with pytest.raises(ValueError, match=message):
        getattr(Calibrated.begin(), name)(*arguments)
    with pytest.raises(ValueError, match="overhead_share: must be a number from 1e-06 to 1"):
        Calibrated.begin(None, 0)
