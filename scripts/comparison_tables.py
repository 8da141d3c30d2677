"""Tables of docs/comparison.md from the JSON of sweeps: `scripts/comparison_tables.py NAME.json ...`, which go to stdout.

First one of `kvproof auto` against the better of the two modes of vLLM (that with the higher goodput; of equal ones the lower
mean normalized latency), a row for each sweep and load; then all variants of each sweep.
"""

import json
import sys
from pathlib import Path
from typing import Any

Run = dict[str, Any]
AUTO, V0 = "kvproof auto", ("vllm_v0 recompute", "vllm_v0 swap")


def both(latency: Run) -> str:
    """p50 and p99, in milliseconds."""
    return f"{latency['p50'] * 1000:.3g} / {latency['p99'] * 1000:,.0f}" if latency["p50"] is not None else "-"


def cells(run: Run) -> list[str]:
    """Goodput, latency and work of a run."""
    modes = run["preemptions"]
    counts = [f"{modes['recompute'] + modes['swap']:,}", f"{run['recomputed_tokens']:,}", f"{run['swapped_out_bytes'] / 1e9:.2f}"]
    return [f"{run['goodput']['share']:.1%}", both(run["latency_s"]["normalized"]), *counts]


def line(*columns: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(columns)} |"


def against(name: str, runs: list[Run]) -> list[str]:
    """`auto` against the better mode of vLLM, at each load."""
    out = []
    for load in dict.fromkeys(run["load"] for run in runs):
        at = {run["variant"]: run for run in runs if run["load"] == load}
        better = max((at[v] for v in V0), key=lambda run: (run["goodput"]["share"], -run["latency_s"]["normalized"]["mean"]))
        auto = at[AUTO]
        good = [run["goodput"]["requests"] for run in (auto, better)]
        mean = [run["latency_s"]["normalized"]["mean"] * 1000 for run in (auto, better)]
        moved = [run["swapped_out_bytes"] / 1e9 for run in (auto, at[V0[1]])]
        again = [run["recomputed_tokens"] for run in (auto, at[V0[0]])]
        ratio = f"{good[0] / good[1]:.2f}" if good[1] else "-"
        out.append(
            line(
                name,
                f"{load:g}",
                better["variant"],
                f"{good[0]} / {good[1]}",
                ratio,
                f"{mean[0]:.4g} / {mean[1]:.4g}",
                f"{again[0]:,} / {again[1]:,}",
                f"{moved[0]:.2f} / {moved[1]:.2f}",
            )
        )
    return out


def main() -> None:
    """Read the sweeps that are named, write the tables."""
    sweeps = {Path(name).stem: json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]}
    latency, work = "normalized p50 / p99, ms", ("preemptions", "recomputed tokens", "swapped out, GB")
    head = ("good requests", "ratio", "mean normalized, ms", "recomputed tokens, of vLLM recompute", "swapped GB, of vLLM swap")
    print(line("sweep", "load", "better mode of vLLM", *head), "|--|--:|--|--:|--:|--:|--:|--:|", sep="\n")
    for name, sweep in sweeps.items():
        print(*against(name, sweep["runs"]), sep="\n")
    for name, sweep in sweeps.items():
        (one,), total = sweep["load_1"], sweep["runs"][0]["requests"]
        what = f"{total['total']:,} requests, {total['refused']:,} of them too long"
        print(f"\n### {name}\n\n{what}; load 1 = {one['requests_per_s']:.4g} requests/s.\n")
        print(line("load", "variant", "goodput", latency, *work), "|--:|--|--:|--:|--:|--:|--:|", sep="\n")
        for run in sweep["runs"]:
            print(line(f"{run['load']:g}", run["variant"], *cells(run)))


if __name__ == "__main__":
    main()
