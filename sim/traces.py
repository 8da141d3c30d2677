"""Readers of public traces: Azure CSV, Mooncake JSONL, vidur CSV; plain or gzip, told apart by their content.

A file is read line by line into three number columns (24 bytes a request), and wholly checked before anything runs.
Reading is strict: whatever is not as published is one `TraceError` that names file, line and field. Arrivals must not go
backwards (a file that is not sorted is refused, not sorted silently); they are shifted so that the first is 0.
"""

import gzip
import json
import math
import random
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

import attrs

TOKENS_MAX = 2**24
"""Largest believable token count of a prompt or an output: 100 times the longest context sold."""
LINE_BYTES_MAX = 2**22
SPAN_S_MAX = 366 * 86_400.0
"""Longest believable trace: a year. A jump beyond it is a wrong unit or a wrong date."""
RATE_DEFAULT_PER_S = 4.0
"""Poisson rate for traces without arrivals: between the Azure trace's 5.5 and Mooncake's 3.4 requests per second."""

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR = ("num_prefill_tokens", "num_decode_tokens")


class TraceError(ValueError):
    """A trace that cannot be used. One line: file, line, field, what is wrong and what would be right."""


@attrs.define
class Trace:
    """Requests in order of arrival; the i-th entry of each column is request i. Seconds from the first arrival; tokens."""

    name: str
    format: str
    arrivals_s: "array[float]" = attrs.field(factory=lambda: array("d"))
    prompt_tokens: "array[int]" = attrs.field(factory=lambda: array("q"))
    output_tokens: "array[int]" = attrs.field(factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def add(self, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """One request more."""
        self.arrivals_s.append(arrival_s)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)


Row = tuple[float | None, int, int]
Parser = Callable[[str, str], Row]


def shown(text: object) -> str:
    """A value for a message: on one line and not long."""
    words = ascii(text)
    return words if len(words) <= 60 else words[:57] + "..."


def token_count(value: object, where: str, field: str) -> int:
    """A positive whole number of tokens, given as JSON number or as digits."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 1 <= value <= TOKENS_MAX:
        raise TraceError(f"{where}: {field}: must be a whole number from 1 to {TOKENS_MAX}, got {shown(value)}")
    return value


STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00)?", re.ASCII)


def azure_row(line: str, where: str) -> Row:
    """`2023-11-16 18:15:46.6805900,374,44`: fractions have up to 9 digits, more than `datetime` takes."""
    fields = line.split(",")
    if len(fields) != len(AZURE):
        raise TraceError(f"{where}: must have the {len(AZURE)} fields {','.join(AZURE)}, got {len(fields)}")
    match = STAMP.fullmatch(fields[0])
    try:
        if match is None:
            raise ValueError
        whole = datetime.fromisoformat(match[1] + "+00:00").timestamp()
    except ValueError:
        wanted = "must be a time like 2023-11-16 18:15:46.6805900"
        raise TraceError(f"{where}: TIMESTAMP: {wanted}, got {shown(fields[0])}") from None
    fraction_s = float(f"0.{match[2] or 0}")
    return whole + fraction_s, token_count(fields[1], where, AZURE[1]), token_count(fields[2], where, AZURE[2])


def vidur_row(line: str, where: str, columns: int) -> Row:
    """`74,918,992,0.08`: lengths only; columns beyond the second follow from them."""
    fields = line.split(",")
    if len(fields) != columns:
        raise TraceError(f"{where}: must have {columns} fields like the header, got {len(fields)}")
    return None, token_count(fields[0], where, VIDUR[0]), token_count(fields[1], where, VIDUR[1])


def _not_a_number(word: str) -> float:
    raise ValueError(f"{word} is not a number in JSON")


def _number(value: object, where: str, field: str) -> int:
    """A token count that must be a JSON number."""
    if isinstance(value, str):
        raise TraceError(f"{where}: {field}: must be a whole number from 1 to {TOKENS_MAX}, got {shown(value)}")
    return token_count(value, where, field)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object without duplicate keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def mooncake_row(line: str, where: str) -> Row:
    """`{"timestamp": 0, "input_length": 6758, "output_length": 500, ...}`: the timestamp in milliseconds."""
    try:
        row = json.loads(line, parse_constant=_not_a_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error).partition(":")[0]
        raise TraceError(f"{where}: not a JSON object: {reason}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: must be a JSON object, got {shown(row)}")
    for field in ("timestamp", "input_length", "output_length"):
        if field not in row:
            raise TraceError(f"{where}: {field}: missing")
    at = row["timestamp"]
    if type(at) not in (int, float) or not 0 <= at <= 1e15 or not math.isfinite(at):
        raise TraceError(f"{where}: timestamp: must be milliseconds >= 0, got {shown(at)}")
    prompt_tokens, output_tokens = (_number(row[field], where, field) for field in ("input_length", "output_length"))
    return at / 1000, prompt_tokens, output_tokens


def parser_of(first: str, where: str) -> tuple[str, Parser, bool]:
    """The format that the first line shows: its name, the parser of a row, and whether that line is a header."""
    if first.startswith("{"):
        return "mooncake", mooncake_row, False
    columns = tuple(first.split(","))
    if columns == AZURE:
        return "azure", azure_row, True
    if columns[:2] == VIDUR:
        if "arrived_at" in columns:
            raise TraceError(f"{where}: arrived_at: arrival times are not read from this format; remove the column")
        return "vidur", lambda line, at: vidur_row(line, at, len(columns)), True
    known = f"{','.join(AZURE)} (Azure), {','.join(VIDUR)}[,...] (vidur) or JSON objects (Mooncake)"
    raise TraceError(f"{where}: must begin with {known}, got {shown(first)}")


def open_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked if it is gzip. Never more than one line in memory."""
    with path.open("rb") as raw:
        magic = raw.peek(2)[:2]
        packed = magic == b"\x1f\x8b"
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else cast(BinaryIO, raw)
        while line := stream.readline(LINE_BYTES_MAX + 1):
            yield line


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of each line without its end; every way in which a file cannot be read is a TraceError."""
    number = 0
    blank = ""
    name = str(path) if str(path).isprintable() else ascii(str(path))
    try:
        for number, raw in enumerate(open_lines(path), 1):
            where = f"{name}:{number}"
            if len(raw) > LINE_BYTES_MAX:
                raise TraceError(f"{where}: a line must have at most {LINE_BYTES_MAX} bytes")
            if b"\0" in raw:
                raise TraceError(f"{where}: contains a NUL byte; not a text file")
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TraceError(f"{where}: byte {error.start}: not UTF-8") from None
            if blank:
                raise TraceError(f"{blank}: empty line")
            if not text.strip():
                blank = where
            else:
                yield where, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{name}: after line {number}: damaged or truncated gzip ({error})") from None
    except OSError as error:
        raise TraceError(f"{name}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{name}: not a usable path ({error})") from None


def read(path: Path, limit: int | None = None, rate_per_s: float | None = None, seed: int = 0) -> Trace:
    """Read the first `limit` requests of a trace (all, if None); lines after the last one read are not looked at.

    `rate_per_s`: the rate of the Poisson arrivals drawn, with `seed`, for a format without arrivals; an error for one with.
    Raises TraceError.
    """
    trace = Trace(path.name, "")
    draw = random.Random(seed)
    parse: Parser | None = None
    clock_s = zero_s = last_s = 0.0
    for where, text in text_lines(path):
        if parse is None:
            trace.format, parse, header = parser_of(text, where)
            if trace.format != "vidur" and rate_per_s is not None:
                raise TraceError(f"{path}: has arrivals of its own ({trace.format}): --rate does not apply")
            if header:
                continue
        at_s, prompt_tokens, output_tokens = parse(text, where)
        if at_s is None:
            at_s = clock_s
            clock_s += draw.expovariate(rate_per_s or RATE_DEFAULT_PER_S)
        if not len(trace):
            zero_s = last_s = at_s
        field = "TIMESTAMP" if trace.format == "azure" else "timestamp"
        if at_s < last_s:
            raise TraceError(f"{where}: {field}: must not be before the line above (sort the trace by arrival)")
        if trace.format != "vidur" and at_s - zero_s > SPAN_S_MAX:
            raise TraceError(f"{where}: {field}: more than a year after the first; wrong unit or date?")
        last_s = at_s
        trace.add(at_s - zero_s, prompt_tokens, output_tokens)
        if len(trace) == limit:
            break
    if not len(trace):
        raise TraceError(f"{path}: holds no requests")
    return trace
