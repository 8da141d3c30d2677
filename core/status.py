"""The statuses of a sequence group and the moves between them: one table, from which the docs' diagram is made.

A group is WAITING (owns nothing), RUNNING (owns GPU blocks only) or SWAPPED (owns host blocks only) until it ends;
an ended one owns nothing. All sequences of a group share its status, so they move together by construction.
"""

from enum import IntEnum


class Status(IntEnum):
    """Where a group stands. ABSENT: not (or no longer) known to the scheduler."""

    ABSENT = 0
    WAITING = 1
    RUNNING = 2
    SWAPPED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_CAPACITY = 6
    FINISHED_ABORTED = 7
    FINISHED_IGNORED = 8


LEGAL_MOVES: tuple[tuple[Status, Status, str], ...] = (
    (Status.ABSENT, Status.WAITING, "add"),
    (Status.WAITING, Status.RUNNING, "admit"),
    (Status.WAITING, Status.FINISHED_IGNORED, "refuse"),
    (Status.WAITING, Status.FINISHED_CAPACITY, "refuse"),
    (Status.WAITING, Status.FINISHED_ABORTED, "abort"),
    (Status.RUNNING, Status.WAITING, "preempt by recompute"),
    (Status.RUNNING, Status.SWAPPED, "preempt by swap"),
    (Status.RUNNING, Status.FINISHED_STOPPED, "finish"),
    (Status.RUNNING, Status.FINISHED_LENGTH_CAPPED, "finish"),
    (Status.RUNNING, Status.FINISHED_CAPACITY, "end for capacity"),
    (Status.RUNNING, Status.FINISHED_ABORTED, "abort"),
    (Status.SWAPPED, Status.RUNNING, "swap in"),
    (Status.SWAPPED, Status.FINISHED_CAPACITY, "end for capacity"),
    (Status.SWAPPED, Status.FINISHED_ABORTED, "abort"),
    (Status.FINISHED_STOPPED, Status.ABSENT, "forget"),
    (Status.FINISHED_LENGTH_CAPPED, Status.ABSENT, "forget"),
    (Status.FINISHED_CAPACITY, Status.ABSENT, "forget"),
    (Status.FINISHED_ABORTED, Status.ABSENT, "forget"),
    (Status.FINISHED_IGNORED, Status.ABSENT, "forget"),
)
