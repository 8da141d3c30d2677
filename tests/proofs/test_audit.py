"""The audit: named faults are found by the refuter, and a proof fails; the real core has no counterexample."""

import importlib

import pytest

from kvproof.core import config
from kvproof.proofs import audit, bank, equivalence, mutate, outcomes, refute
from kvproof.spec import decisions


@pytest.fixture(scope="module")
def trials():
    return bank.build(60, 30)


def test_every_function_of_the_core_is_mutated():
    here = {(m.module, m.function) for m in mutate.mutants()}
    for module in mutate.modules():
        for name, _ in mutate.functions(mutate.ast.parse(mutate.text(module))):
            assert (module, name) in here


def test_mutants_differ_and_compile():
    some = mutate.mutants()
    assert len({(m.module, m.source) for m in some}) == len(some)
    assert len({m.key for m in some}) == len(some)
    for m in some:
        compile(m.source, m.where, "exec")


def test_the_real_core_has_no_counterexample(trials):
    bench = refute.Bench()
    assert [t.action for t in trials if bench.broken(t.situation, t.action)] == []


@pytest.mark.parametrize("mutant", mutate.named(), ids=lambda m: m.change)
def test_the_refuter_finds_named_faults(trials, mutant):
    found = refute.refute(mutant, trials, walks=5)
    assert found is not None
    s = found.situation
    assert refute.replay(mutant, s.config, s.mode, s.recipe, s.edits, found.action) == found.clause
    assert str(found.action[0]) in found.snippet(mutant)


def test_a_switched_core_is_switched_back(trials):
    mutant = mutate.named()[0]
    real = vars(importlib.import_module(f"kvproof.core.{mutant.module}"))[mutant.function]
    code = real.__code__
    with mutate.switched(mutant):
        assert real.__code__ is not code
    assert real.__code__ is code


@pytest.mark.parametrize(("function", "change"), [("blocks.give_back", "named"), ("groups.add", "drop d.waiting.add(g)")])
def test_a_proof_fails(monkeypatch, tmp_path, function, change):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    assert audit.first_failure(mutate.find(function, change), clause="") is not None


def test_the_real_core_has_no_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    same = mutate.Mutant("groups", "forget", 1, "nothing", mutate.text("groups"))
    assert audit.first_failure(same, clause="") is None


NOTICED = [
    ("config_values", "config._share", "not 0 <= value <= 1: without not"),
    ("forward_step", "schedule.quiet", "return False: False -> True"),
    ("forward_step", "schedule.quiet", "d.clock + 1: + to -"),
    ("forward_step", "schedule.quiet", "d.due_count() <= d.gpu.n - d.owing: to <"),
    ("forward_step", "schedule.forward_next", "drop d.clock += idle"),
    ("forward_step", "schedule.forward_next", "drop d.prefilled = False"),
    ("forward", "schedule.forward", "drop d.repeat('forward', forward_next, d.epoch + passes, results)"),
]


@pytest.mark.parametrize(("name", "function", "change"), NOTICED)
def test_a_case_notices_what_it_is_about(name, function, change):
    limit = 4 * audit.TIMES * audit.LEAST
    assert all(audit.decide(log, goal, limit) == "proved" for _, log, goal in audit.goals(name))
    with mutate.switched(mutate.find(function, change)):
        assert any(audit.decide(log, goal, limit) != "proved" for _, log, goal in audit.goals(name))


def test_several_passes_are_compared_again_and_again(trials):
    """Single passes leave rows behind that are longer than what a version sees of them."""
    somewhere = [t.situation for t in trials if t.action[0] == "forward" and decisions.quiet(refute.View(t.situation.state()))]
    assert len(somewhere) > 5
    bench = refute.Bench()
    for situation in somewhere:
        assert [bench.broken(situation, ("forward", passes)) for passes in (5, 1, 2)] == [None] * 3


def test_equal_expressions_are_shown_to_be_equal():
    assert audit.shown_equivalent(mutate.find("admission.admit", "d.members.count(g) == 1: to <=")) is not None
    assert audit.shown_equivalent(mutate.find("admission.admit", "d.members.count(g) == 1: to >=")) is None


def test_written_arguments_are_about_mutants():
    known = {(f"{m.module}.{m.function}", m.change) for m in mutate.mutants()}
    assert {*equivalence.ARGUMENTS, *equivalence.REASONS} <= known


def test_config_is_compared_with_what_it_must_accept():
    assert refute.wrong_config(vars(config)) is None
    some = mutate.mutants("config")
    assert len(some) > 50
    assert [m.change for m in some if refute.refute(m, []) is None] == []


