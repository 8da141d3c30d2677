"""What the backend refuses to do. Every kind is a fault of the scheduler or of the engine's notices, never of a request."""

from enum import StrEnum
from typing import NoReturn


class Misuse(StrEnum):
    """The kinds of misuse that are caught."""

    OUT_OF_RANGE = "a block id that exists on no device"
    WRONG_DEVICE = "a block of the wrong device"
    FREE_BLOCK = "use of a free block"
    TWO_OWNERS = "a block handed to two owners"
    TWO_WRITERS = "two writers of one slot or block"
    OVERWRITTEN_SOURCE = "a source that was overwritten earlier in the plan"
    TARGET_IS_SOURCE = "a target that is also a source of its list"
    BOTH_DIRECTIONS = "both swap directions in one plan"
    UNOWNED_TARGET = "a target that belongs to nobody after the plan"
    WRONG_MAP = "a swap map that does not match the tables of the groups that it moves"
    BAD_INDEX = "a slot that leaves a hole in its table or replaces a block without a copy"
    UNKNOWN_GROUP = "a group without a table"
    NO_SLOT = "a position beyond its table"
    STALE_READ = "a slot that was not written since its block was handed out"
    HAZARD = "misuse of streams or memory"
    CORRUPTED = "a slot whose contents are not what was written"
    FOREIGN_READ = "a slot that somebody else, or another position, wrote"


class BackendError(Exception):
    """A plan or a read that must not happen. `kind` says which rule it breaks, the message where."""

    def __init__(self, kind: Misuse, where: str) -> None:
        super().__init__(f"{kind.value}: {where}")
        self.kind = kind


def fail(kind: Misuse, where: str) -> NoReturn:
    """Raise the `BackendError`."""
    raise BackendError(kind, where)
