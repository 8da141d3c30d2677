"""The program itself: doctor, usage errors, a reader that goes away."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.cli import doctor
from kvproof.data import REPOSITORY, data_dir


def test_doctor(program, monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_DATA", str(tmp_path))
    status, out, err = program("doctor", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found["data"] == {"path": str(tmp_path), "found": True, "from": "KVPROOF_DATA"}
    assert found["python"] == ".".join(map(str, sys.version_info[:3])) and found["packages"]["attrs"]
    assert 1 <= found["cores"] <= (os.cpu_count() or 1)


def test_doctor_with_nothing_installed(program, monkeypatch, tmp_path):
    def version(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "driver", lambda: None)
    monkeypatch.setenv("KVPROOF_DATA", str(tmp_path / "none"))
    status, out, _ = program("doctor")
    assert status == 0
    assert "z3            not installed (needed by prove, audit)" in out
    assert "GPU driver    none found" in out and "not there" in out
    status, out, _ = program("doctor", "--json")
    assert status == 0 and set(json.loads(out)["packages"].values()) == {None}


def test_data_is_beside_the_repository_by_default(monkeypatch):
    monkeypatch.delenv("KVPROOF_DATA", raising=False)
    assert data_dir() == REPOSITORY.parent / "shared" and (REPOSITORY / "core" / "schedule.py").is_file()
    monkeypatch.setenv("KVPROOF_DATA", "")
    assert data_dir() == REPOSITORY.parent / "shared"
    monkeypatch.setenv("KVPROOF_DATA", "elsewhere")
    assert data_dir() == Path("elsewhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay"], "kvproof replay: Missing argument 'SCENARIO'. See kvproof replay --help.\n"),
        (["replay", "--no-such", "x"], "kvproof replay: No such option"),
        (["replay", "--backend", "tpu", "x"], "kvproof replay: Invalid value for '--backend'"),
        (["nothing"], "kvproof: No such command 'nothing'. See kvproof --help.\n"),
    ],
)
def test_wrong_usage_is_one_line(program, arguments, message):
    status, out, err = program(*arguments)
    assert (status, out) == (2, "") and err.startswith(message) and err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback(write):
    requests = [{"id": str(i), "prompt_tokens": 4, "output_tokens": 50} for i in range(40)]
    path = write({"format": 1, "config": {"num_gpu_blocks": 50, "block_size": 4}, "requests": requests})
    code = "import sys; stub = sys.modules['kvproof.spec.check'] = type(sys)('stub'); stub.violations = lambda state: [];"
    code += "from kvproof.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "replay", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"], ["--version"], ["--help"]])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-m", "kvproof", *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("kvproof: standard output cannot be written: ") and run.stderr.count("\n") == 1


def test_a_closed_output_is_one_line():
    command = f"{sys.executable} -m kvproof doctor >&-"
    run = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (run.returncode, run.stderr) == (2, "kvproof: standard output cannot be written: it is closed\n")
