"""`kvproof simulate`: a trace, a model, a device and a configuration in; latencies and counts out."""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvproof.cli import InputError, sweeping
from kvproof.cli.doctor import cores
from kvproof.core.config import PROFILES, Config, ConfigError
from kvproof.order import BUILT_IN, PolicyError
from kvproof.sim import files, generate, report
from kvproof.sim.baselines import BASELINES
from kvproof.sim.cost import Roofline, blocks_that_fit
from kvproof.sim.engine import CHECK_EVERY_DEFAULT, Simulation
from kvproof.sim.hardware import DEVICES, MODELS, Device, Model
from kvproof.sim.metrics import SLO_TPOT_S, SLO_TTFT_S, Metrics, Slo, percentile
from kvproof.sim.sweep import REFERENCE, VARIANTS, Sweep
from kvproof.sim.timeline import TimelineSimulation
from kvproof.sim.traces import RATE_DEFAULT_PER_S, Trace, TraceError, read

TOKEN_BUDGET = 8_192
WATERMARK = 0.01
BLOCKS_MAX = 2**22
"""16 times the default pool of the largest device: more is a mistake, and would only fill the host's memory."""
TOKENS_MAX = 2**26
TENANTS_MAX = 10**6
MODES = ("recompute", "swap", "auto")


def peak_rss_bytes() -> int | None:
    """The most memory that this process has held; None where the platform does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def load(name: str, limit: int | None, rate_per_s: float | None, seed: int) -> Trace:
    """The requests: read from the file, or generated for the word `azure-like`."""
    if rate_per_s is not None and not 1e-6 <= rate_per_s <= 1e6:
        raise InputError(f"--rate: must be from 0.000001 to 1000000 requests per second, got {rate_per_s}")
    if name == generate.NAME:
        return generate.azure_like(limit or generate.REQUESTS, rate_per_s, seed)
    try:
        return read(Path(name), limit, rate_per_s, seed)
    except TraceError as error:
        raise InputError(str(error)) from None


def pool_size(model: Model, device: Device, block_size: int) -> int:
    """`num_gpu_blocks` where it is not given."""
    blocks = blocks_that_fit(model, device, block_size)
    if blocks < 1:
        weights, memory = report.size(model.weight_bytes), report.size(device.memory_bytes)
        left = f"the weights of {model.name} ({weights}) leave no block of 0.9 x {memory} on one {device.name}"
        raise InputError(f"--num-gpu-blocks: {left}; give a number, or another device")
    return blocks


def configure(model: Model, device: Device, options: dict[str, Any], **changes: Any) -> Config:
    """The scheduler's configuration, with the defaults of the simulator and `changes`. Raises InputError naming the field."""
    if options["enable_chunked_prefill"]:
        raise InputError("--enable-chunked-prefill: the simulator does not model it yet; leave it out")
    block_size = options["block_size"]
    gpu = options["num_gpu_blocks"] if options["num_gpu_blocks"] is not None else pool_size(model, device, block_size)
    cpu = options["num_cpu_blocks"] if options["num_cpu_blocks"] is not None else gpu
    context = options["max_model_len"] if options["max_model_len"] is not None else model.context_tokens
    if context > model.context_tokens:
        raise InputError(f"max_model_len: must be <= {model.context_tokens}, the context of {model.name}, got {context}")
    given_budget = options["max_num_batched_tokens"]
    budget = given_budget if given_budget is not None else max(TOKEN_BUDGET, context)
    given_seqs = options["max_num_seqs"]
    try:
        fields = {
            "num_gpu_blocks": gpu,
            "num_cpu_blocks": cpu,
            "block_size": block_size,
            "watermark_blocks": int(WATERMARK * gpu),
            "max_num_seqs": given_seqs if given_seqs is not None else min(256, budget),
            "max_num_batched_tokens": budget,
            "max_model_len": context,
            LIMIT: options[LIMIT],
            "vllm_v0": options["profile"] == "vllm_v0",
        }
        return Config(**fields | changes)
    except ConfigError as error:
        raise InputError(str(error)) from None


LIMIT = "max_preemptions_per_request"


def describe(trace: Trace, model: Model, device: Device, config: Config, options: dict[str, Any]) -> dict[str, Any]:
    """What ran, for the record."""
    return {
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "requests": len(trace),
            "rate": options["rate"] or (RATE_DEFAULT_PER_S if trace.format == "vidur" else None),
            "seed": options["seed"],
        },
        "model": {"name": model.name, "source": model.source, "device": device.name, "device_source": device.source},
        "config": {
            "profile": options["profile"],
            "preemption_mode": options["preemption_mode"],
            "policy": options["policy"],
            "tenants": options["tenants"],
            "baseline": options["baseline"],
            "block_size": config.block_size,
            "num_gpu_blocks": config.num_gpu_blocks,
            "num_cpu_blocks": config.num_cpu_blocks,
            "watermark_blocks": config.watermark_blocks,
            "max_num_seqs": config.max_num_seqs,
            LIMIT: config.max_preemptions_per_request,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": config.max_model_len,
            "enable_chunked_prefill": False,
        },
    }


