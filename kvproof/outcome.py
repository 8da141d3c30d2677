"""How a request ended."""

import attrs

from kvproof.core.status import Status


@attrs.frozen
class Outcome:
    """How a request ended. `tokens`: prompt + generated tokens of the sequences that lived to its end."""

    group: int
    status: Status
    prompt_tokens: int
    tokens: int
    reason: str | None = None
    """One sentence that names the limit it met; None where it simply got its output or was stopped by the engine."""
    recomputed: int = 0
    """How often it was preempted by recompute."""
    swapped: int = 0
    """How often it was preempted by swap."""
    outputs: tuple[int, ...] = ()
    """Generated tokens of every sequence that it ever had, in the order of their indices."""

    @property
    def output_tokens(self) -> int:
        """Generated tokens of a sequence that lived to the end."""
        return self.tokens - self.prompt_tokens
