"""Timelines: what Perfetto asks of the format, on runs under pressure, and one computed by hand."""

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof import Config
from kvproof.sim.cost import Roofline
from kvproof.sim.engine import Simulation
from kvproof.sim.files import whole
from kvproof.sim.generate import azure_like
from kvproof.sim.hardware import DEVICES, MODELS
from kvproof.sim.timeline import TimelineSimulation
from kvproof.sim.traces import Trace
from kvproof.store.plan import Plan

Event = dict[str, Any]


class Flat:
    """1 s a prefill step, 0.5 s a decode step, 0.25 s a block moved."""

    def prefill_s(self, pieces: Iterable[tuple[int, int, int]]) -> float:
        return 1.0

    def decode_s(self, sequences: int, kv_tokens: int) -> float:
        return 0.5

    def swap_s(self, pairs: Sequence[tuple[int, int]]) -> float:
        return 0.25 * len(pairs)


def two() -> Trace:
    """Two that do not fit together, see test_sim_engine.py."""
    trace = Trace("hand", "hand")
    trace.add(0.0, 7, 6)
    trace.add(0.0, 7, 6)
    return trace


def config_of(**fields: Any) -> Config:
    return Config(**({"num_gpu_blocks": 4, "num_cpu_blocks": 4, "block_size": 4, "max_model_len": 64} | fields))


def events_of(simulation: TimelineSimulation, stream: io.StringIO) -> list[Event]:
    simulation.run()
    told = json.loads(stream.getvalue())
    assert list(told) == ["displayTimeUnit", "traceEvents"]
    events: list[Event] = told["traceEvents"]
    return events


def by_hand(mode: str) -> list[Event]:
    stream = io.StringIO()
    return events_of(TimelineSimulation(stream, two(), config_of(), Flat(), mode), stream)


def slices(events: list[Event]) -> dict[int, list[tuple[str, float, float]]]:
    """Thread -> (name, begin, end) in seconds. Every begin has an end of its name, and none lies in another."""
    out: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
    is_open: dict[int, Event] = {}
    for event in events:
        if event["ph"] == "B":
            assert event["tid"] not in is_open
            is_open[event["tid"]] = event
        elif event["ph"] == "E":
            begin = is_open.pop(event["tid"])
            assert begin["name"] == event["name"] and begin["ts"] <= event["ts"]
            out[event["tid"]].append((event["name"], begin["ts"] / 1e6, event["ts"] / 1e6))
    assert not is_open
    return out


