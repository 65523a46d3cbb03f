"""Run an ablation: plan, launch what is missing, measure, report."""

import signal
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from electra_lab.assembly.experiment import open_data
from electra_lab.assembly.launcher import launcher_options, make_launcher
from electra_lab.config.source import read_file
from electra_lab.jobs.pretraining.changes import changes, content
from electra_lab.jobs.pretraining.execute import refuse_several_processes
from electra_lab.jobs.progress import Phases
from electra_lab.jobs.signals import STOPPING
from electra_lab.jobs.sweeps.cells import heal, work
from electra_lab.jobs.sweeps.file import Cell, load_ablation
from electra_lab.jobs.sweeps.plan import Checked, checked, write_plan
from electra_lab.presentation import sweep_summary as summary
from electra_lab.presentation.console import Console
from electra_lab.presentation.sweep_page import write_report
from electra_lab.storage.ablation_folder import TRAINING, AblationFolder, is_ablation_folder
from electra_lab.storage.plan import Plan
from electra_lab.storage.provenance import described
from electra_lab.storage.run_directory import refuse_to_hold
from electra_lab.training.device import choose_device
from registry import Launcher, Outcome
from registry.errors import CellsFailed, CheckpointError, DataError, Interrupted, Preempted

NO_RESULT = ("name", "imports", "trackers", "data.store")  # keys that no cell depends on
PATIENCE = 2.0  # seconds between two looks at the cells that other processes are working on


