"""The slurm launcher where there is no Slurm: its script under sh, its queue; on a real one: test_cluster_slurm.py."""

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError

from electra_lab.launchers import slurm as module
from electra_lab.launchers.slurm import Slurm
from electra_lab.testing import probes
from registry import Outcome, launchers
from registry.errors import ConfigError

PROGRAMS = ["sbatch", "srun", "squeue", "scancel"]
TWO = {"one": ["true"], "a 'b'": ["sh", "-c", 'echo "$0"; exit 5', "it's $HOME"]}


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs like Slurm's, which note how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        program(folder / name, 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"' if name == "srun" else "")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(file: Path, act: str) -> None:
    file.write_text(f'#!/bin/sh\necho "{file.name} $*" >> {file.parents[1]}/calls\n{act}\n')
    file.chmod(0o755)


def calls(bin: Path) -> list[str]:
    file = bin.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a folder"
    made.mkdir()
    return made


@pytest.mark.parametrize("missing", PROGRAMS)
def test_a_machine_that_cannot_submit_jobs(bin: Path, folder: Path, monkeypatch, missing: str) -> None:
    (bin / missing).unlink()
    monkeypatch.setenv("PATH", str(bin))
    for commands in (TWO, {}):
        with pytest.raises(ConfigError, match=rf"launcher 'slurm' finds no {missing} here\. Start it on a machine"):
            list(Slurm()(commands, folder))
    assert list(folder.iterdir()) == []


