"""Maps with a value for everything: how a clause reads a concrete dict or set as it reads a symbolic map."""

from collections.abc import Iterable
from typing import Any


class Default(dict[Any, Any]):
    """A dict in which what is missing reads as `default` and stays missing."""

    def __init__(self, contents: Any, default: Any) -> None:
        super().__init__(contents)
        self.default = default
        self.total = 0
        """Of numbers, their sum, where a clause reads it."""

    def __missing__(self, k: Any) -> Any:
        return self.default


class Has:
    """A set read as a map to truth values."""

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = frozenset(elements)

    def __getitem__(self, x: Any) -> bool:
        return x in self.elements
