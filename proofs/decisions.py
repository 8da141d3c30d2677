"""One step of each loop of the pass decides exactly as `kvproof.spec.decisions` says, from any state in which it can be taken."""

from typing import Any

from kvproof.core import admission, config, profiles, promises, running, schedule, swapping
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.pass_frames import KEEP, in_running_phase, laws
from kvproof.proofs.pass_rules import serve_pre
from kvproof.proofs.phase_rules import in_swap_phase
from kvproof.proofs.prefill_phase import before_running, in_prefill_phase
from kvproof.proofs.rules import Hoare, check_frame
from kvproof.proofs.sym import SBool, SInt, fresh, fresh_bool, run
from kvproof.spec import decisions, serving
from kvproof.spec import promises as spec
from kvproof.spec.logic import both, either, iff, implies, negate
from kvproof.spec.ownership import R, decodes, parameters, unfinished


def state(clauses: Any, *more: Any) -> Any:
    """Any state of which these clauses hold."""
    d: Any = ZDraft(Hoare()).midway()
    run().notes.update(head=fresh("head"), line=fresh("line"), ahead=fresh("ahead"))
    for _, c in clauses(d):
        run().assume(c)
    for c in (*laws(d), d.span_rises(), *more):
        run().assume(c)
    return d


def prove(clauses: Clauses, when: str) -> None:
    """Obligations after the step."""
    for label, c in clauses:
        run().prove(f"{label} [{when}]", c)


def case_admission() -> None:
    """The head of waiting."""
    d = state(in_prefill_phase)
    e = d.snap()
    run().assume(d.waiting.n >= 1)
    g = e.waiting.first()
    tokens = d.work(g, d.length[g])
    blocks = promises.needed(d, g, d.rows(g, d.length[g]))
    refused = either(profiles.over_prompt_limit(d, g, tokens), profiles.never_fits(d, blocks))
    for what, a, b in (  # cuts: each predicate is what the text says
        ("its turn", profiles.first_in_line(d, g), negate(decisions.waits_its_turn(e, g, False))),
        ("refused", refused, decisions.refusable(e, g)),
        ("in the budget", profiles.fits_budget(d, g, tokens), decisions.in_budget(e, g, e.spent)),
        ("in the pool", profiles.has_room(d, blocks), decisions.in_room(e, g)),
    ):
        same = iff(a, b) if what != "its turn" else either(e.plan.victim[g], iff(a, b))
        run().prove(f"one_queue: {what}, as the text says [admit_next]", same)
        run().assume(same)
    went_on = admission.admit_next(d)
    delay = run().notes.get("delayed", e.delay)  # what the step was told, if it asked
    prove(decisions.admission(d, e, g, went_on, delay), "admit_next")


def case_comeback() -> None:
    """The head of swapped."""
    d = state(in_swap_phase)
    e = d.snap()
    run().assume(d.swapped.n >= 1)
    g = e.swapped.first()
    holds = promises.needed(d, g, swapping.returning(d, g))
    run().prove("infeasible_refused: what it needs, as the text says [swap_in_next]", holds == decisions.back_needs(e, g))
    run().assume(holds == decisions.back_needs(e, g))
    for what, a, b in (  # cuts: each predicate is what the text says
        ("its turn", profiles.next_to_return(d, g), either(e.config.vllm_v0, decisions.ahead_of(e, g, e.waiting))),
        ("back", both(swapping.may_come(d, g), profiles.has_room(d, holds)), decisions.returnable(e, g)),
    ):
        run().prove(f"one_queue: {what}, as the text says [swap_in_next]", iff(a, b))
        run().assume(iff(a, b))
    went_on = swapping.swap_in_next(d)
    prove(decisions.comeback(d, e, g, went_on), "swap_in_next")


def case_piece() -> None:
    """The first unfinished prefill."""
    d = state(in_prefill_phase)
    e = d.snap()
    run().assume(d.prefilling.n >= 1)
    g = e.prefilling.first()
    prove(decisions.piece(d, e, g, went_on=admission.compute_next(d)), "compute_next")


def case_nobody_there() -> None:
    """Where there is nobody to look at, a step changes nothing and says that there is no more to do."""
    d = state(in_prefill_phase)
    before = d.versions()
    step, queue = {
        0: (admission.admit_next, d.waiting),
        1: (admission.compute_next, d.prefilling),
        2: (swapping.swap_in_next, d.swapped),
    }[0 if fresh_bool("admit") else 1 if fresh_bool("compute") else 2]
    run().assume(queue.n == 0)
    went_on = step(d)
    run().prove("total: the step goes on exactly if it did something [nobody there]", negate(went_on))
    run().prove("status_graph: nobody moves [nobody there]", d.versions() == before)


