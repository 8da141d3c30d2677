"""How the states of the bank come about: configurations, calls worth trying, and the walks that choose among them."""

import random
from typing import Any

from kvproof.core import admission, displacing, groups, profiles, running, schedule, swapping
from kvproof.core.errors import Rejected
from kvproof.proofs.record import recorded
from kvproof.spec.view import View
from kvproof.store.candidates import Need
from kvproof.store.draft import Draft
from kvproof.store.policies import AlwaysRecompute, AlwaysSwap
from kvproof.store.queues import Results
from kvproof.store.state import State

Action = tuple[Any, ...]  # (name of the transition, its arguments)
Edits = tuple[tuple[str, int, int], ...]


class AnyPolicy:
    """Swaps or recomputes without a reason."""

    @staticmethod
    def swaps(g: int, sequences: int) -> bool:
        """Now and then."""
        return g % 3 != 1


class Naming(AnyPolicy):
    """Names whom it likes: a group that runs and ranks below, one that does not, or nobody."""

    @staticmethod
    def victim(need: Need) -> int:
        """The one in the middle of those that may go, or the one that asks, or somebody unknown."""
        some = need.candidates
        if not some or (need.group + need.free) % 5 == 4:
            return (-1, need.group, 99)[need.blocks % 3]
        return some[len(some) // 2].group


POLICIES: dict[str, Any] = {"swap": AlwaysSwap, "recompute": AlwaysRecompute, "any": AnyPolicy, "name": Naming}


EARLY = ("admit_next", "compute_next", "displace", "displace_next", "ask", "force", "phase", "trim")
"""Steps before which the pass may have spent nothing."""
HOMES: dict[str, Any] = {
    **dict.fromkeys(("admit_next", "compute_next"), admission),
    **dict.fromkeys(("displace", "displace_v0", "displace_next"), displacing),
    "swap_in_next": swapping,
    "trim": groups,
    "to_front": schedule,
}
STEP = (*EARLY, "swap_in_next", "to_front", "preempt", "make_room", "make_more", "serve", "look_ahead")
"""Steps of a pass that are tried on their own."""


def midway(action: Action, state: State) -> dict[str, Any]:
    """Where in a pass a step is taken: what the draft has besides the state.

    spent: the budget; a decode step has been charged for everybody who decodes, but in V0, where ("serve", g, n) says it, and
    n < 0 that V0 has stopped. charged: sequences that V0 has scheduled before it admits, or brings back: those that decode, say.
    """
    name, *x = action
    c = state.config
    out: dict[str, Any] = {"spent": 0, "charged": 0, "granted": name == "make_more", "stopped": False}
    if name in STEP and name not in EARLY and not c.vllm_v0:
        out["spent"] = state.decoders
    if name in ("admit_next", "swap_in_next") and c.vllm_v0 and c.enable_chunked_prefill:
        out["charged"] = state.decoders
    if name == "serve" and len(x) > 1:
        out["spent"], out["stopped"] = abs(x[1]), x[1] < 0
    return out


def perform(d: Draft, action: Action) -> Any:
    """Call a transition, or a step of a pass."""
    name, *x = action
    if name == "commit":
        return schedule.commit(d, Results(x[0]), *x[1:2], *map(dict, x[2:]))
    if name == "serve":
        name, x = "serve_v0" if d.config.vllm_v0 else "serve", x[:1]
    if name == "schedule" and d.config.delay_factor:
        d.begin(d.epoch)  # a step takes a unit of time
    if name == "add" and d.config.delay_factor:
        g = groups.add(d, *x)
        d.arrival[g] = d.epoch
        return g
    if name == "schedule":
        schedule.schedule(d, *x)
        return {g: profiles.standing(d, g) for g in d.running.ids}
    if name == "forward":
        return schedule.forward(d, x[0], Results(None))
    if name in ("add", "abort", "fork", "finish_sequence", "forget", "deny_append", "rerank"):
        return getattr(groups, name)(d, *x)
    for field, value in midway(action, d.base).items():
        setattr(d, field, value)
    if name == "displace" and d.config.vllm_v0:
        name = "displace_v0"
    if name == "ask":
        return ask(d, *x)
    if name == "phase":
        return recorded(d, x[0])
    if name == "make_more":
        name = "make_room"
    return getattr(HOMES.get(name, running), name)(d, *x)


def ask(d: Draft, g: int, blocks: int, gone: bool) -> tuple[Any, ...]:
    """What displacing asks of g, which is in line; `gone`: after it has evicted the last that runs, of that one."""
    head = displacing.line_head(d)
    if gone:
        g = d.running.last()
        running.evict(d, g, blocks % 2 == 0)
        return (g, displacing.kept_back(d, g, False))
    kept = displacing.kept_back(d, g, False), displacing.kept_back(d, g, True)
    return (head, *kept, displacing.lacking(d, g), displacing.can_make_way(d, g, blocks))


def head(e: View) -> int:
    """Who is first of all that wait (and, in kvproof, are swapped); -1 if nobody is."""
    swapped = () if e.config.vllm_v0 else e.swapped.ids[:1]
    return min((*e.waiting.ids[:1], *swapped), key=lambda g: e.key[g], default=-1)


def steps(state: State, r: random.Random) -> list[Action]:
    """The steps that a pass might take here."""
    if state.issued:
        return []
    decoding = [g for g in state.running[1] if g not in state.prefilling[1]]
    late = state.due.get(state.clock)
    out: list[Action] = [("admit_next",)] if state.waiting[1] and not state.prefilling[1] else []
    out += [("compute_next",)] if state.prefilling[1] else []
    plain = ("step_of_prefills", "schedule_either", "schedule_prefills")
    kinds = ("schedule_mixed",) if state.config.enable_chunked_prefill else plain
    out += [("phase", name) for name in (*kinds, "decode", "schedule_running", "schedule")]
    if state.config.priority and state.running[1]:
        line = (*state.waiting[1][:1], *state.swapped[1][:1])
        for g in line if not state.config.vllm_v0 else ():
            enough = state.gpu_free + Draft(state).behind(g)[0]
            out += [("ask", g, enough + more, False) for more in (-2, -1, 0, 1)] + [("ask", g, r.choice((0, 1)), True)]
        out += [("displace",), *(("displace_next", g, state.gpu_free + more) for g in line for more in (-1, 0, 1, 3))]
    out += [("swap_in_next",)] if state.swapped[1] and not late else []
    out += [("preempt", g) for g in r.sample(state.running[1], min(2, len(state.running[1]))) if may_go(state, g)]
    some = (*state.running[1][-1:], *state.waiting[1][:1], *state.swapped[1][:1], *state.status.to_dict())
    out += [("force", g, mode) for g in some[:4] for mode in (-1, 0, 1, 2, 3)]
    out += [("trim", g) for g in state.running[1][-2:]]
    out += [("look_ahead", g) for g in state.running[1][-2:] if g in state.prefilling[1] or state.alarm[g] > state.clock]
    if state.config.vllm_v0:
        out += [("to_front", g) for g in (*state.waiting[1][:2], *state.running[1][:1])]
        budget = state.config.max_num_batched_tokens
        spent = (-1, 0, *(max(0, budget - left) for left in (0, 1, 2, 3)))
        out += [("serve", g, n) for g in (*state.prefilling[1], *decoding[-1:]) for n in dict.fromkeys(spent)]
    for g in r.sample(decoding, min(2, len(decoding))):
        out += [("serve", g), *(("make_room", g, state.gpu_free + more) for more in (-1, 0, 1)), ("make_more", g, 1)]
    return out


def step(state: State, mode: str, action: Action) -> State | None:
    """The next state, or None if the call is rejected. A preemption may name a policy of its own."""
    if action[0] == "preempt" and len(action) > 2:
        action, mode = action[:2], action[2]
    d = Draft(state, POLICIES[mode])
    try:
        perform(d, action)
        return d.close()
    except Rejected:
        d.abandon()
        return None


def some_config(r: random.Random) -> dict[str, Any]:
    """Sizes small enough that every limit is met."""
    v0 = r.random() < 0.35
    model = r.choice((40, 12, 8, 5))
    chunked = r.random() < 0.35
    tokens = max(r.choice((30, 12, 8, 6, 4, 3, 2, 1)), model if v0 and not chunked else 1)
    roomy = not v0 and not chunked and r.random() < 0.35  # then long prompts are computed in pieces while others decode
    if roomy:
        tokens, model = r.choice((2, 3, 4, 6)), 40
    blocks = r.choice((6, 8, 10, 14) if roomy else (1, 2, 3, 4, 5, 6, 7, 9, 12))
    return {
        "num_gpu_blocks": blocks,
        "num_cpu_blocks": r.choice((0, 1, 2, 4, 6, 8, 12, 20)),
        "block_size": r.choice((1, 2, 2, 3)),
        "watermark_blocks": min(r.choice((0, 0, 0, 1, 2)), blocks - 1),
        "max_num_seqs": min(r.choice((1, 2, 3, 4, 6)), tokens),
        "max_num_batched_tokens": tokens,
        "max_model_len": model,
        "vllm_v0": v0,
        "enable_chunked_prefill": chunked,
        "num_lookahead_slots": r.choice((0, 0, 0, 1, 2, 4)),
        "priority": r.random() < 0.3,
        "choose_victims": not v0 and r.random() < 0.25,
        "delay_factor": r.choice((0, 0, 0, 1)),
    }


def limit(config: dict[str, Any], times: int) -> None:
    """Nobody may be preempted more often, in profile kvproof."""
    config.update(vllm_v0=False, max_preemptions_per_request=times)


def may_go(state: State, g: int) -> bool:
    """May g be preempted?"""
    most = state.config.max_preemptions_per_request
    return most is None or state.preemptions.get(g, 0) < most


def actions(state: State, r: random.Random) -> list[Action]:
    """Calls worth trying here, legal or not."""
    prompt = r.choice((1, 1, 2, 3, 4, 5, 7, 9))
    known = list(state.status.to_dict())
    rank = r.choice((-2, -1, 0, 0, 1)) if state.config.priority else 0
    out: list[Action] = [
        ("add", prompt, prompt + r.choice((1, 2, 3, 6, 12, 20)), *r.choice(((1, 1), (1, 1), (2, 1), (2, 2), (3, 1))), rank),
        ("add", prompt - 1, prompt + r.choice((-1, 0)), 1, 1, 0),
        ("add", prompt + 2, prompt, 1, 1, 0),
        ("add", prompt, prompt + 4, 1, 1, r.choice((-1, 1))),
        ("add", prompt, prompt + 3, r.choice((0, 1, state.config.max_num_seqs + 1)), r.choice((0, 1, 2)), 0),
        ("schedule",),
        ("schedule", tuple((g, r.choice((0, 1, 2))) for g in (*state.running[1][-1:], *state.waiting[1][:1]))),
    ]
    running = list(state.running[1])
    pairs = [(g, q) for g in running for q in (state.members[g][0] if g in state.members else (0,))]
    ended = tuple(r.sample(pairs, min(len(pairs), r.choice((0, 0, 1, 2)))))
    if r.random() < 0.15:
        ended = (*ended, (r.choice([*known, 99]), r.choice((0, 1, 7))))
    some = tuple(g for g in running if r.random() < 0.7)
    more = tuple((g, r.choice((-1, 0, 1, 1, 2, 3))) for g in known if r.random() < 0.7)
    out += [("commit", None, (), ()), ("commit", some, ended, ()), ("commit", None, ended, more), ("commit", (), (), ())]
    out += [("commit", some, (), more)] if more and state.config.num_lookahead_slots else []
    out += [("deny_append", g, r.choice((0, 1, 2))) for g in r.sample([*known, 99], 1)]
    out += [("abort", g) for g in r.sample(known, min(len(known), 3))]
    out += [("finish_sequence", *p) for p in r.sample(pairs, min(len(pairs), 2))]
    out += [("fork", *p, r.choice((0, 0, 1, 1, 2, -1))) for p in r.sample(pairs, min(len(pairs), 2))]
    for g in (*state.prefilling[1][:1], *state.swapped[1][:1], *state.waiting[1][:1]):
        out += [("fork", g, 0, 0), ("finish_sequence", g, 0), ("forget", g)]
    out += [("forget", g) for g in known if state.status[g] > 3][:2]
    out += [("forward", r.choice((0, 1, 1, 2, 3, 5)))]
    out += [("rerank", g, r.choice((-2, -1, 0, 1, 2))) for g in r.sample([*known, 99], 1)]
    odd = r.choice([*known, state.ticket, 99])
    out += [("abort", odd), ("forget", odd), ("fork", odd, r.choice((0, 1)), 1), ("finish_sequence", odd, r.choice((0, 1, 5)))]
    return list(dict.fromkeys(out))


WEIGHT = {
    "add": 3.0,
    "schedule": 5.0,
    "commit": 5.0,
    "fork": 2.5,
    "abort": 0.25,
    "finish_sequence": 0.35,
    "forget": 0.6,
    "deny_append": 0.2,
    "rerank": 0.4,
    "forward": 0.6,
    "preempt": 1.0,
}


def choose(state: State, some: list[Action], r: random.Random) -> Action:
    """The next step of a walk: mostly passes and commits, and requests while there are few."""
    weights = dict(WEIGHT)
    weights["add"] = 4.0 if len(state.waiting[1]) + len(state.running[1]) < 3 else 0.8
    weights["schedule" if state.issued else "commit"], plain = 0.05, ("commit", None, (), ())
    return r.choices(some, [weights[a[0]] if a[0] != "commit" or a == plain else weights[a[0]] / 4 for a in some])[0]
