"""What was found out about a mutant is kept under a hash of all that it depends on, so that an audit can be taken up again."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import z3

from kvproof.proofs import prove
from kvproof.proofs.mutate import Mutant

OWN = ("audit", "bank", "equivalence", "keeping", "mutate", "operators", "outcomes", "rare", "refute", "walks")
"""Modules here that no proof depends on."""


@cache
def digest(own: bool) -> str:
    """What a verdict depends on: core, store, spec and the proofs; or (own) what the refuter is."""
    import kvproof.core
    import kvproof.proofs
    import kvproof.spec
    import kvproof.store

    h = hashlib.sha256(z3.get_version_string().encode())
    for package in (kvproof.core, kvproof.store, kvproof.spec, kvproof.proofs):
        for path in sorted(Path(next(iter(package.__path__))).glob("*.py")):
            mine = package is kvproof.proofs and path.stem in ("bank", "outcomes", "rare", "record", "refute", "walks")
            if package is not kvproof.proofs or (mine if own else path.stem not in OWN):
                h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:20]


def kept(kind: str, what: "Mutant | str", make: Callable[[], Any]) -> Any:
    """What `make` says, from a file if it was made of the same sources before."""
    path = prove.cache_dir() / "audit" / digest(kind == "refute") / f"{what if isinstance(what, str) else what.key}.{kind}.json"
    try:
        return json.loads(path.read_text())["value"]
    except (OSError, ValueError, KeyError):
        value = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"value": value}))
        part.replace(path)
    except OSError:
        pass  # a cache that cannot be written only costs time
    return value
