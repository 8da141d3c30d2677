"""Sweeps: the same work for all, results that no order of completion changes, the table and the page."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest

from kvproof import Config
from kvproof.sim import sweep, sweep_page, sweep_table
from kvproof.sim.cost import Roofline
from kvproof.sim.generate import azure_like
from kvproof.sim.hardware import DEVICES, MODELS
from kvproof.sim.metrics import Slo
from kvproof.sim.sweep import REFERENCE, VARIANTS, Key, NobodyFitsError, Sweep, SweepError, Task, Variant, make, stretched
from kvproof.sim.traces import Trace

SIZES = {"num_cpu_blocks": 1000, "max_model_len": 131_072, "max_num_batched_tokens": 131_072}


def sweep_of(
    names: Sequence[str] = tuple(VARIANTS), blocks: Sequence[int] = (1000,), loads: Sequence[float] = (0.5, 2.0)
) -> Sweep:
    variants = {name: VARIANTS[name] for name in names}
    configs = {
        (name, size): Config(num_gpu_blocks=size, **SIZES | VARIANTS[name].changes(size))
        for name in {*names, REFERENCE}
        for size in blocks
    }
    return Sweep(
        trace=azure_like(60, 9, 1),
        variants=variants,
        blocks=blocks,
        loads=loads,
        configs=configs,
        cost=Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"]),
        slo=Slo(),
        check_every=0,
    )


def in_order(fn: Callable[[Task], Any], tasks: Sequence[tuple[Task]]) -> Iterator[Any]:
    yield from ((task, fn(*task)) for task in tasks)


def backwards(fn: Callable[[Task], Any], tasks: Sequence[tuple[Task]]) -> Iterator[Any]:
    yield from in_order(fn, tasks[::-1])


def silent(key: Key) -> None:
    pass


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return sweep_of().run(in_order, silent)  # type: ignore[arg-type]


def test_each_run_is_there_once_in_order(result: dict[str, Any]) -> None:
    keys = [(run["blocks"], run["load"], run["variant"]) for run in result["runs"]]
    assert keys == [(1000, load, name) for load in (0.5, 2.0) for name in VARIANTS]
    assert not any(run["failed"] for run in result["runs"]) and sweep.failed(result) == []


def test_all_variants_do_the_same_work(result: dict[str, Any]) -> None:
    assert {run["output_tokens"] for run in result["runs"]} == {result["runs"][0]["output_tokens"]}
    assert {run["requests"]["finished"] for run in result["runs"]} == {60}
    by_name = {run["variant"]: run for run in result["runs"] if run["load"] == 2.0}
    assert by_name["kvproof swap"]["preemptions"]["swap"] > 0 == by_name["kvproof swap"]["preemptions"]["recompute"]
    assert by_name["vllm_v0 recompute"]["preemptions"]["recompute"] > 0 == by_name["reserve"]["preemptions"]["recompute"]
    same = ("preemptions", "latency_s", "steps", "pool_use")
    assert [by_name["kvproof null"][key] for key in same] == [by_name["kvproof recompute"][key] for key in same]
    assert by_name["vllm_v0 recompute"]["pool_use"] != by_name["kvproof recompute"]["pool_use"]


def test_load_1_is_what_the_reference_sustains() -> None:
    sweep_1 = sweep_of((REFERENCE,), loads=(0.5, 1.0))
    result = sweep_1.run(in_order, silent)  # type: ignore[arg-type]
    (entry,) = result["load_1"]
    at_once = Key(REFERENCE, 1000, None)
    config = sweep_1.configs[REFERENCE, 1000]
    summary = make(Task(at_once, VARIANTS[REFERENCE], sweep_1.trace, 0.0, config, sweep_1.cost, Slo(), 0))
    assert entry["span_s"] == summary["simulated_s"] and entry["requests_per_s"] == 60 / summary["simulated_s"]
    half, whole = result["runs"]
    assert half["simulated_s"] > 2 * entry["span_s"] and whole["simulated_s"] > entry["span_s"]
    assert half["goodput"]["share"] >= whole["goodput"]["share"]


def test_arrivals_are_stretched_and_nothing_else() -> None:
    trace = azure_like(50, 3, 0)
    twice = stretched(trace, 2 * trace.arrivals_s[-1])
    assert list(twice.arrivals_s) == [2 * at_s for at_s in trace.arrivals_s]
    assert (twice.prompt_tokens, twice.output_tokens) == (trace.prompt_tokens, trace.output_tokens)
    assert set(stretched(trace, 0.0).arrivals_s) == {0.0} and trace.arrivals_s[-1] > 0


def test_the_order_of_completion_does_not_matter(result: dict[str, Any]) -> None:
    assert json.dumps(sweep_of().run(backwards, silent)) == json.dumps(result)  # type: ignore[arg-type]


def test_progress_hears_of_every_run() -> None:
    heard: list[Key] = []
    small = sweep_of(("reserve", "kvproof null"), loads=(1.0,))
    small.run(in_order, heard.append)  # type: ignore[arg-type]
    assert heard == [Key(REFERENCE, 1000, None), Key("reserve", 1000, 1.0), Key("kvproof null", 1000, 1.0)]
    assert small.total == len(heard)


def test_a_new_policy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VARIANTS, "no host", Variant({"num_cpu_blocks": 0}, "swap"))
    (run,) = sweep_of(("no host",), loads=(2.0,)).run(in_order, silent)["runs"]  # type: ignore[arg-type]
    assert run["recomputed_by_cause"]["swap_impossible"] == run["recomputed_tokens"] > 0


def test_a_run_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = attrs.evolve(sweep_of((REFERENCE,)), variants={REFERENCE: Variant(policy="hope")})
    with pytest.raises(SweepError, match=r"^kvproof recompute, 1000 blocks, load 0\.5: ConfigError: policy: no policy is called"):
        broken.run(in_order, silent)  # type: ignore[arg-type]

    def fail(simulation: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("kvproof.sim.engine.Simulation.run", fail)
    with pytest.raises(SweepError, match=r"^kvproof recompute, 1000 blocks, all requests at once: ValueError: two lines$"):
        broken.run(in_order, silent)  # type: ignore[arg-type]


def test_a_pool_in_which_nobody_fits_is_named() -> None:
    with pytest.raises(NobodyFitsError, match="no request of the trace can run with 1 blocks"):
        sweep_of((REFERENCE,), blocks=(1,)).run(in_order, silent)  # type: ignore[arg-type]


def test_a_failed_run_is_told(result: dict[str, Any]) -> None:
    runs = [run | {"failed": run["variant"] == "reserve"} for run in result["runs"]]
    bad = {"load_1": [result["load_1"][0] | {"failed": True}], "runs": runs}
    assert sweep.failed(bad) == [
        "kvproof recompute, 1000 blocks, all requests at once",
        "reserve, 1000 blocks, load 0.5",
        "reserve, 1000 blocks, load 2",
    ]


# --- table and page ---------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_run(result: dict[str, Any]) -> None:
    table = sweep_table.table(result, 1000)
    assert table.row_count == 2 * len(VARIANTS) and "1,000 blocks" in str(table.title)
    assert sweep_table.notes(result) == ["goodput: TTFT <= 2 s and TPOT <= 100 ms, of the requests that can run"]
    runs = [run | {"requests": {"refused": 3}, "infeasible": [{"request": 7, "why": "too long"}]} for run in result["runs"]]
    assert "1,000 blocks: 3 requests cannot run, the first: request 7: too long" in sweep_table.notes(result | {"runs": runs})
    assert sweep_table.both({"p50": 0.0123, "p99": 2.5}) == "0.0123 / 2.5 s"
    assert sweep_table.both({"p50": 0.0123, "p99": 0.25}) == "12.3 / 250 ms"
    assert sweep_table.both({"p50": None, "p99": None}) == "-"


def test_figures_are_plotlys(result: dict[str, Any]) -> None:
    objects = pytest.importorskip("plotly.graph_objects", reason="needs plotly: pip install 'kvproof[report]'")
    figures = sweep_page.figures_of(result["runs"])
    assert len(figures) == len(sweep_page.CURVES) + 2
    for figure in figures:
        objects.Figure(figure)  # raises for what plotly does not know
    goodput = figures[0]
    assert [one["name"] for one in goodput["data"]] == list(VARIANTS)
    assert goodput["data"][0]["x"] == [0.5, 2.0]
    assert goodput["data"][0]["y"] == [run["goodput"]["share"] for run in result["runs"] if run["variant"] == "vllm_v0 recompute"]
    use = figures[len(sweep_page.CURVES)]
    visible = [one["visible"] for one in use["data"]]
    buttons = use["layout"]["updatemenus"][0]["buttons"]
    assert [button["args"][0]["visible"].count(True) for button in buttons] == [len(VARIANTS)] * 2
    assert visible == [run["load"] == 2.0 for run in result["runs"]]  # the least load that is not below 1


def test_the_page_escapes_and_needs_nothing_else(result: dict[str, Any]) -> None:
    runs = [run | {"violations": ["a </script> <b>"]} for run in result["runs"]]
    page = sweep_page.page("<b>&.csv", result | {"runs": runs}, ["a note <i>"], "var x = '</script>';")
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert page.count("</script>") == 2 == page.count("<script>")
    assert "<b>" not in page and "<i>" not in page and "&lt;b&gt;&amp;.csv" in page
    assert not any(word in page for word in ("http", "src=", "@import", "url("))
    for k in range(len(sweep_page.CURVES) + 2):
        assert page.count(f'id="blocks-1000-{k}"') == 1 == page.count(f'"blocks-1000-{k}":')
    assert page.count("<tr>") == 1 + 2 * len(VARIANTS)


def test_a_task_is_told_by_its_key() -> None:
    trace = Trace("t", "hand")
    config = Config(num_gpu_blocks=5, num_cpu_blocks=5)
    cost = Roofline(MODELS["llama-3.1-8b"], DEVICES["h100"])
    assert repr(Task(Key("v", 5, 1.5), Variant(), trace, 0.0, config, cost, Slo(), 0)) == "v, 5 blocks, load 1.5"
