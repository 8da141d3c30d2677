"""What can be said against the lists of a plan without knowing any table: ids, devices, order, writers."""

from collections.abc import Iterable

from kvproof.backend_fake.errors import Misuse, fail
from kvproof.store.plan import Plan

Pairs = tuple[tuple[int, int], ...]


class Sizes:
    """GPU blocks are 0 .. gpu - 1, host blocks gpu .. gpu + host - 1."""

    def __init__(self, gpu: int, host: int) -> None:
        self.gpu, self.host = gpu, host

    def on(self, device: str, b: int, where: str) -> None:
        """b must be a block of this device."""
        if not 0 <= b < self.gpu + self.host:
            fail(Misuse.OUT_OF_RANGE, f"{where}: {b}, there are {self.gpu} GPU and {self.host} host blocks")
        if (b < self.gpu) != (device == "gpu"):
            fail(Misuse.WRONG_DEVICE, f"{where}: {b} is not a {device} block")


def check_ids(sizes: Sizes, plan: Plan) -> None:
    """Every id exists, on the side where it is used."""
    sides = (
        ("swap_out", plan.swap_out, "gpu", "host"),
        ("swap_in", plan.swap_in, "host", "gpu"),
        ("copy", plan.copy, "gpu", "gpu"),
    )
    for name, pairs, source_side, target_side in sides:
        for i, (source, target) in enumerate(pairs):
            sizes.on(source_side, source, f"{name}[{i}] source")
            sizes.on(target_side, target, f"{name}[{i}] target")
    for i, (_, _, _, b) in enumerate(plan.slots):
        sizes.on("gpu", b, f"slots[{i}]")


def check_writers(targets: Iterable[int]) -> None:
    """No block is the target of two transfers."""
    seen: set[int] = set()
    for b in targets:
        if b in seen:
            fail(Misuse.TWO_WRITERS, f"block {b} is the target of two transfers")
        seen.add(b)


def check_order(pairs: Pairs) -> None:
    """No target of the list is also a source of it: one of the two readings of the list would be wrong."""
    later = {source for source, _ in pairs}
    written: set[int] = set()
    for i, (source, target) in enumerate(pairs):
        if source in written:
            fail(Misuse.OVERWRITTEN_SOURCE, f"copy[{i}] reads block {source} after an earlier copy wrote it")
        written.add(target)
    for i, (_, target) in enumerate(pairs):
        if target in later:
            fail(Misuse.TARGET_IS_SOURCE, f"copy[{i}] writes block {target}, which the list also reads")


def check_lists(sizes: Sizes, plan: Plan) -> None:
    """All of the above, and one swap direction at most."""
    check_ids(sizes, plan)
    if plan.swap_out and plan.swap_in:
        fail(Misuse.BOTH_DIRECTIONS, f"{len(plan.swap_out)} blocks out and {len(plan.swap_in)} in")
    check_writers(b for pairs in (plan.swap_out, plan.swap_in, plan.copy) for _, b in pairs)
    check_order(plan.copy)
