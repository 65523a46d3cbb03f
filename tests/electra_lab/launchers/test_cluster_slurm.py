"""The slurm launcher on a real Slurm of one node: `make test-cluster`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers.slurm import Slurm
from electra_lab.testing import LauncherContract, probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.launchers.slurm_here import missing, slurm_here

why_not = missing()
if "ELECTRA_LAB_CLUSTERS" not in os.environ:
    why_not = "takes minutes: make test-cluster"
PATIENCE = 60.0
pytestmark = [pytest.mark.skipif(bool(why_not), reason=why_not), pytest.mark.usefixtures("_slurm")]


def slurm(work: Any, folder: Path, names: Sequence[str], *words: object, **options: Any) -> Any:
    return Slurm(**{"workers": 1} | options)(probes.commands(work, folder, names, *words), folder)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_here(tmp_path_factory.mktemp("cluster")) as environment:
        yield environment


@pytest.fixture
def _slurm(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


class TestSlurm(LauncherContract):
    name = "slurm"
    patience = PATIENCE


# Like training: step by step, saving at SIGTERM, where it continues; more of them do nothing. With `prepare` it is
# stopped before it trains: nothing handles SIGTERM then.
WORK = """
import signal, sys, time
from pathlib import Path
name, steps = Path(sys.argv[1]), int(sys.argv[2])
state, arrived = name.with_suffix(".steps"), []
began = int(state.read_text()) if state.exists() else 0
def note(number, _):
    arrived.append(number)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[3] == "train":
    signal.signal(signal.SIGTERM, note)
if sys.argv[3] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with name.with_suffix(".log").open("a") as log:
    log.write(f"from {began}\\n")
if sys.argv[3] == "prepare" and name.with_suffix(".step").exists():
    sys.exit()
for step in range(began, steps):
    name.with_suffix(".step").write_text(str(step + 1))
    time.sleep(0.1)
    if arrived:
        time.sleep(0.5)
        state.write_text(str(step + 1))
        sys.exit(75)
"""


def working(folder: Path, names: Sequence[str], steps: int, how: str = "train", **options: Any) -> Any:
    commands = {name: [sys.executable, "-c", WORK, str(folder / name), str(steps), how] for name in names}
    return Slurm(**{"workers": 1} | options)(commands, folder)


def began_with(folder: Path, name: str = "a") -> list[int]:
    return [int(line.split()[1]) for line in (folder / f"{name}.log").read_text().splitlines()]


def command(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextmanager
def once_it_runs(folder: Path, act: Callable[[str], Any]) -> Iterator[None]:
    """Run an action on the job of the first command, given in the form of Slurm's commands."""

    def wait() -> None:
        assert probes.until((folder / "a.step").exists, PATIENCE)
        time.sleep(1)
        act(next(iter(folder.glob("slurm/*_*.txt"))).name.split("_")[0])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join()


STOPS: dict[str, Callable[[str], Any]] = {
    "requeued by an administrator": lambda job: command("scontrol", "requeue", job),
    "told that its time is nearly up": lambda job: command("scancel", "--signal=TERM", job),
    "told so twice": lambda job: [command("scancel", "--signal=TERM", job) for _ in range(2)],
    "preempted by a better one": lambda job: command(
        "sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=true"
    ),
}


@pytest.mark.parametrize("how", ["train", "prepare"])
@pytest.mark.parametrize("stop", STOPS)
def test_what_is_stopped_saves_and_goes_on(tmp_path: Path, stop: str, how: str) -> None:
    """Requeued, it goes on in the same array; near its time limit, or preempted, in the next one."""
    with once_it_runs(tmp_path, STOPS[stop]):
        ((_, outcome),) = working(tmp_path, ["a"], 60, how)
    if stop != "requeued by an administrator":
        assert outcome.code == (75 if how == "train" else -signal.SIGTERM)
        ((_, outcome),) = working(tmp_path, ["a"], 60, how)
    assert outcome == Outcome(0)
    first, second = began_with(tmp_path)
    assert first == 0
    assert second > 5 or how == "prepare", "it did not save"


@pytest.mark.parametrize("how", ["train", "prepare", "deaf"])
def test_what_is_cancelled_is_lost_and_does_not_come_back(tmp_path: Path, how: str) -> None:
    with once_it_runs(tmp_path, lambda job: command("scancel", job)):
        ((_, outcome),) = working(tmp_path, ["a"], 600, how)
    assert outcome.code is None
    assert "CANCELLED" in outcome.error
    assert str(tmp_path / "logs" / "a.txt") in outcome.error
    assert (tmp_path / "a.steps").exists() == (how == "train")
    assert command("squeue", "--noheader") == ""


def test_a_waiting_task_that_is_cancelled_is_lost_alone(tmp_path: Path) -> None:
    with once_it_runs(tmp_path, lambda job: command("scancel", f"{job}_1")):
        results = dict(working(tmp_path, "abc", 30))
    assert {name: outcome.code for name, outcome in results.items()} == {"a": 0, "b": None, "c": 0}


def test_closing_saves_what_runs_and_cancels_what_waits(tmp_path: Path) -> None:
    train = [sys.executable, "-c", WORK]
    commands = {name: [*train, str(tmp_path / name), "600", "train"] for name in "abcd"}
    commands = {"quick": ["sh", "-c", f"while [ ! -e {tmp_path}/a.step ]; do sleep 0.1; done"], **commands}
    with closing(Slurm(workers=2)(commands, tmp_path)) as results:
        assert next(results) == ("quick", Outcome(0))
    assert began_with(tmp_path) == [0]
    assert int((tmp_path / "a.steps").read_text()) > 0
    assert not (tmp_path / "d.log").exists()
    assert command("squeue", "--noheader") == ""


def test_the_options_reach_the_job(tmp_path: Path) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "SITE", "SLURM_CPUS_ON_NODE", "SLURM_JOB_PARTITION", "SLURM_JOB_ID")
    options: dict[str, Any] = {"partition": "high", "minutes": 7, "setup": ("export SITE='a b'",), "threads": 2}
    assert dict(slurm(probes.report, tmp_path, ["a"], *names, **options)) == {"a": Outcome(0)}
    seen = json.loads((tmp_path / "a.json").read_text())["environment"]
    job = command("scontrol", "show", "job", seen.pop("SLURM_JOB_ID"))
    assert seen == dict(zip(names, ("2", "2", "a b", "2", "high"), strict=False))
    assert "TimeLimit=00:07:00" in job
    assert "Requeue=1" in job


def test_a_launcher_that_is_a_task_of_an_array_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ARRAY_JOB_ID": "1", "ARRAY_TASK_ID": "7", "JOB_ID": "3", "RESTART_COUNT": "999"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert list(slurm(probes.report, tmp_path, ["a"])) == [("a", Outcome(0))]
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "7"


def test_what_sbatch_refuses_is_an_error_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="invalid partition specified: nowhere"):
        next(slurm(probes.report, tmp_path, ["a"], partition="nowhere"))


def test_only_logs_are_left(tmp_path: Path) -> None:
    list(slurm(probes.behave, tmp_path, ["0-1", "1-1"], workers=2))
    assert {path.suffix for path in (tmp_path / "slurm").iterdir()} == {".txt"}
