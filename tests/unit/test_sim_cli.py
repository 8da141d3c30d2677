"""`kvproof simulate`: exit statuses, what goes where, and that bad input leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvproof.cli import main
from kvproof.policies.fair import Fair
from kvproof.policies.ranking import Fcfs
from kvproof.sim import report
from kvproof.sim.metrics import Metrics

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SMALL = AZURE + "".join(f"2023-11-16 18:15:{46 + i}.5,{300 + i},{20 + i}\n" for i in range(10))


class Result:
    """What a call of the program left."""

    def __init__(self, status: Any, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def simulate(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["kvproof", "simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(ended.value.code, *capsys.readouterr())

    return simulate


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    return path


def test_json(call: Any, small: Path) -> None:
    result = call(small, "--json")
    assert (result.status, result.err) == (0, "")
    assert result.json["requests"]["finished"] == result.json["trace"]["requests"] == 10
    assert result.json["output_tokens"] == sum(range(20, 30))
    assert result.json["config"] == {
        "profile": "kvproof",
        "preemption_mode": None,
        "policy": None,
        "tenants": 1,
        "baseline": None,
        "block_size": 16,
        "num_gpu_blocks": 26_674,
        "num_cpu_blocks": 26_674,
        "watermark_blocks": 266,
        "max_num_seqs": 256,
        "max_preemptions_per_request": None,
        "max_num_batched_tokens": 131_072,
        "max_model_len": 131_072,
        "enable_chunked_prefill": False,
    }
    assert result.json["run"]["wall_s"] > 0 and result.json["run"]["peak_rss_bytes"] > 10**6
    for latency in result.json["latency_s"].values():
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]


def test_a_limit_of_preemptions(call: Any) -> None:
    options = ("azure-like", "--json", "--limit", 60, "--num-gpu-blocks", 500)
    counts = [call(*options, *more).json["preemptions"] for more in ((), ("--max-preemptions-per-request", 0))]
    assert sum(counts[0].values()) > 0 and sum(counts[1].values()) == 0


def test_table(call: Any, small: Path) -> None:
    result = call(small)
    assert result.status == 0
    for words in ("TTFT", "TPOT", "end to end", "p50", "p99", "recomputed tokens", "all blocks back", "wall time", "peak memory"):
        assert words in result.out


@pytest.mark.parametrize("profile", ["kvproof", "vllm_v0"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_small_pool_preempts_and_everybody_finishes(call: Any, profile: str, mode: str) -> None:
    options = ("--num-gpu-blocks", 1000, "--rate", 9, "--limit", 120, "--seed", 1, "--check-every", 100)
    result = call("azure-like", "--profile", profile, "--preemption-mode", mode, *options, "--json")
    assert result.status == 0
    assert (result.json["requests"]["finished"], result.json["blocks_back"]) == (120, True)
    assert result.json["preemptions"][mode] > 0
    assert result.json["preemptions"]["swap" if mode == "recompute" else "recompute"] == 0
    assert (result.json["recomputed_tokens"] > 0) == (mode == "recompute")
    assert (result.json["swapped_in_bytes"] > 0) == (mode == "swap")


def test_a_seed_repeats_a_run(call: Any) -> None:
    first, second, other = (call("azure-like", "--limit", 30, "--seed", seed, "--json").json for seed in (1, 1, 2))
    for summary in (first, second, other):
        summary.pop("run")
        summary["trace"].pop("seed")
    assert first == second != other


def test_longer_requests_are_refused_in_both_profiles(call: Any, small: Path) -> None:
    for profile in ("kvproof", "vllm_v0"):
        result = call(small, "--max-model-len", 324, "--profile", profile, "--json")
        assert result.status == 0
        assert (result.json["requests"]["refused"], result.json["requests"]["finished"]) == (7, 3)


def test_the_token_budget_is_8192_but_never_below_the_context(call: Any, small: Path) -> None:
    budgets = [call(small, "--max-model-len", n, "--json").json["config"]["max_num_batched_tokens"] for n in (400, 9000)]
    assert budgets == [8192, 9000]


BAD_OPTIONS = {
    "no blocks": (("--num-gpu-blocks", 0), "--num-gpu-blocks"),
    "negative host": (("--num-cpu-blocks", -1), "--num-cpu-blocks"),
    "absurd pool": (("--num-gpu-blocks", 10**12), "--num-gpu-blocks"),
    "no number": (("--num-gpu-blocks", "many"), "--num-gpu-blocks"),
    "block size": (("--block-size", 0), "--block-size"),
    "limit": (("--limit", 0), "--limit"),
    "seed": (("--seed", -1), "--seed"),
    "model": (("--model", "gpt-9"), "--model"),
    "device": (("--device", "abacus"), "--device"),
    "profile": (("--profile", "v2"), "--profile"),
    "mode": (("--preemption-mode", "hope"), "--preemption-mode"),
    "chunked": (("--enable-chunked-prefill",), "--enable-chunked-prefill: the simulator does not model it yet"),
    "rate for arrivals": (("--rate", 3), "--rate does not apply"),
    "rate 0": (("--rate", 0), "--rate: must be from"),
    "rate NaN": (("--rate", "nan"), "--rate: must be from"),
    "rate infinite": (("--rate", "inf"), "--rate: must be from"),
    "context": (("--max-model-len", 131_073), "max_model_len: must be <= 131072, the context of llama-3.1-8b"),
    "seqs over tokens": (("--max-num-seqs", 300_000), "max_num_seqs: must be <= max_num_batched_tokens"),
    "negative limit": (("--max-preemptions-per-request", -1), "--max-preemptions-per-request"),
    "limit of V0": (
        ("--profile", "vllm_v0", "--max-preemptions-per-request", 1),
        "max_preemptions_per_request: must not be set in",
    ),
    "limit of a sweep": (
        ("--sweep", "--max-preemptions-per-request", 1),
        "--max-preemptions-per-request: does not go",
    ),
    "V0 budget": (("--profile", "vllm_v0", "--max-num-batched-tokens", 500), "must be >= max_model_len"),
    "does not fit": (("--model", "llama-3.1-70b"), "--num-gpu-blocks: the weights of llama-3.1-70b (141.1 GB)"),
    "report folder": (("--report", "absent/r.html"), "--report absent/r.html: cannot be written: no such file"),
    "report is a folder": (("--report", "."), "--report .: exists and is not a regular file"),
    "report is the trace": (("--report", "small.csv"), "--report small.csv: is the trace itself"),
    "unknown option": (("--what",), "--what"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_end_with_2_and_say_which(call: Any, small: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    options, message = BAD_OPTIONS[case]
    monkeypatch.chdir(small.parent)
    before = small.read_bytes()
    result = call(small, "--json", *options)
    assert (result.status, result.out) == (2, "")
    assert message in result.err and "Traceback" not in result.err
    assert [path.name for path in small.parent.iterdir()] == ["small.csv"] and small.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"a,b\n", AZURE.encode(), b"\x1f\x8b\x08", AZURE.encode() + b"\xff,1,1\n"])
def test_a_bad_trace_ends_with_2_and_writes_nothing(call: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    result = call(path, "--json", "--report", tmp_path / "r.html")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"kvproof: {path}") and result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_and_a_folder(call: Any, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        result = call(path)
        assert (result.status, result.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("damage", [{"lost": 1}, {"violation_count": 1, "violations": ["x"]}, {"blocks_back": False}])
def test_a_violation_or_a_lost_request_ends_with_1(
    call: Any, small: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    good = Metrics(total=10, finished=10, blocks_back=True)
    monkeypatch.setattr("kvproof.sim.engine.Simulation.run", lambda simulation: attrs.evolve(good, **damage))
    result = call(small, "--json")
    assert result.status == 1
    assert result.json["violations"] == damage.get("violations", [])
    monkeypatch.setattr("kvproof.sim.engine.Simulation.run", lambda simulation: good)
    assert call(small, "--json").status == 0


def test_the_report_needs_nothing_else(call: Any, small: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    target.write_text("old")
    assert call(small, "--report", target).status == 0
    text = target.read_text()
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert text.count("<polyline") == 5 and "TTFT" in text and "small.csv" in text
    assert not any(word in text for word in ("http", "<script", "src=", "@import", "url("))
    assert len(text) < 50_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "small.csv"]


def test_the_use_of_the_pool_is_drawn_in_steps() -> None:
    use = {"time_s": [0.0, 1.0, 4.0], "blocks_used": [2, 4, 0]}
    svg = report.pool_curve("use", {"pool_use": use, "config": {"num_gpu_blocks": 4}})
    assert 'points="50.0,80.0 185.0,80.0 185.0,20.0 590.0,20.0 590.0,140.0"' in svg
    assert ">4</text>" in svg and ">4 s</text>" in svg and ">2 s</text>" in svg


def test_the_report_escapes_names(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "<b>&.csv"
    path.write_text(SMALL)
    assert call(path, "--report", tmp_path / "r.html").status == 0
    text = (tmp_path / "r.html").read_text()
    assert "<b>" not in text and "&lt;b&gt;&amp;.csv" in text


def test_a_run_in_which_nobody_finished_can_be_told(call: Any, small: Path, tmp_path: Path) -> None:
    options = ("--max-model-len", 10, "--report", tmp_path / "r.html")
    assert "refused" in call(small, *options).out
    result = call(small, *options, "--json")
    assert (result.status, result.json["requests"]["refused"]) == (0, 10)
    assert result.json["latency_s"]["ttft"] == {"mean": None, "p50": None, "p99": None, "max": None}


def test_as_a_program(small: Path) -> None:
    program = [sys.executable, "-m", "kvproof", "simulate"]
    good = subprocess.run([*program, str(small), "--json"], capture_output=True, text=True, check=False)
    assert (good.returncode, json.loads(good.stdout)["requests"]["finished"]) == (0, 10)
    bad = subprocess.run([*program, str(small.parent), "--json"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)


def test_policies_by_name(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants: list[str] = []
    arrive = Fair.arrive
    monkeypatch.setattr(Fair, "arrive", lambda self, desk, one: tenants.append(one.tenant) or arrive(self, desk, one))
    options = ("azure-like", "--num-gpu-blocks", 1000, "--rate", 9, "--limit", 60, "--seed", 1, "--json")
    auto = (*options, "--preemption-mode", "auto")
    plain, fair = call(*auto), call(*auto, "--policy", "fair", "--tenants", 3)
    assert (plain.status, fair.status, fair.json["requests"]["finished"]) == (0, 0, 60)
    assert [fair.json["config"][key] for key in ("preemption_mode", "policy", "tenants")] == ["auto", "fair", 3]
    assert tenants == ["0", "1", "2"] * 20
    assert fair.json["latency_s"] != plain.json["latency_s"] and fair.json["preemptions"]["swap"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "hope"), "kvproof: --policy: no policy is called 'hope', known are fcfs, priority, srpt, mlfq, fair\n"),
        (("--preemption-mode", "auto", "--profile", "vllm_v0"), 'kvproof: --preemption_mode: "auto" needs the profile kvproof\n'),
        (
            ("--baseline", "reserve", "--policy", "srpt"),
            "kvproof: --baseline reserve: preempts nobody: leave preemption mode and",
        ),
        (("--sweep", "--policy", "srpt"), "kvproof: --policy: does not go with --sweep; leave it out\n"),
    ],
)
def test_policies_that_do_not_go(call: Any, small: Path, options: tuple[str, ...], message: str) -> None:
    result = call(small, *options)
    assert (result.status, result.out) == (2, "") and result.err.startswith(message)


def test_an_order_that_breaks_its_word_is_one_line(call: Any, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fcfs, "arrive", lambda self, desk, request: "first")
    result = call(small, "--policy", "fcfs")
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith('kvproof: policy "fcfs": the priority of request 0 must be an integer')
