"""States and plans as JSON, for bug reports and restarts: on one that was written and read, a scheduler goes on as on the first.

The layout follows from the classes: every field of `State`, `Plan` and `Config` and every map of `store.versions.NAMES`, by
their declared types, so that one that is added is written and read without a change here. A map is an array of [key, value] with
ascending keys, a free list an array with the top first, a table the array of its blocks. Reading is strict: whatever is missing,
unknown, of another type or against the specification is refused.
"""

import typing
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvproof.checking import violations
from kvproof.codec import SCALARS, Codec, codec_of, fields, instance
from kvproof.core.config import Config
from kvproof.fields import Field, array, integer, record, wrong
from kvproof.scheduler import Scheduler
from kvproof.store.collections import Cell, Kin, Members, Refs, Table, cells
from kvproof.store.contents import Contents
from kvproof.store.plan import Plan
from kvproof.store.queues import Calendar, Pair
from kvproof.store.state import State
from kvproof.store.versions import NAMES, NUMBER, Version, maps_of
from kvproof.strictjson import ScenarioError

FORMAT = 1
Json = dict[str, Any]


class LoadError(ValueError):
    """JSON that is no state or plan. The message is one line that names the place and what would be right."""


number = SCALARS[int]
WRITTEN = tuple(name for name in NAMES if name != "free")
"""The maps. Who is free follows from the pools."""


def _read_queue(value: Any, path: str) -> Pair:
    keys, ids = codec_of(Pair).read(value, path)
    if len(keys) != len(ids):
        raise ScenarioError(f"{path}: must have as many keys as groups, has {len(keys)} and {len(ids)}")
    return keys, ids


def _read_pool(value: Any, path: str) -> Any:
    blocks = codec_of(list[int]).read(value, path)
    seen: set[int] = set()
    for i, b in enumerate(blocks):
        if b in seen:
            raise ScenarioError(f"{path}[{i}]: block {b} is there already")
        seen.add(b)
    return cells(blocks)


def _read_sequence(value: Any, path: str) -> Any:
    """The key of a table: a group, or [group, sequence] of a later sequence."""
    if not isinstance(value, list):
        return number.read(value, path)
    g, q = codec_of(tuple[int, int]).read(value, path)
    return (g, q) if q else wrong(f"{path}[1]", "a sequence other than 0, whose key is its group", q)


def _read_row(value: Any, path: str) -> tuple[list[int], int]:
    blocks = codec_of(list[int]).read(value, path)
    return blocks, len(blocks)


pool = Codec(lambda cell: [], _read_pool)
"""Written by `state_codec`, which knows who counts."""
queue = Codec(codec_of(Pair).write, _read_queue)
sequence = Codec(lambda key: list(key) if isinstance(key, tuple) else key, _read_sequence)
table_row = Codec(lambda row: row[0][: row[1]], _read_row)  # the rest of the list belongs to other versions
KINDS: dict[Any, tuple[Codec, Codec]] = {
    Members: (number, codec_of(tuple[tuple[int, ...], int, Kin])),
    Table: (sequence, table_row),
    Refs: (number, number),
    Calendar: (number, codec_of(set[int])),
}
"""Class of a map -> codecs of its keys and values. All others are `Map[value]` or `Logged[value]` with groups as keys."""


def _codecs_of(name: str) -> tuple[Codec, Codec]:
    """Those of keys and values of a map, from its annotation in what a draft holds."""
    kind = Contents.__annotations__[name]
    if kind in KINDS:
        return KINDS[kind]
    (value,) = typing.get_args(kind) or (kind,)
    return number, codec_of(value)


def _map(key: Codec, value: Codec) -> Codec:
    """A map as an array of pairs."""

    def place(k: Any) -> tuple[int, int]:
        return k if isinstance(k, tuple) else (k, 0)

    def write(data: Mapping[Any, Any]) -> Any:
        return [[key.write(k), value.write(data[k])] for k in sorted(data, key=place)]

    def read(pairs: Any, path: str) -> Any:
        data: dict[Any, Any] = {}
        for i, pair in enumerate(array(pairs, path)):
            here = f"{path}[{i}]"
            if len(array(pair, here)) != 2:
                wrong(here, "a pair [key, value]", pair)
            k = key.read(pair[0], f"{here}[0]")
            if k in data:
                raise ScenarioError(f"{here}[0]: is a key already")
            data[k] = value.read(pair[1], f"{here}[1]")
        return data

    return Codec(write, read)


