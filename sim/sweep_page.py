"""A sweep as one HTML page: figures by plotly.js, which is part of the page, and the table of all runs. No network access.

The figures are plain dictionaries in plotly's format. Needs the package plotly (the extra `report`), for plotly.js only.
"""

import html
import importlib
import json
from typing import Any

from kvproof.sim.report import seconds, size

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#ff8ab7", "#5e6472")
Figure = dict[str, Any]


class NoPlotlyError(RuntimeError):
    """The package plotly is not installed, or is broken."""


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 78em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.4em; }} h2 {{ font-size: 1.15em; margin-top: 2.5em; }} p {{ max-width: 55em; }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(30em, 1fr)); gap: 1em; }}
.figure {{ height: 340px; }} .wide {{ grid-column: 1 / -1; height: 420px; }} .scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .85em; font-variant-numeric: tabular-nums; }}
td, th {{ padding: .25em .8em .25em 0; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }}
td:nth-child(2), th:nth-child(2) {{ text-align: left; }} .bad {{ color: #b00; }}
</style>
<script>{plotly}</script></head><body>
<h1>{title}</h1>
{body}
<script>
const figures = {figures};
for (const [id, figure] of Object.entries(figures))
  Plotly.newPlot(id, figure.data, figure.layout, {{responsive: true, displaylogo: false}});
</script>
</body></html>
"""


def plotly_js() -> str:
    """The library that draws, as text. Raises NoPlotlyError."""
    try:
        source: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except (ImportError, AttributeError, OSError) as error:
        raise NoPlotlyError(f"the page of a sweep needs the package plotly: pip install 'kvproof[report]' ({error})") from None
    return source


CURVES = (
    ("Goodput: share of requests that meet both limits", "share", lambda run: run["goodput"]["share"]),
    ("Goodput", "requests per second", lambda run: run["goodput"]["requests_per_s"]),
    ("Normalized latency, p50", "s per output token", lambda run: run["latency_s"]["normalized"]["p50"]),
    ("Normalized latency, p99", "s per output token", lambda run: run["latency_s"]["normalized"]["p99"]),
    ("TTFT, p50", "s", lambda run: run["latency_s"]["ttft"]["p50"]),
    ("TTFT, p99", "s", lambda run: run["latency_s"]["ttft"]["p99"]),
    ("TPOT, p50", "s", lambda run: run["latency_s"]["tpot"]["p50"]),
    ("TPOT, p99", "s", lambda run: run["latency_s"]["tpot"]["p99"]),
    ("End to end, p50", "s", lambda run: run["latency_s"]["e2e"]["p50"]),
    ("End to end, p99", "s", lambda run: run["latency_s"]["e2e"]["p99"]),
    ("Preemptions", "preemptions", lambda run: sum(run["preemptions"].values())),
    ("Recomputed tokens", "tokens", lambda run: run["recomputed_tokens"]),
    ("Swapped out and in", "bytes", lambda run: run["swapped_out_bytes"] + run["swapped_in_bytes"]),
)
"""Title, unit, and what of a run: drawn against the load, a line for each variant."""


def layout(title: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    """Light, with little ink."""
    axis = {"gridcolor": "#ececec", "zerolinecolor": "#cccccc", "linecolor": "#999999", "automargin": True}
    return {
        "title": {"text": title, "font": {"size": 15}, "x": 0.01, "xanchor": "left"},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}, "rangemode": "tozero"},
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "margin": {"l": 60, "r": 20, "t": 45, "b": 45},
        "legend": {"font": {"size": 11}},
        "hovermode": "x unified",
        **more,
    }


def line(name: str, colour: str, x: list[Any], y: list[Any], **more: Any) -> dict[str, Any]:
    """A line of a figure."""
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": {"color": colour}, **more}


def against_load(runs: list[dict[str, Any]], title: str, unit: str, value: Any, colours: dict[str, str]) -> Figure:
    """A number of each run, against the load."""
    lines = []
    for variant, colour in colours.items():
        some = [run for run in runs if run["variant"] == variant]
        lines.append(line(variant, colour, [run["load"] for run in some], [value(run) for run in some]))
    return {"data": lines, "layout": layout(title, "load", unit)}


def over_time(runs: list[dict[str, Any]], column: str, title: str, colours: dict[str, str]) -> Figure:
    """The use of the pool in each variant; the load is chosen in a menu."""
    loads = list(dict.fromkeys(run["load"] for run in runs))
    shown = min(loads, key=lambda load: (load < 1, abs(load - 1)))
    lines, of_load = [], []
    for run in runs:
        use = run["pool_use"]
        step = {"color": colours[run["variant"]], "shape": "hv", "width": 1.5}
        more = {"mode": "lines", "line": step, "visible": run["load"] == shown}
        lines.append(line(run["variant"], "", use["time_s"], use[column], **more))
        of_load.append(run["load"])
    buttons = [
        {"method": "update", "label": f"load {load:g}", "args": [{"visible": [one == load for one in of_load]}]} for load in loads
    ]
    menu = {"buttons": buttons, "active": loads.index(shown), "x": 1, "xanchor": "right", "y": 1.15, "yanchor": "top"}
    return {"data": lines, "layout": layout(title, "simulated s", column.replace("_", " "), updatemenus=[menu])}


def figures_of(runs: list[dict[str, Any]]) -> list[Figure]:
    """All figures of one pool size."""
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(run["variant"] for run in runs))}
    out = [against_load(runs, title, unit, value, colours) for title, unit, value in CURVES]
    out.append(over_time(runs, "blocks_used", "Use of the pool over time: GPU blocks", colours))
    out.append(over_time(runs, "waiting", "Requests that wait, over time", colours))
    return out


HEAD = ("load", "variant", "goodput", "requests/s", "norm. p50", "norm. p99", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
HEAD_MORE = ("e2e p50", "e2e p99", "preemptions", "recomputed tokens", "swapped out", "swapped in")


def row(run: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    latency, good = run["latency_s"], run["goodput"]
    times = (seconds(latency[key][share]) for key in ("normalized", "ttft", "tpot", "e2e") for share in ("p50", "p99"))
    counts = (f"{sum(run['preemptions'].values()):,}", f"{run['recomputed_tokens']:,}")
    swapped = (size(run["swapped_out_bytes"]), size(run["swapped_in_bytes"]))
    return (
        f"{run['load']:g}",
        run["variant"],
        f"{good['share']:.1%}",
        f"{good['requests_per_s']:.3g}",
        *times,
        *counts,
        *swapped,
    )


def table(runs: list[dict[str, Any]]) -> str:
    """All numbers of one pool size."""
    head = "".join(f"<th>{name}</th>" for name in (*HEAD, *HEAD_MORE))
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row(run)) for run in runs)
    return f'<div class="scroll"><table><tr>{head}</tr>' + "".join(f"<tr>{cells}</tr>" for cells in rows) + "</table></div>"


def page(title: str, result: dict[str, Any], notes: list[str], plotly: str) -> str:
    """The document. `plotly`: the text of plotly.js."""
    parts = [f"<p>{html.escape(note)}</p>" for note in notes]
    figures: dict[str, Figure] = {}
    for load_1 in result["load_1"]:
        blocks = load_1["blocks"]
        runs = [run for run in result["runs"] if run["blocks"] == blocks]
        sustained = (
            f"{load_1['requests_per_s']:.4g} requests/s, what {result['reference']} sustains with all requests there at once"
        )
        parts.append(f"<h2>{blocks:,} blocks</h2><p>Load 1 is {html.escape(sustained)}.</p>")
        parts.append('<div class="figures">')
        for k, figure in enumerate(figures_of(runs)):
            name = f"blocks-{blocks}-{k}"
            figures[name] = figure
            parts.append(f'<div id="{name}" class="figure{" wide" if k >= len(CURVES) else ""}"></div>')
        parts += ["</div>", table(runs)]
        parts += [
            f'<p class="bad">{html.escape(run["variant"])}: {html.escape(v)}</p>' for run in runs for v in run["violations"]
        ]
    data = json.dumps(figures, separators=(",", ":")).replace("</", "<\\/")
    return PAGE.format(
        title=html.escape(title), body="\n".join(parts), plotly=plotly.replace("</script", "<\\/script"), figures=data
    )
