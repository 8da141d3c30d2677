"""How long a step takes: a roofline over the data sheets of `hardware.py`.

    compute = FLOP / (FLOP_EFFICIENCY x peak)         memory = bytes / (BANDWIDTH_EFFICIENCY x bandwidth)
    step    = max(compute, memory) + STEP_OVERHEAD_S + time of the swaps

FLOP: 2 per layer parameter and token, 2 per output-projection parameter and sampled token, and for attention
4 x layers x heads x head_dim per pair of a token and one that it attends to: the term quadratic in the prompt.
Bytes: the weights once per step (without the embedding table), the keys and values read, those written.
Swaps come first and by themselves: a plan's effects are ordered on one stream (no overlap with compute).

Efficiencies and overheads are assumptions, not measurements; they are arguments of `Roofline`, and most of them those of
`kvproof.policies.costs`, so that a scheduler under simulation reckons with what the simulator charges. Sources:
FLOP_EFFICIENCY: large bf16 matrix products with attention reach about half of the peak in published prefill measurements.
BANDWIDTH_EFFICIENCY: serving stacks reach 60 to 85 % of the data sheet's bandwidth in decode.
PCIE_EFFICIENCY: pinned copies reach about 25 GB/s of 32 (generation 4) and 50 to 55 GB/s of 64 (generation 5).
FRAGMENT_OVERHEAD_S: one copy call; with it a fragment of 32 KB gets a fifth of PCIe generation 4, one of 2 MB 94 %.
STEP_OVERHEAD_S: launches, sampling, host work of one step.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from kvproof.policies.costs import FLOP_EFFICIENCY, FRAGMENT_OVERHEAD_S, PCIE_EFFICIENCY, STEP_OVERHEAD_S, Costs, pairs_of
from kvproof.sim.hardware import BYTES_PER_VALUE, Device, Model

BANDWIDTH_EFFICIENCY = 0.75
MEMORY_UTILIZATION = 0.9
"""vLLM's default `gpu_memory_utilization`."""

Piece = tuple[int, int, int]
"""(anything, first token, tokens) of a prefill or a piece of one, as in a plan."""
Pairs = Sequence[tuple[int, int]]
"""(source, target) blocks of a swap."""


class Cost(Protocol):
    """What the simulator asks of a cost model. Write your own for other latencies. Seconds; tokens; blocks."""

    def prefill_s(self, pieces: Iterable[Piece]) -> float:
        """A step that computes these pieces of prompts."""

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        """A step in which `sequences` sequences decode that hold `kv_tokens` tokens together."""

    def swap_s(self, pairs: Pairs) -> float:
        """Moving blocks over PCIe, in one direction."""


@attrs.frozen
class Roofline:
    """The cost of steps of `model` on `device`, in seconds."""

    model: Model
    device: Device
    block_size: int = 16
    flop_efficiency: float = FLOP_EFFICIENCY
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    pcie_efficiency: float = PCIE_EFFICIENCY
    fragment_overhead_s: float = FRAGMENT_OVERHEAD_S
    step_overhead_s: float = STEP_OVERHEAD_S
    # What follows from the above, once: a simulation asks for half a million steps.
    layer_flop_per_token: float = attrs.field(init=False)
    sample_flop_per_token: float = attrs.field(init=False)
    attention_flop_per_pair: float = attrs.field(init=False)
    kv_bytes_per_token: int = attrs.field(init=False)
    step_weight_bytes: int = attrs.field(init=False)
    flop_per_s: float = attrs.field(init=False)
    bytes_per_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        model, device = self.model, self.device
        derived = {
            "layer_flop_per_token": 2.0 * model.layer_parameters,
            "sample_flop_per_token": 2.0 * model.head_parameters,
            "attention_flop_per_pair": 4.0 * model.layers * model.heads * model.head_dim,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "step_weight_bytes": (model.parameters - model.head_parameters) * BYTES_PER_VALUE,
            "flop_per_s": self.flop_efficiency * device.peak_flop_per_s,
            "bytes_per_s": self.bandwidth_efficiency * device.memory_bytes_per_s,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block."""
        return self.block_size * self.kv_bytes_per_token

    def costs(self) -> Costs:
        """What `preemption_mode="auto"` begins with: this model on this device."""
        model, link_bytes_per_s = self.model, self.pcie_efficiency * self.device.pcie_bytes_per_s
        return Costs.of_model(
            layers=model.layers,
            heads=model.heads,
            head_dim=model.head_dim,
            kv_heads=model.kv_heads,
            layer_parameters=model.layer_parameters,
            bytes_per_value=BYTES_PER_VALUE,
            block_size=self.block_size,
            flop_per_s=self.flop_per_s,
            out_bytes_per_s=link_bytes_per_s,
            fragment_overhead_s=self.fragment_overhead_s,
            step_overhead_s=self.step_overhead_s,
        )

    def prefill_s(self, pieces: Iterable[Piece]) -> float:
        """Every piece reads what came before it and computes each pair of tokens in it once (causal attention)."""
        flop = 0.0
        kv_tokens = 0
        for _, first, tokens in pieces:
            flop += tokens * self.layer_flop_per_token + self.sample_flop_per_token
            flop += pairs_of(tokens, first) * self.attention_flop_per_pair
            kv_tokens += first + tokens
        moved_bytes = self.step_weight_bytes + kv_tokens * self.kv_bytes_per_token
        return max(flop / self.flop_per_s, moved_bytes / self.bytes_per_s) + self.step_overhead_s

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        """One token per sequence; each reads all it holds."""
        flop = sequences * (self.layer_flop_per_token + self.sample_flop_per_token) + kv_tokens * self.attention_flop_per_pair
        moved_bytes = self.step_weight_bytes + kv_tokens * self.kv_bytes_per_token
        return max(flop / self.flop_per_s, moved_bytes / self.bytes_per_s) + self.step_overhead_s

    def swap_s(self, pairs: Pairs) -> float:
        """A block is one fragment (block-first layout); neighbours that stay neighbours travel as one."""
        if not pairs:
            return 0.0
        moved_bytes = len(pairs) * self.block_bytes
        link_bytes_per_s = self.pcie_efficiency * self.device.pcie_bytes_per_s
        return moved_bytes / link_bytes_per_s + fragments(pairs) * self.fragment_overhead_s


def fragments(pairs: Pairs) -> int:
    """Copy calls for these blocks: runs in which both sides go up, or both go down, by one are one call."""
    count = 0
    step = 0
    before: tuple[int, int] | None = None
    for source, target in pairs:
        moved = 0
        if before is not None and source - before[0] == target - before[1] and abs(source - before[0]) == 1:
            moved = source - before[0]
        if moved == 0 or step not in (0, moved):
            count, step = count + 1, 0
        else:
            step = moved
        before = (source, target)
    return count


def blocks_that_fit(model: Model, device: Device, block_size: int, utilization: float = MEMORY_UTILIZATION) -> int:
    """GPU blocks in the memory that the weights leave: `num_gpu_blocks` unless given. At most 0 if they do not fit."""
    left_bytes = int(utilization * device.memory_bytes) - model.weight_bytes
    return left_bytes // (block_size * model.kv_bytes_per_token)
