"""Small concrete states, as diverse as random walks of the real core make them, and the calls that are tried in each.

A state comes with its recipe, so that a counterexample replays from nothing. Which lines of the core a call runs is known, so a
mutant is tried only where it can differ.
"""

import hashlib
import os
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

import kvproof.core
from kvproof.core.config import Config, ConfigError
from kvproof.core.errors import Rejected
from kvproof.proofs import rare as rare_states
from kvproof.proofs import walks
from kvproof.proofs.rare import EDITED, RARE
from kvproof.proofs.walks import (
    POLICIES,
    STEP,
    Action,
    Edits,
    actions,
    choose,
    limit,
    may_go,
    perform,
    some_config,
    step,
    steps,
)
from kvproof.spec.check import failed
from kvproof.spec.invariants import invariants
from kvproof.spec.view import View
from kvproof.store.draft import Draft
from kvproof.store.policies import AlwaysRecompute, Policy
from kvproof.store.state import State, initial
from kvproof.store.versions import NAMES, Version, maps_of

Line = tuple[str, int]
WALKS, LIMITED, STEPS, EACH = 400, 80, 40, 16
"""Walks of this many steps, and such in which preemption is limited; of each set of lines that some call runs, this many calls
are kept."""
EACH_STEP = 4
"""Of the passes, and steps of one, that run the same lines in states alike (`alike`)."""
STEP_LIMIT = 3000


class Endless(Exception):  # noqa: N818
    """A loop that makes more steps than any could."""


class Counted(Draft):
    """A draft whose loops are given up after STEP_LIMIT steps, and that knows what it has said of the delay."""

    __slots__ = ("said",)
    said: bool | None

    def __init__(self, state: State, policy: Policy = AlwaysRecompute) -> None:
        super().__init__(state, policy)
        self.said = None

    def delayed(self) -> bool:
        """Has the one that waits longest not waited long enough?"""
        self.said = super().delayed()
        return self.said

    def repeat(self, name: str, step: Any, *args: Any) -> None:
        """While step(self, *args): pass, but not for ever."""
        for _ in range(STEP_LIMIT):
            if not step(self, *args):
                return
        raise Endless(f"loop {name} does not end")


@attrs.frozen(eq=False)
class Situation:
    """A state and how it came about: calls from nothing, then edits that keep the invariants."""

    config: dict[str, Any]
    mode: str
    recipe: tuple[Action, ...]
    edits: Edits
    frozen: Any

    def state(self) -> State:
        """A state of its own, that a broken core may ruin."""
        return thaw(self.frozen)


@attrs.frozen(eq=False)
class Trial:
    """A call in a situation, and the lines of the core that it runs."""

    situation: Situation
    action: Action
    lines: frozenset[Line]
    kind: Any
    """Trials of one kind are alike."""


def freeze(state: State) -> Any:
    """All of a state, as plain data."""
    scalars = {a.name: getattr(state, a.name) for a in attrs.fields(State) if a.name != "maps"}
    return scalars, [_own(getattr(state, name).to_dict()) for name in NAMES]


def _own(contents: dict[Any, Any]) -> dict[Any, Any]:
    """A copy that shares no list or set."""

    def one(v: Any) -> Any:
        row = isinstance(v, tuple) and v and isinstance(v[0], list)
        return (v[0][: v[1]], v[1]) if row else set(v) if isinstance(v, set) else v

    return {k: one(v) for k, v in contents.items()}


def thaw(frozen: Any) -> State:
    """The state again."""
    return State(maps=Version(maps_of([_own(c) for c in frozen[1]])), **frozen[0])


def edited(frozen: Any, edits: Edits) -> Any:
    """Other data with the same structure: sizes of the configuration, earlier alarms, another turn."""
    scalars, contents = dict(frozen[0]), [_own(c) for c in frozen[1]]
    for name, g, value in edits:
        if name == "prefilled":
            scalars[name] = bool(value)
        elif name == "ticket":
            scalars[name] = value
        elif name in ("alarm", "expires"):
            times, calendar = contents[NAMES.index(name)], contents[NAMES.index("due" if name == "alarm" else "expiry")]
            calendar[times[g]].discard(g)
            if not calendar[times[g]]:
                del calendar[times[g]]
            times[g] = value
            calendar.setdefault(value, set()).add(g)
        else:
            scalars["config"] = attrs.evolve(scalars["config"], **{name: value})
    return scalars, contents


