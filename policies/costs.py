"""What it costs to preempt: seconds to compute tokens again, seconds to move blocks to the host and back.

    recompute = tokens x s_per_token + attended pairs x s_per_pair + recompute_overhead_s
    swap      = 2 x transfer_overhead_s + blocks x (out_s_per_block + in_s_per_block)

Attended pairs are the pairs of a token and one that it attends to (itself included): n (n + 1) / 2 for a prefill of n tokens,
the term quadratic in the context. Everything is a pure function of its arguments.

The defaults of `Costs()` are those of `Costs.of_model()`: a model of the shape of Llama-2-7B in 16 bits on an A100, blocks of 16
tokens. They are assumptions, not measurements (`kvproof.policies.calibrated` measures). Sources:
FLOP_PER_S: 312 TFLOP/s of dense bf16, NVIDIA A100 data sheet. PCIE_BYTES_PER_S: PCIe generation 4 x16, 32 GB/s one way.
FLOP_EFFICIENCY: large bf16 matrix products with attention reach about half of the peak in published prefill measurements.
PCIE_EFFICIENCY: pinned copies reach about 25 GB/s of 32 (generation 4) and 50 to 55 of 64 (generation 5).
FRAGMENT_OVERHEAD_S: one copy call; with it a fragment of 32 KB gets a fifth of PCIe generation 4, one of 2 MB 94 %.
STEP_OVERHEAD_S, OVERHEAD_SHARE: launches and host work of a step, and the part of it that one recompute answers for, since a
step of prefills takes several.
"""

from typing import Any

import attrs

FLOP_PER_S = 312e12
FLOP_EFFICIENCY = 0.5
PCIE_BYTES_PER_S = 32e9
PCIE_EFFICIENCY = 0.8
FRAGMENT_OVERHEAD_S = 5e-6
STEP_OVERHEAD_S = 2e-3
OVERHEAD_SHARE = 0.25
SECONDS_MAX = 1e6
"""No parameter of `Costs` is larger."""


def _seconds(instance: object, attribute: "attrs.Attribute[float]", value: object) -> None:
    """A finite number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= SECONDS_MAX:
        raise ValueError(f"{attribute.name}: must be a number of seconds from 0 to {SECONDS_MAX:g}, got {value!r}")


def pairs_of(tokens: int, first: int = 0) -> int:
    """Attended pairs of a prefill of `tokens` tokens, the first of which comes after `first` others (causal attention)."""
    return tokens * first + tokens * (tokens + 1) // 2


def _positive(**values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ValueError(f"{name}: must be a number > 0, got {value!r}")


def parameters_of(layers: int, heads: int, head_dim: int, kv_heads: int, ffn_ratio: float = 2.6875) -> int:
    """Parameters of the layers of a transformer with a gated feed-forward part of `ffn_ratio` x the hidden size (Llama's)."""
    hidden = heads * head_dim
    return int(layers * hidden * (2 * hidden + 2 * kv_heads * head_dim + 3 * ffn_ratio * hidden))


@attrs.frozen(kw_only=True)
class Costs:
    """Seconds. Raises ValueError, which names the parameter, for a number that is negative, not finite or above SECONDS_MAX."""

    s_per_token: float = attrs.field(default=8.3e-5, validator=_seconds)
    """To compute one token in a prefill, attention left out."""
    s_per_pair: float = attrs.field(default=3.4e-9, validator=_seconds)
    """For one attended pair."""
    recompute_overhead_s: float = attrs.field(default=5e-4, validator=_seconds)
    """What one recompute answers for of the fixed time of a step."""
    out_s_per_block: float = attrs.field(default=3.33e-4, validator=_seconds)
    """To move a block to the host, its fragments included."""
    in_s_per_block: float = attrs.field(default=3.33e-4, validator=_seconds)
    """To move one back."""
    transfer_overhead_s: float = attrs.field(default=1e-5, validator=_seconds)
    """Fixed time of a transfer, in either direction."""

    @classmethod
    def of_model(
        cls,
        *,
        layers: int = 32,
        heads: int = 32,
        head_dim: int = 128,
        kv_heads: int | None = None,
        layer_parameters: int | None = None,
        bytes_per_value: int = 2,
        block_size: int = 16,
        flop_per_s: float = FLOP_PER_S * FLOP_EFFICIENCY,
        out_bytes_per_s: float = PCIE_BYTES_PER_S * PCIE_EFFICIENCY,
        in_bytes_per_s: float | None = None,
        fragment_bytes: int | None = None,
        fragment_overhead_s: float = FRAGMENT_OVERHEAD_S,
        step_overhead_s: float = STEP_OVERHEAD_S,
        overhead_share: float = OVERHEAD_SHARE,
    ) -> "Costs":
        """From the shape of a model and the figures of a device that it really reaches.

        kv_heads: as many as heads unless given. layer_parameters: estimated from the shape unless given. fragment_bytes: what
        lies together of a block (a whole block unless given; with one tensor for each layer's keys, and one for its values, it is
        block_size x kv_heads x head_dim x bytes_per_value). Raises ValueError for a number that is not > 0.
        """
        kv_heads = heads if kv_heads is None else kv_heads
        back = out_bytes_per_s if in_bytes_per_s is None else in_bytes_per_s
        _positive(layers=layers, heads=heads, head_dim=head_dim, kv_heads=kv_heads, bytes_per_value=bytes_per_value)
        _positive(block_size=block_size, flop_per_s=flop_per_s, out_bytes_per_s=out_bytes_per_s, in_bytes_per_s=back)
        block_bytes = 2 * block_size * layers * kv_heads * head_dim * bytes_per_value
        fragment = block_bytes if fragment_bytes is None else fragment_bytes
        parameters = parameters_of(layers, heads, head_dim, kv_heads) if layer_parameters is None else layer_parameters
        _positive(fragment_bytes=fragment, layer_parameters=parameters)
        fragments_s = -(-block_bytes // fragment) * fragment_overhead_s
        return cls(
            s_per_token=2 * parameters / flop_per_s,
            s_per_pair=4 * layers * heads * head_dim / flop_per_s,
            recompute_overhead_s=overhead_share * step_overhead_s,
            out_s_per_block=block_bytes / out_bytes_per_s + fragments_s,
            in_s_per_block=block_bytes / back + fragments_s,
        )

    def recompute_s(self, tokens: int, pairs: int | None = None) -> float:
        """To compute `tokens` tokens in one prefill; `pairs`: attended pairs, those of one sequence unless given."""
        attended = tokens * (tokens + 1) / 2 if pairs is None else pairs
        return tokens * self.s_per_token + attended * self.s_per_pair + self.recompute_overhead_s

    def swap_s(self, blocks: int) -> float:
        """To move so many blocks to the host and back."""
        return blocks * (self.out_s_per_block + self.in_s_per_block) + 2 * self.transfer_overhead_s
