"""Which facts an obligation needs is learnt from proofs of obligations of the same name, on other paths of the same case.

Of several hundred facts a proof uses a few. What is proved of some facts is proved of all: whatever is chosen here is sound,
and what cannot be proved of the chosen ones is tried with all of them.
"""

import re
from collections.abc import Sequence
from typing import Any

import attrs

NUMBER = re.compile(r"[.!]\d+")
NAME = re.compile(r":qid ([^\s)]+)")


@attrs.define
class Kinds:
    """What facts are about: the names of their quantified clauses, else their text, without the numbers of what is fresh."""

    known: dict[int, tuple[Any, str]] = attrs.field(factory=dict)

    def of(self, fact: Any) -> str:
        """Its kind. Terms are kept, so that their numbers are not given to others."""
        i = fact.get_id()
        if i not in self.known:
            text = fact.sexpr()
            self.known[i] = fact, " ".join(NAME.findall(text)) or NUMBER.sub("", text)
        return self.known[i][1]


@attrs.define
class Premises:
    """What is known so far: by label, the kinds of facts that proofs used."""

    kinds: Kinds = attrs.field(factory=Kinds)
    used: dict[str, set[str]] = attrs.field(factory=dict)

    def chosen(self, log: Sequence[Any], labels: Sequence[str]) -> list[Any] | None:
        """The facts that obligations of these names need, by what is known; None if it is not known of all."""
        if not all(label in self.used for label in labels):
            return None
        kinds = {kind for label in labels for kind in self.used[label]}
        return [fact for fact in log if self.kinds.of(fact) in kinds]

    def learn(self, label: str, facts: Sequence[Any]) -> None:
        """A proof of an obligation of this name used these."""
        self.used.setdefault(label, set()).update(self.kinds.of(fact) for fact in facts)