def simulated(trace: Trace, config: Config, cost: Roofline, options: dict[str, Any], trace_out: Path | None) -> Metrics:
    """Run it behind a progress bar on stderr, and write its timeline to `trace_out`."""
    console = Console(stderr=True)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal) as bar:
        task = bar.add_task("requests", total=len(trace))

        def show(ended: int) -> None:
            bar.update(task, completed=ended)

        arguments = (trace, config, cost, options["preemption_mode"], options["check_every"], show)
        more = {name: options[name] for name in ("policy", "baseline", "tenants")} | {"slo": slo_of(options)}
        try:
            with files.whole(trace_out) if trace_out is not None else nullcontext() as stream:
                simulation = Simulation(*arguments, **more) if stream is None else TimelineSimulation(stream, *arguments, **more)
                return simulation.run()
        except ConfigError as error:
            raise InputError(f"--{error}") from None
        except OSError as error:
            raise InputError(f"--trace-out {trace_out}: cannot be written: {files.reason_of(error)}") from None


def slo_of(options: dict[str, Any]) -> Slo:
    """The limits of goodput, in seconds."""
    for name in ("slo_ttft", "slo_tpot"):
        if not 0 < options[name] <= 1e9:
            raise InputError(f"--{name.replace('_', '-')}: must be a positive number of seconds, got {options[name]}")
    return Slo(options["slo_ttft"], options["slo_tpot"])


def given(name: str) -> bool:
    """Is the option on the command line?"""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def check_options(trace: str, options: dict[str, Any], report_path: Path | None, trace_out: Path | None) -> None:
    """What goes together, and what can be written. Raises InputError."""
    slo_of(options)
    alone = ("num_gpu_blocks", "profile", "preemption_mode", "policy", LIMIT, "baseline", "trace_out")
    for name in alone if options["sweep"] else ("sweep_blocks", "sweep_load", "sweep_variants", "jobs"):
        if given(name):
            rest = "does not go with --sweep" if options["sweep"] else "goes with --sweep only"
            raise InputError(f"--{name.replace('_', '-')}: {rest}; leave it out")
    source = None if trace == generate.NAME else Path(trace)
    try:
        if report_path is not None:
            files.check_target(report_path, source)
        if trace_out is not None:
            files.check_target(trace_out, source, "--trace-out")
            if report_path is not None and report_path.resolve() == trace_out.resolve():
                raise files.OutputError(f"--trace-out {trace_out}: is the file of --report")
    except files.OutputError as error:
        raise InputError(str(error)) from None


def swept(trace: str, model: Model, device: Device, options: dict[str, Any], report_path: Path | None, as_json: bool) -> int:
    """All runs of a sweep."""
    text = options["sweep_blocks"]
    sizes = sweeping.blocks_of(text) if text is not None else [pool_size(model, device, options["block_size"])]
    loads, names = sweeping.loads_of(options["sweep_load"]), sweeping.variants_of(options["sweep_variants"])

    def configured(num_gpu_blocks: int, **changes: Any) -> Config:
        return configure(model, device, options | {"num_gpu_blocks": num_gpu_blocks}, **changes)

    configs = sweeping.configs_of(names, sizes, configured)
    requests = load(trace, options["limit"], options["rate"], options["seed"])
    if not requests.arrivals_s[-1]:
        raise InputError(f"{trace}: --sweep: all requests arrive at once, so their arrivals cannot be scaled")
    sweep = Sweep(
        trace=requests,
        variants={name: VARIANTS[name] for name in names},
        blocks=sizes,
        loads=loads,
        configs=configs,
        cost=Roofline(model, device, options["block_size"]),
        slo=slo_of(options),
        check_every=options["check_every"] or 0,
        tenants=options["tenants"],
    )
    record = describe(requests, model, device, configs[REFERENCE, sizes[0]], options)
    record["config"]["num_cpu_blocks"] = options["num_cpu_blocks"]  # None: as many as on the GPU
    for name in ("profile", "preemption_mode", "policy", "baseline", "num_gpu_blocks", "watermark_blocks", LIMIT):
        del record["config"][name]
    title = f"{requests.name}: {len(requests):,} requests, {model.name} on {device.name}"
    return sweeping.run(sweep, title, record, options["jobs"] or cores(), report_path, as_json)


def curves(metrics: Metrics) -> dict[str, list[tuple[float, float]]]:
    """(percent, seconds) of each latency, for the report."""
    out = {}
    columns = {"ttft": metrics.ttft_s, "tpot": metrics.tpot_s, "e2e": metrics.e2e_s, "normalized": metrics.normalized_s}
    for key, values in columns.items():
        ordered = sorted(values)
        points = ((float(x), percentile(ordered, x)) for x in range(101))
        out[key] = [(x, y) for x, y in points if y is not None]
    return out


