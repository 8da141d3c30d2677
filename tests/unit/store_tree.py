"""A tree of states grown by drafts, beside a naive model of each: what the tests of the store share.

A test names one operation set: `apply(draft, model, op)` does an operation to both, if the model says it is legal, and compares
what it returns. After every draft every state ever made must still say what its model says.
"""

import copy
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvproof.core.config import Config
from kvproof.store.collections import row
from kvproof.store.draft import Draft
from kvproof.store.state import initial

GPU, CPU = 12, 6
GROUPS = 6
BLOCKS = 8
CLOCKS = 5
SEQUENCES = 2
TOKENS = 7

DEFAULTS = {"born": None, "status": 0, "seats": 1, "priority": 0}
"""Maps of groups that are edited, and what a group that is not there reads as (None: KeyError)."""
SPARSE = ("seats", "priority")
"""Those of them that store no default."""

small = st.integers(0, 7)
operations = st.lists(st.tuples(small, small, small, small), max_size=12)
drafts = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["close", "close", "close", "abandon", "drop"]), operations), max_size=8
)
"""(which state to go on from, how the draft ends, what it does): mostly the newest state, sometimes an old one."""


@dataclass
class Model:
    """One state, naively."""

    maps: dict = field(default_factory=lambda: {name: {} for name in DEFAULTS})
    tables: dict = field(default_factory=dict)  # (g, q) -> blocks
    refs: dict = field(default_factory=dict)  # block -> count, of used ones
    members: dict = field(default_factory=dict)  # g -> (live, next index); only of groups that forked
    tokens: dict = field(default_factory=dict)  # g -> tokens of each sequence when it forked last
    texts: dict = field(default_factory=dict)  # (g, q) -> the first TOKENS tokens of q; no two that it did not inherit are equal
    gpu: list = field(default_factory=lambda: list(range(GPU)))  # top first
    key: dict = field(default_factory=lambda: {g: 10 * ((g * 5) % GROUPS) for g in range(GROUPS)})
    queue: set = field(default_factory=set)
    calendar: set = field(default_factory=set)  # (clock, group)


def check(state, model):
    """The state says what the model says, in every way of reading it."""
    for name, content in model.maps.items():
        view = getattr(state, name)
        assert view.to_dict() == content and len(view) == len(content) and dict(view.items()) == content
        for g in range(GROUPS):
            assert view.get(g, "none") == content.get(g, "none") and (g in view) == (g in content)
            if DEFAULTS[name] is not None:
                assert view[g] == content.get(g, DEFAULTS[name])
    assert {k: row(state.table, *((k, 0) if isinstance(k, int) else k)) for k in state.table} == {
        (g if q == 0 else (g, q)): blocks for (g, q), blocks in model.tables.items()
    }
    assert state.refs.to_dict() == {b: n for b, n in model.refs.items() if n > 1}
    assert {g: m[:2] for g, m in state.members.to_dict().items()} == {
        g: (tuple(live), bound) for g, (live, bound) in model.members.items()
    }
    assert state.free_blocks()[0] == model.gpu and state.gpu_free == len(model.gpu)
    assert state.key.to_dict() == model.key
    ids = sorted(model.queue, key=model.key.__getitem__)
    assert state.waiting == (tuple(model.key[g] for g in ids), tuple(ids))
    buckets = {}
    for t, g in model.calendar:
        buckets.setdefault(t, set()).add(g)
    assert state.due.to_dict() == buckets


def seed():
    """The first state and its model: keys are given, nothing else is there."""
    d = Draft(initial(Config(num_gpu_blocks=GPU, num_cpu_blocks=CPU)))
    model = Model()
    for g, key in model.key.items():
        d.key[g] = key
    return d.close(), model


def grow(plan, apply):
    """Grow the tree that `plan` says (a value of `drafts`), and check all of it after every draft."""
    tree = [seed()]
    for back, ending, ops in plan:
        state, model = tree[max(0, len(tree) - 1 - max(0, back - 4))]
        d, edited = Draft(state), copy.deepcopy(model)
        for op in ops:
            apply(d, edited, op)
        check(state, model)  # while the draft is open
        if ending == "close":
            tree.append((d.close(), edited))
        elif ending == "abandon":
            d.abandon()
        for version, expected in tree:
            check(version, expected)