class Wish:
    """A policy with one wish."""

    def __init__(self, swap: SBool) -> None:
        self.swap = swap

    def swaps(self, g: Any, sequences: Any) -> SBool:
        """The wish."""
        return self.swap


def case_mode() -> None:
    """A victim."""
    g: Any = fresh("g")
    d = state(in_running_phase)
    planned = either(d.plan.grown[g], d.plan.piece[g] != 0, d.sampling.has_[g])
    run().assume(both(d.status[g] == R, negate(planned)))
    wish = fresh_bool("wish")
    d.policy = Wish(wish)
    e = d.snap()
    running.preempt(d, g)
    prove(serving.mode(d, e, g, wish), "preempt")


def case_forced() -> None:
    """An event that preempts somebody before a pass."""
    g: Any = fresh("g")
    how: Any = fresh("how")
    d = state(before_running)
    wish = fresh_bool("wish")
    d.policy = Wish(wish)
    e = d.snap()
    running.force(d, g, how)
    asked = run().notes.get("asked", [])
    swap = either(how == 2, both(how == 0, wish))
    run().prove("total: only who runs is preempted by force [force]", iff(e.status[g] == R, len(asked) == 1))
    for function, (victim, wished) in asked:  # `mode` proves what becomes of it
        run().prove(
            "total: the one that is named, as it is wished [force]", both(function == "evict", victim == g, iff(wished, swap))
        )
    prove([decisions.nobody_else_moves(d, e, g)], "force")


def case_promise() -> None:
    """What is kept for a group that runs."""
    g: Any = fresh("g")
    d = state(before_running)
    run().assume(d.status[g] == R)
    e, before = d.snap(), d.versions()
    promises.keep_promise(d, g)
    kept = both(d.owed[g] == spec.promised(e, g), d.owing == e.owing + d.owed[g] - e.owed[g])
    run().prove("bounded_preemptions: so much is kept as it may still take [keep_promise]", kept)
    check_frame("keep_promise", d, before, KEEP)


def case_victim() -> None:
    """One step of making room."""
    g: Any = fresh("g")
    blocks: Any = fresh("blocks")
    d: Any = state(lambda d: serve_pre(d, g))
    e = d.snap()
    last = e.last_below(g)
    denied = run().notes["denied"] = fresh_bool("denied")  # what the step is told, if it asks
    named: Any = fresh("named")  # whom the policy names, if it is asked
    run().notes["named"] = named
    went_on = running.make_room(d, g, blocks)
    prove(serving.victim(d, e, g, blocks, last, named, went_on, denied), "make_room")


def case_service() -> None:
    """A group that decodes, in the way of its profile."""
    g: Any = fresh("g")
    d: Any = state(lambda d: [*serve_pre(d, g), ("", decodes(d, g))])
    e = d.snap()
    if d.config.vllm_v0:
        running.serve_v0(d, g)
    else:
        running.serve(d, g)
    prove(serving.service(d, e, g), "serve")


def case_prompt_v0() -> None:
    """A group that is in its prefill, in V0."""
    g: Any = fresh("g")
    d: Any = state(lambda d: [*serve_pre(d, g), ("", both(d.config.vllm_v0, d.prefilling.has_[g]))])
    e = d.snap()
    running.serve_v0(d, g)
    prove(serving.prompt_v0(d, e, g), "prefill_v0")


class Whole(SInt):
    """A symbolic integer that `isinstance(x, int)` takes for one."""

    __slots__ = ()
    __class__ = property(lambda self: int)


SIZES = (
    *("num_gpu_blocks", "num_cpu_blocks", "block_size", "watermark_blocks", "max_num_seqs", "num_lookahead_slots"),
    *("max_num_batched_tokens", "max_model_len"),
)
FLAGS = ("vllm_v0", "enable_chunked_prefill", "priority", "choose_victims")


