"""Trackers of real runs: the calls they get, their failures, and kills."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.track import FILE, tracking
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import DivergedError
from tests.electra_lab.jobs.pretraining.tiny import MEASURED, SPY, assert_same, experiment, lines, run, spying, stop_at
from tests.scorecard.lab import Lab

DIARY = Path(__file__).with_name("diary.py")
CALLS = ("start", "record", "close")
pytestmark = pytest.mark.usefixtures("no_report")


def tracked(folder: Path, *trackers: dict[str, Any], **sections: str) -> Path:
    """Write an experiment with trackers, a diary each."""
    chosen = [{"type": "diary", "path": str(folder / "diary"), **tracker} for tracker in trackers]
    return experiment(folder, imports=f"[{DIARY}]", trackers=json.dumps(chosen), **sections)


def diary(folder: Path, call: str, name: str = "diary") -> list[Any]:
    """Return the arguments of all calls of a kind."""
    path = folder / name
    notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [what[0] if len(what) == 1 else what for called, *what in notes if called == call]


def given(folder: Path, name: str = "diary") -> list[tuple[int, dict[str, float]]]:
    return [(step, values) for step, values in diary(folder, "record", name)]


def expected(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the records that the tracker of a run should have received, from its metrics.jsonl."""
    found = []
    for line in lines(path):
        step, split = line.pop("step"), line.pop("split")
        found.append((step, {f"{split}/{key}": value for key, value in line.items()}))
    return found


def test_a_tracker_is_given_the_run_and_every_record(tmp_path: Path, whole: Path, capsys) -> None:
    path = run(tracked(tmp_path, {}), tmp_path / "first")
    assert_same(path, whole)
    assert not (whole / FILE).exists()
    ((name, group, folder, step, id, config),) = diary(tmp_path, "start")
    assert (name, group, folder, step, id) == ("tiny-first", "tiny", str(path), 0, None)
    written = yaml.safe_load((path / "config.yaml").read_text())
    copies = [path / file for file in written["imports"]]
    assert [file.read_bytes() for file in copies] == [Path(file).read_bytes() for file in config["imports"]]
    assert config == written | {"imports": config["imports"]}
    assert given(tmp_path) == expected(path)
    assert diary(tmp_path, "close") == ["done"]
    assert "note:" not in capsys.readouterr().err


def test_trackers_that_fail_stop_neither_the_run_nor_others(tmp_path: Path, capsys) -> None:
    def failing(name: str) -> dict[str, Any]:
        return {"fails": name.removesuffix(" exits"), "exits": name.endswith("exits"), "path": str(tmp_path / name)}

    ends = {
        "start": ("at the start (OSError: no ink to start)", []),
        "record": ("at step 5 (OSError: no ink to record)", ["start"]),
        "close": ("at the end (OSError: no ink to close)", ["start", "record"]),
        "close exits": ("at the end (SystemExit: 3)", ["start", "record"]),
    }
    path = run(tracked(tmp_path, *map(failing, ends), {}), tmp_path / "run")
    assert [line["step"] for line in lines(path)] == [5, 6, 10, 12, 12, 12]
    assert given(tmp_path) == expected(path)
    assert diary(tmp_path, "close") == ["done"]
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [
        f"note: the tracker diary failed {reason}. The run continues without it; metrics.jsonl has every record."
        for reason, _ in ends.values()
    ]
    for name, (_, calls) in ends.items():
        assert [call for call in CALLS if diary(tmp_path, call, name)] == calls


def test_a_diverged_run_counts_as_failed(tmp_path: Path) -> None:
    trackers = json.dumps([{"type": "diary", "path": str(tmp_path / "diary")}])
    file = spying(tmp_path, imports=f"[{SPY}, {DIARY}]", trackers=trackers, objective="{type: spy, poison: 6}")
    with pytest.raises(DivergedError):
        run(file, tmp_path / "run")
    assert diary(tmp_path, "close") == ["failed"]