BLOCKS = click.IntRange(min=1, max=BLOCKS_MAX)
TOKENS = click.IntRange(min=1, max=TOKENS_MAX)
TENANTS = click.IntRange(min=1, max=TENANTS_MAX)


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--model", type=click.Choice(list(MODELS)), default="llama-3.1-8b", show_default=True, help="Whose weights and KV.")
@click.option("--device", type=click.Choice(list(DEVICES)), default="h100", show_default=True, help="One accelerator.")
@click.option("--profile", type=click.Choice(PROFILES), default="kvproof", show_default=True, help="Scheduling decisions.")
@click.option("--preemption-mode", type=click.Choice(MODES), help="auto: by cost. Default: recompute (one sequence each).")
@click.option("--policy", metavar="NAME", help=f"Order of requests: {', '.join(BUILT_IN)}, or an installed package's.")
@click.option(
    "--max-preemptions-per-request", type=click.IntRange(min=0), help="Whoever was preempted so often is not again; 0: nobody is."
)
@click.option("--tenants", type=TENANTS, default=1, show_default=True, help="So many share the requests in turn, for fair.")
@click.option("--num-gpu-blocks", type=BLOCKS, help="Default: what 0.9 of the memory holds beside the weights.")
@click.option("--num-cpu-blocks", type=click.IntRange(min=0, max=BLOCKS_MAX), help="Default: as many as on the GPU.")
@click.option("--block-size", type=click.IntRange(min=1, max=4096), default=16, show_default=True, help="Tokens per block.")
@click.option("--max-model-len", type=TOKENS, help="Longer requests are refused. Default: the model's context.")
@click.option("--max-num-batched-tokens", type=TOKENS, help="Default: max(8192, max_model_len).")
@click.option("--max-num-seqs", type=TOKENS, help="Default: 256.")
@click.option(
    "--enable-chunked-prefill/--no-enable-chunked-prefill",
    default=False,
    help="Not modelled yet.",
    show_default=True,
)
@click.option("--limit", type=click.IntRange(min=1, max=10**8), help="Only the first so many requests.")
@click.option("--rate", type=float, help=f"Requests per second, for traces without arrivals (default {RATE_DEFAULT_PER_S:g}).")
@click.option("--seed", type=click.IntRange(min=0, max=2**63), default=0, show_default=True, help="Of arrivals that are drawn.")
@click.option(
    "--check-every",
    type=click.IntRange(min=0),
    help=f"Passes between two checks of the state; 0: only the last. Default: {CHECK_EVERY_DEFAULT}, more in a crowd; sweep: 0.",
)
@click.option("--baseline", type=click.Choice(BASELINES), help="Preempt nobody: admit who can have all blocks of its life.")
@click.option("--slo-ttft", type=float, default=SLO_TTFT_S, show_default=True, help="Goodput: most seconds to the first token.")
@click.option("--slo-tpot", type=float, default=SLO_TPOT_S, show_default=True, help="Goodput: most seconds per later token.")
@click.option("--trace-out", type=click.Path(path_type=Path), help="Write the run as a Chrome/Perfetto timeline here.")
@click.option("--sweep", is_flag=True, help="Many runs: variants x pool sizes x loads, in parallel.")
@click.option("--sweep-blocks", help="GPU blocks, like 500,1000. Default: one pool, as without --sweep.")
@click.option("--sweep-load", help="Load factors, 1 is what the pool sustains. Default: 0.5,0.75,1,1.5,2.")
@click.option("--sweep-variants", help=f"Some of: {', '.join(VARIANTS)}. Default: all.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes of a sweep. Default: one per core.")
@click.option("--report", "report_path", type=click.Path(path_type=Path), help="Write one self-contained HTML page here.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")
def command(trace: str, model: str, device: str, report_path: Path | None, as_json: bool, **options: Any) -> int:
    """Discrete-event run of TRACE: an Azure CSV, Mooncake JSONL or vidur CSV (gzip too), or the word `azure-like`.

    `azure-like` generates requests with the statistics of the Azure conversation trace. Exit status: 0; 1 a violation or a
    lost request; 2 bad input.
    """
    started = time.perf_counter()
    trace_out = options["trace_out"]
    check_options(trace, options, report_path, trace_out)
    if options["sweep"]:
        return swept(trace, MODELS[model], DEVICES[device], options, report_path, as_json)
    config = configure(MODELS[model], DEVICES[device], options)
    requests = load(trace, options["limit"], options["rate"], options["seed"])
    cost = Roofline(MODELS[model], DEVICES[device], config.block_size)
    try:
        metrics = simulated(requests, config, cost, options, trace_out)
    except PolicyError as error:
        click.echo(f"kvproof: {error}", err=True)
        return 1
    summary = describe(requests, MODELS[model], DEVICES[device], config, options) | metrics.summary(cost.block_bytes)
    summary["run"] = {"wall_s": time.perf_counter() - started, "peak_rss_bytes": peak_rss_bytes()}
    if report_path is not None:
        try:
            files.write_atomically(report_path, report.page(summary, curves(metrics)))
        except OSError as error:
            raise InputError(f"--report {report_path}: cannot be written: {files.reason_of(error)}") from None
    if as_json:
        click.echo(json.dumps(summary))
    else:
        console = Console()
        for table in report.tables(summary):
            console.print(table)
    return 1 if metrics.failed else 0
