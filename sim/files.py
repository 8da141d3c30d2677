"""Files that a simulation writes: checked before anything runs, and whole or not there at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class OutputError(ValueError):
    """A file cannot be written where it should be. One line: the option, the path and why."""


def reason_of(error: Exception) -> str:
    """Why an operation on a file failed, in a few words."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def check_target(target: Path, trace: Path | None, option: str = "--report") -> None:
    """Raise OutputError unless `target`, the value of `option`, can be written; leaves nothing behind."""
    try:
        if target.exists() and not target.is_file():
            raise OutputError(f"{option} {target}: exists and is not a regular file")
        if trace is not None and target.exists() and target.samefile(trace):
            raise OutputError(f"{option} {target}: is the trace itself")
        with tempfile.NamedTemporaryFile(dir=target.resolve().parent, prefix=".kvproof-"):
            pass
    except (OSError, ValueError) as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{option} {target}: cannot be written: {reason_of(error)}") from None


@contextmanager
def whole(target: Path) -> Iterator[TextIO]:
    """A stream that becomes `target` when the block ends well; after an exception nothing is left of it."""
    target = target.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".kvproof-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            yield stream
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(target: Path, text: str) -> None:
    """The whole text or nothing: a temporary file beside the target takes its name."""
    with whole(target) as stream:
        stream.write(text)
