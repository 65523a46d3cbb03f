"""The command line, called in this process."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.cli import main
from tests.electra_lab.inference.tuned import tuned  # noqa: F401
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

Lab = Any
CPU = ("--device", "cpu")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lab:
    """`lab("check", file)` runs the command line in an empty folder: (exit code, stdout, stderr).

    `lab.fails(2, "check", file)` expects an exit code and an empty stdout, and returns stderr.
    """
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["electra-lab", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(ended.value.code or 0), captured.out, captured.err

    def fails(expected: int, *arguments: object) -> str:
        code, out, err = call(*arguments)
        assert (code, out) == (expected, ""), err
        return err

    call.fails = fails
    return call


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Set the bytes that a command reads from standard input."""
    return lambda data: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny experiment with checkpoints after steps 8 and 12; tests must not change it."""
    folder = tmp_path_factory.mktemp("model")
    with for_a_module():
        return run(experiment(folder), folder / "run")


def rows(out: str) -> list[Any]:
    """Return the answers of a command with `--json`."""
    return [json.loads(line) for line in out.split("\n")[:-1]]


def scored(lab: Any, model: Path, *options: object) -> list[dict[str, Any]]:
    """Return the answers of a command as JSON, or of `--csv` as text."""
    form = "--csv" if "--csv" in options else "--json"
    code, out, err = lab("score", model, *options, *([] if form in options else [form]), *CPU)
    assert code == 0, err
    return (
        [json.loads(line) for line in out.splitlines()]
        if form == "--json"
        else [*csv.DictReader(io.StringIO(out, newline=""))]
    )