ONLY_RARE = [
    ("admission.compute_next", "d.prefilling.first: the other end"),
    ("admission.admit", "drop d.charged += d.seats[g]"),
    ("admission.admit", "drop d.ungiven[g] = 1"),
    ("admission.admit", "drop d.mark_admission()"),
    ("swapping.swap_in", "drop d.ungiven[g] = 1"),
    ("running.serve_v0", "drop d.ungiven[g] = 1"),
    ("groups.stop_running", "drop d.idle.remove(g)"),
    ("groups.add", "d.ticket < d.ranks: + 1"),
    ("groups.fork", "d.seqs < d.config.max_num_seqs: to !="),
    (
        "groups.trim_next",
        "d.table.size(g, q) == 1 or d.capacity(g) - d.config.block_size < d.alarm[g] - d.born[g] - 1: without "
        "d.table.size(g, q) == 1",
    ),
    ("groups.deny_append", "drop d.refuse_appends(g, count)"),
    ("profiles.over_prompt_limit", "tokens > d.config.max_num_batched_tokens: + 1"),
    ("schedule.step_of_prefills", "drop displace(d)"),
    ("schedule.decode", "drop schedule_swapped(d)"),
    ("running.force", "mode == 2: to >="),
    ("running.prefill_v0", "left < 1: to <="),
    ("running.look_ahead", "drop d.due.move(g, grown_until(d, g))"),
    ("groups.trim", "drop d.due.move(g, grown_until(d, g))"),
    (
        "running.look_ahead",
        "not d.prefilling.has(g) and (not d.sampling.has(g)) and (d.members.count(g) == 1): without not d.sampling.has(g)",
    ),
]


@pytest.fixture(scope="module")
def rare():
    return [*bank.rare()]


@pytest.mark.parametrize(("function", "change"), ONLY_RARE)
def test_states_that_walks_hardly_come_to_find_what_others_hardly_find(function, change, rare):
    assert refute.refute(mutate.find(function, change), rare, walks=0) is not None


def test_what_the_real_core_breaks_as_well_is_no_counterexample(monkeypatch, rare):
    mutant = mutate.find("groups.deny_append", "drop d.refuse_appends(g, count)")
    assert refute.refute(mutant, rare, walks=0) is not None
    said = [("total: so it is", False)]
    monkeypatch.setitem(outcomes.AFTER, "deny_append", lambda *x: said)
    assert refute.refute(mutant, rare, walks=0) is None


def test_a_delay_is_what_the_pass_was_told(monkeypatch):
    """V0: the first that waits is kept back; then one that came long before it is preempted, and the delay would have passed."""
    config = {"num_gpu_blocks": 3, "num_cpu_blocks": 1, "block_size": 1, "max_num_seqs": 2, "max_num_batched_tokens": 40}
    config |= {"max_model_len": 40, "vllm_v0": True, "delay_factor": 1}
    recipe = [("add", 1, 9, 1, 1, 0), *[("schedule",), ("commit", None, (), ())] * 3, ("add", 2, 5, 1, 1, 0)]
    trial = bank.Situation(
        config, "recompute", tuple(recipe), (), bank.freeze(bank.replayed(config, "recompute", tuple(recipe), ()))
    )
    seen = []
    monkeypatch.setattr(
        refute.outcomes, "after", lambda name, alone, d, *rest: seen.append((d.delay, refute.View.delay.fget(d))) or []
    )
    assert refute.Bench().broken(trial, ("schedule",)) is None
    assert seen == [(True, False)]


PHASES = [
    ("schedule.step_of_prefills", "drop displace(d)"),
    ("schedule.decode", "drop schedule_swapped(d)"),
    ("schedule.schedule_either", "negate not d.prefilled"),
    ("schedule.schedule_mixed", "drop go_on_with_prefills(d)"),
    ("schedule.schedule", "drop d.each_running('look_ahead_all', look_ahead)"),
    ("schedule.schedule", "drop d.each_running('trim_all', trim)"),
]


@pytest.mark.parametrize(("function", "change"), PHASES)
def test_a_phase_that_is_left_out_is_noticed(function, change):
    """Not proved in the solver steps in which those of the real core are: nearly always with a model, which is luck."""
    name, limit = f"phases_of_{function.partition('.')[2]}", audit.TIMES * audit.LEAST
    assert all(audit.decide(log, goal, limit) == "proved" for _, log, goal in audit.goals(name))
    with mutate.switched(mutate.find(function, change)):
        assert any(audit.decide(log, goal, limit) != "proved" for _, log, goal in audit.goals(name))
