"""Contracts: a function of the core is proved against its contract once, and its callers are proved from the contract.

`Contract.install` puts the summary in the place of the function in every module of the core that imports it, and back.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from kvproof.proofs.rules import check_frame
from kvproof.proofs.sym import fresh_bool, merged, run

Clauses = list[tuple[str, Any]]


@attrs.frozen
class Contract:
    """pre(d, *args) and post(d, entry, *args) give clauses; only parts in `modifies` may change."""

    module: str
    function: str
    modifies: tuple[str, ...]
    pre: Callable[..., Clauses]
    post: Callable[..., Clauses]
    args: Callable[[Any], tuple[Any, ...]]
    uses: tuple[str, ...] = ()
    """Functions whose summaries stand in for them while this one is proved."""
    answers: bool = False
    """Does it return a truth value? Then `post` is told it, as its last argument."""
    cuts: Callable[..., Clauses] | None = None
    """What is proved at the end of the body and then used for `post`."""
    opening: Callable[..., Clauses] | None = None
    """What is proved where the body begins, and then used."""
    laws: Callable[[Any], list[Any]] | None = None
    """Laws of finite sets (`lemmas.py`) about the state in which it begins."""
    lemma: Callable[..., Clauses] | None = None
    """What callers prove and then use for `pre`."""

    @property
    def name(self) -> str:
        """module.function"""
        return f"{self.module}.{self.function}"

    def real(self) -> Callable[..., Any]:
        """The function object that engines run."""
        f: Callable[..., Any] = getattr(sys.modules[f"kvproof.core.{self.module}"], self.function)
        return f

    def summary(self) -> Callable[..., Any]:
        """The contract as a function: obligations, forgetting, facts."""

        def call(d: Any, *args: Any) -> Any:
            for label, c in self.lemma(d, *args) if self.lemma is not None else []:
                run().prove(f"{label} [before {self.function}]", c)
                run().assume(c)
            for label, c in self.pre(d, *args):
                run().prove(f"{label} [before {self.function}]", c)
            entry = d.snap()
            d.havoc(self.modifies)
            answer = (fresh_bool(self.function),) if self.answers else ()
            for _, c in self.post(d, entry, *args, *answer):
                run().assume(c)
            run().notes.setdefault("after", []).append(d.snap())
            run().notes.setdefault("before", []).append((self.function, entry))
            run().notes.setdefault("asked", []).append((self.function, args))
            return answer[0] if answer else None

        return call

    def prove(self, d: Any) -> None:
        """The body keeps the contract. Run under `explore`, with the contracts it uses installed."""
        args = self.args(d)
        for _, c in self.pre(d, *args):
            run().assume(c)
        for c in self.laws(d) if self.laws is not None else []:
            run().assume(c)
        for label, c in self.opening(d, *args) if self.opening is not None else []:
            run().prove(f"{label} [at the beginning of {self.function}]", c)
            run().assume(c)
        entry, before = d.snap(), d.versions()
        answer = self.real()(d, *args)
        check_frame(self.function, d, before, self.modifies)
        for label, c in self.cuts(d, entry, *args) if self.cuts is not None else []:
            run().prove(f"{label} [at the end of {self.function}]", c)
            run().assume(c)
        for label, c in self.post(d, entry, *args, *((answer,) if self.answers else ())):
            run().prove(f"{label} [after {self.function}]", c)


QUESTIONS = {
    "profiles": (
        "decoding",
        "prefill_turn",
        "first_in_line",
        "next_to_return",
        "over_prompt_limit",
        "never_fits",
        "has_room",
        "has_seats",
        "fits_budget",
        "outgrew_pool",
        "to_return",
        "touched",
        "host_blocks",
    ),
    "blocks": ("blocks_needed", "outgrown"),
    "running": ("can_swap", "can_append"),
    "groups": ("unfinished",),
    "promises": ("most", "needed", "promised"),
    "schedule": ("quiet",),
    "swapping": ("may_come", "returning"),
    "displacing": ("line_head", "kept_back", "lacking", "can_make_way"),
}
"""Functions of the core that only read: their branches are merged (`sym.merged`)."""


@contextmanager
def installed(contracts: list[Contract]) -> Iterator[None]:
    """The summaries stand in for the functions, wherever the core calls them."""
    undo: list[tuple[Any, str, Any]] = []
    modules = [m for n, m in sys.modules.items() if n.startswith("kvproof.core.") and m is not None]
    stand_ins = [(c.real(), c.summary()) for c in contracts]
    for module, names in QUESTIONS.items():
        stand_ins += [
            (f, merged(f, f.__name__ != "can_append")) for f in (getattr(sys.modules[f"kvproof.core.{module}"], n) for n in names)
        ]
    for real, summary in stand_ins:
        for m in modules:
            for attribute, value in list(vars(m).items()):
                if value is real:
                    undo.append((m, attribute, value))
                    setattr(m, attribute, summary)
    try:
        yield
    finally:
        for m, attribute, value in reversed(undo):
            setattr(m, attribute, value)
