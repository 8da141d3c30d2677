"""Forced low capacity on a few workloads; `make capacity` runs 200."""

import pytest

from kvproof.fake_engine import FakeEngine
from kvproof.fuzz import capacity


@pytest.mark.parametrize("seed", range(8))
def test_outputs_are_those_of_the_free_run(seed):
    pools, _ = capacity.squeeze(capacity.workload(seed))
    assert pools >= 1


def test_a_lost_token_is_noticed(monkeypatch):
    step = FakeEngine.step

    def loses(self, *arguments):
        done = step(self, *arguments)
        if done.plan.preempted:
            g = done.plan.preempted[0][0]
            self.model.sequences[g, 0].output[-1:] = [7] * len(self.model.sequences[g, 0].output[-1:])
        return done

    monkeypatch.setattr(FakeEngine, "step", loses)
    assert capacity.main(["--workloads", "8"]) == 1
