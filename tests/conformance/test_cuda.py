"""Every recording on the CUDA backend: the stream simulator runs its copies in odd orders, and nothing changes."""

import pytest
from outcomes import HERE, run

from kvproof.backend_cuda.mirror import simulated
from kvproof.backend_fake import Misuse
from kvproof.formats import load_scenario

FILES = sorted((HERE / "golden").glob("*.json"))


RUNS = [
    (path, profile) for path in FILES for profile in ("kvproof", "vllm_v0") if profile == "kvproof" or path.stem[:5] != "large"
]


@pytest.mark.parametrize(("path", "profile"), RUNS, ids=lambda x: getattr(x, "stem", x))
def test_plans_executed_on_streams_give_the_same(path, profile):
    scenario = load_scenario(path, {"profile": profile})
    backends = []

    def backend(config):
        backends.append(simulated(config, FILES.index(path)))
        return backends[-1]

    plain = run(scenario, check=lambda state: [])
    assert run(scenario, check=lambda state: [], backend=backend) == plain
    assert plain[1]["tokens_match"] and not plain[1]["violations"]
    moved = sum(len(record["swap_out_map"]) + len(record["swap_in_map"]) + len(record["copy_map"]) for record in plain[0])
    assert backends[0].cuda.copier.taken["blocks"] == moved


def test_copies_that_go_astray_end_the_run(program, monkeypatch):
    from kvproof.backend_cuda.host_pool import HostPool

    path = HERE / "golden" / "swap-02.json"
    assert program("replay", path, "--backend", "cuda", "--interleaving", "3")[0] == 0
    span = HostPool.span
    monkeypatch.setattr(HostPool, "span", lambda self, b, n=1: span(self, b // 2, n))
    status, out, _ = program("replay", path, "--backend", "cuda")
    last = out.splitlines()[-1]
    assert status == 1 and '"error": "backend"' in last
    assert Misuse.HAZARD.value in last or Misuse.CORRUPTED.value in last
