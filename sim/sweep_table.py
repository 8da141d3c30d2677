"""A sweep on the terminal: one table for each pool size, a line for each variant and load."""

from typing import Any

from rich.table import Table

from kvproof.sim.report import seconds, size


def both(latency: dict[str, Any]) -> str:
    """p50 and p99 of a latency, in one unit."""
    low, high = latency["p50"], latency["p99"]
    if low is None:
        return "-"
    return f"{low:.3g} / {high:.3g} s" if high >= 1 else f"{low * 1000:.3g} / {high * 1000:.3g} ms"


def table(result: dict[str, Any], blocks: int) -> Table:
    """All runs with a pool of so many blocks."""
    load_1 = next(entry for entry in result["load_1"] if entry["blocks"] == blocks)
    sustained = f"load 1 = {load_1['requests_per_s']:.4g} requests/s ({result['reference']}, all at once)"
    out = Table(title=f"{blocks:,} blocks; {sustained}; latencies: p50 / p99", title_justify="left")
    out.add_column("load", justify="right")
    out.add_column("variant", no_wrap=True)
    for name in ("goodput", "requests/s", "normalized", "TTFT", "TPOT", "end to end"):
        out.add_column(name, justify="right")
    for name in ("preemptions", "recomputed", "swapped out"):
        out.add_column(name, justify="right")
    before = None
    for run in result["runs"]:
        if run["blocks"] != blocks:
            continue
        if before is not None and run["load"] != before:
            out.add_section()
        before = run["load"]
        latency, good = run["latency_s"], run["goodput"]
        latencies = (both(latency[key]) for key in ("normalized", "ttft", "tpot", "e2e"))
        preemptions = f"{sum(run['preemptions'].values()):,}"
        recomputed, swapped = f"{run['recomputed_tokens']:,}", size(run["swapped_out_bytes"])
        shares = (f"{good['share']:.1%}", f"{good['requests_per_s']:.3g}")
        out.add_row(f"{run['load']:g}", run["variant"], *shares, *latencies, preemptions, recomputed, swapped)
    return out


def notes(result: dict[str, Any]) -> list[str]:
    """What the tables do not say: the limits of goodput, and requests that cannot run."""
    good = result["runs"][0]["goodput"]
    lines = [
        f"goodput: TTFT <= {seconds(good['slo_ttft_s'])} and TPOT <= {seconds(good['slo_tpot_s'])}, of the requests that can run"
    ]
    for blocks in dict.fromkeys(run["blocks"] for run in result["runs"]):
        run = next(run for run in result["runs"] if run["blocks"] == blocks)
        refused = run["requests"]["refused"]
        if refused:
            one = run["infeasible"][0]
            lines.append(f"{blocks:,} blocks: {refused:,} requests cannot run, the first: request {one['request']}: {one['why']}")
    return lines
