"""The slurm launcher on a real Slurm of one node: `make test-cluster`."""

import importlib.util
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers import slurm as module
from electra_lab.launchers.slurm import Slurm
from electra_lab.testing import LauncherContract, probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.launchers.slurm_here import missing, slurm_here
from tests.helpers import ROOT

submitit_is_missing = importlib.util.find_spec("submitit") is None
why_not = "needs submitit: pip install 'electra-lab[clusters]'" if submitit_is_missing else missing()
if "ELECTRA_LAB_CLUSTERS" not in os.environ:
    why_not = "takes minutes: make test-cluster"
PATIENCE = 60.0
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.usefixtures("_slurm")]


def slurm(work: Any, folder: str, ids: Sequence[str], **options: Any) -> Any:
    return Slurm(**options)(work, folder, ids)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_here(tmp_path_factory.mktemp("cluster")) as environment:
        yield environment


@pytest.fixture
def _slurm(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the jobs import this file


class TestSlurm(LauncherContract):
    name = "slurm"
    patience = PATIENCE


def train(folder: str, piece: str, *, steps: int) -> Outcome:
    """Like training: step by step, saving at SIGTERM; a second SIGTERM during the save ends it."""
    state, arrived = Path(folder, f"{piece}.steps"), []
    began = int(state.read_text()) if state.exists() else 0

    def note(number: int, _: Any) -> None:
        arrived.append(number)
        signal.signal(signal.SIGTERM, before)

    before = signal.signal(signal.SIGTERM, note)
    try:
        with Path(folder, f"{piece}.log").open("a") as log:
            log.write(f"from {began}\n")
        for step in range(began, steps):
            time.sleep(0.1)
            Path(folder, f"{piece}.step").write_text(str(step + 1))
            if arrived:
                time.sleep(0.5)  # while it saves
                state.write_text(str(step + 1))
                return Outcome("preempted", "saved")
    finally:
        signal.signal(signal.SIGTERM, before)
    return Outcome("done")


def prepare(folder: str, piece: str) -> Outcome:
    """Work that is stopped before it trains: only the launcher handles SIGTERM. The second attempt succeeds."""
    mark = Path(folder, f"{piece}.step")
    if mark.exists():
        return Outcome("done")
    mark.write_text("1")
    time.sleep(PATIENCE)
    return Outcome("failed", "nobody stopped it")


def deaf(folder: str, piece: str) -> Outcome:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return prepare(folder, piece)


def began_with(folder: Path, piece: str = "a") -> list[int]:
    return [int(line.split()[1]) for line in (folder / f"{piece}.log").read_text().splitlines()]


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextmanager
def once_it_runs(folder: Path, act: Callable[[str], Any]) -> Iterator[None]:
    """Run an action on the job of the first piece, given in the form of Slurm's commands."""

    def wait() -> None:
        assert probes.until((folder / "a.step").exists, PATIENCE)
        time.sleep(1)
        act(next(iter(folder.glob("slurm/*_submission.sh"))).name.split("_")[0])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join()


STOPS: dict[str, Callable[[str], Any]] = {
    "requeued by an administrator": lambda job: command("scontrol", "requeue", job),
    "told that its time is nearly up": lambda job: command("scancel", "--signal=TERM", job),
    "told so twice": lambda job: [command("scancel", "--signal=TERM", job) for _ in range(2)],
    "preempted by a better one": lambda job: command("sbatch", "--partition=high", "--ntasks=2", "--wrap=true"),
}


@pytest.mark.parametrize("work", [partial(train, steps=60), prepare], ids=["train", "prepare"])
@pytest.mark.parametrize("stop", STOPS)
def test_what_is_stopped_saves_and_goes_on(tmp_path: Path, stop: str, work: Any) -> None:
    with once_it_runs(tmp_path, STOPS[stop]):
        assert list(slurm(work, str(tmp_path), ["a"], workers=1)) == [("a", Outcome("done"))]
    if work is not prepare:
        first, second = began_with(tmp_path)
        assert first == 0
        assert second > 5, "it did not save, or was stopped during the save"


@pytest.mark.parametrize("work", [partial(train, steps=600), prepare, deaf], ids=["train", "prepare", "deaf"])
def test_what_is_cancelled_is_lost_and_does_not_come_back(tmp_path: Path, work: Any) -> None:
    with once_it_runs(tmp_path, lambda job: command("scancel", job)):
        ((_, outcome),) = slurm(work, str(tmp_path), ["a"], workers=1)
    assert outcome.status == "lost"
    assert "CANCELLED" in outcome.error
    assert "_0_log.err" in outcome.error
    assert ("saved" in outcome.error) == (work is not deaf)
    assert command("squeue", "--noheader") == ""


def test_a_waiting_task_that_is_cancelled_is_lost_alone(tmp_path: Path) -> None:
    with once_it_runs(tmp_path, lambda job: command("scancel", f"{job}_1")):
        results = dict(slurm(partial(train, steps=30), str(tmp_path), ["a", "b", "c"], workers=1))
    assert {piece: outcome.status for piece, outcome in results.items()} == {"a": "done", "b": "lost", "c": "done"}


def test_closing_saves_what_runs_and_cancels_what_waits(tmp_path: Path) -> None:
    ids = ["quick", "a", "b", "c", "d"]
    with closing(slurm(first_quick, str(tmp_path), ids, workers=2)) as results:
        assert next(results) == ("quick", Outcome("done"))
    assert began_with(tmp_path) == [0]
    assert int((tmp_path / "a.steps").read_text()) > 0
    assert not (tmp_path / "d.log").exists()
    assert command("squeue", "--noheader") == ""


def first_quick(folder: str, piece: str) -> Outcome:
    if piece == "quick":
        return Outcome("done" if probes.until(Path(folder, "a.step").exists, PATIENCE) else "failed")
    return train(folder, piece, steps=600)


def test_the_options_reach_the_job(tmp_path: Path) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "SITE", "SLURM_CPUS_ON_NODE", "SLURM_JOB_PARTITION", "SLURM_JOB_ID")
    work = partial(probes.report, names=names)
    options: dict[str, Any] = {"partition": "high", "minutes": 7, "setup": ("export SITE='a b'",)}
    assert dict(slurm(work, str(tmp_path), ["a"], workers=1, threads=2, **options)) == {"a": Outcome("done")}
    seen = json.loads((tmp_path / "a.json").read_text())["environment"]
    job = command("scontrol", "show", "job", seen.pop("SLURM_JOB_ID"))
    assert seen == dict(zip(names, ("2", "2", "a b", "2", "high"), strict=False))
    assert "TimeLimit=00:07:00" in job
    assert "Requeue=1" in job


