"""Files of Weights & Biases, read as by its own `wandb sync`."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from electra_lab.jobs.track import FILE
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.testing import TrackerContract
from electra_lab.testing.trackers import Values
from registry import Tracked
from tests.electra_lab.trackers.kills import assert_whole, interrupted
from tests.electra_lab.trackers.library import needs

needs("wandb")

from electra_lab.trackers.wandb import WeightsAndBiases  # noqa: E402  # only where the library is


def records(folder: Path) -> list[Any]:
    """Return the records of all parts of a run; all parts have ended."""
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for _ in range(500):  # another process writes it
            read = list(records_in(file))
            if read and read[-1].WhichOneof("record_type") == "exit":
                break
            time.sleep(0.02)
        found += read
    return found


def records_in(file: Path) -> Iterator[Any]:
    """Yield the library's messages; the file is a LevelDB log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""  # after the header
    while at + 7 <= len(data):
        left = (1 << 15) - at % (1 << 15)
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if left < 7 or kind == 0:
            at += left
            continue
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def values_of(run: Path, id: str) -> Values:
    found, steps, read = Values(), [], records(run)
    assert {entry.run.run_id for entry in read if entry.WhichOneof("record_type") == "run"} == {id}
    for record in (entry for entry in read if entry.WhichOneof("record_type") == "history"):
        steps.append(record.history.step.num)
        for item in record.history.item:
            name = item.key or item.nested_key[0]
            if not name.startswith("_"):
                found.setdefault(name, {}).setdefault(steps[-1], []).append(json.loads(item.value_json))
    assert steps == sorted(set(steps)), "W&B drops steps that are not higher than all earlier ones"
    return found


class TestWandb(TrackerContract):
    name, options = "wandb", {"mode": "offline"}

    def train(self, run: Path, steps: range, end: Exception | None = None) -> None:
        if steps.start:
            time.sleep(1.0 - time.time() % 1.0)  # W&B names the folder of a part by the time in seconds
        super().train(run, steps, end)

    def read(self, run: Path, id: str) -> Values:
        return values_of(run, id)


def described(folder: Path) -> Any:
    return next(record.run for record in records(folder) if record.WhichOneof("record_type") == "run")


def test_the_run_has_name_group_project_and_config(tmp_path: Path) -> None:
    tracker = WeightsAndBiases(project="mine", entity="us", mode="offline")
    id = tracker.start(Tracked("law-1", "law", tmp_path, {"train": {"steps": 9}}, 0, None))
    tracker.close("done")
    run = described(tmp_path)
    assert (run.run_id, run.display_name, run.run_group) == (id, "law-1", "law")
    assert (run.project, run.entity) == ("mine", "us")
    assert {u.key: json.loads(u.value_json) for u in run.config.update}["train"] == {"steps": 9}


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("stopped", 1), ("failed", 1)])
def test_the_outcome(tmp_path: Path, outcome: Any, code: int) -> None:
    tracker = WeightsAndBiases(mode="offline")
    tracker.start(Tracked("law-1", "law", tmp_path, {}, 0, None))
    print("what the run prints is its own")
    tracker.close(outcome)
    kinds = {record.WhichOneof("record_type"): record for record in records(tmp_path)}
    assert not kinds.keys() & {"output", "output_raw", "stats"}
    assert kinds["exit"].exit.exit_code == code
    assert ("preempting" in kinds) == (outcome == "stopped")


def test_the_folder_and_the_mode_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = WeightsAndBiases(folder=tmp_path / "own")
    tracker.start(Tracked("law-1", "law", tmp_path / "run", {}, 0, None))
    tracker.close("done")
    assert described(tmp_path / "own").display_name == "law-1"


def test_without_a_key_it_fails_and_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    with pytest.raises(RuntimeError, match="wandb login"):
        WeightsAndBiases(mode="online").start(Tracked("law-1", "law", tmp_path, {}, 0, None))


def test_killed_stopped_and_resumed(tmp_path: Path) -> None:
    """W&B writes from another process, so a kill loses records in transit."""
    path = interrupted(tmp_path, "{type: wandb, mode: offline}")
    (known,) = RunDirectory(path).read_json(FILE)
    assert_whole(values_of(path, known["id"]), path, lost=30)
