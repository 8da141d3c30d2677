"""The immutable State: everything that the scheduler knows."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from kvproof.store.collections import Cell, cell_blocks, cells
from kvproof.store.queues import Pair
from kvproof.store.versions import NAMES, NUMBER, Version, View, maps_of

if TYPE_CHECKING:
    from kvproof.core.config import Config

V = TypeVar("V")
QUEUES = ("waiting", "running", "swapped", "prefilling", "sampling", "idle")


class Reading(Generic[V]):
    """A property of State: the map of this name, read only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, state: "State", owner: type) -> View[V]:
        return View(state.maps, self.name)


@attrs.frozen(eq=False, slots=False, repr=False)  # slots would make every close 17 empty calls dearer
class State:
    """Everything the scheduler knows, immutable. Old states stay readable; to go on from one costs one copy.

    The maps (`status`, `length`, `table`, ...) are read through properties: `state.length[g]`.
    """

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
    """Time of the last pass; of the last that admitted somebody, if none came after it; how long the step of such a one took."""
    owing: int
    """GPU blocks that are kept for those that may not be preempted again."""
    maps: Version
    gpu: Cell
    gpu_free: int
    cpu: Cell
    cpu_free: int
    waiting: Pair
    running: Pair
    swapped: Pair
    prefilling: Pair
    sampling: Pair
    idle: Pair

    def __repr__(self) -> str:
        """A line: the free lists nest too deep to be printed."""
        queues = ", ".join(f"{name} {len(getattr(self, name)[1])}" for name in ("waiting", "running", "swapped"))
        return f"<State after pass {self.epoch}: {queues}, free {self.gpu_free} + {self.cpu_free}>"

    def __deepcopy__(self, memo: Any) -> "State":
        """Itself: it never changes."""
        return self

    def __copy__(self) -> "State":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """No pickling: a state is one of a tree of versions."""
        raise TypeError("a State cannot be pickled; kvproof.serial writes it as JSON")

    status = Reading[int]()
    key = Reading[int]()
    prompt = Reading[int]()
    length = Reading[int]()
    computed = Reading[int]()
    limit = Reading[int]()
    born = Reading[int]()
    seats = Reading[int]()
    reserve = Reading[int]()
    priority = Reading[int]()
    ungiven = Reading[int]()
    preemptions = Reading[int]()
    owed = Reading[int]()
    arrival = Reading[float]()
    deny = Reading[int]()
    alarm = Reading[int]()
    expires = Reading[int]()
    members = Reading[Any]()
    table = Reading[Any]()
    refs = Reading[int]()
    due = Reading[Any]()
    expiry = Reading[Any]()
    free = Reading[bool]()

    def free_blocks(self) -> tuple[list[int], list[int]]:
        """The free blocks of the GPU and of the host, those that were pushed last first. Costs O(pools)."""
        free = self.maps.read(NUMBER["free"])
        return cell_blocks(self.gpu, free), cell_blocks(self.cpu, free)


def initial(config: "Config") -> State:
    """Nothing is known, every block is free."""
    g, c = config.num_gpu_blocks, config.num_cpu_blocks
    nobody: Pair = ((), ())
    scalars: dict[str, Any] = {"clock": 1, "ticket": 0, "seqs": 0, "decoders": 0, "issued": False, "prefilled": False, "epoch": 0}
    scalars |= {"denied": 0, "timing": (0, None, 0), "owing": 0}
    maps = Version(maps_of([dict.fromkeys(range(g + c), True) if name == "free" else {} for name in NAMES]))
    pools: dict[str, Any] = {"gpu": cells(range(g)), "gpu_free": g, "cpu": cells(range(g, g + c)), "cpu_free": c}
    queues: dict[str, Any] = dict.fromkeys(QUEUES, nobody)
    return State(config=config, **scalars, maps=maps, **pools, **queues)
