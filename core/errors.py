"""What a transition may raise: only this, and only before it has changed anything that survives."""


class Rejected(Exception):  # noqa: N818  (the name of the concept)
    """A transition's guard is false. The draft is abandoned, so the state is what it was."""


def require(condition: bool, reason: str) -> None:
    """The guard of a transition: raise `Rejected(reason)` unless `condition` holds."""
    if not condition:
        raise Rejected(reason)
