"""The slurm launcher where there is no Slurm, and its parts that need none; on a real one: test_cluster_slurm.py."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from electra_lab.launchers import slurm as module
from electra_lab.launchers.slurm import Slurm
from electra_lab.testing import probes
from registry import Outcome
from registry.errors import ConfigError

PROGRAMS = ["sbatch", "srun", "squeue", "scancel", "scontrol"]


def programs(folder: Path, names: list[str]) -> str:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder of the work; nothing may be left in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def refusals(folder: Path, reason: str) -> None:
    """The check reports what is missing, and so does a launch, even of no work."""
    for ask in (Slurm().check, lambda: next(Slurm()(probes.report, str(folder), ["a"])),
                lambda: list(Slurm()(probes.report, str(folder), []))):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"launcher 'slurm' {reason}"):
            ask()
    assert list(folder.iterdir()) == []


def test_without_submitit_there_is_a_cure(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    refusals(work, r"needs submitit\. Install it: pip install 'electra-lab\[")


@pytest.mark.parametrize("missing", PROGRAMS)
def test_a_machine_that_cannot_submit_jobs(work: Path, tmp_path: Path, monkeypatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, "submitit", ModuleType("submitit"))
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", [name for name in PROGRAMS if name != missing]))
    refusals(work, rf"finds no {missing} here\. Start it on a machine that c")


def test_where_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", ModuleType("submitit"))
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", PROGRAMS))
    assert Slurm().check() is None
    assert Slurm.here is False
    assert list(Slurm()(probes.report, str(tmp_path), [])) == []


class Executor:
    """The part of submitit's AutoExecutor that the launcher uses."""

    made: ClassVar[list[Any]] = []
    refusal: ClassVar[Exception | None] = None

    def __init__(self, folder: Path, cluster: str) -> None:
        self.folder, self.cluster = folder, cluster
        self.parameters: dict[str, Any] = {}
        self.pieces: list[Any] = []
        self.environment: dict[str, str] = {}
        self.made.append(self)

    def update_parameters(self, **parameters: Any) -> None:
        self.parameters = parameters

    def submit_array(self, pieces: list[Any]) -> list[Any]:
        self.pieces, self.environment = pieces, dict(os.environ)
        if self.refusal is not None:
            raise self.refusal
        return [SimpleNamespace(job_id=f"31_{number}") for number in range(len(pieces))]


class FailedJobError(Exception): ...


@pytest.fixture
def executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Executor]:
    """Replaces submitit's executors and returns those created; jobs are done when they are submitted."""
    monkeypatch.setattr(Executor, "made", [])
    utils = SimpleNamespace(FailedJobError=FailedJobError)
    library = SimpleNamespace(AutoExecutor=Executor, core=SimpleNamespace(utils=utils))
    monkeypatch.setitem(sys.modules, "submitit", library)
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", PROGRAMS))

    def outcomes(array: str, jobs: dict[str, str], logs: Path) -> Iterator[tuple[str, Outcome]]:
        yield from ((piece, Outcome("done", f"{array} {job}")) for piece, job in jobs.items())

    monkeypatch.setattr(module, "_outcomes", outcomes)
    return Executor.made


