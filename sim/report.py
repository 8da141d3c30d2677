"""How a simulation is told: a table for the terminal, and one HTML page that needs nothing else."""

import html
from typing import Any

from rich.table import Table

Summary = dict[str, Any]
LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end to end"), ("normalized", "normalized (end to end / token)"))


def seconds(value: float | None) -> str:
    """A time with its unit, four digits."""
    if value is None:
        return "-"
    return f"{value:.4g} s" if value >= 1 else f"{value * 1000:.4g} ms"


def size(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def latency_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Name, mean, p50, p99, max of each latency."""
    rows = []
    for key, title in LATENCIES:
        values = summary["latency_s"][key]
        rows.append((title, *(seconds(values[column]) for column in ("mean", "p50", "p99", "max"))))
    return rows


def count_rows(summary: Summary) -> list[tuple[str, str]]:
    """What was counted, in words."""
    requests, steps, run = summary["requests"], summary["steps"], summary["run"]
    preempted = f"{requests['preempted']:,} ({requests['preempted_share']:.2%}), at most {requests['preemptions_max']} times each"
    checked = "the invariants of the spec" if summary["spec_used"] else "own accounts only: no kvproof.spec.check here"
    refused = f"{requests['refused']:,} (longer than the context or the pool)"
    recomputed = summary["recomputed_tokens"] / summary["prefill_tokens"] if summary["prefill_tokens"] else 0.0
    goodput, causes = summary["goodput"], summary["recomputed_by_cause"]
    limits = f"TTFT <= {seconds(goodput['slo_ttft_s'])}, TPOT <= {seconds(goodput['slo_tpot_s'])}"
    met = f"{goodput['requests']:,} ({goodput['share']:.2%}), {goodput['requests_per_s']:.4g} requests/s; {limits}"
    fallback = f"; {causes['swap_impossible']:,} since the host had no room" if causes["swap_impossible"] else ""
    peak_rss = size(run["peak_rss_bytes"]) if run["peak_rss_bytes"] is not None else "-"
    return [
        ("requests", f"{requests['total']:,}"),
        ("finished", f"{requests['finished']:,}"),
        ("refused", refused),
        ("ended for capacity", f"{requests['capacity']:,}"),
        ("lost", f"{requests['lost']:,}"),
        ("goodput", met),
        ("preempted requests", preempted),
        ("preemptions", " ".join(f"{mode} {count:,}" for mode, count in summary["preemptions"].items())),
        ("recomputed tokens", f"{summary['recomputed_tokens']:,} ({recomputed:.2%} of prefill tokens{fallback})"),
        ("swapped out / in", f"{size(summary['swapped_out_bytes'])} / {size(summary['swapped_in_bytes'])}"),
        ("output tokens", f"{summary['output_tokens']:,} ({summary['output_tokens_per_s']:,.0f} per s)"),
        ("steps", f"{steps['total']:,} (prefill {steps['prefill']:,}, decode {steps['decode']:,}, idle {steps['idle']:,})"),
        ("simulated time", seconds(summary["simulated_s"])),
        ("most that decoded at once", f"{summary['running_max']:,}"),
        ("fewest free GPU blocks", f"{summary['gpu_free_min']:,}"),
        ("all blocks back", "yes" if summary["blocks_back"] else "NO"),
        ("violations", f"{summary['violation_count']:,} on {summary['states_checked']:,} states ({checked})"),
        ("wall time", seconds(run["wall_s"])),
        ("peak memory", peak_rss),
    ]


def infeasible_rows(summary: Summary) -> list[tuple[str, str]]:
    """The requests that cannot run, as far as they are named."""
    named = summary["infeasible"]
    rows = [(f"request {entry['request']}", entry["why"]) for entry in named]
    more = summary["requests"]["refused"] + summary["requests"]["capacity"] - len(named)
    return [*rows, ("and", f"{more:,} more")] if more > 0 and named else rows


def title_of(summary: Summary) -> str:
    """What ran, in one line."""
    config, model = summary["config"], summary["model"]
    pool = f"{config['num_gpu_blocks']:,} + {config['num_cpu_blocks']:,} blocks of {config['block_size']}"
    return f"{summary['trace']['name']}: {model['name']} on {model['device']}, {config['profile']}, {pool}"


def tables(summary: Summary) -> list[Table]:
    """For the terminal."""
    latency = Table(title=title_of(summary), title_justify="left")
    latency.add_column("latency")
    for name in ("mean", "p50", "p99", "max"):
        latency.add_column(name, justify="right")
    for row in latency_rows(summary):
        latency.add_row(*row)
    counts = Table(show_header=False)
    counts.add_column()
    counts.add_column()
    for name, value in count_rows(summary):
        counts.add_row(name, value)
    for name, value in infeasible_rows(summary):
        counts.add_row(name, value)
    for violation in summary["violations"]:
        counts.add_row("violation", violation)
    return [latency, counts]


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }}
h1 {{ font-size: 1.2em; }} h2 {{ font-size: 1em; margin-top: 2em; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2em 1em .2em 0; text-align: left; border-bottom: 1px solid #ddd; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; }} .bad {{ color: #b00; }}
svg {{ width: 100%; height: auto; }} polyline {{ fill: none; stroke: #06c; stroke-width: 2; }}
text {{ font-size: 12px; fill: #555; }} line {{ stroke: #ccc; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def plot(name: str, points: list[tuple[float, float]], top: float, top_label: str, marks: list[str]) -> str:
    """An SVG of points (0 to 100, 0 to `top`), with `marks` evenly below it."""
    path = " ".join(f"{50 + 5.4 * x:.1f},{140 - 120 * y / top:.1f}" for x, y in points)
    gap = 540 / (len(marks) - 1)
    below = "".join(f'<text x="{50 + gap * k:g}" y="158" text-anchor="middle">{mark}</text>' for k, mark in enumerate(marks))
    axes = '<line x1="50" y1="140" x2="590" y2="140"/><line x1="50" y1="20" x2="50" y2="140"/>'
    words = f'<text x="4" y="24">{top_label}</text>{below}'
    return f'<svg viewBox="0 0 620 165" role="img" aria-label="{name}">{axes}<polyline points="{path}"/>{words}</svg>'


def curve(name: str, points: list[tuple[float, float]]) -> str:
    """An SVG of (share of requests in %, seconds): which share waited at most so long."""
    top = max((y for _, y in points), default=0.0) or 1.0
    return plot(name, points, top, seconds(top), [f"{x} %" for x in (0, 25, 50, 75, 100)])


def pool_curve(name: str, summary: Summary) -> str:
    """An SVG of the GPU blocks used over simulated time, as steps."""
    use, blocks = summary["pool_use"], summary["config"]["num_gpu_blocks"]
    end_s = use["time_s"][-1] or 1.0
    points = list(zip((100 * at_s / end_s for at_s in use["time_s"]), use["blocks_used"], strict=True))
    steps = points[:1]
    for x, y in points[1:]:
        steps += [(x, steps[-1][1]), (x, y)]
    return plot(name, steps, blocks, f"{blocks:,}", [seconds(end_s * k / 4) for k in range(5)])


def page(summary: Summary, curves: dict[str, list[tuple[float, float]]]) -> str:
    """One HTML document: no scripts, no external resources."""

    def cells(row: tuple[str, ...]) -> str:
        first, *rest = (html.escape(cell) for cell in row)
        return f"<tr><th>{first}</th>" + "".join(f'<td class="n">{cell}</td>' for cell in rest) + "</tr>"

    head = "<tr><th>latency</th>" + "".join(f'<th class="n">{name}</th>' for name in ("mean", "p50", "p99", "max")) + "</tr>"
    parts = ["<table>", head, *map(cells, latency_rows(summary)), "</table>"]
    for key, title in LATENCIES:
        parts += [f"<h2>{title}: share of requests that took at most so long</h2>", curve(title, curves[key])]
    if summary["pool_use"]["time_s"]:
        parts += ["<h2>GPU blocks used, over simulated time</h2>", pool_curve("GPU blocks used", summary)]
    parts += ["<h2>Counts</h2><table>", *map(cells, count_rows(summary)), *map(cells, infeasible_rows(summary)), "</table>"]
    parts += [f'<p class="bad">{html.escape(violation)}</p>' for violation in summary["violations"]]
    parts += ["<h2>Configuration</h2><table>"]
    for section in ("trace", "model", "config"):
        parts += [cells((f"{section}.{key}", str(value))) for key, value in summary[section].items()]
    parts += ["</table>"]
    return PAGE.format(title=html.escape(title_of(summary)), body="\n".join(parts))
