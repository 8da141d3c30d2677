"""What the engine of a run knows: what it has asked for, been told and computed. Nothing here is read from the scheduler."""

import copy

import attrs

from kvproof.backend_fake import FakeBackend, FakeModel
from kvproof.books import Snapshot
from kvproof.core.config import Config
from kvproof.spec.told import Told
from kvproof.store.plan import Plan

Results = list[tuple[int, ...]]
Key = tuple[int, int]
"""A group and one of its sequences."""


@attrs.define
class Group:
    """A request that has not ended."""

    prompt: int
    limit: int
    """Tokens at which it ends."""
    priority: int
    arrival: float
    seats: int
    reserve: int
    children: int
    """So many sequences fork off its first as soon as that has a token."""
    live: list[int] = attrs.field(factory=lambda: [0])
    bound: int = 1
    """So many sequences it has ever had."""
    recomputed: int = 0
    swapped: int = 0
    often: int = 0
    """Preemptions that no event forced."""
    unheard: bool = False
    """The last step that was to give it a token had no result for it, so that it still has the slot of its last token."""
    deny: int = 0
    """So many questions whether it can append are to be answered no."""

    def drop(self, q: int) -> bool:
        """q ends, others go on. False: its seat stays reserved."""
        self.live.remove(q)
        gives = self.seats > self.reserve
        self.seats -= gives
        return gives


@attrs.frozen
class Ending:
    """What the outcome of a group that has ended must say."""

    group: Group
    tokens: int
    outputs: tuple[int, ...]


@attrs.define
class Memory:
    """All that changes in a run but for the scheduler."""

    backend: FakeBackend
    model: FakeModel
    told: Told = attrs.field(factory=Told)
    ids: list[int] = attrs.field(factory=list)
    """Everybody who has come, in order."""
    groups: dict[int, Group] = attrs.field(factory=dict)
    ending: dict[int, Ending] = attrs.field(factory=dict)
    """Ended, and the outcome is still to come."""
    forced: dict[int, str | None] = attrs.field(factory=dict)
    """Whom the next pass preempts first, and how."""
    now: float = 0
    """Time of the next pass."""
    admitted: float | None = None
    """Time of the last pass, if it admitted anybody."""
    took: float = 0
    """How long the last step took that admitted somebody."""
    plan: Plan | None = None
    """In flight: executed and computed, its results not yet taken back."""
    results: Results = attrs.field(factory=list)
    asked: list[int] = attrs.field(factory=list)
    """The groups that this step was to give a token."""
    made: list[Key] = attrs.field(factory=list)
    """The sequences that got a token in this step."""
    snapshot: Snapshot | None = None
    """The scheduler's, if this moment is kept."""

    @staticmethod
    def of(config: Config) -> "Memory":
        """Nobody has come yet."""
        backend = FakeBackend(config.num_gpu_blocks, config.num_cpu_blocks, config.block_size)
        return Memory(backend, FakeModel(backend))

    def copy(self) -> "Memory":
        """A deep copy; serial numbers go on, so that no two writers ever have one."""
        numbers = self.backend._numbers
        return copy.deepcopy(self, {id(numbers): numbers})

    def length(self, g: int, q: int) -> int:
        """Prompt and generated tokens of q, with one that a step in flight has made."""
        return self.model.sequences[g, q].length

    def lengths(self) -> dict[Key, int]:
        """Those of every live sequence."""
        return {(g, q): self.length(g, q) for g, group in self.groups.items() for q in group.live}

    def rank(self, g: int) -> tuple[int, int]:
        """The place of g in policy order."""
        return self.groups[g].priority, g

    def protected(self, g: int, config: Config) -> bool:
        """Was g preempted as often as it may be?"""
        most = config.max_preemptions_per_request
        return most is not None and self.groups[g].often >= most

    def take_back(self, keys: set[Key]) -> None:
        """These results are lost: the model forgets the last token of each."""
        for key in keys.intersection(self.made):
            self.model.sequences[key].output.pop()
        self.made = [key for key in self.made if key not in keys]

    def close(self, g: int) -> None:
        """g has ended, its outcome is to come."""
        group = self.groups.pop(g)
        outputs = tuple(len(self.model.output(g, q)) for q in range(group.bound))
        self.ending[g] = Ending(group, self.length(g, group.live[0]), outputs)

    def release(self, g: int) -> None:
        """The engine lets go of g."""
        self.backend.release(g)
        self.told.ended(g)

    def drop(self, g: int, q: int) -> bool:
        """Sequence q of g has ended, others go on. False: its seat stays reserved."""
        self.backend.release_sequence(g, q)
        self.told.finished(g, q)
        return self.groups[g].drop(q)
