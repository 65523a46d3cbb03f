"""MLflow's store, read by its own client."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
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
from tests.helpers import ROOT

needs("mlflow", "sqlalchemy", "alembic")

from electra_lab.trackers.mlflow import MLflow  # noqa: E402  # only where the library is


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def client(file: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{file}")


def values_of(run: Path, id: str) -> Values:
    found, read = Values(), client(run.parent / "mlflow.db")
    for name in read.get_run(id).data.metrics:
        for metric in read.get_metric_history(id, name):
            found.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return found


class TestMLflow(TrackerContract):
    name = "mlflow"

    def read(self, run: Path, id: str) -> Values:
        return values_of(run, id)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, whose store is created once."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(("outcome", "status"), [("done", "FINISHED"), ("stopped", "KILLED"), ("failed", "FAILED")])
def test_the_run_has_name_group_parameters_and_status(beside: Path, outcome: Any, status: str) -> None:
    many = {f"number{n}": n for n in range(120)}
    config = {"seed": 0, "train": {"steps": 9, "note": "x" * 900}, "imports": ["a.py"], **many}
    tracker, run = MLflow(experiment="mine"), Tracked("law-1", "law", beside / "one", config, 0, None)
    id = tracker.start(run)
    read = client(beside / "mlflow.db")
    for _ in range(2):  # a resumed run is marked as running again
        assert read.get_run(id).info.status == "RUNNING"
        tracker.close(outcome)
        kept = read.get_run(id)
        assert (kept.info.run_name, kept.info.status, kept.data.tags["group"]) == ("law-1", status, "law")
        assert MLflow(experiment="mine").start(replace(run, id=id)) == id
    expected = {"seed": "0", "train.steps": "9", "train.note": "x" * 500, "imports": '["a.py"]'}
    assert kept.data.params == expected | {name: str(n) for name, n in many.items()}
    experiment = read.get_experiment(kept.info.experiment_id)
    assert (experiment.name, experiment.artifact_location) == ("mine", f"{(beside / 'mlflow').as_uri()}")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_store_may_be_elsewhere(beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    run = Tracked("law-1", "law", tmp_path / "runs" / "one", {"seed": 0}, 0, None)
    uri = f"sqlite:///{beside / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri if by == "environment" else "http://127.0.0.1:9")
    tracker = MLflow(uri=uri) if by == "option" else MLflow()
    id = tracker.start(run)
    tracker.record(1, {"train/loss": 2.0})
    tracker.close("done")
    assert client(beside / "mlflow.db").get_run(id).data.metrics == {"train/loss": 2.0}


def test_killed_stopped_and_resumed(tmp_path: Path) -> None:
    path = interrupted(tmp_path, "{type: mlflow}")
    (known,) = RunDirectory(path).read_json(FILE)
    assert_whole(values_of(path, known["id"]), path, lost=1)
    assert client(tmp_path / "mlflow.db").get_run(known["id"]).info.status == "FINISHED"


def test_runs_that_begin_at_the_same_time_share_a_store(tmp_path: Path) -> None:
    """Like the cells of an ablation; plain MLflow would fail in all runs but one."""
    code = (
        "import mlflow, sys; from pathlib import Path; from registry import Tracked, trackers; "
        "tracker = trackers.get('mlflow').component(); print('ready', flush=True); sys.stdin.readline(); "
        "print(tracker.start(Tracked(sys.argv[1], 'law', Path(sys.argv[1]), {'seed': 0}, 0, None)))"
    )
    start = partial(subprocess.Popen, text=True, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes = [start([sys.executable, "-c", code, str(tmp_path / name)]) for name in ("one", "two")]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    ids = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len({client(tmp_path / "mlflow.db").get_run(id).info.run_name for id in ids}) == 2
