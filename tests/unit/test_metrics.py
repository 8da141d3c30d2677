"""Counters against what the plans and outcomes said, and the Prometheus text against the counters."""

import copy
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from calls import answers, any_config, call, calls, everything, modes, pressed
from hypothesis import given, settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvproof import Config, Plan, Rejected, Scheduler, Status
from kvproof.metrics import COUNTERS, FINISHED_REASON, GAUGES, TIMES, Collector

# --- the counters -----------------------------------------------------------------------------------------------------


def sequences(state, g: int) -> int:
    """How many sequences of g live."""
    return len(state.members.get(g, ((0,), 1))[0])


@settings(deadline=None, max_examples=80)
@given(any_config, modes, calls)
def test_counters_are_the_sums_over_plans_and_outcomes(config, mode, some):
    s = Scheduler(config, mode)
    count = dict.fromkeys(("passes", "prefill", "decode", "first", "out", "in", "copy"), 0)
    by_mode, outcomes = {"recompute": 0, "swap": 0}, []
    for one in some:
        answer = call(s, *one)
        if isinstance(answer, Plan):
            count["passes"] += 1
            count["prefill"] += sum(n for _, _, n in answer.prefills)
            count["decode"] += sum(sequences(s.state, g) for g in answer.decodes)
            count["first"] += len({g for g, _, _ in answer.prefills} - {*answer.unfinished, *(g for g, _ in answer.preempted)})
            count["out"] += len(answer.swap_out)
            count["in"] += len(answer.swap_in)
            count["copy"] += len(answer.copy)
            for _, how in answer.preempted:
                by_mode[how] += 1
        elif isinstance(answer, list):
            outcomes += answer
    outcomes += s._outcomes
    m = s.metrics()
    assert (m.passes, m.prefill_tokens, m.decode_tokens) == (count["passes"], count["prefill"], count["decode"])
    assert m.generation_tokens == count["decode"] + count["first"]
    assert (m.swapped_out, m.swapped_in, m.copied) == (count["out"], count["in"], count["copy"])
    assert {how: sum(n for (mode, _), n in m.preemptions.items() if mode == how) for how in by_mode} == by_mode
    assert m.preemptions_total == sum(by_mode.values())
    assert m.ended == {status: sum(o.status == status for o in outcomes) for status in FINISHED_REASON}
    times = [o.recomputed + o.swapped for o in outcomes]
    bounds = zip((-1, *TIMES), (*TIMES, max(times, default=0) + TIMES[-1]), strict=True)
    assert m.ended_by_preemptions == tuple(sum(low < n <= high for n in times) for low, high in bounds)
    assert m.preemptions_of_ended == sum(times)


@pytest.mark.parametrize(("priority", "cause"), [(0, "blocks"), (-1, "priority")])
def test_why_a_request_was_preempted(priority, cause):
    """One that runs needs its blocks; or one comes that ranks above it; or an event says so."""
    s = Scheduler(Config(num_gpu_blocks=4, num_cpu_blocks=4, block_size=2, priority=priority < 0))
    s.add_request(3, 9)
    s.add_request(3, 9)
    s.schedule()
    s.commit()
    if priority:
        s.add_request(4, 2, priority=priority)
    for _ in range(2):
        s.schedule()
        s.commit()
    assert {key for key, n in s.metrics().preemptions.items() if n} == {("recompute", cause)}
    s.preempt(s.state.running[1][0], "swap")
    s.schedule()
    assert {key for key, n in s.metrics().preemptions.items() if n} == {("recompute", cause), ("swap", "event")}


