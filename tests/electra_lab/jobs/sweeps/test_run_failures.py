"""Ablations with failures, stops, or another process working on the same cells."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.analysis.results import TRAINING, cell_result
from electra_lab.jobs.sweeps import cells
from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.plan import Plan
from registry import Command, Outcome
from registry.errors import CellsFailed, CheckpointError, Interrupted, OutOfMemoryError, Preempted
from tests.electra_lab.jobs.sweeps.small import InProcess, ablate, stamps, worked
from tests.pages import Page

SMALL, LARGE = "generator.scale=0.5", "generator.scale=1.0"


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str, int], BaseException | None]) -> dict[str, int]:
    """Let training a cell raise `fails(id, attempt)`, if it returns an error; returns the attempts."""
    attempts: dict[str, int] = {}
    train = cells._train

    def attempt(where: AblationFolder, plan: Plan, id: str, device: str) -> None:
        attempts[id] = attempts.get(id, 0) + 1
        if error := fails(id, attempts[id]):
            raise error
        train(where, plan, id, device)

    monkeypatch.setattr(cells, "_train", attempt)
    return attempts


def test_a_cell_that_fails_does_not_stop_the_others(quick: Path, tmp_path: Path, capfd) -> None:
    rates = "vary: {train.learning_rate: [1.0e-3, 1.0e+30]}"
    quick.write_text(quick.read_text().replace("vary: {generator.scale: [0.5, 1.0]}", rates))
    out = tmp_path / "out"
    with pytest.raises(CellsFailed, match=r"^1 of 4 runs failed\. ") as failed:
        ablate(quick, out)
    assert failed.value.exit_code == 7
    assert f"{out / 'report.html'}, the logs in {out / 'logs'}" in str(failed.value)
    where = AblationFolder(out)
    good, bad = [cell_result(where, where.plan, cell.id) for cell in where.plan.cells]
    assert good.status == "done"
    assert (bad.status, bad.missing, bad.attempts) == ("failed", (TRAINING,), 1)
    assert "was not finite" in bad.error
    said = capfd.readouterr().err
    assert said.count("was not finite") == 1  # not repeated: it would fail again
    page = Page(out / "report.html").text
    assert "train.learning_rate=1e+30, seed 0 failed once:" in page
    assert "Of 2 cells: 1 done; 1 failed." in page


@pytest.mark.parametrize(("retries", "error"), [(0, RuntimeError("by bad luck")), (2, OutOfMemoryError("by bad luck"))])
def test_a_cell_is_tried_again_as_often_as_it_may_be(quick: Path, tmp_path: Path, monkeypatch, retries, error) -> None:
    quick.write_text(quick.read_text() + f"retries: {retries}\n")
    attempts = failing(monkeypatch, lambda id, attempt: error)
    with pytest.raises(CellsFailed, match=r"^4 of 4 runs failed"):
        ablate(quick, tmp_path / "out")
    assert set(attempts.values()) == {retries + 1}
    assert len(attempts) == 4
    where = AblationFolder(tmp_path / "out")
    assert {cell_result(where, where.plan, id).attempts for id in attempts} == {retries + 1}
    with pytest.raises(CellsFailed):
        ablate(quick, tmp_path / "out")
    assert set(attempts.values()) == {2 * (retries + 1)}


def test_a_cell_that_is_lost_once_succeeds_at_its_second_attempt(
    quick: Path, tmp_path: Path, monkeypatch, capfd
) -> None:
    def fails(id: str, attempt: int) -> BaseException | None:
        if attempt == 2:
            assert not list((tmp_path / "out" / "failed").iterdir()), "the page says that it has failed"
        return OSError(28, "No space left") if attempt == 1 and "1.0-s0" in id else None

    attempts = failing(monkeypatch, fails)
    where = AblationFolder(ablate(quick, tmp_path / "out"))
    assert sorted(attempts.values()) == [1, 1, 1, 2]
    assert not list((where.path / "failed").iterdir())
    said = capfd.readouterr().err
    assert f"{LARGE}, seed 0: a file or standard output: cannot be written (No space left). Trying again." in said
    found = cell_result(where, where.plan, next(id for id in attempts if "1.0-s0" in id)).metrics["corruption_auc"]
    assert f"{LARGE}, seed 0: corruption_auc {found:.4f}" in said


def test_a_cell_that_was_stopped_has_not_failed(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick.write_text(quick.read_text() + "retries: 0\n")
    stops = {1: Preempted("saved."), 2: Interrupted("saved.")}
    attempts = failing(monkeypatch, lambda id, attempt: stops.get(attempt))
    ablate(quick, tmp_path / "out")
    assert set(attempts.values()) == {3}


def test_a_reference_that_fails_leaves_its_measure_out_and_no_other(quick: Path, tmp_path: Path, monkeypatch) -> None:
    """The other reference alone is not enough."""
    failing(monkeypatch, lambda id, _: RuntimeError("it cannot") if "corruption-large" in id else None)
    out = tmp_path / "out"
    with pytest.raises(CellsFailed, match=r"^1 of 4 runs failed, so 2 others lack a measure\. "):
        ablate(quick, out)
    where = AblationFolder(out)
    corruption, own = where.plan.measures
    for cell in where.plan.cells:
        state = cell_result(where, where.plan, cell.id)
        assert (state.status, state.missing) == ("unmeasured", (corruption.key,))
        assert where.measures(cell.id).numbers.keys() == {own.key}
    page = Page(out / "report.html").text
    assert "the run that a measure refers to, failed: RuntimeError: it cannot" in page
    assert "Of 2 cells: 0 done; 2 trained, but not fully measured." in page
    monkeypatch.undo()
    before = {path: stamp for path, stamp in stamps(out).items() if "checkpoints" in path.parts}
    ablate(quick, out)  # no cell is trained again
    assert {path: stamps(out)[path] for path in before} == before
    assert {cell_result(where, where.plan, cell.id).status for cell in where.plan.cells} == {"done"}


def test_a_piece_that_comes_back_without_what_it_was_sent_for_has_failed(quick, tmp_path: Path, monkeypatch) -> None:
    """Otherwise it would be launched forever."""
    # An iterator without a close method works, too.
    come_back = lambda self, commands, folder: iter([(id, Outcome(0)) for id in commands])  # noqa: E731
    monkeypatch.setattr(InProcess, "__call__", come_back)
    with pytest.raises(CellsFailed, match="4 of 4 runs failed"):
        ablate(quick, tmp_path / "out")
    where = AblationFolder(tmp_path / "out")
    assert cell_result(where, where.plan, where.plan.cells[0].id).error == "came back without training."


def test_a_second_launcher_leaves_alone_what_the_first_is_doing(quick: Path, out: Path, monkeypatch) -> None:
    where = AblationFolder(out)
    ids = [cell.id for cell in where.plan.cells if cell.seed == 0]
    other, here_id = ids
    for id in ids:
        shutil.rmtree(out / "cells" / id)
    where.note_failure(other, "of an earlier command", 1)
    held, others_done = threading.Event(), threading.Event()
    trained: list[tuple[str, str]] = []
    train = cells._train

    def slow(folder: AblationFolder, plan: Plan, id: str, device: str) -> None:
        trained.append((id, threading.current_thread().name))
        if threading.current_thread().name == "other":
            held.set()
            assert others_done.wait(30)
        train(folder, plan, id, device)
        if id == here_id:
            others_done.set()

    monkeypatch.setattr(cells, "_train", slow)
    outcomes: list[Outcome] = []
    thread = threading.Thread(name="other", target=lambda: outcomes.append(worked(out, other)))
    thread.start()
    assert held.wait(30)
    quick.write_text(quick.read_text().replace("seeds: [0]", "seeds: [0, 1]"))
    ablate(quick, out)
    thread.join(30)
    assert trained == [(other, "other"), (here_id, "MainThread")]
    assert outcomes == [Outcome(0)]
    assert {cell_result(where, where.plan, id).status for id in ids} == {"done"}


def test_a_measure_is_prepared_by_one_cell_while_the_others_wait(out: Path) -> None:
    """Claims are per measure: two simultaneous cells prepare it only once."""
    where = AblationFolder(out)
    planned = where.plan.measures[0]
    shutil.rmtree(where.shared(planned))
    made: list[str] = []

    def prepare(number: int) -> None:
        def fill(run: object, references: object, folder: Path) -> None:
            made.append(str(number))
            (folder / "a.txt").write_text(str(number))

        opened: Any = lambda id: (None, nullcontext)  # noqa: E731
        cells._shared(where, planned, SimpleNamespace(prepare=fill), "x", opened)

    threads = [threading.Thread(target=prepare, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 1
    assert (where.shared(planned) / "a.txt").read_text() == made[0]


@pytest.mark.parametrize(
    ("number", "ends", "code"), [(signal.SIGINT, Interrupted, 130), (signal.SIGTERM, Preempted, 75)]
)
def test_an_ablation_that_is_stopped_closes_its_launcher_and_says_how_to_continue(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ends: type[Any], code: int
) -> None:
    page, pages, closed = tmp_path / "out" / "report.html", list[str](), list[bool]()

    def stop(self: InProcess, commands: Mapping[str, Command], folder: Path) -> Iterator[tuple[str, Outcome]]:
        id = next(iter(commands))
        try:
            yield id, worked(folder, id)
            pages.append(Page(page).text)
            os.kill(os.getpid(), number)
            threading.Event().wait(10)  # the handler raises
        finally:
            closed.append(True)

    before = signal.getsignal(number)
    monkeypatch.setattr(InProcess, "__call__", stop)
    with pytest.raises(ends, match=rf"trained cells are saved in {tmp_path / 'out'}\. Run the same") as stopped:
        ablate(quick, tmp_path / "out")
    assert stopped.value.exit_code == code
    assert closed == [True]
    assert signal.getsignal(number) is before
    assert "Running. Written" in pages[0]  # after the first cell
    assert "Interrupted: it can be resumed." in Page(page).text
    assert "<script" not in page.read_text()


def test_a_launcher_is_closed_if_its_outcomes_cannot_be_used(quick: Path, tmp_path: Path, monkeypatch) -> None:
    closed: list[bool] = []

    def endless(self: InProcess, commands: Mapping[str, Command], folder: Path) -> Iterator[tuple[str, Outcome]]:
        try:
            while True:
                yield next(iter(commands)), Outcome(1, "again")
        finally:
            closed.append(True)

    def full(self: AblationFolder, id: str, error: str | None, attempts: int = 0) -> None:
        if error:
            raise CheckpointError("the disk is full.")

    monkeypatch.setattr(InProcess, "__call__", endless)
    monkeypatch.setattr(AblationFolder, "note_failure", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        ablate(quick, tmp_path / "out")
    assert closed == [True]
