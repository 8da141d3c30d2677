"""JSON from a stranger: read with limits, and every fault named by its path (`requests[3].prompt_tokens: ...`).

`json` alone accepts duplicate keys, NaN and numbers of any size, and raises five kinds of exception; here there is one.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

BYTES_MAX = 64 * 2**20
DIGITS_MAX = 1000
SHOWN_MAX = 60


class ScenarioError(ValueError):
    """Bad input. The message is one line that names the place and what would be right."""


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys came twice."""

    twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) != len(pairs):
        times = Counter(key for key, _ in pairs)
        found.twice = tuple(key for key in found if times[key] > 1)
    return found


def _integer(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ScenarioError(f"a number has {len(text)} digits ({text[:10]}...), at most {DIGITS_MAX} are read")
    return int(text)


def _ascii(value: object) -> str:
    """A value that JSON cannot show."""
    try:
        return ascii(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def show(value: object) -> str:
    """A value as JSON, cut to a length that fits in a message."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = _ascii(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def _check(value: Any, path: str) -> None:
    """Duplicate keys and numbers that are none, wherever they are."""
    if isinstance(value, _Object):
        if value.twice:
            raise ScenarioError(f"{join(path, value.twice[0])}: given twice")
        for key, part in value.items():
            _check(part, join(path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _check(part, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ScenarioError(f"{path}: must be a finite number, got {show(value)}")


def join(path: str, key: str) -> str:
    """The path of a field; one with odd characters is shown quoted."""
    name = key if key.isidentifier() and key.isascii() else show(key)
    return f"{path}.{name}" if path else name


def parse(text: str) -> Any:
    """The value of a JSON text. Raises `ScenarioError`."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        _check(value, "")
    except json.JSONDecodeError as error:
        raise ScenarioError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ScenarioError("not a scenario: nested too deeply") from None
    return value


def read(path: Path) -> Any:
    """The value in a JSON file. Raises `ScenarioError` for whatever can be wrong with a file."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror or error}") from None
    if len(data) > BYTES_MAX:
        raise ScenarioError(f"is larger than {BYTES_MAX} bytes")
    if not data.strip():
        raise ScenarioError("is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
    return parse(text)
