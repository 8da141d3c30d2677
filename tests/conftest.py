"""Fixtures for all tests: the program in this process, and scenarios from plain dicts."""

import json
import sys
from pathlib import Path

import pytest

from kvproof.cli import main


@pytest.fixture
def program(monkeypatch, capsys):
    """program("replay", path, ...) -> (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kvproof", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


@pytest.fixture
def scenario():
    """A small scenario as a dict, to be edited."""
    return {
        "format": 1,
        "config": {"num_gpu_blocks": 4, "block_size": 4, "watermark_blocks": 0, "max_model_len": 64},
        "requests": [{"id": "a", "prompt_tokens": 4, "output_tokens": 8}, {"id": "b", "prompt_tokens": 4, "output_tokens": 8}],
    }


@pytest.fixture
def write(tmp_path):
    """write(value) -> path of a JSON file."""

    def file(value) -> Path:
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(value))
        return path

    return file
