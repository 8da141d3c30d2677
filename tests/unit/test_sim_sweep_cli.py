"""`kvproof simulate` with sweeps, timelines, baselines: what it writes, bad options, no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof.cli import sweeping
from kvproof.sim.sweep import VARIANTS, Task


def in_order(fn: Callable[[Task], Any], tasks: Sequence[tuple[Task]]) -> Iterator[Any]:
    yield from ((task, fn(*task)) for task in tasks)


class Result:
    """What a call of the program left."""

    def __init__(self, status: Any, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


SMALL = ("azure-like", "--limit", 20, "--rate", 9, "--sweep", "--sweep-blocks", "800,1000", "--sweep-load", "1,2")


@pytest.fixture
def call(program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def simulate(*arguments: object, processes: bool = False) -> Result:
        if not processes:
            monkeypatch.setattr(sweeping, "in_processes", lambda jobs: in_order)
        return Result(*program("simulate", *arguments))

    return simulate


def test_processes_change_nothing(call: Any) -> None:
    def told(*arguments: object, processes: bool) -> str:
        result = call(*SMALL, "--sweep-variants", "reserve,kvproof swap", "--json", *arguments, processes=processes)
        assert (result.status, result.err) == (0, "")
        return str(result.out)

    out = told("--jobs", 2, processes=True)
    assert out == told(processes=False)
    result = json.loads(out)
    assert [(run["blocks"], run["load"], run["variant"]) for run in result["runs"]] == [
        (blocks, load, name) for blocks in (800, 1000) for load in (1.0, 2.0) for name in ("kvproof swap", "reserve")
    ]
    assert result["trace"]["requests"] == 20 and "num_gpu_blocks" not in result["config"] and "run" not in result


def test_table_and_page(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="needs plotly: pip install 'kvproof[report]'")
    pages = []
    for name in ("a.html", "b.html"):
        result = call(*SMALL, "--report", tmp_path / name)
        assert (result.status, result.err) == (0, "")
        pages.append((tmp_path / name).read_bytes())
        for words in ("800 blocks; load 1 =", "1,000 blocks", "vllm_v0 recompute", "reserve", "goodput: TTFT <= 2 s"):
            assert words in result.out
    assert pages[0] == pages[1] and b"Plotly.newPlot" in pages[0] and len(pages[0]) > 10**6


def test_without_plotly_there_is_one_line(call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = call(*SMALL, "--report", tmp_path / "r.html")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("kvproof: --report: the page of a sweep needs the package plotly: pip install 'kvproof[report]'")
    assert list(tmp_path.iterdir()) == []


def test_slo_options(call: Any) -> None:
    one = ("azure-like", "--limit", 20, "--json", "--slo-ttft", 1e-6, "--slo-tpot", 0.5)
    good = json.loads(call(*one).out)["goodput"]
    assert (good["slo_ttft_s"], good["slo_tpot_s"], good["requests"]) == (1e-6, 0.5, 0)
    runs = json.loads(call(*SMALL, "--json", "--slo-ttft", 1e9, "--slo-tpot", 1e9).out)["runs"]
    assert {run["goodput"]["share"] for run in runs} == {1.0}


def test_trace_out(call: Any, tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    result = call("azure-like", "--limit", 20, "--baseline", "reserve", "--trace-out", target, "--json")
    assert (result.status, json.loads(result.out)["config"]["baseline"]) == (0, "reserve")
    events = json.loads(target.read_text())["traceEvents"]
    assert sum(event["ph"] == "B" for event in events) == sum(event["ph"] == "E" for event in events) == 60
    assert list(tmp_path.iterdir()) == [target]


BAD_OPTIONS = {
    "blocks": (("--sweep", "--sweep-blocks", "500,many"), "--sweep-blocks: must be numbers separated by commas, like 500,1000"),
    "no blocks": (("--sweep", "--sweep-blocks", ""), "--sweep-blocks: must be numbers"),
    "0 blocks": (("--sweep", "--sweep-blocks", "0"), "--sweep-blocks: must be from 1 to"),
    "nobody fits": (("--sweep", "--sweep-blocks", "9,1"), "--sweep-blocks: no request of the trace can run with 1 blocks"),
    "load": (("--sweep", "--sweep-load", "1;2"), "--sweep-load: must be numbers"),
    "load NaN": (("--sweep", "--sweep-load", "nan"), "--sweep-load: must be from 0.001 to 1000"),
    "load infinite": (("--sweep", "--sweep-load", "inf"), "--sweep-load: must be from"),
    "many loads": (("--sweep", "--sweep-load", ",".join(str(k + 1) for k in range(101))), "--sweep-load: at most 100 numbers"),
    "variant": (
        ("--sweep", "--sweep-variants", "hope"),
        "--sweep-variants: no variant is called 'hope'; there are vllm_v0 recompute;",
    ),
    "jobs": (("--sweep", "--jobs", "0"), "--jobs"),
    "blocks alone": (("--sweep-blocks", "500"), "--sweep-blocks: goes with --sweep only"),
    "jobs alone": (("--jobs", "2"), "--jobs: goes with --sweep only"),
    "pool": (("--sweep", "--num-gpu-blocks", "500"), "--num-gpu-blocks: does not go with --sweep"),
    "mode": (("--sweep", "--preemption-mode", "swap"), "--preemption-mode: does not go with --sweep"),
    "timeline": (("--sweep", "--trace-out", "t.json"), "--trace-out: does not go with --sweep"),
    "V0 budget": (
        ("--sweep", "--max-num-batched-tokens", "500"),
        "--sweep: vllm_v0 recompute, 26674 blocks: max_num_batched_tokens:",
    ),
    "does not fit": (("--sweep", "--model", "llama-3.1-70b"), "--num-gpu-blocks: the weights of llama-3.1-70b"),
    "one request": (("--sweep", "--limit", "1"), "s.csv: --sweep: all requests arrive at once"),
    "report is the trace": (("--sweep", "--report", "s.csv"), "--report s.csv: is the trace itself"),
    "timeline is the trace": (("--trace-out", "s.csv"), "--trace-out s.csv: is the trace itself"),
    "timeline in no folder": (("--trace-out", "absent/t.json"), "--trace-out absent/t.json: cannot be written: no such file"),
    "timeline is the report": (("--trace-out", "r", "--report", "r"), "--trace-out r: is the file of --report"),
    "ttft": (("--slo-ttft", "0"), "--slo-ttft: must be a positive number of seconds"),
    "tpot": (("--slo-tpot", "nan"), "--slo-tpot: must be a positive number of seconds"),
    "ttft of a sweep": (("--sweep", "--slo-ttft", "-1"), "--slo-ttft: must be a positive number of seconds"),
    "baseline": (("--baseline", "hope"), "--baseline"),
    "baseline and mode": (("--baseline", "reserve", "--preemption-mode", "swap"), "--baseline reserve: preempts nobody"),
    "baseline and V0": (("--baseline", "reserve", "--profile", "vllm_v0", "--trace-out", "t"), "--baseline reserve: goes with"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_end_with_2_and_say_which(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    options, message = BAD_OPTIONS[case]
    source = tmp_path / "s.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,30,2\n2023-11-16 18:15:47.5,30,2\n")
    before = source.read_bytes()
    monkeypatch.chdir(tmp_path)
    result = call("s.csv", "--json", *options)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["s.csv"] and source.read_bytes() == before


def children(pid: int) -> set[int]:
    """All processes below pid that are not zombies."""
    out: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            out |= {int(path.parent.name)} | children(int(path.parent.name))
    return out


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def long_sweep(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A sweep that would take minutes, when its processes are at work."""
    arguments = ("azure-like", "--limit", "3000", "--sweep", "--sweep-blocks", "1000", "--jobs", "2", "--report")
    command = [sys.executable, "-m", "kvproof", "simulate", *arguments, str(tmp_path / "r.html")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")


def workers(process: "subprocess.Popen[str]") -> set[int]:
    """The processes that simulate: children of the server that forks them."""
    return {grandchild for child in children(process.pid) for grandchild in children(child)}


@needs_proc
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_nothing(long_sweep: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals, status: int) -> None:
    assert until(lambda: bool(workers(long_sweep)))
    below = children(long_sweep.pid)
    if number is signal.SIGINT:
        os.killpg(long_sweep.pid, number)  # as a terminal does
    else:
        long_sweep.send_signal(number)
    out, err = long_sweep.communicate(timeout=20)
    assert (long_sweep.returncode, out, err.strip()) == (status, "", "kvproof: interrupted")
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_a_process_that_dies_is_one_line(long_sweep: "subprocess.Popen[str]", tmp_path: Path) -> None:
    assert until(lambda: bool(workers(long_sweep)))
    for pid in workers(long_sweep):
        os.kill(pid, signal.SIGKILL)
    out, err = long_sweep.communicate(timeout=20)
    assert (long_sweep.returncode, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("kvproof: --sweep: the process for (kvproof recompute, 1000 blocks, all requests at once,)")
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_have_a_comma() -> None:
    assert sweeping.variants_of("kvproof auto, watermark") == ["kvproof auto, watermark"]
    names = ["kvproof auto", "kvproof auto, watermark", "reserve"]
    assert sweeping.variants_of("kvproof auto,  watermark, kvproof auto,reserve") == names
    assert sweeping.variants_of(", ".join(VARIANTS)) == list(VARIANTS)
