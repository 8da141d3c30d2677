"""What a draft holds: a state's scalars, maps and queues, opened for editing, and the scratch of one pass."""

from typing import TYPE_CHECKING

from kvproof.store.collections import Free, Members, Pool, Refs, Table
from kvproof.store.maps import Logged, Map
from kvproof.store.plan import PlanDraft
from kvproof.store.policies import Policy
from kvproof.store.queues import Calendar, Queue, Twin
from kvproof.store.state import QUEUES, State
from kvproof.store.versions import NAMES, Version

if TYPE_CHECKING:
    from kvproof.core.config import Config


class Contents:
    """The attributes of a draft, by name. The maps are those of `State`."""

    __slots__ = (
        *("config", "clock", "ticket", "seqs", "decoders", "issued", "prefilled", "epoch", "denied", "timing"),
        *("owing", "bounded"),
        *NAMES,
        *("gpu", "cpu", *QUEUES),
        *("spent", "charged", "granted", "stopped", "testing", "asked", "plan", "policy", "twin", "base", "_version", "_closed"),
    )
    status: Map[int]
    key: Map[int]
    prompt: Map[int]
    length: Map[int]
    computed: Map[int]
    limit: Map[int]
    born: Map[int]
    seats: Map[int]
    reserve: Map[int]
    priority: Map[int]
    ungiven: Map[int]
    preemptions: Map[int]
    owed: Map[int]
    arrival: Map[float]
    deny: Map[int]
    alarm: Logged[int]
    expires: Logged[int]
    members: Members
    table: Table
    refs: Refs
    due: Calendar
    expiry: Calendar
    config: "Config"
    clock: int
    ticket: int
    seqs: int
    decoders: int
    issued: bool
    prefilled: bool
    epoch: int
    denied: int
    timing: tuple[float, float | None, float]
    owing: int
    bounded: bool
    """Is there a limit to how often a request is preempted?"""
    free: Free
    gpu: Pool
    cpu: Pool
    waiting: Queue
    running: Queue
    swapped: Queue
    prefilling: Queue
    sampling: Queue
    idle: Queue
    spent: int
    charged: int
    asked: int
    granted: bool
    stopped: bool
    testing: bool
    plan: PlanDraft
    policy: Policy
    twin: Twin
    base: State
    _version: Version | None
    _closed: bool
