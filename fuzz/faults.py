"""What a run may find: a fault names the check that failed and says on what."""

from typing import NoReturn


class Fault(AssertionError):  # noqa: N818  (the name of the concept)
    """The system did something that it must not do."""


def fault(check: str, what: object) -> NoReturn:
    """Raise the `Fault`."""
    raise Fault(f"{check}: {what}")


def nothing(check: str, found: object) -> None:
    """A check that lists what is wrong must have found nothing."""
    if found:
        fault(check, found)


def equal(check: str, got: object, wanted: object) -> None:
    """Two readings of one thing must agree."""
    if got != wanted:
        fault(check, f"{got} where {wanted} is right")
