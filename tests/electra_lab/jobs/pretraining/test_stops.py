"""Runs that are stopped by signals, by kill -9, or after any step and resumed are as if never stopped."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from electra_lab.jobs import endings, lifecycle
from electra_lab.jobs.endings import STOPPING
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.console import Console
from electra_lab.training import loop
from electra_lab.training import step as step_
from electra_lab.training.loop import Record
from registry.errors import Interrupted, Preempted
from tests.electra_lab.jobs.pretraining import tiny
from tests.electra_lab.jobs.pretraining.tiny import assert_same, experiment, lines, run, steps, stop_at
from tests.scorecard.lab import Lab, Running

pytestmark = pytest.mark.usefixtures("no_report")

BERT = "{type: bert, dim: 16, depth: 1, heads: 2}"
TRANSFORMER = "{type: transformer, dim: 16, depth: 1, heads: 2}"
REFORMER = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, hashes: 1}"
EVALUATE = "{every: 6, examples: 2, batch_size: 4}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with tiny.for_a_module():
        return run(experiment(folder, evaluate=EVALUATE), folder / "run")


@pytest.mark.parametrize("backbone", [BERT, REFORMER, pytest.param(TRANSFORMER, marks=pytest.mark.slow)])
def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path: Path, monkeypatch, backbone: str) -> None:
    """With micro-batches."""
    file = experiment(tmp_path, discriminator=backbone, train=tiny.IN_PARTS)
    whole, stopped = run(file, tmp_path / "whole"), tmp_path / "stopped"
    with monkeypatch.context() as patched:
        tiny.signalled(patched, signal.SIGINT, 7)
        with pytest.raises(Interrupted, match=r"saved after step 7\. Resume with: electra-lab resume"):
            run(file, stopped)
    assert (stopped / "checkpoints" / "step-00000007").is_dir()
    assert [record["step"] for record in lines(stopped)] == [r["step"] for r in lines(whole) if r["step"] <= 7]
    execute.resume(stopped, "cpu")
    assert_same(whole, stopped)


def test_stopped_again_and_again_is_as_if_never_stopped(tmp_path: Path, whole: Path) -> None:
    file, path = experiment(tmp_path, evaluate=EVALUATE), tmp_path / "run"
    stop_at(1, lambda: run(file, path))
    for step in range(2, 12):
        stop_at(step, lambda: execute.resume(path, "cpu"))
    execute.resume(path, "cpu")
    assert_same(whole, path)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [*((number, Preempted, 75) for number in STOPPING if number != signal.SIGINT), (signal.SIGINT, Interrupted, 130)],
)
def test_a_signal_saves_after_the_step_in_which_it_arrives(tmp_path: Path, capsys, number, kind, code) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    file = tiny.spying(tmp_path, objective=f"{{type: spy, strike: 2, signal: {int(number)}}}")
    with pytest.raises(kind) as stopped:
        run(file, tmp_path / "run")
    assert stopped.value.exit_code == code
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    second = "; a second Ctrl-C stops without saving" if number == signal.SIGINT else ""
    assert f"{name}: saving after this step{second}\n" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_a_signal_in_the_last_step_leaves_the_evaluation_to_the_resume(tmp_path: Path) -> None:
    """The evaluation may take long, and the scheduler does not wait."""
    file, path = experiment(tmp_path), tmp_path / "run"
    stop_at(12, lambda: run(file, path), signal.SIGTERM)
    assert [(r["step"], r["split"]) for r in lines(path)][-1] == (12, "train")
    execute.resume(path, "cpu")
    assert [(r["step"], r["split"]) for r in lines(path)][-3:] == [(12, "train"), (12, "validation"), (12, "test")]


@pytest.mark.parametrize("pause", [0, 3, 5])
def test_a_signal_in_an_evaluation_saves_and_stops_there(tmp_path: Path, monkeypatch, whole: Path, pause: int) -> None:
    file, path, passed = experiment(tmp_path, evaluate=EVALUATE), tmp_path / "run", 0

    def wish(*given: Any) -> int:
        nonlocal passed
        number = ask(*given)
        passed += evaluating[0]
        return lifecycle.STOP + signal.SIGTERM if evaluating[0] and passed == pause + 1 else number

    ask, evaluating = lifecycle._wish, [False]
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "_wish", wish)
        patched.setattr(
            loop, "Record", lambda *a, **k: (evaluating.__setitem__(0, k.get("evaluating", False)), Record(*a, **k))[1]
        )
        with pytest.raises(Preempted, match=r"saved after step (6|12)"):
            run(file, path)
    execute.resume(path, "cpu")
    assert_same(whole, path)


def test_an_evaluation_that_fails_loses_nothing(tmp_path: Path, monkeypatch, whole: Path, capsys) -> None:
    file, path = experiment(tmp_path, evaluate=EVALUATE, checkpoint="{every: 100}"), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(loop, "evaluation", lambda *_, **__: (_ for _ in ()).throw(ValueError("boom")))
        with pytest.raises(ValueError, match="boom"):
            run(file, path)
    assert steps(path) == [6]
    assert "saved after step 6, before this error" in capsys.readouterr().err
    execute.resume(path, "cpu")
    assert_same(whole, path)


@pytest.mark.parametrize(("phase", "saved"), [("backward", [0]), ("update", [])])
def test_a_step_that_fails_loses_nothing(tmp_path: Path, monkeypatch, phase: str, saved: list[int]) -> None:
    """Unless it fails in the middle of an update."""

    def failing(*_: Any, **__: Any) -> None:
        raise ValueError("boom")

    monkeypatch.setattr(step_, phase, failing)
    with pytest.raises(ValueError, match="boom"):
        run(experiment(tmp_path, checkpoint="{every: 100}"), tmp_path / "run")
    assert steps(tmp_path / "run") == saved


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@pytest.mark.parametrize(
    ("numbers", "apart", "ends"),
    [
        ((INT, INT), 0.6, KeyboardInterrupt),
        ((TERM, INT), 0.6, Preempted),
        ((INT, INT), 0.03, Interrupted),
        ((TERM, TERM), 0.6, Preempted),
        ((TERM, HUP), 0.03, Preempted),
        ((INT, TERM), 0.6, Interrupted),
        ((TERM, INT, INT), 0.6, KeyboardInterrupt),
    ],
)
def test_only_a_second_ctrl_c_stops_without_saving(tmp_path: Path, monkeypatch, numbers: Any, apart: float, ends: Any):
    """Schedulers signal the process and its group, and terminals all processes; a person's second Ctrl-C is slower."""

    now = [1.0]

    def strike(_: Console, done: int) -> None:
        if done == 3:
            for number in numbers:
                os.kill(os.getpid(), number)
                now[0] += apart

    monkeypatch.setattr(endings, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Console, "advance", strike)
    with pytest.raises(ends):
        run(experiment(tmp_path), tmp_path / "run")
    assert steps(tmp_path / "run") == ([] if ends is KeyboardInterrupt else [3])


