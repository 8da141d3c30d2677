"""Readers of traces: what is published is read, everything else is one line that says where."""

import gzip
from pathlib import Path

import pytest

from kvproof.sim.traces import RATE_DEFAULT_PER_S, TOKENS_MAX, TraceError, read

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
AT = "2023-11-16 18:15:46"


def write(folder: Path, text: str | bytes, name: str = "t") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(path: Path, **options: object) -> list[tuple[float, int, int]]:
    trace = read(path, **options)  # type: ignore[arg-type]
    return list(zip(trace.arrivals_s, trace.prompt_tokens, trace.output_tokens, strict=True))


def test_azure_counts_seconds_from_the_first_arrival_to_100_ns(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE + f"{AT}.6805900,374,44\n2023-11-16 18:16:50.9951691,396,109\n")
    (zero, first), (at, second) = [(row[0], row[1:]) for row in rows(path)]
    assert (zero, first, second) == (0.0, (374, 44), (396, 109))
    assert at == pytest.approx(64.3145791, abs=3e-7)


def test_azure_takes_times_without_fraction_and_with_utc_offset_and_crlf(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE.replace("\n", "\r\n") + f"{AT},1,2\r\n2023-11-16 18:15:47.5+00:00,3,4\r\n")
    assert rows(path) == [(0.0, 1, 2), (1.5, 3, 4)]


def test_mooncake_timestamps_are_milliseconds(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": [0, 1]}\n'
    path = write(tmp_path, line % (3000, 7) + line % (3000, 8) + line % (6500, 9))
    assert rows(path) == [(0.0, 7, 5), (0.0, 8, 5), (3.5, 9, 5)]
    assert read(path).format == "mooncake"


def test_vidur_draws_poisson_arrivals_by_seed(tmp_path: Path) -> None:
    path = write(tmp_path, VIDUR + "74,918,992,0.08\n" * 4000)
    drawn = rows(path, seed=1)
    assert drawn[0] == (0.0, 74, 918)
    assert drawn == rows(path, seed=1) != rows(path, seed=2)
    assert drawn[-1][0] / 3999 == pytest.approx(1 / RATE_DEFAULT_PER_S, rel=0.05)
    assert rows(path, seed=1, rate_per_s=40.0)[-1][0] == pytest.approx(drawn[-1][0] * RATE_DEFAULT_PER_S / 40)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    text = VIDUR + "3,4,7,0.75\n"
    packed = write(tmp_path, gzip.compress(text.encode()), "plain.csv")
    plain = write(tmp_path, text, "packed.csv.gz")
    assert rows(packed) == rows(plain) == [(0.0, 3, 4)]


def test_limit_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path, VIDUR + "3,4,7,0.75\n" * 3 + "never looked at\n")
    assert len(rows(path, limit=3)) == 3
    with pytest.raises(TraceError, match=":5: must have 4 fields"):
        read(path, limit=4)


def test_one_empty_line_at_the_end_is_no_error_elsewhere_it_is(tmp_path: Path) -> None:
    assert len(rows(write(tmp_path, VIDUR + "3,4,7,0.75\n\n"))) == 1
    with pytest.raises(TraceError, match=":2: empty line"):
        read(write(tmp_path, VIDUR + "\n3,4,7,0.75\n"))