@pytest.mark.parametrize(("stopped", "resumed_at"), [(7, 4), (3, 0)])
def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path, whole: Path, stopped: int, resumed_at: int) -> None:
    back = {"rewinds": True, "path": str(tmp_path / "back")}
    file, path = tracked(tmp_path, {}, back), tmp_path / "run"
    stop_at(stopped, lambda: run(file, path))
    before = given(tmp_path, "back")
    assert before == given(tmp_path)
    shutil.rmtree(max((path / "checkpoints").glob("step-*")))
    if not resumed_at:  # as after a kill
        (path / "saved.json").unlink()
    execute.resume(path, "cpu")
    for name in ("diary", "back"):
        starts = diary(tmp_path, "start", name)
        assert [(at, id) for _, _, _, at, id, _ in starts] == [(0, None), (resumed_at, "id of tiny-run")]
        assert diary(tmp_path, "close", name) == ["stopped", "done"]
    everything = without_times(expected(whole))
    assert without_times(given(tmp_path)) == everything
    again = without_times(given(tmp_path, "back")[len(before) :])
    assert again == [record for record in everything if record[0] > resumed_at]


def without_times(records: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    found = []
    for step, values in records:
        found.append((step, {key: value for key, value in values.items() if key.split("/")[1] not in MEASURED}))
    return found


@pytest.mark.parametrize("fails", ["start", "record"])
def test_what_a_tracker_missed_is_made_up_for_when_the_run_is_resumed(tmp_path: Path, fails: str) -> None:
    """With its earlier id, if it had one. The second time, the tracker works."""
    at_step = 6 if fails == "record" else 0
    file, path = tracked(tmp_path, {"fails": fails, "at_step": at_step}), tmp_path / "run"
    stop_at(10, lambda: run(file, path))
    assert [step for step, _ in given(tmp_path)] == ([5] if fails == "record" else [])
    (tmp_path / "ink").touch()
    execute.resume(path, "cpu")
    assert diary(tmp_path, "start")[-1][4] == ("id of tiny-run" if fails == "record" else None)
    assert given(tmp_path) == expected(path)
    assert diary(tmp_path, "close") == ["done"]


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    config, directory = load(tracked(tmp_path, {})).config, RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    line = {"step": 1, "split": "train", "loss": float("nan"), "norm": float("inf"), "rate": 0.5, "auc": None}
    with tracking(config, directory, pytest.fail, name="tiny", step=0) as track:
        track(line)
    assert given(tmp_path) == [(1, {"train/rate": 0.5})]


@pytest.mark.parametrize("damage", ["not JSON", "[]", '[{"type": "other", "id": "x", "sent": 99}]'])
def test_without_its_notes_a_tracker_begins_a_run_of_its_own(tmp_path: Path, whole: Path, damage: str) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "run"))
    (path / FILE).write_text(damage)
    config = load(tracked(tmp_path, {})).config
    with tracking(config, RunDirectory(path), pytest.fail, name="tiny", step=12):
        pass
    assert diary(tmp_path, "start")[0][4] is None
    assert given(tmp_path) == expected(path)


def test_killed_and_resumed_no_record_comes_twice(forks: Lab, tmp_path: Path) -> None:
    """kill -9 while records come at every step, and checkpoints seldom."""
    train = "{steps: 80, batch_size: 2, precision: fp32, log_every: 1}"
    file = tracked(tmp_path, {}, train=train, checkpoint="{every: 30, keep: 2}", evaluate="{examples: 0}")
    path, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    process = forks.start("run", file, "--out", path, cwd=tmp_path)
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < 40):
        time.sleep(0.01)
    process.kill()
    steps = [step for step, _ in given(tmp_path)]
    assert 35 < len(steps) < 79, "the kill did not strike"
    execute.resume(path, "cpu")
    after = [step for step, values in given(tmp_path) if "train/loss" in values]
    assert after == sorted(set(after))
    assert len(set(range(1, 81)) - set(after)) <= 1, "more is missing than the record at the kill"
    assert [start[4] for start in diary(tmp_path, "start")] == [None, "id of tiny-run"]
