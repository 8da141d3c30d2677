"""What a scheduler is configured with; the names are vLLM's."""

from typing import Any

import attrs
from attrs.validators import optional

MODES = (None, "recompute", "swap")
PROFILES = ("kvproof", "vllm_v0")


class ConfigError(ValueError):
    """A configuration that cannot work. The message names the field."""


LARGEST = 2**40


def _whole(instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
    """A whole number from the field's least value to LARGEST."""
    low = attribute.metadata["least"]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{attribute.name}: must be an integer, got {value!r}")
    if value < low:
        raise ConfigError(f"{attribute.name}: must be >= {low}, got {value}")
    if value > LARGEST:
        raise ConfigError(f"{attribute.name}: must be <= {LARGEST}, got {value}")


def _flag(instance: object, attribute: "attrs.Attribute[bool]", value: object) -> None:
    """True or false, nothing that counts as such."""
    if not isinstance(value, bool):
        raise ConfigError(f"{attribute.name}: must be true or false, got {value!r}")


def _size(least: int, default: Any = attrs.NOTHING) -> Any:
    """A field that is checked by `_whole`."""
    return attrs.field(default=default, validator=_whole, metadata={"least": least})


def _factor(instance: object, attribute: "attrs.Attribute[float]", value: object) -> None:
    """A finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        raise ConfigError(f"{attribute.name}: must be a number >= 0, got {value!r}")


def _share(instance: object, attribute: "attrs.Attribute[float]", value: object) -> None:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{attribute.name}: must be a number from 0 to 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ArtificialPreemption:
    """For tests of an engine: the answer to "is there room for its next token?" is no at random, though there may be."""

    seed: int = _size(0, 0)
    probability: float = attrs.field(default=0.5, validator=_share)
    max_count: int = _size(0, 500)


def _artificial(instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    """None, or how."""
    if value is not None and not isinstance(value, ArtificialPreemption):
        raise ConfigError(f"{attribute.name}: must be None or an ArtificialPreemption, got {value!r}")


@attrs.frozen(kw_only=True)
class Config:
    """Sizes in blocks or tokens. `vllm_v0` selects the predicates that reproduce vLLM's V0 scheduler.

    `watermark_blocks`: kept free by admission and swap-in while anything runs. `max_num_seqs`: sequences that run at once.
    `max_num_batched_tokens`: tokens of a step. `max_model_len`: of a prompt, and of prompt + generated. `num_lookahead_slots`:
    slots beyond the next token that a decoding group of one sequence gets while blocks are free.
    `priority`: the queues are in order of (priority, arrival), and a head of the line displaces those that rank below it.
    `choose_victims`: the policy names who is preempted for whom blocks lack, among those that rank below (V0: not).
    `max_preemptions_per_request`: who was preempted so often is never preempted again, and comes in only when all blocks that it
    may ever hold can be kept for it (V0: not). 0: nobody comes in otherwise. None: no limit.
    `delay_factor`: admission waits until the first arrival has waited this many times the duration of the last prefill step.

    Raises `ConfigError` for a value out of range or a combination that cannot work.
    """

    num_gpu_blocks: int = _size(1)
    num_cpu_blocks: int = _size(0)
    block_size: int = _size(1, 16)
    watermark_blocks: int = _size(0, 0)
    max_num_seqs: int = _size(1, 256)
    max_num_batched_tokens: int = _size(1, 2048)
    max_model_len: int = _size(1, 2048)
    enable_chunked_prefill: bool = attrs.field(default=False, validator=_flag)
    num_lookahead_slots: int = _size(0, 0)
    delay_factor: float = attrs.field(default=0.0, validator=_factor)
    priority: bool = attrs.field(default=False, validator=_flag)
    choose_victims: bool = attrs.field(default=False, validator=_flag)
    max_preemptions_per_request: int | None = attrs.field(default=None, validator=optional(_whole), metadata={"least": 0})
    artificial_preemption: ArtificialPreemption | None = attrs.field(default=None, validator=_artificial)
    vllm_v0: bool = attrs.field(default=False, validator=_flag)

    def __attrs_post_init__(self) -> None:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs: must be <= max_num_batched_tokens ({self.max_num_batched_tokens}), got {self.max_num_seqs}"
            )
        if self.choose_victims and self.vllm_v0:
            raise ConfigError("choose_victims: must be false in profile vllm_v0, which evicts the tail of its queue")
        if self.max_preemptions_per_request is not None and self.vllm_v0:
            raise ConfigError("max_preemptions_per_request: must not be set in profile vllm_v0, which preempts without a limit")
        if self.watermark_blocks >= self.num_gpu_blocks:
            raise ConfigError(f"watermark_blocks: must be < num_gpu_blocks ({self.num_gpu_blocks}), got {self.watermark_blocks}")
        if self.vllm_v0 and not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens: without chunked prefill must be >= max_model_len ({self.max_model_len}) "
                f"in profile vllm_v0, got {self.max_num_batched_tokens}"
            )