BAD = {
    "empty": ("", ": holds no requests"),
    "header only": (AZURE, ": holds no requests"),
    "other columns": ("a,b\n1,2\n", ":1: must begin with TIMESTAMP,"),
    "byte order mark": ("\ufeff" + AZURE + f"{AT},1,2\n", ":1: must begin with TIMESTAMP,"),
    "vidur with arrivals": ("num_prefill_tokens,num_decode_tokens,arrived_at\n1,2,3\n", ":1: arrived_at: "),
    "missing field": (AZURE + f"{AT},1\n", ":2: must have the 3 fields"),
    "negative": (AZURE + f"{AT},-5,3\n", ":2: ContextTokens: must be a whole number from 1 to .*, got '-5'"),
    "zero prompt": (AZURE + f"{AT},0,3\n", ":2: ContextTokens: .*, got 0"),
    "zero output": (AZURE + f"{AT},3,0\n", ":2: GeneratedTokens: .*, got 0"),
    "absurd": (AZURE + f"{AT},{TOKENS_MAX + 1},3\n", ":2: ContextTokens: "),
    "thousands of digits": (AZURE + f"{AT},{'9' * 9999},3\n", ":2: ContextTokens: .*\\.\\.\\.$"),
    "not a number": (AZURE + f"{AT},abc,3\n", ":2: ContextTokens: .*, got 'abc'"),
    "NaN": (AZURE + f"{AT},NaN,3\n", ":2: ContextTokens: .*, got 'NaN'"),
    "plus sign": (AZURE + f"{AT},+5,3\n", ":2: ContextTokens: "),
    "digits that are not ASCII": (AZURE + f"{AT},\u0665,3\n", ":2: ContextTokens: "),
    "no such day": (AZURE + "2023-02-30 18:15:46,5,3\n", ":2: TIMESTAMP: must be a time like"),
    "backwards": (AZURE + f"{AT},5,3\n2023-11-16 18:15:45,5,3\n", ":3: TIMESTAMP: must not be before the line above"),
    "a century": (AZURE + f"{AT},5,3\n2123-11-16 18:15:45,5,3\n", ":3: TIMESTAMP: more than a year"),
    "invalid UTF-8": (AZURE.encode() + b"\xff\xfe,5,3\n", ":2: byte 0: not UTF-8"),
    "NUL": (AZURE.encode() + AT.encode() + b",5\0,3\n", ":2: contains a NUL byte"),
    "endless line": ("a" * (2**22 + 2), ":1: a line must have at most"),
    "vidur float": (VIDUR + "5,1e3,1,1\n", ":2: num_decode_tokens: .*, got '1e3'"),
    "json cut": ('{"timestamp": 0, "input_length": 5\n', ":1: not a JSON object: Expecting"),
    "json list later": ('{"timestamp": 0, "input_length": 5, "output_length": 2}\n[1]\n', ":2: must be a JSON object"),
    "json deep": ('{"a":' + "[" * 100_000 + "\n", ":1: not a JSON object: "),
    "json missing": ('{"timestamp": 0, "input_length": 5}\n', ":1: output_length: missing"),
    "json NaN": ('{"timestamp": NaN, "input_length": 5, "output_length": 2}\n', ":1: not a JSON object: NaN"),
    "json infinite": ('{"timestamp": 1e400, "input_length": 5, "output_length": 2}\n', ":1: timestamp: must be milliseconds"),
    "json negative": ('{"timestamp": -1, "input_length": 5, "output_length": 2}\n', ":1: timestamp: must be milliseconds"),
    "json true": ('{"timestamp": 0, "input_length": true, "output_length": 2}\n', ":1: input_length: .*, got True"),
    "json float": ('{"timestamp": 0, "input_length": 5.5, "output_length": 2}\n', ":1: input_length: .*, got 5.5"),
    "json text": ('{"timestamp": 0, "input_length": "5", "output_length": 2}\n', ":1: input_length: .*, got '5'"),
    "json twice": ('{"timestamp": 0, "input_length": 5, "input_length": 6, "output_length": 2}\n', ":1: not a JSON object: a"),
    "gzip cut": (gzip.compress(AZURE.encode() * 999)[:60], ": after line .*: damaged or truncated gzip"),
    "gzip magic only": (b"\x1f\x8b", ": after line 0: damaged or truncated gzip"),
    "gzip damaged": (gzip.compress(AZURE.encode())[:-8] + b"\0" * 8, ": after line .*: damaged or truncated gzip"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_names_the_place(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    path = write(tmp_path, content)
    with pytest.raises(TraceError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_directories_and_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory"):
        read(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "absent")
    with pytest.raises(TraceError, match="not a usable path"):
        read(tmp_path / "a\0b")


def test_a_rate_for_a_trace_with_arrivals_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="--rate does not apply"):
        read(write(tmp_path, AZURE + f"{AT},1,2\n"), rate_per_s=3.0)
