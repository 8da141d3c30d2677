"""The bounded refuter: a broken core is run on small concrete states, and what it does is held against the specification.

It knows nothing of symbols or solvers. A counterexample is a state of the real core, a call, and a clause that is false of what
the broken core made of it; so it replays, by construction, on the functions that were run.
"""

import itertools
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attrs

from kvproof.core.config import Config
from kvproof.core.errors import Rejected
from kvproof.core.status import Status
from kvproof.proofs import bank, mutate, outcomes, walks
from kvproof.proofs.bank import Counted, Endless, Situation, Trial
from kvproof.proofs.walks import Action
from kvproof.spec.ownership import parameters
from kvproof.spec.told import Told
from kvproof.spec.view import View
from kvproof.store.draft import Draft
from kvproof.store.state import State, initial

SECONDS = 2.0
"""Of processor time: no call on a small state takes as long."""
LONGEST = 6000
"""Trials of one mutant, at most; then walks with it."""


@attrs.frozen(eq=False)
class Counterexample:
    """Where, what, and which clause is false of the result."""

    situation: Situation
    action: Action
    clause: str
    post: Any = None
    """The state after, frozen; None if there is none."""

    def snippet(self, mutant: mutate.Mutant) -> str:
        """Python that replays it."""
        s = self.situation
        return (
            "from kvproof.proofs import mutate, refute\n"
            f"mutant = mutate.find({mutant.module + '.' + mutant.function!r}, {mutant.change!r})\n"
            f"print(refute.replay(mutant, {s.config!r},\n    {s.mode!r}, {list(s.recipe)!r},\n"
            f"    {list(s.edits)!r}, {self.action!r}))"
        )