def test_options_reach_sbatch(executors: list[Executor], work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "here.conf")
    launcher = Slurm(
        workers=3, threads=2, gpus=1, partition="long", account="lab", minutes=7, memory_gb=5.5,
        setup=("module load cuda",), sbatch={"qos": "high", "nice": 3},
    )  # fmt: skip
    found = list(launcher(probes.behave, str(work), ["one", "two"]))
    assert found == [("one", Outcome("done", "31 31_0")), ("two", Outcome("done", "31 31_1"))]
    [executor] = executors
    assert (executor.folder, executor.cluster) == (work / "slurm", "slurm")
    exports = [f"export {name}=2" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    exports.append("export TOKENIZERS_PARALLELISM=false")
    assert executor.parameters == {
        "name": "electra-lab", "timeout_min": 7, "cpus_per_task": 2, "slurm_array_parallelism": 3,
        "slurm_setup": [*exports, "module load cuda"], "slurm_srun_args": ["--cpus-per-task=2"],
        "slurm_additional_parameters": {"requeue": True, "signal": "TERM@90", "qos": "high", "nice": 3},
        "slurm_partition": "long", "slurm_account": "lab", "mem_gb": 5.5, "gpus_per_node": 1,
    }  # fmt: skip
    assert [(piece.work, piece.folder, piece.piece) for piece in executor.pieces] == [
        (probes.behave, str(work), "one"), (probes.behave, str(work), "two"),
    ]  # fmt: skip
    assert "SLURM_ARRAY_TASK_ID" not in executor.environment, "variables of the launcher's own job leak"
    assert executor.environment["SLURM_CONF"] == "here.conf"
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "7"


def test_what_is_not_set_is_left_to_the_site(executors: list[Executor], work: Path) -> None:
    """A short time limit leaves less time to save."""
    list(Slurm(minutes=2)(probes.behave, str(work), ["one"]))
    parameters = executors[0].parameters
    assert not {"slurm_partition", "slurm_account", "mem_gb", "gpus_per_node"} & parameters.keys()
    assert parameters["slurm_additional_parameters"] == {"requeue": True, "signal": "TERM@30"}


def test_a_refusal_of_sbatch_is_one_sentence(executors: list[Executor], work: Path, monkeypatch) -> None:
    monkeypatch.setattr(Executor, "refusal", FailedJobError("invalid\n  partition"))
    with pytest.raises(ConfigError, match=r"launcher 'slurm': sbatch refuses the jobs: invalid partition$"):
        next(Slurm()(probes.behave, str(work), ["one"]))


def test_closing_cancels_the_array(executors: list[Executor], work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(module, "_end", ended.append)
    results = Slurm()(probes.behave, str(work), ["one", "two"])
    next(results)
    results.close()
    assert ended == ["31"]
    list(Slurm()(probes.behave, str(work), ["one", "two"]))
    assert ended == ["31"]


DONE = {"status": "done", "error": "", "stopped": False}
SAVED = {"status": "preempted", "error": "saved", "stopped": True}


@pytest.mark.parametrize(
    ("said", "state", "began", "expected"),
    [
        (DONE, "COMPLETED", True, Outcome("done")),
        ({"status": "failed", "error": "no", "stopped": False}, "CANCELLED", True, Outcome("failed", "no")),
        (SAVED, "COMPLETED", True, Outcome("preempted", "saved")),
        (SAVED, "CANCELLED", True, Outcome("lost", "its job ended as CANCELLED, after it was saved; the log is err.")),
        (None, "COMPLETED", True, Outcome("failed", "the job could not start its work; the log is err.")),
        (None, "NODE_FAIL", False, Outcome("lost", "its job ended as NODE_FAIL; the log is err.")),
        (None, "forgotten", False, Outcome("lost", "Slurm has forgotten its job; the log is err.")),
    ],
)
def test_outcomes(said: dict[str, Any] | None, state: str, began: bool, expected: Outcome) -> None:
    assert module._outcome(said, state, began, Path("err")) == expected


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (0, "31_0 RUNNING\n31_1 PENDING\n\n", "", {"31_0": "RUNNING", "31_1": "PENDING"}),
        (1, "", "slurm_load_jobs error: Invalid job id specified", {}),
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller", None),
    ],
)
def test_the_queue(monkeypatch, code: int, out: str, err: str, expected: dict[str, str] | None) -> None:
    """Jobs that it has forgotten have no state; if it does not answer, no state is known."""
    monkeypatch.setattr(module, "_ask", lambda *_: subprocess.CompletedProcess([], code, out, err))
    assert module._states("31") == expected


@pytest.mark.parametrize("training", [False, True])
def test_the_first_signal_stops_and_repeated_ones_do_nothing(training: bool) -> None:
    """Also if training handles the first."""
    with module._stops() as stops:
        if training:
            before = signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, before))
        with nullcontext() if training else pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stops() == 2


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_may_come_back_is_waited_for_though_it_has_ended(tmp_path: Path, monkeypatch, comes_back: bool) -> None:
    """Slurm may briefly show a requeued job as completed; one that stays completed has ended."""
    looks = 0
    (tmp_path / "7_0.json").write_text(json.dumps(SAVED))

    def states(array: str) -> dict[str, str]:
        nonlocal looks
        looks += 1
        if comes_back and looks == 3:  # it begins again
            (tmp_path / "7_0.json").unlink()
        if comes_back and looks == 4:
            (tmp_path / "7_0.json").write_text(json.dumps(DONE))
        return {"7_0": "PENDING" if comes_back and looks in (2, 3) else "COMPLETED"}

    monkeypatch.setattr(module, "_states", states)
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "LATE", 0.1)
    expected = Outcome("done") if comes_back else Outcome("preempted", "saved")
    assert list(module._outcomes("7", {"a": "7_0"}, tmp_path)) == [("a", expected)]


def test_the_batch_script_is_shown_and_nothing_is_submitted(work: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("submitit")
    folder = programs(tmp_path / "bin", PROGRAMS)
    for name in PROGRAMS:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    monkeypatch.setenv("PATH", folder)
    script = Slurm(workers=2, threads=3, partition="gpu", setup=("module load x",), sbatch={"qos": "long"}).script
    several, alone = script(str(work), 4), script(str(work), 1)
    for line in ("--cpus-per-task=3", "--partition=gpu", "--qos=long", "--signal=TERM@90", "--time=240", "--requeue"):
        assert f"#SBATCH {line}\n" in several
    assert "#SBATCH --array=0-3%2\n" in several
    assert "--array" not in alone
    assert "\nmodule load x\n" in several
    assert f"submitit.core._submit {work}/slurm" in several
    assert list(work.iterdir()) == []
    assert not (tmp_path / "called").exists()
