"""The layers: store <- core <- spec <- proofs, and policies, backend_fake <- facade <- sim, bench, fuzz <- cli.

backend_cuda is above backend_fake, beside the facade. Imports are read from the source, those inside functions too.
core and store are attrs and the standard library only.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"z3", "torch", "cupy", "numpy"}

LOW = {"core", "store"}
FACADE = {*LOW, "spec", "backend_fake", "policies", "facade"}
OURS = {
    "store": {"store"},
    "core": LOW,
    "spec": {*LOW, "spec"},
    "proofs": {*LOW, "spec", "proofs"},
    "backend_fake": {*LOW, "backend_fake"},
    "backend_cuda": {*LOW, "backend_fake", "backend_cuda"},
    "policies": {"store", "policies"},
    "facade": FACADE,
    "sim": {*FACADE, "sim"},
    "bench": {*FACADE, "bench"},
    "fuzz": {*FACADE, "backend_cuda", "fuzz"},
    "cli": {*FACADE, "backend_cuda", "sim", "bench", "fuzz", "proofs", "cli"},
}
"""Layer -> the layers of kvproof that it may import."""

THEIRS = {
    "store": {"attrs"},
    "core": {"attrs"},
    "spec": {"attrs"},
    "proofs": {"attrs", "z3"},
    "backend_fake": {"attrs", "numpy"},
    "backend_cuda": {"attrs", "cuda", "cupy", "numpy"},
    "policies": {"attrs"},
    "facade": {"attrs", "cattrs", "prometheus_client"},
    "sim": {"attrs", "numpy", "plotly", "rich"},
    "bench": {"attrs", "numpy"},
    "fuzz": {"attrs", "hypothesis", "numpy"},
    "cli": {"attrs", "click", "rich"},
}
"""Layer -> the distributions that it may import beside the standard library."""

FOR_TYPES_ONLY = {("store", "core")}
"""Allowed under `if TYPE_CHECKING:` and nowhere else: the State names the class of its configuration."""

SUBPACKAGES = set(OURS) - {"facade"}


def layer_of(path: Path) -> str:
    """The layer of a file of the repository."""
    parts = path.relative_to(ROOT).parts
    if parts[0] != "kvproof":
        return parts[0]
    return "cli" if parts[1] in ("cli", "__main__.py") else "facade"


def files() -> Iterator[Path]:
    for folder in sorted((SUBPACKAGES - {"cli"}) | {"kvproof"}):
        yield from sorted((ROOT / folder).rglob("*.py"))


def guarded(tree: ast.Module) -> set[int]:
    """The ids of all nodes under `if TYPE_CHECKING:`."""
    out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            out |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return out


def modules(node: ast.AST, layer: str) -> list[str]:
    """The dotted names that a node imports; a relative import is taken to stay in its layer."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return [f"kvproof.{layer}"] if layer != "facade" else ["kvproof"]
        assert node.module is not None
        if node.module == "kvproof":
            return [f"kvproof.{alias.name}" for alias in node.names]
        return [node.module]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
        argument = node.args[0] if node.args else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return [argument.value]
        return (
            [] if layer in ("cli", "proofs") else ["<computed>"]
        )  # commands, and the modules of mutated cores, are imported by name
    return []


def problems(source: str, layer: str) -> list[str]:
    """What this source of this layer imports and must not."""
    out = []
    tree = ast.parse(source)
    only_types = guarded(tree)
    for node in ast.walk(tree):
        for name in modules(node, layer):
            top, _, rest = name.partition(".")
            if top == "kvproof":
                target = rest.partition(".")[0]
                target = target if target in SUBPACKAGES else "facade"
                allowed = target in OURS[layer] or (id(node) in only_types and (layer, target) in FOR_TYPES_ONLY)
            else:
                allowed = top in THEIRS[layer] or top in sys.stdlib_module_names
            if not allowed:
                out.append(f"line {node.lineno}: {layer} must not import {name}")  # type: ignore[attr-defined]
    return out


@pytest.mark.parametrize("path", list(files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    assert problems(path.read_text(encoding="utf-8"), layer_of(path)) == []


def test_every_folder_of_the_package_is_a_layer():
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        setuptools = tomllib.load(file)["tool"]["setuptools"]
    assert {[*name.split("."), "facade"][1] for name in setuptools["packages"]} == set(OURS)
    assert set(setuptools["package-dir"]) == set(setuptools["packages"])
    assert {layer_of(path) for path in files()} <= set(OURS) == set(THEIRS)


@pytest.mark.parametrize("layer", ["core", "store"])
def test_the_core_needs_nothing_heavy(layer):
    assert not THEIRS[layer] & HEAVY and "z3" not in THEIRS["spec"]


@pytest.mark.parametrize(
    ("layer", "source", "named"),
    [
        ("core", "import z3", "z3"),
        ("core", "import numpy as np", "numpy"),
        ("core", "def f():\n    from torch.nn import Module", "torch.nn"),
        ("store", "class A:\n    def f(self):\n        import cupy", "cupy"),
        ("core", "from kvproof.spec import invariants", "kvproof.spec"),
        ("core", "from kvproof import spec", "kvproof.spec"),
        ("core", "import kvproof.backend_fake.backend", "kvproof.backend_fake.backend"),
        ("core", "from kvproof import Config", "kvproof.Config"),
        ("core", "import importlib\nm = importlib.import_module('z3')", "z3"),
        ("core", "m = __import__(name)", "<computed>"),
        ("store", "from kvproof.core.config import Config", "kvproof.core.config"),
        ("store", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import z3", "z3"),
        ("store", "if TYPE_CHECKING:\n    pass\nelse:\n    from kvproof.core.config import Config", "kvproof.core.config"),
        ("spec", "def f():\n    import z3", "z3"),
        ("spec", "from kvproof.proofs.sym import SInt", "kvproof.proofs.sym"),
        ("proofs", "from kvproof.scheduler import Scheduler", "kvproof.scheduler"),
        ("backend_fake", "from kvproof.scheduler import Scheduler", "kvproof.scheduler"),
        ("policies", "from kvproof.core.groups import rerank", "kvproof.core.groups"),
        ("policies", "from kvproof.order import Order", "kvproof.order"),
        ("policies", "import numpy", "numpy"),
        ("facade", "from kvproof.sim.engine import Simulation", "kvproof.sim.engine"),
        ("facade", "from kvproof.proofs import prove", "kvproof.proofs"),
        ("sim", "from kvproof.cli import InputError", "kvproof.cli"),
    ],
)
def test_a_wrong_import_is_found(layer, source, named):
    (problem,) = problems(source, layer)
    assert problem.endswith(f"{layer} must not import {named}")


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("store", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvproof.core.config import Config"),
        ("core", "import attrs, bisect\nfrom kvproof.store.draft import Draft\nfrom . import blocks"),
        ("proofs", "import z3\nfrom kvproof.core import groups"),
        ("cli", "import importlib\nm = importlib.import_module(f'kvproof.cli.{name}')"),
    ],
)
def test_a_right_import_is_not(layer, source):
    assert problems(source, layer) == []


def test_embedding_loads_nothing_heavy():
    """`import kvproof`, which an engine does, needs attrs and no more."""
    code = "import sys, kvproof; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    names = set(ast.literal_eval(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout))
    assert "attrs" in names
    assert not names & {*HEAVY, "cattrs", "click", "hypothesis", "prometheus_client", "rich"}
