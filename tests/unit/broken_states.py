"""States broken by hand: the contents of a good one as plain dicts and lists, edited, and made a state again unchecked."""

import copy
from types import SimpleNamespace

import attrs

from kvproof.store.collections import cells
from kvproof.store.state import QUEUES, State
from kvproof.store.versions import NAMES, Version, maps_of

SCALARS = ("clock", "ticket", "seqs", "decoders", "issued", "prefilled", "epoch", "denied", "timing", "owing")


def contents(state: State) -> SimpleNamespace:
    """Everything in it, free to be edited: free lists bottom first, queues as lists of groups."""
    out = SimpleNamespace(config=copy.copy(state.config))
    for name in SCALARS:
        setattr(out, name, getattr(state, name))
    for name in NAMES:
        setattr(out, name, getattr(state, name).to_dict())
    out.table = {k: (blocks[:n], n) for k, (blocks, n) in out.table.items()}
    out.due, out.expiry = ({t: set(b) for t, b in buckets.items()} for buckets in (out.due, out.expiry))
    for name in QUEUES:
        setattr(out, name, list(getattr(state, name)[1]))
    out.gpu, out.cpu = (blocks[::-1] for blocks in state.free_blocks())
    out.gpu_free = out.cpu_free = None  # counted, unless it is set
    return out


def state_of(c: SimpleNamespace) -> State:
    """The state with these contents."""
    c.free = dict.fromkeys([*c.gpu, *c.cpu], True)
    maps = Version(maps_of([getattr(c, name) for name in NAMES]))
    queues = {name: (tuple(c.key.get(g, 0) for g in getattr(c, name)), tuple(getattr(c, name))) for name in QUEUES}
    return State(
        config=c.config,
        **{name: getattr(c, name) for name in SCALARS},
        maps=maps,
        gpu=cells(c.gpu[::-1]),
        gpu_free=len(c.gpu) if c.gpu_free is None else c.gpu_free,
        cpu=cells(c.cpu[::-1]),
        cpu_free=len(c.cpu) if c.cpu_free is None else c.cpu_free,
        **queues,
    )


def broken(state: State, edit) -> State:
    """`state` after `edit(contents)`."""
    c = contents(state)
    edit(c)
    return state_of(c)


def put(c: SimpleNamespace, k, *blocks: int) -> None:
    """The table under key k is these blocks."""
    c.table[k] = (list(blocks), len(blocks))


def changed(plan, **fields):
    """The plan with other fields."""
    return attrs.evolve(plan, **fields)