@contextmanager
def in_time(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `Endless` in code that runs longer."""

    def ring(number: int, frame: Any) -> None:
        raise Endless(f"no end after {seconds} s")

    old = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


class Seen(View):
    """The state after a pass, with the delay as the pass was last told: afterwards those that it preempted may wait too."""

    said: bool | None = None

    @property
    def delay(self) -> bool:
        """Has the one that waited longest not waited long enough?"""
        return View.delay.fget(self) if self.said is None else self.said  # type: ignore[attr-defined]


def told_of(state: State) -> Told:
    """What an engine has been told when nothing is wrong: the tables of who runs."""
    rows: dict[int, dict[int, list[int]]] = {}
    running = set(state.running[1])
    for k, (blocks, n) in state.table.to_dict().items():
        g, q = k if isinstance(k, tuple) else (k, 0)
        if g in running:
            rows.setdefault(g, {})[q] = blocks[:n]
    return Told(rows)


def asked(situation: Situation, name: str, x: list[Any], policy: Any) -> int:
    """What the policy answers in a step that asks it once: to swap, or whom to preempt."""
    if name == "make_room":
        d = Draft(situation.state(), policy)
        try:
            return d.named(*x)
        finally:
            d.abandon()
    return name in outcomes.WISHED and policy.swaps(x[0], 1)


class Bench:
    """Tries calls. Views of states before are kept: they cost as much as the calls."""

    def __init__(self) -> None:
        self.views: dict[Situation, tuple[View, Told]] = {}

    def before(self, situation: Situation) -> tuple[View, Told]:
        """The view of the state before, and what the engine knows."""
        if situation not in self.views:
            state = situation.state()
            self.views[situation] = View(state), told_of(state)
        return self.views[situation]

    def broken(self, situation: Situation, action: Action) -> Counterexample | None:
        """Is some clause false after this call?"""
        name, *x = action
        e, told = self.before(situation)
        for field, value in walks.midway(action, e.state).items():
            setattr(e, field, value)
        enabled = bool(outcomes.ENABLED[name](e, *x))
        policy = walks.POLICIES[situation.mode]
        d = Counted(situation.state(), policy)
        wish = asked(situation, name, x, policy)
        try:
            with in_time():
                try:
                    result = walks.perform(d, action)
                except Rejected:
                    return Counterexample(situation, action, "total: rejected only when not enabled") if enabled else None
                if not enabled:
                    return Counterexample(situation, action, "total: done only when enabled")
                state = d.close()
                frozen = bank.freeze(state)
                told = told.copy()
                plan = d.plan.close(
                    state.epoch, state.running[1], state.prefilling[1], name == "schedule" and not state.prefilled, state.idle[1]
                )
                told.plan(plan)
                for g, q in d.plan.drops:
                    told.finished(g, q)
                if name == "forward":
                    told = told_of(state)  # nobody is told on the way
                alone, after = View(state, plan, told), Seen(state, plan, told, before=e)
                after.said = d.said
                if name == "schedule" or name in walks.STEP:
                    alone.spent = after.spent = d.spent
                    after.charged, after.granted, after.stopped = d.charged, d.granted, d.stopped
                for clause, true in outcomes.after(name, alone, after, e, tuple(x), result, wish):
                    if not true:
                        return Counterexample(situation, action, clause, frozen)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:100]
            return Counterexample(situation, action, f"total: it returns or raises Rejected ({what})")
        return None


def relevant(trials: list[Trial], mutant: mutate.Mutant) -> list[Trial]:
    """The trials that run the changed line, one of every kind first, the kinds mixed."""
    here = (mutant.module, mutant.line)
    kinds: dict[Any, list[Trial]] = defaultdict(list)
    some = [t for t in trials if here in t.lines]
    for k in (1, -1, 2, -2, 3, -3):  # a line that is only a part of a statement
        some = some or [t for t in trials if (mutant.module, mutant.line + k) in t.lines]
    for t in some:
        kinds[t.kind].append(t)
    rows = list(kinds.values())
    random.Random(0).shuffle(rows)
    return [t for column in itertools.zip_longest(*rows) for t in column if t is not None]


def walk(bench: Bench, seed: int, steps: int = 40) -> Counterexample | None:
    """Go on from nothing with the broken core itself, checking every call."""
    r = random.Random(seed + 10_000)
    config, mode = walks.some_config(r), r.choice(tuple(walks.POLICIES))
    if seed % 4 == 3:
        walks.limit(config, seed % 3)
    state, recipe = initial(Config(**config)), list[Action]()
    for _ in range(steps):
        situation = Situation(config, mode, tuple(recipe), (), bank.freeze(state))
        action = walks.choose(state, walks.actions(state, r), r)
        found = bench.broken(situation, action)
        if found is not None:
            return found
        after = walks.step(state, mode, action)
        if after is not None:
            state = after
            recipe.append(action)
    return None


SIZES = (
    *("num_gpu_blocks", "num_cpu_blocks", "block_size", "watermark_blocks"),
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_lookahead_slots"),
)
FLAGS = ("vllm_v0", "enable_chunked_prefill", "priority", "choose_victims")
NUMBERS = (-1, -0.5, 0, 0.5, 1, 1.5, True, "1", None, float("nan"), float("inf"))


def acceptable(fields: dict[str, Any]) -> bool:
    """What `Config` must accept: whole numbers that are right by `kvproof.spec.ownership.parameters`."""
    if any(type(fields[n]) is not int or fields[n] > 2**40 for n in SIZES):
        return False
    most = fields["max_preemptions_per_request"]
    if most is not None and (type(most) is not int or most > 2**40):
        return False
    config = SimpleNamespace(**fields)
    return bool(parameters(SimpleNamespace(config=config, bounded=most is not None, most_preemptions=most or 0)))


def is_number(value: Any, most: float) -> bool:
    """Is it a number from 0 to `most`?"""
    return type(value) in (int, float) and 0 <= value <= most


def configurations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Configurations worth trying: a text, the class, its fields, whether they are right."""
    base = dict.fromkeys(SIZES, 4) | {"watermark_blocks": 1, "max_preemptions_per_request": None} | dict.fromkeys(FLAGS, False)
    values = (-1, 0, 1, 3, 4, 5, 2**40, 2**40 + 1, True, "4", 2.0, None)
    cases: list[dict[str, Any]] = [{n: v} for n in (*SIZES, "max_preemptions_per_request") for v in values]
    cases += [{"watermark_blocks": v, "num_gpu_blocks": n} for v in (0, 2, 3, 4, 5) for n in (1, 3, 4)]
    cases += [
        {"max_num_seqs": a, "max_num_batched_tokens": b, "max_model_len": c}
        for a in (3, 4, 5)
        for b in (4, 5)
        for c in (3, 4, 5, 6)
    ]
    cases += [{"choose_victims": True}]
    for case, v0, chunked in itertools.product(cases, (False, True), (False, True)):
        fields = {**base, "vllm_v0": v0, "enable_chunked_prefill": chunked, **case}
        yield f"Config({fields})", "Config", fields, acceptable(fields)
    test = made["ArtificialPreemption"]()
    odd: list[tuple[str, str, Any, bool]] = [("Config", name, flag, False) for name in FLAGS for flag in (0, 1, "yes", None)]
    odd += [("Config", "delay_factor", v, is_number(v, 2**40)) for v in NUMBERS]
    tests: tuple[Any, ...] = (None, test, 0.5, True, {})
    odd += [("Config", "artificial_preemption", v, v is None or v is test) for v in tests]
    odd += [("ArtificialPreemption", "probability", v, is_number(v, 1)) for v in NUMBERS]
    sizes = (-1, 0, 7, 2.0, True, None)
    odd += [("ArtificialPreemption", n, v, type(v) is int and v >= 0) for n in ("seed", "max_count") for v in sizes]
    for kind, name, value, right in odd:
        yield f"{kind}({name}={value!r})", kind, {**(base if kind == "Config" else {}), name: value}, right
    yield "Config(num_gpu_blocks=1, num_cpu_blocks=0)", "Config", {"num_gpu_blocks": 1, "num_cpu_blocks": 0}, True


def wrong_config(made: dict[str, Any]) -> str | None:
    """A configuration that these definitions take or refuse wrongly."""
    try:
        for text, kind, fields, right in configurations(made):
            try:
                made[kind](**fields)
                accepted = True
            except made["ConfigError"]:
                accepted = False
            if accepted != right:
                return f"{text} is {'accepted' if accepted else 'refused'}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refute_config(mutant: mutate.Mutant) -> str | None:
    """A configuration that the mutant's `Config` takes or refuses wrongly."""
    try:
        made = mutate.namespace(mutant)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return wrong_config(made)


def refute(
    mutant: mutate.Mutant, trials: list[Trial], walks: int = 20, bench: Bench | None = None
) -> Counterexample | str | None:
    """A counterexample to the mutant, if the bank or some walks have one. A text for `Config`, which has no states."""
    if mutant.module == "config":
        return refute_config(mutant)
    bench = Bench() if bench is None else bench
    for found in counterexamples(mutant, trials, walks, bench):
        if not shared(found):
            return found
    return None


def counterexamples(mutant: mutate.Mutant, trials: list[Trial], walks: int, bench: Bench) -> Iterator[Counterexample]:
    """Calls after which some clause is false of the mutant."""
    for t in relevant(trials, mutant)[:LONGEST]:
        with mutate.switched(mutant):
            found = bench.broken(t.situation, t.action)
        if found is not None:
            yield found
    fresh = Bench()
    for seed in range(walks):
        with mutate.switched(mutant):
            found = walk(fresh, seed)
        fresh.views.clear()
        if found is not None:
            yield found


def shared(found: Counterexample) -> bool:
    """Does the same call of the real core break a clause as well? Then it is the specification that is wrong, or the trial."""
    return Bench().broken(found.situation, found.action) is not None


def replay(mutant: mutate.Mutant, config: Any, mode: str, recipe: Any, edits: Any, action: Any) -> str | None:
    """The clause that a call of the mutant breaks in the state of a recipe."""
    state = bank.replayed(config, mode, tuple(recipe), tuple(edits))
    situation = Situation(config, mode, tuple(recipe), tuple(edits), bank.freeze(state))
    with mutate.switched(mutant):
        found = Bench().broken(situation, action)
    return found.clause if found is not None else None


def rows(frozen: Any) -> list[tuple[str, ...]]:
    """A small table of a state: group, status, tokens, tables, queue data."""
    state = bank.thaw(frozen)
    tables = state.table.to_dict()
    out = []
    for g, status in sorted(state.status.to_dict().items()):
        own = {
            (k[1] if isinstance(k, tuple) else 0): b[:n]
            for k, (b, n) in tables.items()
            if (k[0] if isinstance(k, tuple) else k) == g
        }
        flags = [n for n in ("prefilling", "sampling") if g in getattr(state, n)[1]]
        decoding = status == Status.RUNNING and g not in state.prefilling[1]
        tokens = state.clock - state.born.get(g, 0) if decoding else state.length.get(g, 0)
        text = " ".join(f"{q}:{b}" for q, b in sorted(own.items()))
        out.append((str(g), Status(status).name, f"{tokens}/{state.limit.get(g)}", text, " ".join(flags)))
    gpu, cpu = state.free_blocks()
    pools = f"free {gpu[:12]} host {cpu[:12]} clock {state.clock} issued {state.issued}"
    return [*out, ("", "", "", pools, "")]
