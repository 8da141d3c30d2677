"""Checkers for the fields of a format: each takes a value and its path, and returns it or raises `ScenarioError`.

`record` applies a table of them to an object: unknown fields, missing ones and defaults are dealt with there, once.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs

from kvproof.strictjson import ScenarioError, join, show

COUNT_MAX = 2**40
TEXT_MAX = 256
REQUIRED: Any = object()
"""The default of a field that has none."""

Checker = Callable[[Any, str], Any]


def wrong(path: str, must: str, value: object) -> NoReturn:
    """`path: must be ..., got ...`."""
    raise ScenarioError(f"{path}: must be {must}, got {show(value)}")


def integer(low: int, high: int = COUNT_MAX) -> Checker:
    """An integer in low .. high; true and 3.0 are none."""

    def check(value: Any, path: str) -> int:
        if type(value) is not int:
            wrong(path, "an integer", value)
        if value < low:
            wrong(path, f">= {low}", value)
        if value > high:
            wrong(path, f"<= {high}", value)
        return value

    return check


def number(low: float, high: float) -> Checker:
    """A number in low .. high."""

    def check(value: Any, path: str) -> float:
        if type(value) not in (int, float):
            wrong(path, "a number", value)
        if isinstance(value, float) and not math.isfinite(value):
            wrong(path, "a finite number", value)
        if value < low:
            wrong(path, f">= {low:g}", value)
        if value > high:
            wrong(path, f"<= {high:g}", value)
        return float(value)

    return check


def boolean(value: Any, path: str) -> bool:
    """true or false."""
    if type(value) is not bool:
        wrong(path, "true or false", value)
    return value


def text(value: Any, path: str) -> str:
    """A string that is not too long."""
    if not isinstance(value, str):
        wrong(path, "a string", value)
    if len(value) > TEXT_MAX:
        raise ScenarioError(f"{path}: must have at most {TEXT_MAX} characters, has {len(value)}")
    return value


def name(value: Any, path: str) -> str:
    """A string that is not empty."""
    if text(value, path) == "":
        wrong(path, "a string that is not empty", value)
    return str(value)


def choice(*options: str | None) -> Checker:
    """One of these."""
    shown = ", ".join(show(option) for option in options)

    def check(value: Any, path: str) -> Any:
        if value not in options or isinstance(value, bool):
            wrong(path, f"one of {shown}", value)
        return value

    return check


def optional(inner: Checker) -> Checker:
    """null, or what `inner` takes."""
    return lambda value, path: None if value is None else inner(value, path)


def later(inner: Checker, *supported: Any) -> Checker:
    """A field of which only these values work in this release: what `inner` refuses is wrong, the rest is not supported yet."""

    def check(value: Any, path: str) -> Any:
        value = inner(value, path)
        if value not in supported:
            only = " or ".join(show(x) for x in supported)
            raise ScenarioError(f"{path}: {show(value)} is not supported yet, only {only}")
        return value

    return check


def array(value: Any, path: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        wrong(path, "an array", value)
    return value


@attrs.frozen
class Field:
    """How to check a field, and its default; `REQUIRED` if it must be given."""

    check: Checker
    default: Any = REQUIRED


def record(value: Any, path: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """The fields of an object, checked and with defaults filled in."""
    if not isinstance(value, dict):
        wrong(path or "scenario", "an object", value)
    for key in value:
        if key not in table:
            known = f", known are {', '.join(table)}" if table else ""
            raise ScenarioError(f"{join(path, key)}: unknown field{known}")
    out = {}
    for key, field in table.items():
        if key in value:
            out[key] = field.check(value[key], join(path, key))
        elif field.default is REQUIRED:
            raise ScenarioError(f"{join(path, key)}: is required")
        else:
            out[key] = field.default
    return out
