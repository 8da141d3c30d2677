"""Plain values to JSON and back, by their declared types. What is read is checked, and a fault named by its path.

Known are int, float, bool, str, `X | None`, tuples, lists, sets, classes of attrs, and what a caller adds by `more`. Tuples,
lists and sets are arrays, a set ascending; an object of attrs is an object with all its fields, none of them optional.
"""

import math
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any

import attrs

from kvproof.fields import Checker, Field, array, boolean, integer, number, record, text, wrong
from kvproof.strictjson import ScenarioError

INTEGER_MAX = 2**128
"""Largest absolute value of an integer that is read: keys hold a priority and an arrival."""


@attrs.frozen
class Codec:
    """`write(value)` gives JSON; `read(json, path)` gives the value back or raises ScenarioError."""

    write: Callable[[Any], Any]
    read: Checker


Codecs = Mapping[Any, Codec]
NOTHING_MORE: Codecs = {}


def scalar(kind: type, read: Checker) -> Codec:
    """Of int (an IntEnum is written as its number), bool or str. Writing anything else is a TypeError."""

    def write(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"declared {kind.__name__}, is {value!r}")
        return kind(value)

    return Codec(write, read)


def write_number(value: Any) -> Any:
    """Of float: an int among them stays one. What is not finite is a TypeError: JSON has no word for it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"declared float, is {value!r}")
    return value


def read_number(value: Any, path: str) -> Any:
    """A finite number."""
    return value if type(value) is int else number(-math.inf, math.inf)(value, path)


SCALARS: Codecs = {
    int: scalar(int, integer(-INTEGER_MAX, INTEGER_MAX)),
    float: Codec(write_number, read_number),
    bool: scalar(bool, boolean),
    str: scalar(str, text),
}


def codec_of(kind: Any, more: Codecs = NOTHING_MORE) -> Codec:
    """The codec of a type. Raises TypeError for one that it does not know."""
    for known in (more, SCALARS):
        if kind in known:
            return known[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (UnionType, typing.Union) and len(arguments) == 2 and type(None) in arguments:
        return optional(codec_of(arguments[arguments[0] is type(None)], more))
    if origin in (list, set, frozenset) or (origin is tuple and arguments[-1] is ...):
        return many(origin, codec_of(arguments[0], more))
    if origin is tuple:
        return fixed([codec_of(part, more) for part in arguments])
    if isinstance(kind, type) and attrs.has(kind):
        return instance(kind, more)
    raise TypeError(f"kvproof.codec knows no JSON for {kind}")


def optional(inner: Codec) -> Codec:
    """None is null."""
    return Codec(
        lambda value: None if value is None else inner.write(value),
        lambda value, path: None if value is None else inner.read(value, path),
    )


def many(kind: Any, inner: Codec) -> Codec:
    """A tuple, list or set of any number of values of one type."""
    unordered = kind in (set, frozenset)

    def write(values: Any) -> Any:
        return [inner.write(value) for value in (sorted(values) if unordered else values)]

    def read(value: Any, path: str) -> Any:
        parts = [inner.read(part, f"{path}[{i}]") for i, part in enumerate(array(value, path))]
        if unordered and len(set(parts)) < len(parts):
            raise ScenarioError(f"{path}: must not name anything twice")
        return kind(parts)

    return Codec(write, read)


def fixed(inner: list[Codec]) -> Codec:
    """A tuple of as many values as there are codecs."""

    def write(values: Any) -> Any:
        return [codec.write(value) for codec, value in zip(inner, values, strict=True)]

    def read(value: Any, path: str) -> Any:
        if len(array(value, path)) != len(inner):
            wrong(path, f"an array of {len(inner)}", value)
        return tuple(codec.read(part, f"{path}[{i}]") for i, (codec, part) in enumerate(zip(inner, value, strict=True)))

    return Codec(write, read)


def fields(value: Any, path: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """`record` of any value, one that was never JSON included."""
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        wrong(path, "an object with names as keys", value)
    return record(value, path, table)


def instance(kind: type[Any], more: Codecs = NOTHING_MORE) -> Codec:
    """An object of a class of attrs. What the class itself refuses with a ValueError is wrong at the path of the object.

    A field whose class is named in quotes is found in `more` under that name.
    """
    codecs = {field.name: codec_of(field.type, more) for field in attrs.fields(kind)}
    table = {name: Field(codec.read) for name, codec in codecs.items()}

    def write(value: Any) -> Any:
        return {name: codec.write(getattr(value, name)) for name, codec in codecs.items()}

    def read(value: Any, path: str) -> Any:
        found = fields(value, path, table)
        try:
            return kind(**found)
        except ValueError as error:
            raise ScenarioError(f"{path}.{error}") from None

    return Codec(write, read)
