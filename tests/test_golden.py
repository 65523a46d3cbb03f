"""Directories written by releases: every later version must read them, or refuse them by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from electra_lab.cli import app
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.provenance import FORMAT
from registry.errors import CheckpointError

GOLDEN = Path(__file__).parent / "data" / "golden"
VERSIONS = sorted(folder.name for folder in GOLDEN.iterdir())


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the directories that a release has written, in another place."""
    return shutil.copytree(GOLDEN / request.param, tmp_path / "golden")


def store(golden: Path) -> str:
    (found,) = (golden / "store").iterdir()
    return f"data.store={found}"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()[1:]]


def test_a_stopped_run_is_resumed_to_the_end_that_it_had_then(golden: Path) -> None:
    execute.resume(golden / "stopped", "cpu", [store(golden)])
    then, now = records(golden / "finished"), records(golden / "stopped")
    for before, after in zip(then, now, strict=True):
        assert before.keys() <= after.keys()
        for key in before.keys() - {"seconds", "tokens_per_second", "peak_memory_bytes"}:
            expected = before[key] if isinstance(before[key], str) else pytest.approx(before[key], rel=0.02, abs=0.02)
            assert after[key] == expected, key


@pytest.mark.parametrize(
    "command", [["report"], ["detect", "the cat sat"], ["fill", "the [MASK] sat"], ["export", "exported"]]
)
def test_a_finished_run_is_used_by_every_command(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *rest = command
    result = CliRunner().invoke(app, [verb, str(golden / "finished"), *rest])
    assert result.exit_code == 0, result.output or result.exception


def newer_run(run: Path) -> None:
    file = run / "provenance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1, "electra_lab": "9.9.9"}))


def test_what_a_newer_version_has_written_is_refused_by_name(golden: Path) -> None:
    newer_run(golden / "stopped")
    before = (golden / "stopped" / "metrics.jsonl").read_bytes()
    says = r"was written by electra_lab 9\.9\.9 in format \d; this version reads format \d"
    with pytest.raises(CheckpointError, match=says):
        execute.resume(golden / "stopped", "cpu", [store(golden)])
    assert (golden / "stopped" / "metrics.jsonl").read_bytes() == before