def case_config() -> None:
    """`Config` accepts exactly the sizes that the proofs assume, up to LARGEST, and in V0 a budget that holds every prompt."""
    d: Any = ZDraft(Hoare())
    c = d.config
    fields: dict[str, Any] = {n: Whole(getattr(c, n).e) for n in SIZES}
    if c.bounded:
        fields["max_preemptions_per_request"] = Whole(c.max_preemptions_per_request.e)
    small = [getattr(c, n) <= config.LARGEST for n in ("num_gpu_blocks", "num_cpu_blocks")]
    right = both(parameters(d), *[getattr(c, n) <= config.LARGEST for n in fields])
    few = {n: fields[n] for n in ("num_gpu_blocks", "num_cpu_blocks")}
    flags: dict[str, Any] = {name: bool(getattr(c, name)) for name in ("vllm_v0", "enable_chunked_prefill", "choose_victims")}
    test = config.ArtificialPreemption()
    right_too = implies(parameters(d), accepts({**few, "delay_factor": 0.5, "artificial_preemption": test}))
    run().prove("total: a delay and a test that work [Config]", implies(both(*small), right_too))
    run().prove("total: the other fields have values that work [Config]", implies(both(parameters(d), *small), accepts(few)))
    run().prove("total: accepted exactly if it can work [Config]", iff(accepts({**fields, **flags}), right))


def case_config_values() -> None:
    """Values of another kind are refused in each field, where all others are right."""
    fields: dict[str, Any] = {"num_gpu_blocks": 4, "num_cpu_blocks": 4}
    value: Any
    run().prove("total: these are right [Config]", accepts(fields))
    for name in (*SIZES, "max_preemptions_per_request"):
        for value in (2.0, "2", True, False, None):
            if value is not None or name != "max_preemptions_per_request":
                run().prove(f"total: {name} is a whole number [Config]", not accepts({**fields, name: value}))
    for name in FLAGS:
        for value in (0, 1, "yes", None):
            run().prove(f"total: {name} is true or false [Config]", not accepts({**fields, name: value}))
    for value in (-0.5, "1", True, None, float("nan"), float("inf")):
        run().prove("total: delay_factor is a finite number [Config]", not accepts({**fields, "delay_factor": value}))
    for value in (0.5, True, {}):
        run().prove("total: artificial_preemption is one [Config]", not accepts({**fields, "artificial_preemption": value}))
    for value in (-0.1, 1.5, "1", True, None, float("nan")):
        run().prove("total: a probability is one [Config]", not probable(value))
    run().prove("total: probabilities and factors that work [Config]", all(map(probable, (0, 0.5, 1))))


def probable(value: Any) -> bool:
    """Is this the probability of an artificial preemption?"""
    try:
        config.ArtificialPreemption(probability=value)
    except config.ConfigError:
        return False
    return True


def case_standing() -> None:
    """V0's running queue after a mixed step: the places of those not reached, back, decoding and in their prefills."""
    g: Any = fresh("g")
    d = state(in_prefill_phase)
    run().assume(d.status[g] == R)
    place = profiles.standing(d, g)
    run().prove("one_queue: its place in V0's running queue [standing]", place == serving.standing(d, g))


def case_front() -> None:
    """V0 puts those whom it recomputes in a mixed step in front."""
    g: Any = fresh("g")
    d = state(in_prefill_phase)
    run().assume(unfinished(d, g))
    e = d.snap()
    schedule.to_front(d, g)
    prove(decisions.in_front(d, e, g), "to_front")


def accepts(fields: dict[str, Any]) -> bool:
    """Is this a configuration?"""
    try:
        config.Config(**fields)
    except config.ConfigError:
        return False
    return True


CASES: dict[str, Any] = {
    "admission": (case_admission, ("end", "admit"), "admit_next"),
    "comeback": (case_comeback, ("end", "swap_in"), "swap_in_next"),
    "piece": (case_piece, (), "compute_next"),
    "nobody_there": (case_nobody_there, (), "admit_next", "compute_next", "swap_in_next"),
    "mode": (case_mode, ("release", "move_group_out"), "preempt"),
    "promise": (case_promise, (), "keep_promise"),
    "forced": (case_forced, ("evict",), "force"),
    "victim": (case_victim, ("evict",), "make_room"),
    "service": (case_service, ("append_slots", "find_blocks", "compute", "look_ahead"), "serve", "serve_v0"),
    "prompt_v0": (case_prompt_v0, ("find_blocks", "compute"), "serve_v0"),
    "front": (case_front, (), "to_front"),
    "standing": (case_standing, (), "standing"),
    "config": (case_config, (), *("_whole", "_flag", "_size", "_factor", "_artificial", "Config.__attrs_post_init__")),
    "config_values": (case_config_values, (), *("_whole", "_flag", "_size", "_factor", "_share", "_artificial")),
}