def test_with_priorities_a_step_that_decodes_does_not_tell():
    s = Scheduler(Config(num_gpu_blocks=4, num_cpu_blocks=0, block_size=2, priority=True))
    s.add_request(3, 9)
    s.add_request(3, 9)
    for _ in range(3):
        s.schedule()
        s.commit()
    assert {key for key, n in s.metrics().preemptions.items() if n} == {("recompute", "blocks or priority")}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_run_under_pressure_counts_something_of_each_kind(mode):
    s = pressed(mode)
    g = s.state.running[1][0]
    if not s.state.issued:
        s.fork(g)
    everything(s)
    m = s.metrics()
    assert m.preemptions[mode, "blocks"] > 3 and m.decode_tokens > 20 and m.prefill_tokens >= 4 + 5 + 6 + 7 + 8
    assert m.ended[Status.FINISHED_LENGTH_CAPPED] == 5 and sum(m.ended_by_preemptions) == 5 > m.ended_by_preemptions[0]
    assert (m.swapped_out > 0, m.swapped_in > 0) == (mode == "swap",) * 2


def test_gauges_are_those_of_the_state():
    s = pressed()
    m, state = s.metrics(), s.state
    assert (m.running, m.waiting, m.swapped) == tuple(len(q[1]) for q in (state.running, state.waiting, state.swapped))
    assert m.running and m.swapped and m.gpu_usage == pytest.approx(1 - state.gpu_free / 6)
    assert m.cpu_usage == pytest.approx(1 - state.cpu_free / 8) and m.cpu_usage > 0
    none = Scheduler(Config(num_gpu_blocks=4, num_cpu_blocks=0)).metrics()
    assert (none.gpu_usage, none.cpu_usage, none.preemptions_total, none.running) == (0, 0, 0, 0)


@settings(deadline=None, max_examples=30)
@given(any_config, modes, calls, calls)
def test_counters_do_not_fall_in_a_restore(config, mode, before, after):
    s = Scheduler(config, mode)
    answers(s, before)
    moment, was = s.snapshot(), s.metrics()
    answers(s, after)
    most = s.metrics()
    s.restore(moment)
    now = s.metrics()
    assert (now.running, now.waiting, now.swapped, now.gpu_usage) == (was.running, was.waiting, was.swapped, was.gpu_usage)
    for name in ("passes", "prefill_tokens", "decode_tokens", "preemptions", "ended", "ended_by_preemptions", "copied"):
        assert getattr(now, name) == getattr(most, name), name


def test_a_reading_is_not_changed_by_later_calls():
    s = pressed()
    m = s.metrics()
    was = copy.deepcopy(m)
    everything(s)
    assert m == was != s.metrics()


def test_a_call_that_raises_counts_nothing():
    s = pressed()
    s.schedule()
    was = s.metrics()
    with pytest.raises(Rejected):
        s.schedule()
    with pytest.raises(Rejected):
        s.abort(99)
    assert s.metrics() == was


# --- Prometheus -------------------------------------------------------------------------------------------------------


