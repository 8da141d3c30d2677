"""One step of each loop of the pass decides exactly as `kvproof.spec.decisions` says, from any state in which it can be taken."""

from typing import Any

from kvproof.core import admission, config, running, swapping
from kvproof.proofs.contracts import Clauses
from kvproof.proofs.draft import ZDraft
from kvproof.proofs.group_rules import in_running_phase, laws
from kvproof.proofs.pass_rules import serve_pre
from kvproof.proofs.phase_rules import in_swap_phase
from kvproof.proofs.prefill_phase import in_admission, in_prefill_phase
from kvproof.proofs.rules import Hoare
from kvproof.proofs.sym import SBool, SInt, fresh, fresh_bool, run
from kvproof.spec import decisions
from kvproof.spec.logic import both, iff, implies, negate
from kvproof.spec.ownership import R, parameters


def state(clauses: Any, *more: Any) -> Any:
    """Any state of which these clauses hold."""
    d: Any = ZDraft(Hoare())
    run().notes.update(head=fresh("head"), line=fresh("line"))
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
    d = state(in_admission)
    e = d.snap()
    run().assume(d.waiting.n >= 1)
    g = e.waiting.first()
    prove(decisions.admission(d, e, g, went_on=admission.admit_next(d)), "admit_next")


def case_comeback() -> None:
    """The head of swapped."""
    d = state(in_swap_phase)
    e = d.snap()
    run().assume(d.swapped.n >= 1)
    g = e.swapped.first()
    prove(decisions.comeback(d, e, g, went_on=swapping.swap_in_next(d)), "swap_in_next")


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

    def swaps(self, g: Any) -> SBool:
        """The wish."""
        return self.swap


def case_mode() -> None:
    """A victim."""
    g: Any = fresh("g")
    d = state(in_running_phase)
    run().assume(both(d.status[g] == R, negate(d.plan.grown[g])))
    wish = fresh_bool("wish")
    d.policy = Wish(wish)
    e = d.snap()
    running.preempt(d, g)
    prove(decisions.mode(d, e, g, wish), "preempt")


def case_victim() -> None:
    """One step of making room."""
    g: Any = fresh("g")
    blocks: Any = fresh("blocks")
    d: Any = state(lambda d: serve_pre(d, g))
    e = d.snap()
    last = e.running.last()
    went_on = running.make_room(d, g, blocks)
    prove(decisions.victim(d, e, g, blocks, last, went_on), "make_room")


def case_service() -> None:
    """A group that decodes, in the way of its profile."""
    g: Any = fresh("g")
    d: Any = state(lambda d: serve_pre(d, g))
    e = d.snap()
    if d.config.vllm_v0:
        running.serve_v0(d, g)
    else:
        running.serve(d, g)
    prove(decisions.service(d, e, g), "serve")


class Whole(SInt):
    """A symbolic integer that `isinstance(x, int)` takes for one."""

    __slots__ = ()
    __class__ = property(lambda self: int)


def case_config() -> None:
    """`Config` accepts exactly the sizes that the proofs assume, up to LARGEST, and in V0 a budget that holds every prompt."""
    d: Any = ZDraft(Hoare())
    c = d.config
    names = ("num_gpu_blocks", "num_cpu_blocks", "block_size", "watermark_blocks", "max_num_seqs")
    fields: dict[str, Any] = {n: Whole(getattr(c, n).e) for n in (*names, "max_num_batched_tokens", "max_model_len")}
    odd: list[Any] = [2.0, "2", None, True]
    small = [getattr(c, n) <= config.LARGEST for n in ("num_gpu_blocks", "num_cpu_blocks")]
    right = both(parameters(d), *[getattr(c, n) <= config.LARGEST for n in fields])
    v0 = bool(c.vllm_v0)
    for name in fields:
        for value in odd:
            run().prove(f"total: {name} is a whole number [Config]", not accepts({**fields, name: value, "vllm_v0": v0}))
    for value in (0, 1, "yes", None):
        run().prove("total: vllm_v0 is true or false [Config]", not accepts({**fields, "vllm_v0": value}))
    few = {n: fields[n] for n in ("num_gpu_blocks", "num_cpu_blocks")}
    run().prove("total: the other fields have values that work [Config]", implies(both(parameters(d), *small), accepts(few)))
    run().prove("total: accepted exactly if it can work [Config]", iff(accepts({**fields, "vllm_v0": v0}), right))


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
    "mode": (case_mode, ("release", "move_group_out", "end"), "preempt"),
    "victim": (case_victim, ("preempt",), "make_room"),
    "service": (case_service, ("append_slots", "find_blocks"), "serve", "serve_v0"),
    "config": (case_config, (), "_whole", "_flag", "_size", "Config.__attrs_post_init__"),
}
