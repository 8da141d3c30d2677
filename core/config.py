"""What a scheduler is configured with; the names are vLLM's."""

from typing import Any

import attrs

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


@attrs.frozen(kw_only=True)
class Config:
    """Sizes in blocks or tokens. `vllm_v0` selects the predicates that reproduce vLLM's V0 scheduler.

    Raises `ConfigError` for a value out of range or a combination that cannot work.
    """

    num_gpu_blocks: int = _size(1)
    num_cpu_blocks: int = _size(0)
    block_size: int = _size(1, 16)
    watermark_blocks: int = _size(0, 0)
    max_num_seqs: int = _size(1, 256)
    max_num_batched_tokens: int = _size(1, 2048)
    max_model_len: int = _size(1, 2048)
    vllm_v0: bool = attrs.field(default=False, validator=_flag)

    def __attrs_post_init__(self) -> None:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs: must be <= max_num_batched_tokens ({self.max_num_batched_tokens}), got {self.max_num_seqs}"
            )
        if self.vllm_v0 and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens: without chunked prefill must be >= max_model_len ({self.max_model_len}) "
                f"in profile vllm_v0, got {self.max_num_batched_tokens}"
            )