def options(script: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")}


def test_options_reach_sbatch(folder: Path) -> None:
    chosen = Slurm(
        workers=3, threads=2, gpus=1, partition="long", account="lab", minutes=7, memory_gb=5.5,
        setup=("module load cuda",), sbatch={"qos": "high", "nice": 3},
    ).script(TWO, folder)  # fmt: skip
    common = {
        "--job-name=electra-lab", "--nodes=1", "--ntasks=1", f"--output={folder}/slurm/%A_%a.txt", "--open-mode=append",
        "--requeue",
    }  # fmt: skip
    assert options(chosen) == common | {
        "--array=0-1%3", "--cpus-per-task=2", "--gpus-per-node=1", "--partition=long", "--account=lab", "--time=7",
        "--mem=5632M", "--signal=TERM@90", "--qos=high", "--nice=3",
    }  # fmt: skip
    exports = [f"export {name}=2" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    assert "\n".join([*exports, "export TOKENIZERS_PARALLELISM=false", "module load cuda"]) in chosen
    # What is not set is left to the site; a short time limit leaves less time to save.
    least = Slurm(minutes=2).script({"one": ["true"]}, folder)
    assert options(least) == common | {"--array=0-0%8", "--cpus-per-task=1", "--time=2", "--signal=TERM@30"}
    assert list(folder.iterdir()) == []


def start(bin: Path, folder: Path, commands: dict[str, list[str]], task: int = 0) -> subprocess.Popen[bytes]:
    """Start the script of a task, as Slurm does."""
    (folder / "slurm").mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    script = bin.parent / "script"
    script.write_text(Slurm().script(commands, folder))
    job = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "31", "SLURM_JOB_ID": str(40 + task)}
    return subprocess.Popen(["sh", str(script)], env={**os.environ, **job}, start_new_session=True)


def test_a_task_runs_its_command_and_leaves_its_exit_code(bin: Path, folder: Path) -> None:
    for task, code in enumerate((0, 5)):
        assert start(bin, folder, TWO, task).wait(20) == 0
        assert (folder / "slurm" / f"31_{task}.code").read_text() == f"{code}\n"
    assert (folder / "logs" / "a 'b'.txt").read_text() == "it's $HOME\n"
    assert start(bin, folder, {"one": ["sh", "-c", "kill -9 $$"]}).wait(20) == 0
    assert (folder / "slurm" / "31_0.code").read_text() == "137\n"
    assert calls(bin)[0] == "srun --cpus-per-task=1 true"


@pytest.mark.parametrize(("whom", "code"), [("command", "75\n"), ("all", "")])
def test_a_task_that_is_stopped_saves(bin: Path, folder: Path, whom: str, code: str) -> None:
    """If Slurm signals all processes, it ends the job or requeues it: then its state says more than the exit code."""
    task = start(bin, folder, probes.commands(probes.linger, folder, ["a"], 20))
    assert probes.until((folder / "a.json").exists, 20.0)
    if whom == "all":
        os.killpg(task.pid, signal.SIGTERM)
    else:
        os.kill(json.loads((folder / "a.json").read_text())["pid"], signal.SIGTERM)
    task.wait(20)
    assert (folder / "a.stopped").exists(), "it was not waited for"
    file = folder / "slurm" / "31_0.code"
    assert (file.read_text() if file.exists() else "") == code


def test_the_array_is_submitted_without_the_launchers_own_job(bin: Path, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "here.conf")
    program(bin / "sbatch", f"cat > {bin.parent}/script; env > {bin.parent}/environment; echo '31;cluster'")
    monkeypatch.setattr(module, "_outcomes", lambda array, logs, _: iter([(array, [*logs])]))
    assert list(Slurm()(TWO, folder)) == [("31", [*TWO])]
    assert (bin.parent / "script").read_text() == Slurm().script(TWO, folder)
    seen = (bin.parent / "environment").read_text()
    assert "SLURM_CONF=here.conf" in seen
    assert "SLURM_ARRAY_TASK_ID" not in seen
    assert calls(bin) == ["sbatch --parsable"]


@pytest.mark.parametrize("option", ["partition", "account"])
def test_options_of_one_word_cannot_be_shell_lines(option: str) -> None:
    with pytest.raises(ValidationError, match=option):
        launchers.get("slurm").schema.model_validate({option: "x\ntouch y"})


def test_a_refusal_of_sbatch_is_one_sentence(bin: Path, folder: Path) -> None:
    program(bin / "sbatch", "printf 'invalid\\n  partition\\n' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"launcher 'slurm': sbatch refuses the jobs: invalid partition$"):
        next(Slurm()(TWO, folder))


def test_closing_cancels_the_array_and_waits(bin: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bin / "sbatch", "echo 31")
    program(bin / "squeue", f"[ -e {bin.parent}/asked ] || echo 31_0 COMPLETING; touch {bin.parent}/asked")
    monkeypatch.setattr(module, "_outcomes", lambda *_: iter([("one", Outcome(0))] * 2))
    monkeypatch.setattr(module, "LOOK", 0.01)
    with closing(Slurm()(TWO, folder)) as results:
        next(results)
    assert [line.split()[0] for line in calls(bin)] == ["sbatch", "scancel", "squeue", "squeue"]
    list(Slurm()(TWO, folder))  # to its end
    assert calls(bin)[4:] == ["sbatch --parsable"]


def test_a_signal_during_submission_cancels_the_array(bin: Path, folder: Path) -> None:
    """Of the terminal, whose Ctrl-C goes to all processes of the group."""
    group = f"{sys.executable} -c 'import os; print(os.getpgrp())' > {bin.parent}/group"
    program(bin / "sbatch", f"{group}; kill -INT {os.getpid()}; sleep 0.1; echo 31")
    with pytest.raises(KeyboardInterrupt):
        list(Slurm()(TWO, folder))
    assert [line.split()[:2] for line in calls(bin)][:2] == [["sbatch", "--parsable"], ["scancel", "31"]]
    assert int((bin.parent / "group").read_text()) != os.getpgrp()


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


@pytest.mark.parametrize(
    ("looks", "code", "said"),
    [
        (["COMPLETED", "PENDING", "PENDING", "RUNNING:0"], 0, ""),  # requeued: it briefly seemed to have ended
        (["COMPLETED", "RUNNING", "COMPLETED", "COMPLETED:0"], 0, ""),  # twice, and its last file is late
        (["RUNNING", "COMPLETED:5"], 5, "exit code 5"),
        (["CANCELLED"], None, "its job ended as CANCELLED; its output is in a.txt."),
        ([None, "NODE_FAIL"], None, "its job ended as NODE_FAIL"),
        (["RUNNING", ""], None, "Slurm has forgotten its job"),
    ],
)
def test_what_may_come_back_is_waited_for_though_it_has_ended(folder: Path, monkeypatch, looks, code, said) -> None:
    """Each look of the queue is a state, and the exit code that the task has left by then; None: no answer."""
    seen = iter(looks)
    last = looks[-1]

    def states(array: str) -> dict[str, str] | None:
        look = next(seen, last)
        if look is None:
            return None
        state, _, left = look.partition(":")
        if left:
            (folder / "31_0.code").write_text(f"{left}\n")
        return {"31_0": state} if state else {}

    monkeypatch.setattr(module, "_states", states)
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "LATE", 0.1)
    monkeypatch.setattr(module.time, "monotonic", partial(next, itertools.count(0.0, 0.05)))
    ((name, outcome),) = module._outcomes("31", {"a": Path("a.txt")}, folder)
    assert (name, outcome.code) == ("a", code)
    assert said in outcome.error
    assert next(seen, None) is None
    assert list(folder.iterdir()) == []