def ablate(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> Path:
    """Run what is missing of an ablation; returns its folder. Raises LabError: CellsFailed if some cells failed."""
    refuse_several_processes()
    ablation, launch, path = _prepared(file, overrides, out, launcher, workers)
    console, config, pieces = Console(), ablation.ablation.config, ablation.pieces
    planned = ablation.plan(AblationFolder(path))
    if any(AblationFolder(path).state(cell.id, planned).missing for cell in pieces):
        launch.check()
    if launch.here:
        choose_device(device)  # once, and not by each cell
    folder = AblationFolder.create(path)
    for cells in ablation.texts().values():  # tokenized once, here, and not by workers that wait for each other
        with Phases(console) as progress:
            store = open_data(cells[0].loaded, console.say, progress)
        _refuse_other_text(folder, cells, store.key)
    with folder.claimed("plan", wait=True):  # another launcher may have come while the text was read
        _refuse_other(folder, ablation.ablation.cells)
        plan = write_plan(ablation, folder)
    heal(folder, [cell.id for cell in pieces], console.say)
    references = f" and {len(plan.references)} for measures" if plan.references else ""
    done = sum(not folder.state(cell.id, plan).missing for cell in pieces)
    console.say(f"{config.name}: {len(plan.cells)} cells{references}, {done} already done, in {path}")
    with _terminated():
        try:
            _work(folder, plan, pieces, config.retries, launch, device, console)
        except (KeyboardInterrupt, Preempted) as error:
            kind = Preempted if isinstance(error, Preempted) else Interrupted
            raise kind(f"stopped; trained cells are saved in {path}. Run the same command again.") from None
        write_report(folder.path)
    console.say(summary.closing(folder.path))
    states = [folder.state(cell.id, plan) for cell in pieces]
    if left := [state for state in states if state.missing]:
        failed = sum(state.status == "failed" for state in left)
        lacking = len(left) - failed
        others = f", so {lacking} {'others lack' if lacking > 1 else 'other lacks'} a measure" if lacking else ""
        raise CellsFailed(
            f"{failed} of {len(pieces)} runs failed{others}. The reasons are in {path / 'report.html'}, the logs in "
            f"{path / 'logs'}. Run the same command again to retry."
        )
    return path


def _refuse_other(folder: AblationFolder, cells: Sequence[Cell]) -> None:
    """Raise ConfigError if the folder holds another plan, with the keys that differ."""

    def differs(id: str) -> str:
        try:
            before: Any = read_file(folder.experiment(id)).plain()
        except ConfigError:
            return ""
        found = [changes(before, content(cell.loaded)) for cell in cells]
        decisive = [{key: both for key, both in each.items() if key not in NO_RESULT} for each in found]
        # The most similar cell is the one that was changed.
        return f": {described(min(decisive, key=len)) or 'its plug-ins differ'}"

    folder.refuse_other({cell.id for cell in cells}, differs)


def _refuse_other_text(folder: AblationFolder, cells: list[Cell], key: str) -> None:
    """Raise DataError if a cell was trained on other text than the current one."""
    for cell in cells:
        run = folder.run(cell.id)
        if (run.path / "provenance.json").is_file():
            with suppress(CheckpointError):  # damaged: what is still needed of it is recreated
                if (then := run.provenance().data.store) != key:
                    raise DataError(
                        f"{run.path}: was trained on other text (token store {then}, now {key}): its files changed, or "
                        "the version of tokenizers; for corpus docstrings, of Python or torch. Choose another --out."
                    )


def dry_run(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> str:
    """Describe what `ablate` would do. Reads no corpus, writes nothing. Raises LabError."""
    ablation, launch, path = _prepared(file, overrides, out, launcher, workers)
    # A plan may be for another machine, so a device that is not here is not a mistake.
    target = torch.device(device) if device == "cuda" else choose_device(device)
    folder, plan, forecasts = AblationFolder(path), ablation.plan(AblationFolder(path)), ablation.forecasts(target)
    missing = {cell.id: folder.state(cell.id, plan).missing for cell in ablation.pieces}
    with _threads(getattr(launch, "threads", None)):
        seconds = ablation.seconds(forecasts, target)
    return summary.forecast(ablation, forecasts, missing, seconds, path, getattr(launch, "workers", workers or 1))


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch use so many threads, as the cells of the ablation will."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepared(
    file: Path, overrides: list[str], out: Path | None, launcher: str | None, workers: int | None
) -> tuple[Checked, Launcher, Path]:
    """Return the checked ablation, its launcher, and the folder. Raises LabError."""
    ablation = load_ablation(file, overrides)
    path = out or Path("runs") / ablation.config.name
    _refuse_other(AblationFolder(path), ablation.cells)
    if not is_ablation_folder(path):
        refuse_to_hold(out, ablation.base.config.data.store)
    chosen = ablation.config.launcher
    if launcher and launcher != chosen.type:
        chosen = launcher_options(launcher)
    plan, launch = checked(ablation), make_launcher(chosen, **({"workers": workers} if workers else {}))
    if plan.absent:
        raise plan.absent
    return plan, launch, path


def _work(
    folder: AblationFolder, plan: Plan, cells: list[Cell], retries: int, launch: Launcher, device: str, console: Console
) -> None:
    """Launch what is missing, until nothing is, or what is left has failed more often than it may."""
    names = {cell.id: f"{cell.variant}, seed {cell.seed}" for cell in cells}
    attempts = dict.fromkeys(names, 0)
    left = dict.fromkeys(id for id in names if folder.state(id, plan).missing)
    for id in left:  # a new command is a new attempt
        if not folder.is_claimed(id):
            folder.note_failure(id, None)

    def failed(id: str, error: str) -> None:
        attempts[id] += 1
        if attempts[id] > retries:
            left.pop(id)
            folder.note_failure(id, error, attempts[id])
        console.say(f"{names[id]}: {error}{' Trying again.' if id in left else ''}")

    with console.progress(len(names) - len(left), len(names), "ablation", "cells"):
        while waiting := _waiting(folder, plan, left):
            moved = False
            free = [id for id in waiting if not folder.is_claimed(id)]
            for id, outcome in _launched(launch, folder, free, device):
                moved = moved or outcome.status != "elsewhere"
                if outcome.status in ("failed", "lost"):
                    failed(id, outcome.error)
                elif outcome.status == "done":
                    state = folder.state(id, plan)
                    if not state.missing:
                        left.pop(id)
                        found = state.metrics.get(plan.metric)
                        console.say(f"{names[id]}: {f'{plan.metric} {found:.4f}' if found is not None else 'trained'}")
                    elif state.missing == waiting[id]:
                        failed(id, f"came back without {state.missing[0]}.")
                console.advance(len(names) - len(left))
            if not moved:  # another launcher is working on all of them
                time.sleep(PATIENCE)
                left = {id: None for id in left if folder.state(id, plan).missing}


def _launched(launch: Launcher, folder: AblationFolder, ids: list[str], device: str) -> Iterator[tuple[str, Outcome]]:
    outcomes = launch(partial(work, device=device), str(folder.path.resolve()), ids)
    with closing(outcomes) if isinstance(outcomes, Generator) else nullcontext():
        yield from outcomes


def _waiting(folder: AblationFolder, plan: Plan, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return what is missing of the cells that can go on now: a measure waits until its references are trained."""
    ready = {TRAINING, *(measure.key for measure in plan.measures if folder.is_ready(measure, plan))}
    missing = {id: folder.state(id, plan).missing for id in ids}
    return {id: lacking for id, lacking in missing.items() if not ready.isdisjoint(lacking)}


@contextmanager
def _terminated() -> Iterator[None]:
    """Let what schedulers send end an ablation as Ctrl-C does, but with another exit code."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}")

    others = [each for each in STOPPING if each != signal.SIGINT]
    before = {
        each: signal.signal(each, stop) for each in others if signal.getsignal(each) is not signal.SIG_IGN
    }  # nohup
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