def replayed(config: dict[str, Any], mode: str, recipe: tuple[Action, ...], edits: Edits) -> State:
    """The state of a recipe."""
    state = initial(Config(**config))
    for action in recipe:
        state = step(state, mode, action) or state
    return thaw(edited(freeze(state), edits))


def some_edits(frozen: Any, r: random.Random) -> Edits:
    """Edits that keep the invariants; () if none was found."""
    scalars, _ = frozen
    decoding = [g for g in scalars["running"][1] if g not in scalars["prefilling"][1]]
    kinds = ["watermark_blocks", "max_num_batched_tokens", "max_num_seqs", "prefilled"]
    kind = r.choice(kinds + (["alarm", "expires"] if decoding else []))
    g = r.choice(decoding) if decoding else 0
    value = r.choice((0, 1)) if kind == "prefilled" else r.choice((0, 1, 2, 3, 4, 6, 9))
    if kind in ("alarm", "expires"):
        value = scalars["clock"] + r.choice((0, 0, 1, 2))
    edits: Edits = ((kind, g, value),)
    if kind in ("max_num_seqs", "max_num_batched_tokens"):  # tight ones are met more often
        over = scalars["config"].vllm_v0 and scalars["config"].enable_chunked_prefill  # V0 may have admitted too many
        value = max(1, scalars["seqs"] + r.choice((-1, 0, 1) if over else (0, 0, 1, 2)))
        edits = (("max_num_seqs", 0, value), (kind, 0, value))
    try:
        state = thaw(edited(frozen, edits))
    except ConfigError:
        return ()
    return () if failed(invariants(View(state))) else edits


def traced(frozen: Any, mode: str, action: Action) -> frozenset[Line]:
    """The lines of the core that a call runs."""
    lines: set[Line] = set()
    here = str(next(iter(kvproof.core.__path__)))

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            lines.add((Path(frame.f_code.co_filename).stem, frame.f_lineno))
        return local

    d = Draft(thaw(frozen), POLICIES[mode])
    sys.settrace(lambda frame, event, _: local if frame.f_code.co_filename.startswith(here) else None)
    with suppress(Rejected):
        perform(d, action)
    sys.settrace(None)
    return frozenset(lines)


def crowded(state: State, config: dict[str, Any], mode: str, recipe: list[Action], r: random.Random) -> Situation:
    """The state after some forced preemptions and arrivals, and perhaps some passes: many stand in line, in mixed order."""
    more = list[Action]()

    def go(action: Action, way: str) -> None:
        nonlocal state
        if (after := step(state, way, action)) is not None:
            state = after
            more.append((*action, way) if action[0] == "preempt" else action)

    for way, g in zip(("swap", "recompute", "swap"), state.running[1] if r.random() < 0.4 else (), strict=False):
        if may_go(state, g):
            go(("preempt", g), way)
    for _ in range(r.choice((0, 1, 2, 2, 3))):
        prompt = r.choice((1, 2, 3, 5, 8, 14) if state.config.priority else (1, 2, 3, 5, 8))
        some: list[Action] = [("preempt", g) for g in state.running[1] if may_go(state, g)] * 2
        rank = r.choice((-3, -2, -1, 0)) if state.config.priority else 0
        go(r.choice([*some, ("add", prompt, prompt + 5, 1, 1, rank)]), r.choice(("swap", "swap", "recompute", mode)))
    for _ in range(r.choice((0, 0, 1, 2, 3))):
        go(("schedule",), mode)
        go(("commit", None, (), ()), mode)
    frozen = freeze(state)
    edits: Edits = (("prefilled", 0, 1),) if r.random() < 0.4 else ()
    if edits and failed(invariants(View(thaw(edited(frozen, edits))))):
        edits = ()
    return Situation(config, mode, (*recipe, *more), edits, edited(frozen, edits))


def alike(state: State, action: Action) -> tuple[Any, ...]:
    """What a step's decision may hang on, coarsely."""
    c = state.config
    few = tuple(min(len(q[1]), 2) for q in (state.waiting, state.swapped, state.prefilling, state.running))
    seats = min(c.max_num_seqs - state.seqs, 2)
    tokens = min(c.max_num_batched_tokens - walks.midway(action, state)["spent"], 2)
    shared = bool(len(state.refs))
    line = in_line(state) if action[0] in ("displace", "ask") else ()
    return (*few, seats, tokens, c.watermark_blocks > 0, min(state.gpu_free, 3), shared, state.prefilled, *line)


