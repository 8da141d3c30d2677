"""`kvproof bench sched`: the cases, in the order of the table, and which of them depend on N."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from kvproof.bench import cases, modes

Row = dict[str, object]

CASES: dict[str, Callable[[int], Row]] = {
    "decode": partial(cases.decode, case="decode"),
    "decode_all": partial(cases.decode, case="decode_all"),
    "plan_view": partial(cases.decode, case="plan_view"),
    "peer_decode": cases.peer_decode,
    "chunked": partial(cases.decode, case="chunked"),
    "chunked_arrivals": modes.chunked_arrivals,
    "pairs": partial(modes.pairs, case="pairs"),
    "twice_pairs": partial(modes.pairs, case="twice_pairs"),
    "pressure": partial(cases.pressure, case="pressure"),
    "pressure_swap": partial(cases.pressure, case="pressure_swap"),
    "peer_pressure": cases.peer_pressure,
}
HISTORY = "history"


def history() -> Row:
    """The history case, in a process of its own so that its growth is its own."""
    done = subprocess.run([sys.executable, "-m", "kvproof.bench.history"], check=True, capture_output=True, text=True)
    row: Row = json.loads(done.stdout)
    return row


def run(sizes: list[int], wanted: tuple[str, ...] = (), tell: Callable[[str], None] = lambda line: None) -> Iterator[Row]:
    """The rows of the wanted cases (of all, if none is named); `tell` hears what is being measured."""
    names = wanted or (*CASES, HISTORY)
    for name in names:
        if name == HISTORY:
            tell("history: 256 sequences, 10,000 states kept")
            yield history()
            continue
        for n in sizes:
            tell(f"{name}: N = {n}")
            yield CASES[name](n)
