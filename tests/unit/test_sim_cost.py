"""The cost model: against hand-computed figures, its units, and the directions in which it must move."""

import pytest

from kvproof.sim.cost import Roofline, blocks_that_fit, fragments
from kvproof.sim.hardware import DEVICES, MODELS

LLAMA, H100 = MODELS["llama-3.1-8b"], DEVICES["h100"]
COST = Roofline(LLAMA, H100)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-7b", 7_615_616_512),
    ],
)
def test_parameters_are_those_of_the_published_weights(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


def test_bytes_of_keys_and_values() -> None:
    assert LLAMA.kv_bytes_per_token == 131_072  # 2 x 32 layers x 8 heads x 128 x 2 bytes
    assert MODELS["llama-2-7b"].kv_bytes_per_token == 524_288  # four times as many heads
    assert COST.block_bytes == 2 * 2**20


def test_decode_is_bound_by_memory_and_has_a_floor() -> None:
    weights_bytes = 2 * (8_030_261_248 - 128_256 * 4096)
    read_s = (weights_bytes + 20_000 * 131_072) / (0.75 * 3.35e12)
    assert COST.decode_s(16, 20_000) == pytest.approx(read_s + 0.002)
    assert COST.decode_s(0, 0) > 0.002


def test_prefill_is_bound_by_compute_and_has_a_quadratic_term() -> None:
    linear_flop = 2 * (8_030_261_248 - 2 * 128_256 * 4096 - 4096) * 1000 + 2 * 128_256 * 4096
    attention_flop = 4 * 32 * 32 * 128 * (1000 * 1001 // 2)
    assert COST.prefill_s([(0, 0, 1000)]) == pytest.approx((linear_flop + attention_flop) / (0.5 * 989.4e12) + 0.002)
    once, twice = (COST.prefill_s([(0, 0, n)]) - 0.002 for n in (50_000, 100_000))
    assert twice > 2.3 * once


def test_a_short_prefill_is_bound_by_memory() -> None:
    weights_bytes = 2 * (8_030_261_248 - 128_256 * 4096)
    assert COST.prefill_s([(0, 0, 1)]) == pytest.approx((weights_bytes + 131_072) / (0.75 * 3.35e12) + 0.002)


def test_pieces_cost_what_they_attend_to() -> None:
    whole = COST.prefill_s([(0, 0, 8000)]) - 0.002
    pieces = sum(COST.prefill_s([(0, first, 4000)]) - 0.002 for first in (0, 4000))
    assert pieces == pytest.approx(whole, rel=0.001)
    assert COST.prefill_s([(0, 4000, 4000)]) > COST.prefill_s([(0, 0, 4000)])


def test_more_work_never_costs_less() -> None:
    for model in MODELS.values():
        for device in DEVICES.values():
            cost = Roofline(model, device)
            decodes = [cost.decode_s(n, n * 1000) for n in (1, 8, 64, 256, 1024)]
            prefills = [cost.prefill_s([(0, 0, n)]) for n in (1, 100, 1000, 10_000)]
            swaps = [cost.swap_s([(2 * i, 2 * i) for i in range(n)]) for n in (0, 1, 10, 100)]
            for times in (decodes, prefills, swaps):
                assert times == sorted(times) and times[0] < times[-1]


def test_a_better_device_is_faster_and_holds_more() -> None:
    a100, h200 = DEVICES["a100"], DEVICES["h200"]
    assert Roofline(LLAMA, a100).decode_s(8, 9000) > COST.decode_s(8, 9000) > Roofline(LLAMA, h200).decode_s(8, 9000)
    assert Roofline(LLAMA, a100).prefill_s([(0, 0, 4000)]) > COST.prefill_s([(0, 0, 4000)])
    assert Roofline(LLAMA, a100).swap_s([(0, 0)]) > COST.swap_s([(0, 0)])
    assert blocks_that_fit(LLAMA, h200, 16) > blocks_that_fit(LLAMA, H100, 16)


def test_swaps_pay_the_link_and_each_fragment() -> None:
    apart = [(0, 10), (2, 12), (4, 14)]
    assert COST.swap_s(apart) == pytest.approx(3 * 2 * 2**20 / (0.8 * 64e9) + 3 * 5e-6)
    assert COST.swap_s([]) == 0


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        ([], 0),
        ([(5, 9)], 1),
        ([(5, 9), (6, 10), (7, 11)], 1),
        ([(7, 11), (6, 10)], 1),
        ([(5, 9), (6, 8)], 2),
        ([(5, 9), (6, 10), (5, 9)], 2),
        ([(5, 9), (7, 11)], 2),
        ([(5, 9), (6, 10), (8, 12), (9, 13)], 2),
    ],
)
def test_neighbours_on_both_sides_travel_as_one_fragment(pairs: list[tuple[int, int]], count: int) -> None:
    assert fragments(pairs) == count


def test_blocks_that_fit() -> None:
    assert blocks_that_fit(LLAMA, H100, 16) == (72 * 10**9 - 2 * 8_030_261_248) // (16 * 131_072) == 26_674
    assert blocks_that_fit(MODELS["llama-3.1-70b"], H100, 16) < 0