def exposed(s: Scheduler, **options) -> dict[str, dict[tuple, float]]:
    """The samples of an exposition: name -> labels -> value."""
    registry = CollectorRegistry()
    Collector(s, registry, **options)
    found: dict[str, dict[tuple, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_exposition_says_what_metrics_says():
    s = pressed()
    s.abort(s.state.running[1][-1])
    found, m = exposed(s, labels={"model_name": "m"}), s.metrics()
    name = (("model_name", "m"),)
    for family, (_, field) in GAUGES.items():
        assert found[family] == {name: getattr(m, field)}, family
    for family, (_, field) in COUNTERS.items():
        assert found[family + "_total"] == {name: getattr(m, field)}, family
    success = {dict(labels)["finished_reason"]: n for labels, n in found["vllm:request_success_total"].items()}
    assert success == {"stop": 0, "length": 0, "abort": 1}
    ended = {dict(labels)["status"]: n for labels, n in found["kvproof:requests_ended_total"].items()}
    assert ended == {status.name: float(status == Status.FINISHED_ABORTED) for status in FINISHED_REASON}
    preempted = {(d["mode"], d["cause"]): n for k, n in found["kvproof:preemptions_total"].items() for d in [dict(k)]}
    assert preempted == m.preemptions and preempted["swap", "blocks"] > 0
    moved = {dict(labels)["direction"]: n for labels, n in found["kvproof:swapped_blocks_total"].items()}
    assert moved == {"out": m.swapped_out, "in": m.swapped_in}
    assert all(("model_name", "m") in labels for samples in found.values() for labels in samples)


def test_the_histogram_is_cumulative():
    s = pressed()
    everything(s)
    found, m = exposed(s), s.metrics()
    buckets = {float(dict(labels)["le"]): n for labels, n in found["kvproof:request_preemptions_bucket"].items()}
    assert list(buckets) == [*map(float, TIMES), float("inf")]
    assert list(buckets.values()) == [sum(m.ended_by_preemptions[: i + 1]) for i in range(len(TIMES) + 1)]
    (count,), (total,) = (found[f"kvproof:request_preemptions_{x}"].values() for x in ("count", "sum"))
    assert (count, total) == (5, m.preemptions_of_ended) and total > 3


VLLM = """gpu_cache_usage_perc cpu_cache_usage_perc num_requests_running num_requests_waiting num_requests_swapped
num_preemptions_total prompt_tokens_total generation_tokens_total request_success_total"""


def test_the_names_and_types_are_those_of_vllm():
    registry = CollectorRegistry()
    Collector(pressed(), registry)
    text = generate_latest(registry).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    ours = {name for name in types if name.startswith("kvproof:")}
    assert types.keys() - ours == {f"vllm:{name}" for name in VLLM.split()}
    assert all(types[name] == ("counter" if name.endswith("_total") else "gauge") for name in types.keys() - ours)
    assert types["kvproof:request_preemptions"] == "histogram" and len(ours) == 8
    assert 'vllm:num_requests_running{model_name="unknown"}' in text
    assert re.search(r'^vllm:request_success_total\{finished_reason="stop",model_name="unknown"\} 0.0$', text, re.MULTILINE)


def test_the_page_names_every_metric():
    page = (Path(__file__).resolve().parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
    registry = CollectorRegistry()
    Collector(pressed(), registry)
    types = re.findall(r"^# TYPE (\S+) ", generate_latest(registry).decode(), re.MULTILINE)
    assert set(re.findall(r"`((?:vllm|kvproof):\w+)`", page)) == set(types)


def test_a_registry_takes_one_scheduler_and_labels_of_the_collector_are_taken():
    registry = CollectorRegistry()
    one = Collector(pressed(), registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Collector(pressed(), registry)
    registry.unregister(one)
    Collector(pressed(), registry, {"model_name": "m", "engine": "0"})
    for name in ("mode", "le", "finished_reason"):
        with pytest.raises(ValueError, match=f"labels: {name} is the collector's own"):
            Collector(pressed(), labels={name: "x"})
    assert next(Collector(pressed(), labels={}).collect()).samples[0].labels == {}


def test_a_scrape_in_another_thread_is_served_while_the_scheduler_works():
    s, registry = pressed(), CollectorRegistry()
    Collector(s, registry)
    texts, done = [], threading.Event()

    def scrape():
        while not done.is_set():
            texts.append(generate_latest(registry))

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for k in range(40):
            s.add_request(3 + k % 5, 12)
        everything(s)
    finally:
        done.set()
        thread.join()
    passes = [float(re.search(rb"^kvproof:passes_total\S* (\S+)$", text, re.MULTILINE)[1]) for text in texts]
    assert passes == sorted(passes) and passes


def test_without_prometheus_client_only_the_collector_is_missing():
    """Nothing imports it before a collector is made, and then the message says what to install."""
    code = """
import sys
sys.modules["prometheus_client"] = None  # as if it were not installed
import kvproof, kvproof.metrics
s = kvproof.Scheduler(kvproof.Config(num_gpu_blocks=4, num_cpu_blocks=0))
s.add_request(1, 1)
print(s.metrics().waiting)
try:
    kvproof.metrics.Collector(s)
except ImportError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "1\nkvproof.metrics.Collector needs prometheus-client: pip install 'kvproof[metrics]'\n"