@pytest.mark.parametrize(
    ("phase", "number"),
    [("check", TERM), ("open_data", INT), ("assemble", TERM), ("provenance", INT), ("write_report", TERM)],
)
def test_a_signal_outside_of_training_ends_the_run_with_a_cure(tmp_path, monkeypatch, whole, phase, number) -> None:
    file, path = experiment(tmp_path, evaluate=EVALUATE), tmp_path / "run"

    def struck(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.05)

    with monkeypatch.context() as patched:
        patched.setattr(execute, phase, struck)
        with pytest.raises(Interrupted if number == INT else Preempted) as stopped:
            run(file, path)
    cure = str(stopped.value).partition(". ")[2]
    if phase == "write_report":
        assert cure == f"Resume with: electra-lab resume {path}"
        execute.resume(path, "cpu")
        assert_same(whole, path)
    else:
        assert cure == "Nothing was saved. Start again with the same command."
        assert not path.exists() or phase == "provenance"
    if phase == "provenance":
        assert_same(whole, run(file, path))


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        file = tiny.spying(tmp_path, objective=f"{{type: spy, strike: 2, signal: {int(signal.SIGHUP)}}}")
        assert lines(run(file, tmp_path / "run"))[-1]["step"] == 12
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def killed(process: Running, when: Callable[[], bool]) -> bool:
    """SIGKILL a process as soon as `when` is true; False if it finished first."""
    while process.poll() is None:
        if when():
            process.kill()
            return True
        time.sleep(0.002)
    assert process.wait().code == 0
    return False


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As many as the processes of `forks` have: with another number, sums have another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
def test_killed_at_random_and_resumed_is_as_if_never_killed(forks: Lab, tmp_path: Path) -> None:
    """kill -9 at a random moment of the run, and again during the resume.

    The run is long enough for both kills to strike. The seed is printed, and can be set by KILL_SEED.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(1 << 32)))
    print(f"KILL_SEED={seed}")
    chance, total = random.Random(seed), 2000
    train = f"{{steps: {total}, batch_size: 2, precision: fp32, log_every: 7}}"
    sections = {"train": train, "checkpoint": "{every: 1, keep: 2}", "evaluate": "{examples: 0}"}
    file, broken = experiment(tmp_path, **sections), tmp_path / "broken"
    reached: list[int] = []
    for verb in (["run", str(file), "--out", str(broken)], ["resume", str(broken)]):
        before = max(steps(broken), default=0)
        moment, seen = chance.uniform(0, 0.3), list[float]()  # seconds after the first step of this process

        def when(before: int = before, moment: float = moment, seen: list[float] = seen) -> bool:
            if not seen and max(steps(broken), default=0) > before:
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() - seen[0] > moment

        assert killed(forks.start(*verb, cwd=tmp_path), when), f"the kill did not strike: {verb[0]} was too quick"
        reached.append(max(steps(broken), default=0))
    assert 0 < reached[0] < reached[1] < total
    # Both stop a few steps later, which works the same in a run of any length.
    last = reached[1] + 3
    stop_at(last, lambda: execute.resume(broken, "cpu"))
    stop_at(last, lambda: run(file, tmp_path / "whole"))
    assert_same(tmp_path / "whole", broken)


STATES = {  # by optimizer; all except the last are the lab's
    "adafactor": {"step", "rows", "columns", "variance"},
    "adamw_no_bias_correction": {"exp_avg", "exp_avg_sq"},
    "muon": {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"},
    "momentum": {"momentum_buffer"},
}


@pytest.mark.parametrize("optimizer", STATES)
def test_the_state_of_any_optimizer_survives_a_kill(tmp_path: Path, monkeypatch, optimizer: str) -> None:
    (tmp_path / "momentum.py").write_text(MOMENTUM)
    optimized = f"{{type: {optimizer}}}\nimports: [momentum.py]"
    train = tiny.TRAIN.replace("12", "4")
    file = experiment(tmp_path, optimizer=optimized, checkpoint="{every: 1}", evaluate="{examples: 0}", train=train)
    whole, path = run(file, tmp_path / "whole"), tmp_path / "run"

    with monkeypatch.context() as patched:
        tiny.killed_at(patched, 3)
        with pytest.raises(tiny.Killed):
            run(file, path)
    assert max(steps(path)) == 2
    state = {name.split(".")[1] for name in tiny.tensors(path) if name.startswith("optimizer.")}
    assert state == STATES[optimizer]
    execute.resume(path, "cpu")
    assert_same(whole, path)


MOMENTUM = '''
import torch
from registry import optimizers


@optimizers.register("momentum")
class Momentum(torch.optim.SGD):
    """torch's own, whose state begins with the first step."""

    def __init__(self, parameters, learning_rate, /, *, momentum: float = 0.9):
        super().__init__([parameter for _, parameter in parameters], lr=learning_rate, momentum=momentum)

    def state_bytes(self, parameter):
        """One buffer."""
        return 4 * parameter.numel()
'''
