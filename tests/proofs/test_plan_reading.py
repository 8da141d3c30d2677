"""The two readings of the plan agree: the symbolic one, and the concrete one through the view that the specification reads."""

from hypothesis import given, settings
from hypothesis import strategies as st
from symbolic_run import filled, known

from kvproof.proofs.plan_shape import ZPlan
from kvproof.spec.planview import PlanView
from kvproof.spec.told import Told
from kvproof.store.plan import PlanDraft

FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None)
numbers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)), max_size=12)
"""Each triple is one operation: what, on whom, with what."""


@FEW
@given(numbers)
def test_plan_and_its_view(steps):
    """The symbolic plan, and the concrete one as `spec.planview` shows it to the clauses. Groups 0 and 1 go, 2 and 3 stay."""
    with known() as run:
        concrete, symbolic = PlanDraft(), filled(ZPlan(), told=-1, told_n=0)
        told, sources = Told(), iter(range(100, 200))
        for what, g, q in steps:
            gone = {v for v, _ in (*concrete.victims, *concrete.ends)}
            size = len({i for h, p, i, _ in concrete.slots if (h, p) == (g, q)})
            for plan in (concrete, symbolic):
                if g < 2 and g not in gone and what < 5:
                    plan.preempted(g, "swap")
                elif g < 2 and g not in gone:
                    plan.ended(g, 4)
                elif g >= 2 and what < 6:
                    plan.slot(g, q, size if what < 4 else 0, what)  # appends, or replaces the first
                elif g >= 2 and what == 6:
                    plan.resumed(g)
                elif g >= 2 and what == 7:
                    plan.prefill(g, q, 5)
            if what >= 8:
                a, b = next(sources), next(sources)
                for plan in (concrete, symbolic):
                    (plan.copied_out, plan.copied_in, plan.copied)[q % 3](a, b)
        plan = concrete.close(1, (), (), True)
        told.plan(plan)
        view, ids = PlanView(plan, told), (-1, 0, 1, 2, 3, *range(100, 130))
        for name in ("victim", "ended_", "grown", "back", "piece"):
            assert [run.value(getattr(symbolic, name)[g]) for g in range(4)] == [getattr(view, name)[g] for g in range(4)], name
        for name in ("out_of", "in_of", "copy_of", "copied_from"):
            assert [run.value(getattr(symbolic, name)[b]) for b in ids] == [getattr(view, name)[b] for b in ids], name
        for name in ("victims", "ends", "pieces", "outs", "ins", "copies", "total"):
            assert run.value(getattr(symbolic, name)) == getattr(view, name), name
        sequences = [(g, q) for g in range(4) for q in range(4)]
        assert [run.value(symbolic.told_n[k]) for k in sequences] == [view.told_n[k] for k in sequences]
        assert {k: run.value(symbolic.told[k]) for k in view.told} == view.told
        run.settle()