def test_a_launcher_that_is_a_task_of_an_array_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ARRAY_JOB_ID": "1", "ARRAY_TASK_ID": "7", "JOB_ID": "3", "RESTART_COUNT": "999"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert list(slurm(probes.report, str(tmp_path), ["a"], workers=1)) == [("a", Outcome("done"))]
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "7"


def test_a_job_that_cannot_begin_is_reported(tmp_path: Path) -> None:
    """The work is in a module that its machine does not have."""
    setup = ("cd /", "export PYTHONPATH=")
    ((_, outcome),) = slurm(prepare, str(tmp_path), ["a"], workers=1, setup=setup)
    assert outcome.status == "failed"
    assert "ModuleNotFoundError" in Path(outcome.error.split()[-3]).read_text()


def test_what_sbatch_refuses_is_an_error_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="invalid partition specified: nowhere"):
        next(slurm(probes.report, str(tmp_path), ["a"], workers=1, partition="nowhere"))


def test_what_is_stopped_too_often_is_given_up(tmp_path: Path) -> None:
    setup = (f"export SLURM_RESTART_COUNT={module.REQUEUES}",)
    with once_it_runs(tmp_path, lambda job: command("scancel", "--signal=TERM", job)):
        ((_, outcome),) = slurm(partial(train, steps=600), str(tmp_path), ["a"], workers=1, setup=setup)
    assert outcome == Outcome("lost", f"was stopped and requeued {module.REQUEUES} times.")


def test_only_logs_are_left(tmp_path: Path) -> None:
    list(slurm(probes.behave, str(tmp_path), ["done-1", "failed-1"], workers=2))
    assert {path.suffix for path in (tmp_path / "slurm").iterdir()} == {".sh", ".out", ".err"}
