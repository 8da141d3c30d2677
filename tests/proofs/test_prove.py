"""Everything that `kvproof prove` lists is proved, nothing public or looping is left out, and a broken core is not proved."""

import ast
import os
from pathlib import Path

import pytest

import kvproof.core
from kvproof.proofs import cases, premises, prove, solving, workers
from kvproof.proofs.rules import RULES

CORE = sorted(Path(next(iter(kvproof.core.__path__))).glob("*.py"))
LOOPS = {
    "repeat",
    "times",
    "each_index",
    "each_member",
    "each_kin",
    "each_due",
    "each_running",
    "each_expiring",
    "each",
    "each_item",
    "each_pair",
}
LATER = {"no_hazard_fenced"}
NAMES = """
conservation refcount_exact no_double_free ownership_by_status status_graph one_queue table_length no_shared_write
recompute_keeps_output fork_shares group_together swap_map_bijective swap_preserves_view copy_target_exclusive no_swap_both_ways
no_hazard_ordered no_hazard_fenced plan_reports_tables budget_exact victim_is_last preempt_terminates victim_not_in_plan
infeasible_refused total no_deadlock head_advances every_request_ends bounded_preemptions
"""


def named_loops() -> set[str]:
    """The names of all loops of the core, by its source."""
    names = set()
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOPS:
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno}: a loop needs a literal name"
                names.add(node.args[0].value)
            assert not isinstance(node, (ast.While, ast.For)), f"{path.name}:{getattr(node, 'lineno', 0)}: a loop without a name"
    return names


def test_every_named_loop_has_a_rule():
    assert named_loops() == set(RULES)


def test_every_public_transition_is_a_case():
    assert set(cases.TRANSITIONS) <= set(cases.ALL)


def test_every_theorem_of_this_release_is_listed():
    assert set(prove.THEOREMS) == set(NAMES.split()) - LATER


@pytest.fixture(scope="module")
def report():
    return prove.run(cache=False)


@pytest.mark.parametrize("name", sorted(prove.THEOREMS))
def test_theorem_is_proved(report, name):
    theorem = next(t for t in report.theorems if t.name == name)
    assert theorem.obligations > 0
    assert theorem.status == "proved", [f for f in report.failures if f.label.startswith(name)] or report.failures[:3]


def test_a_failed_helper_leaves_no_theorem_proved():
    failure = prove.Failure("add", "helper: token counts", "", "unknown")
    result = prove.CaseResult("add", {"conservation": 3, "helper": 2}, [failure], 1.0)
    report = prove._report([result], ["conservation"], 1.0)
    assert [t.status for t in report.theorems] == ["unknown"]


def test_a_theorem_without_obligations_is_not_proved():
    report = prove._report([prove.CaseResult("add", {}, [], 1.0)], ["no_deadlock"], 1.0)
    assert not report.proved


def test_false_is_not_proved():
    import z3

    x = z3.Int("x")
    assert solving.check([x > 0], x > 1) != "unsat"
    assert solving.check([x > 0], x >= 1) == "unsat"


def test_a_false_obligation_among_true_ones_is_found():
    import z3

    x = z3.Int("x")
    log = [x > 0, x > 5]
    goals = [("a", 1, x >= 1), ("b", 1, x > 1), ("c", 1, x > -1), ("d", -1, x > 0), ("e", 2, x > 1), ("f", 2, x > 5)]
    assert [label for label, verdict in solving.verdicts(log, goals, 0) if verdict != "unsat"] == ["b"]
    assert [label for label, _ in solving.verdicts(log, goals, 0)] == list("abcdef")
    many = [(str(i), 1, x >= 1) for i in range(3 * solving.TOGETHER)]
    assert [len(part) for part in solving.parts(many)] == [solving.TOGETHER] * 3
    assert {verdict for _, verdict in solving.verdicts(log, many, 0)} == {"unsat"}


def test_what_a_proof_needed_is_tried_first_and_is_no_more_than_a_guess(monkeypatch):
    import z3

    x, y = z3.Ints("x.1 y.2")
    log = [x > 0, y > 5, z3.Int("x.7") > 3]
    known = premises.Premises()
    assert solving.easy(log, "a", x >= 1, 0, known)
    assert known.chosen(log, ["a"]) == [log[0]]
    assert known.chosen([log[2], log[1]], ["a"]) == []
    assert known.chosen(log, ["a", "b"]) is None
    assert not solving.easy(log, "b", x >= 2, 0, known)
    assert known.chosen(log, ["b"]) is None
    assert [v for _, v in solving.verdicts(log, [("a", 3, y >= 6), ("a", 3, y > 6), ("a", 1, x > 1)], 0, known)] == [
        "unsat",
        "sat",
        "sat",
    ]
    assert not solving.easy(log, "a", x >= 2, 0, known)
    assert solving.alone(log, "a", x >= 2, 0, known) == "sat"

    tried = []
    check = solving.check
    monkeypatch.setattr(solving, "check", lambda facts, *rest: tried.append(len(facts)) or check(facts, *rest))
    assert [v for _, v in solving.verdicts(log, [("c", 3, x >= 1)], 0, known)] == ["unsat"]
    known.learn("c", log[:1])
    assert [v for _, v in solving.verdicts(log, [("c", 3, x >= 1)], 0, known)] == ["unsat"]
    assert tried == [3, 1]


def test_a_kind_is_the_names_of_clauses_or_a_text_without_numbers():
    import z3

    x, k = z3.Int("x.12"), premises.Kinds()
    assert k.of(x > 12) == k.of(z3.Int("x.3") > 12) != k.of(x > 13)
    some = [z3.ForAll([x], x > n, qid=f"clause_{n}") for n in (1, 2)]
    assert [k.of(e) for e in some] == ["clause_1", "clause_2"]
    assert k.of(z3.Or(*some)) == "clause_1 clause_2"


def test_what_a_process_raises_is_raised_and_one_that_dies_is_told():
    assert dict(workers.each(divmod, [(7, 2), (9, 4)], 2)) == {(7, 2): (3, 1), (9, 4): (2, 1)}
    with pytest.raises(ZeroDivisionError):
        list(workers.each(divmod, [(1, 0)], 1))
    with pytest.raises(workers.WorkerError, match="ended with status 7"):
        list(workers.each(os._exit, [(7,)], 1))
