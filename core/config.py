"""What a scheduler is configured with; the names are vLLM's."""

from typing import Any

import attrs

MODES = (None, "recompute", "swap")
PROFILES = ("kvproof", "vllm_v0")


class ConfigError(ValueError):
    """A configuration that cannot work. The message names the field."""


def _at_least(low: int) -> Any:
    def check(instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
        if type(value) is not int:
            raise ConfigError(f"{attribute.name}: must be an integer, got {value!r}")
        if value < low:
            raise ConfigError(f"{attribute.name}: must be >= {low}, got {value}")
        if value > LARGEST:
            raise ConfigError(f"{attribute.name}: must be <= {LARGEST}, got {value}")

    return check


LARGEST = 2**40


@attrs.frozen(kw_only=True)
class Config:
    """Sizes in blocks or tokens. `vllm_v0` selects the predicates that reproduce vLLM's V0 scheduler.

    Raises `ConfigError` for a value out of range or a combination that cannot work.
    """

    num_gpu_blocks: int = attrs.field(validator=_at_least(1))
    num_cpu_blocks: int = attrs.field(validator=_at_least(0))
    block_size: int = attrs.field(default=16, validator=_at_least(1))
    watermark_blocks: int = attrs.field(default=0, validator=_at_least(0))
    max_num_seqs: int = attrs.field(default=256, validator=_at_least(1))
    max_num_batched_tokens: int = attrs.field(default=2048, validator=_at_least(1))
    max_model_len: int = attrs.field(default=2048, validator=_at_least(1))
    vllm_v0: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))

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
