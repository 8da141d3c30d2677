"""`kvproof bench sched`: the shape of what it prints and its errors. No test here looks at a time."""

import json
import subprocess
import sys

import pytest

from kvproof.bench import cases, history, modes
from kvproof.bench.cases import BLOCK_SIZE, SHARE, under_pressure
from kvproof.bench.peer import PeerScheduler, Sequence

FIELDS = {"case", "n", "sequences", "median_us", "p99_us", "calls_per_sequence", "call_ns", "runs"}
PER_N = [
    *("decode", "decode_all", "plan_view", "peer_decode", "chunked", "chunked_arrivals", "pairs", "twice_pairs"),
    *("pressure", "pressure_swap", "peer_pressure"),
]


def bench(*arguments):
    return subprocess.run([sys.executable, "-m", "kvproof", "bench", "sched", *arguments], capture_output=True, text=True)


def test_json_has_every_case_and_every_field():
    done = bench("--n", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert "decode: N = 8" in done.stderr
    rows = json.loads(done.stdout)["results"]
    assert [row["case"] for row in rows] == [*PER_N, "history"]
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["n"] == (256 if row["case"] == "history" else 8)
        assert row["sequences"] == (2 if row["case"] == "twice_pairs" else 1) * row["n"]
        assert row["runs"] > 0 and row["call_ns"] > 0 and 0 < row["median_us"] <= row["p99_us"]
    by_case = {row["case"]: row for row in rows}
    assert by_case["pressure"]["preempting_steps"] > 0 and by_case["pressure_swap"]["preempting_steps"] > 0
    assert by_case["chunked_arrivals"]["pieces"] >= by_case["chunked_arrivals"]["runs"] - 1, "a piece in every step"
    assert 0 < by_case["chunked_arrivals"]["ended"] < by_case["chunked_arrivals"]["runs"]
    assert 0 < by_case["history"]["memory_mb"] <= 400


def test_the_table_has_a_line_per_row():
    done = bench("--n", "4,8", "--only", "decode", "--only", "peer_decode")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["decode", "N=4"],
        ["decode", "N=8"],
        ["peer_decode", "N=4"],
        ["peer_decode", "N=8"],
    ]


@pytest.mark.parametrize("n", ["", "0", "-1", "8,", "8,x", "1.5", "٣", "99999999"])
def test_a_bad_n_is_one_line_and_status_2(n):
    done = bench(f"--n={n}", "--json")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("kvproof: --n: ") and done.stderr.count("\n") == 1


def test_an_unknown_case_is_status_2():
    done = bench("--only", "decoding")
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_groups_of_two_have_all_sequences_and_share_their_prompts(n, monkeypatch):
    seen = []
    monkeypatch.setattr(modes, "steady", lambda scheduler, clock: seen.append(scheduler) or cases.steady(scheduler, clock))
    for case, sequences in (("pairs", n), ("twice_pairs", 2 * n)):
        row = modes.pairs(n, case)
        assert row["sequences"] == sequences and row["calls_per_sequence"] > 0
        scheduler = seen.pop()
        state = scheduler.state
        assert state.decoders == sequences == state.seqs and len(state.running[1]) == -(-sequences // 2)
        assert (len(state.refs) > 0) == (sequences > 1) and scheduler.check() == []


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_every_step_with_arrivals_computes_a_piece_and_who_ends_is_replaced(n):
    row = modes.chunked_arrivals(n)
    assert row["n"] == row["sequences"] == n
    assert row["runs"] - 1 <= row["pieces"] and 100 < row["ended"] < row["runs"] // 2


def test_lengths_have_the_mean_of_the_trace():
    random = history.Random(0)
    for mean, spread in (history.PROMPT, history.OUTPUT):
        lengths = [history.tokens(random, mean, spread) for _ in range(20_000)]
        assert abs(sum(lengths) / len(lengths) - mean) < 0.05 * mean and min(lengths) >= 1


@pytest.mark.parametrize("alone", [True, False])
def test_the_peer_gives_everybody_its_tokens_and_loses_no_block(alone):
    blocks = under_pressure(16)
    assert blocks == int(16 * (256 + 80) / BLOCK_SIZE * SHARE)
    peer = PeerScheduler(blocks, BLOCK_SIZE, 16, 4096)
    requests = [Sequence(i, [i if alone else 7] * (130 + 9 * i), 64 + i, BLOCK_SIZE) for i in range(16)]
    for request in requests:
        peer.add(request)
    ended, shared = [], 0
    while peer.waiting or peer.running:
        scheduled, _ = peer.schedule()
        assert scheduled
        ended += peer.postprocess(scheduled, [7] * len(scheduled))
        held = [b for request in peer.running for b in request.table]
        assert len(set(held)) + len(peer.manager.free) == blocks
        shared += len(held) - len(set(held))
    assert (shared == 0) == alone, "prompts with one beginning share blocks, others do not"
    assert alone == (peer.preemptions > 0) and {id(r) for r in ended} == {id(r) for r in requests}
    assert all(len(r) == r.prompt + r.max_tokens for r in requests)