def check_format(events: list[Event]) -> None:
    """Times go up in each track, arrows pair up and lie in slices, threads have names."""
    last: dict[object, float] = {}
    for event in events:
        if event["ph"] != "M":
            track = (event["pid"], event.get("tid", event["name"]))
            assert event["ts"] >= last.get(track, 0.0)
            last[track] = event["ts"]
    named = [e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert len(set(named)) == len(named) and set(named) == {e["tid"] for e in events if "tid" in e}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == sum(e["ph"] == "s" for e in events) and len(ends) == sum(e["ph"] == "f" for e in events)
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert (start["tid"], start["args"]) == (end["tid"], end["args"]) and start["ts"] <= end["ts"] and end["bp"] == "e"
    is_open: set[int] = set()
    for event in events:
        if event["ph"] in "BE":
            (is_open.add if event["ph"] == "B" else is_open.discard)(event["tid"])
        assert event["ph"] not in "sf" or event["tid"] in is_open
    assert slices(events)


def test_recompute_by_hand() -> None:
    events = by_hand("recompute")
    check_format(events)
    first, second = slices(events)[1], slices(events)[2]
    assert first == [("queued", 0, 0), ("prefill", 0, 1), ("decode", 1, 3.5)]
    assert second[:3] == [("queued", 0, 0), ("prefill", 0, 1), ("decode", 1, 1.5)]
    assert second[3:] == [("queued", 1.5, 3.5), ("prefill", 3.5, 4.5), ("decode", 4.5, 6)]
    arrows = [(e["ph"], e["tid"], e["ts"], e["args"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", 2, 1.5e6, {"mode": "recompute"}), ("f", 2, 3.5e6, {"mode": "recompute"})]


def test_swap_by_hand() -> None:
    events = by_hand("swap")
    check_format(events)
    assert slices(events)[2][2:] == [("decode", 1, 1.5), ("swapped", 1.5, 4), ("decode", 4, 6.5)]
    counters = [(e["name"], e["ts"] / 1e6, e["args"]) for e in events if e["ph"] == "C"]
    assert counters[:4] == [
        ("blocks", 0, {"used": 4}),
        ("requests", 0, {"running": 2, "waiting": 0, "swapped": 0}),
        ("blocks", 1.5, {"used": 3}),
        ("requests", 1.5, {"running": 1, "waiting": 0, "swapped": 1}),
    ]


def test_a_prompt_in_pieces_is_one_slice() -> None:
    trace = Trace("hand", "hand")
    trace.add(0.0, 12, 1)
    stream = io.StringIO()
    config = config_of(max_num_batched_tokens=8, max_num_seqs=4)
    events = events_of(TimelineSimulation(stream, trace, config, Flat()), stream)
    assert slices(events)[1] == [("queued", 0, 0), ("prefill", 0, 2), ("decode", 2, 2)]


def pressed(mode: str | None, baseline: str | None = None, **fields: Any) -> tuple[list[Event], TimelineSimulation]:
    stream = io.StringIO()
    sizes = {"num_gpu_blocks": 1000, "num_cpu_blocks": 1000, "block_size": 16, "max_model_len": 131_072}
    config = config_of(**sizes, max_num_batched_tokens=131_072, **fields)
    cost = Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"])
    simulation = TimelineSimulation(stream, azure_like(120, 9, 1), config, cost, mode, 0, baseline=baseline)
    return events_of(simulation, stream), simulation


@pytest.mark.parametrize(
    ("mode", "baseline", "fields"),
    [("recompute", None, {}), ("swap", None, {}), ("swap", None, {"vllm_v0": True}), (None, "reserve", {})],
)
def test_under_pressure(mode: str | None, baseline: str | None, fields: dict[str, Any]) -> None:
    events, simulation = pressed(mode, baseline, **fields)
    check_format(events)
    metrics = simulation.metrics
    assert sum(e["ph"] == "s" for e in events) == metrics.recomputes + metrics.swaps
    assert (metrics.preempted > 0) == (baseline is None)
    tracks = slices(events)
    assert len(tracks) == 120
    for row in range(120):
        names = [name for name, _, _ in tracks[row + 1]]
        assert names[:3] == ["queued", "prefill", "decode"] and names[-1] == "decode"
        assert tracks[row + 1][0][1] == pytest.approx(simulation.trace.arrivals_s[row], abs=1e-6)
        ends = [end for _, _, end in tracks[row + 1]]
        assert ends[:-1] == [begin for _, begin, _ in tracks[row + 1][1:]]  # one slice after the other
    used = [e["args"]["used"] for e in events if e["ph"] == "C" and e["name"] == "blocks"]
    assert max(used) == 1000 - metrics.gpu_free_min and min(used) >= 0


def test_a_timeline_changes_no_result() -> None:
    _, simulation = pressed("recompute")
    plain = Simulation(simulation.trace, simulation.config, simulation.cost, "recompute", 0).run()
    assert plain.summary(1) == simulation.metrics.summary(1)


def test_who_does_not_end_is_cut_off() -> None:
    stream = io.StringIO()
    simulation = TimelineSimulation(stream, two(), config_of(), Flat(), "recompute")
    scheduler = simulation.scheduler
    real, count = scheduler.schedule, 0
    nothing = Plan(0, (), (), (), (), (), (), (), (), (), True)

    def tired() -> Plan:
        nonlocal count
        count += 1
        if count == 4:  # the second has been preempted and is not resumed
            simulation.decoding = 0
        return real() if count < 4 else nothing

    scheduler.schedule = tired  # type: ignore[method-assign, assignment]
    commit = scheduler.commit
    scheduler.commit = lambda: commit() if count < 4 else []  # type: ignore[method-assign, assignment, misc]
    events = events_of(simulation, stream)
    assert simulation.metrics.lost == 2
    check_format(events)
    assert [e["ph"] for e in events if e["ph"] in "sf"] == ["s", "f"]


def test_refused_requests_have_no_track() -> None:
    trace = two()
    trace.add(1.0, 60, 10)
    stream = io.StringIO()
    events = events_of(TimelineSimulation(stream, trace, config_of(), Flat()), stream)
    check_format(events)
    assert {e["tid"] for e in events if "tid" in e} == {1, 2}


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    with pytest.raises(KeyboardInterrupt), whole(target) as stream:
        stream.write("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with whole(target) as stream:
        stream.write("all")
        assert not target.exists()
    assert target.read_text() == "all" and list(tmp_path.iterdir()) == [target]