def in_line(state: State) -> tuple[Any, ...]:
    """Who stands first in line, and how it ranks among those that run."""
    e = View(state)
    g = walks.head(e)
    if g < 0 or not e.running.ids:
        return ()
    above = sum(e.rank(h) < e.rank(g) for h in e.running.ids)
    freed, seats = e.behind(g)
    short = e.rows(g, e.length[g]) - e.gpu.n - freed
    left = e.seqs - seats + e.seats[g] - e.config.max_num_seqs
    long = e.prompt[g] > e.config.max_model_len
    return int(e.status[g]), min(above, 2), max(-3, min(short, 2)), max(-2, min(left, 2)), e.delay, long


def build(walks: int = WALKS, limited: int = LIMITED) -> list[Trial]:
    """The bank. The same in every run."""
    trials = [*rare()]
    kept: Counter[Any] = Counter()
    for seed in range(walks + limited):
        r = random.Random(seed)
        config, mode = some_config(r), r.choice(("swap", "swap", "any", "any", "recompute"))
        config["priority"] |= seed % 4 == 0
        if seed >= walks:
            limit(config, seed % 3)
            config["choose_victims"] |= seed % 4 == 1
        if config["choose_victims"]:
            mode = r.choice(("name", "name", mode))
        state, recipe = initial(Config(**config)), list[Action]()
        for _ in range(STEPS):
            frozen, some = freeze(state), actions(state, r)
            here = [Situation(config, mode, tuple(recipe), (), frozen)]
            if r.random() < 0.5 and (edits := some_edits(frozen, r)):
                here.append(Situation(config, mode, tuple(recipe), edits, edited(frozen, edits)))
            if not state.issued and state.running[1] and r.random() < 0.4:
                here += [crowded(state, config, mode, recipe, r) for _ in range(2)]
            for situation in here:
                passes = [a for a in some if a[0] == "schedule" or a[0] == "commit"]
                passes += steps(situation.state(), r)
                for action in [*passes, *r.sample(some, min(6, len(some)))]:
                    lines = traced(situation.frozen, mode, action)
                    detailed = action[0] in STEP or action[0] == "schedule"
                    signature = (lines, config["vllm_v0"], alike(situation.state(), action) if detailed else action[0])
                    if kept[signature] < (EACH_STEP if detailed else EACH):
                        kept[signature] += 1
                        trials.append(Trial(situation, action, lines, signature))
            action = choose(state, some + [a for a in steps(state, r) if a[0] == "preempt"], r)
            if (after := step(state, mode, action)) is not None:
                state = after
                recipe.append(action)
    return trials


def rare() -> Iterator[Trial]:
    """A pass, its steps and the other calls, in each of them."""
    for config, recipe, edits in (*((c, r, ()) for c, r in RARE), *EDITED):
        state = replayed(config, "recompute", tuple(recipe), edits)
        here = Situation(config, "recompute", tuple(recipe), edits, freeze(state))
        r = random.Random(0)
        for action in dict.fromkeys((("schedule",), *steps(state, r), *actions(state, r), *every(state))):
            yield Trial(here, action, traced(here.frozen, "recompute", action), ("rare", action))


def every(state: State) -> list[Action]:
    """The calls about one group, of every group."""
    running = state.running[1]
    return [("abort", g) for g in state.status.to_dict()] + [("fork", g, 0, own) for g in running for own in (0, 1)]


def digest() -> str:
    """What the bank depends on."""
    import kvproof.store

    h = hashlib.sha256(Path(__file__).read_bytes() + Path(walks.__file__).read_bytes() + Path(rare_states.__file__).read_bytes())
    for package in (kvproof.core, kvproof.store):
        for path in sorted(Path(next(iter(package.__path__))).glob("*.py")):
            h.update(path.read_bytes())
    return h.hexdigest()[:24]


def load(folder: Path) -> list[Trial]:
    """The bank, from a file that this program wrote if the sources are the same."""
    path = folder / f"bank-{digest()}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]
    trials = build()
    folder.mkdir(parents=True, exist_ok=True)
    (part := path.with_suffix(f".{os.getpid()}")).write_bytes(pickle.dumps(trials))
    part.replace(path)
    return trials
