"""`kvproof doctor`: what this machine can run. Nothing is imported, so a broken installation is reported and not run into."""

import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from kvproof import __version__
from kvproof.data import data_dir

PACKAGES = {
    "attrs": ("attrs",),
    "cattrs": ("cattrs",),
    "click": ("click",),
    "hypothesis": ("hypothesis",),
    "numpy": ("numpy",),
    "plotly": ("plotly",),
    "rich": ("rich",),
    "z3": ("z3-solver",),
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "cuda-bindings": ("cuda-bindings",),
}
"""Name -> distributions that provide it."""

NEEDED_BY = {
    "z3": "prove, audit",
    "numpy": "replay, fuzz",
    "plotly": "simulate --sweep --report",
    "torch": "nothing yet",
    "cupy": "the CUDA backend",
    "cuda-bindings": "the CUDA backend, to copy in batches",
}


def installed(distributions: tuple[str, ...]) -> str | None:
    """The version of the first of them that is installed."""
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def driver() -> str | None:
    """The NVIDIA driver as the kernel or the path shows it; None if there is none."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace").splitlines()[0]
        return first.strip()
    except (OSError, IndexError):
        return "nvidia-smi is there" if shutil.which("nvidia-smi") else None


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def report() -> dict[str, Any]:
    """All there is to say, as JSON."""
    data = data_dir()
    source = "KVPROOF_DATA" if os.environ.get("KVPROOF_DATA") else "default"
    return {
        "kvproof": __version__,
        "python": platform.python_version(),
        "packages": {name: installed(distributions) for name, distributions in PACKAGES.items()},
        "gpu_driver": driver(),
        "data": {"path": str(data), "found": data.is_dir(), "from": source},
        "cores": cores(),
    }


@click.command(short_help="what this machine can run")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def command(as_json: bool) -> int:
    """Versions, GPU driver, shared data and cores of this machine."""
    found = report()
    if as_json:
        print(json.dumps(found))
        return 0
    print(f"kvproof       {found['kvproof']}")
    print(f"python        {found['python']}")
    for name, number in found["packages"].items():
        missing = f"not installed (needed by {NEEDED_BY[name]})" if name in NEEDED_BY else "not installed"
        print(f"{name:<13} {number or missing}")
    print(f"GPU driver    {found['gpu_driver'] or 'none found: GPU backends are not available'}")
    data = found["data"]
    hint = "" if data["from"] == "KVPROOF_DATA" else "; set KVPROOF_DATA to have it elsewhere"
    absent = "" if data["found"] else f": not there; traces are read from it{hint}"
    print(f"data          {data['path']} ({data['from']}){absent}")
    print(f"cores         {found['cores']}")
    return 0