def _version() -> Codec:
    """All maps, by name."""
    codecs = {name: _map(*_codecs_of(name)) for name in WRITTEN}
    table = {name: Field(codec.read) for name, codec in codecs.items()}

    def write(version: Version) -> Any:
        return {name: codec.write(version.read(NUMBER[name])) for name, codec in codecs.items()}

    def read(value: Any, path: str) -> Any:
        contents = fields(value, path, table)
        return Version(maps_of([contents.get(name, {}) for name in NAMES]))

    return Codec(write, read)


def state_codec(kind: type[State] = State) -> Codec:
    """Of State, or of a class that has more fields."""
    plain = instance(kind, {Cell: pool, Pair: queue, Version: _version(), "Config": instance(Config)})

    def write(state: State) -> Any:
        gpu, cpu = state.free_blocks()
        return plain.write(state) | {"gpu": gpu, "cpu": cpu}

    def read(value: Any, path: str) -> Any:
        state = plain.read(value, path)
        blocks = [b for name in ("gpu", "cpu") for b in value[name]]
        state.maps.maps[NUMBER["free"]].update(dict.fromkeys(blocks, True))
        return state

    return Codec(write, read)


STATES, PLANS = state_codec(), codec_of(Plan)


def _load(value: Any, what: str, codec: Codec) -> Any:
    """The value, if its format is ours. Raises LoadError."""
    try:
        if isinstance(value, dict):
            record({"format": value["format"]} if "format" in value else {}, what, {"format": Field(integer(FORMAT, FORMAT))})
            value = {name: part for name, part in value.items() if name != "format"}
        return codec.read(value, what)
    except ScenarioError as error:
        raise LoadError(str(error)) from None


def _check_sizes(state: State) -> None:
    """The numbers of blocks and of references, which the specification takes for the sizes of what it looks at."""
    config, names = state.config, Counter(b for blocks, _ in state.table.to_dict().values() for b in blocks)
    gpu, cpu = state.free_blocks()
    for pool_name, total, blocks, free in (
        ("gpu", config.num_gpu_blocks, gpu, state.gpu_free),
        ("cpu", config.num_cpu_blocks, cpu, state.cpu_free),
    ):
        if len(blocks) != free:
            raise LoadError(f"state.{pool_name}_free: must be the {len(blocks)} blocks of state.{pool_name}, got {free}")
        used = sum((b < config.num_gpu_blocks) == (pool_name == "gpu") for b in names)
        if free + used != total:
            raise LoadError(f"state.{pool_name}: {free} blocks here and {used} in tables must be the {total} of state.config")
    for i, (b, count) in enumerate(state.refs.to_dict().items()):
        if count != names[b]:
            raise LoadError(f"state.maps.refs[{i}][1]: must be {names[b]}, as often as tables name block {b}, got {count}")


def _maps_of_all(config: Config) -> tuple[str, ...]:
    """The maps in which every group has a value: those that a new request is in."""
    scheduler = Scheduler(config)
    g = scheduler.add_request(1, 1)
    return tuple(name for name in WRITTEN if g in getattr(scheduler.state, name))


def _check_groups(state: State) -> None:
    """The specification reads a default where a group has no value; the core does not."""
    known = state.status.to_dict().keys()
    for name in _maps_of_all(state.config):
        there = getattr(state, name).to_dict().keys()
        if there != known:
            g = min(there ^ known)
            raise LoadError(f"state.maps.{name}: must have the groups of state.maps.status, but for group {g} it does not")


def state_to_json(state: State) -> Json:
    """Plain objects, arrays and numbers. Costs O(state)."""
    return {"format": FORMAT, **STATES.write(state)}


def state_from_json(value: Any) -> State:
    """The state that `state_to_json` has written. Raises LoadError, also for a state that the specification does not allow."""
    state: State = _load(value, "state", STATES)
    _check_sizes(state)
    _check_groups(state)
    failed = violations(state)
    if failed:
        raise LoadError(f"state: breaks the specification: {'; '.join(failed)}")
    return state


def plan_to_json(plan: Plan) -> Json:
    """Plain objects, arrays and numbers; statuses by number."""
    return {"format": FORMAT, **PLANS.write(plan)}


def plan_from_json(value: Any) -> Plan:
    """The plan that `plan_to_json` has written. Raises LoadError."""
    plan: Plan = _load(value, "plan", PLANS)
    return plan
