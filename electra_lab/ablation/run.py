"""Run an ablation: plan, launch what is missing, measure, report."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from pydantic import ValidationError

from electra_lab.ablation.cells import heal, work
from electra_lab.ablation.folder import Folder, make
from electra_lab.ablation.plan import Plan, make_plan, seconds, write_plan
from electra_lab.ablation.report import write_report
from electra_lab.ablation.summary import closing as closing_words
from electra_lab.ablation.summary import forecast as forecast_words
from electra_lab.assemble import open_data
from electra_lab.config.ablation import Cell, load_ablation
from electra_lab.config.schema import Component
from electra_lab.runs.console import Console
from electra_lab.training.device import choose_device
from registry import Entry, Outcome, launchers
from registry.errors import CellsFailed, CheckpointError, ConfigError, DataError, Interrupted, Preempted
from registry.signature import validate

PATIENCE = 2.0  # seconds between two looks at what other processes are at


def ablate(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> Path:
    """Run what is missing of an ablation; returns its folder. Raises LabError: CellsFailed if some cells failed."""
    plan, launch, path = _planned(file, overrides, out, device, launcher, workers)
    planned = plan.as_json()
    if any(Folder(path).missing(cell.id, planned) for cell in plan.pieces):
        list(launch(partial(work, device=device), str(path), []))  # hear now what it misses here
    config, console = plan.ablation.config, Console()
    if launch.func is launchers.get("local").component:
        choose_device(device)  # here, and not by each cell
    where = make(path)
    for cells in plan.texts().values():  # tokenised once, here, and not by workers that wait for each other
        _refuse_other_text(where, cells, open_data(cells[0].loaded, console.say).key)
    with where.claimed("plan", wait=True):  # another launcher may have come while the text was read
        where.refuse_other({cell.id for cell in plan.ablation.cells})
        write_plan(plan, where.write)
    beside = f" and {len(plan.references)} beside them" if plan.references else ""
    console.say(f"{config.name}: {len(plan.ablation.cells)} cells{beside}, in {path}")
    heal(where, [cell.id for cell in plan.pieces], console.say)
    with _terminated():
        try:
            _work(where, plan, launch, device, console)
        except KeyboardInterrupt:
            raise Interrupted(f"stopped; what was trained is saved in {path}. Run the same command again.") from None
        except Preempted:
            raise Preempted(f"stopped; what was trained is saved in {path}. Run the same command again.") from None
        write_report(where.path)
    now = where.plan
    left = [cell.id for cell in plan.pieces if where.missing(cell.id, now)]
    console.say(closing_words(where.path))
    if left:
        failed = [id for id in left if (path / "failed" / f"{id}.json").is_file()]
        others = f", so {len(left) - len(failed)} others lack a measure" if len(failed) < len(left) else ""
        raise CellsFailed(
            f"{len(failed)} of {len(plan.pieces)} runs failed{others}; {path / 'report.html'} says which and why, "
            f"{path / 'logs'} what they said. Run the same command again to try them again."
        )
    return path


def _refuse_other_text(where: Folder, cells: list[Cell], key: str) -> None:
    """Raises DataError if a cell was trained on other text than it is now."""
    for cell in cells:
        directory = where.run(cell.id)
        if (directory.path / "provenance.json").is_file():
            try:
                then = directory.read_json("provenance.json")["data"]["store"]
            except (CheckpointError, KeyError, TypeError):
                continue  # damaged: what is still needed of it is made anew
            if then != key:
                raise DataError(
                    f"{directory.path}: was trained on other text (token store {then}, now {key}): its files changed, "
                    "or the version of tokenizers; for corpus docstrings, of Python or torch. Choose another --out."
                )


def dry_run(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> str:
    """What `ablate` would do, in words; reads no corpus, writes nothing. Raises LabError."""
    plan, launch, path = _planned(file, overrides, out, device, launcher, workers)
    where = Folder(path)
    planned = plan.as_json()
    missing = {cell.id: where.missing(cell.id, planned) for cell in plan.pieces}
    return forecast_words(plan, missing, seconds(plan, _for_planning(device)), path, launch.keywords["workers"])


def _for_planning(device: str) -> torch.device:
    """A plan may be for another machine, so a device that is not here is no mistake."""
    return torch.device(device) if device == "cuda" else choose_device(device)


def _planned(
    file: Path, overrides: list[str], out: Path | None, device: str, launcher: str | None, workers: int | None
) -> tuple[Plan, partial[Any], Path]:
    """The plan, the launcher with its options, and the folder."""
    ablation = load_ablation(file, overrides)
    path = out or Path("runs") / ablation.config.name
    Folder(path).refuse_other({cell.id for cell in ablation.cells})
    chosen = ablation.config.launcher
    if launcher and launcher != chosen.type:
        try:
            chosen = Component(launcher, validate(launchers.get(launcher).schema, {}))
        except ValidationError as error:
            names = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            raise ConfigError(
                f"--launcher {launcher}: {names} must be set. Write launcher: {{type: {launcher}, ...}} into {file}."
            ) from None
    keywords = chosen.keywords() | ({"workers": workers} if workers else {})
    entry: Entry[Any] = launchers.get(chosen.type)
    return make_plan(ablation, _for_planning(device)), partial(entry.component, **keywords), path


def _work(where: Folder, plan: Plan, launch: Any, device: str, console: Console) -> None:
    """Launch what is missing, until nothing is, or what is left has failed more often than it may."""
    retries = plan.ablation.config.retries
    names = {cell.id: f"{cell.variant}, seed {cell.seed}" for cell in plan.pieces}
    attempts = dict.fromkeys(names, 0)
    left = dict.fromkeys(id for id in names if where.missing(id, where.plan))
    for id in left:  # a new command is a new try
        if not where.is_claimed(id):
            where.note_failure(id, None, 0)

    def failed(id: str, error: str) -> None:
        attempts[id] += 1
        if attempts[id] > retries:
            left.pop(id)
            where.note_failure(id, error, attempts[id])
        console.say(f"{names[id]}: {error}{' Trying again.' if id in left else ''}")

    with console.progress(len(names) - len(left), len(names), "ablation", "cells"):
        while waiting := _waiting(where, left):
            moved = False
            free = [id for id in waiting if not where.is_claimed(id)]
            for id, outcome in _launched(launch, where, free, device):
                moved = moved or outcome.status != "elsewhere"
                if outcome.status in ("failed", "lost"):
                    failed(id, outcome.error)
                elif outcome.status == "done":
                    now = where.plan
                    if not (missing := where.missing(id, now)):
                        left.pop(id)
                        console.say(f"{names[id]}: {_told(where, id, now)}")
                    elif missing == waiting[id]:
                        failed(id, f"came back without {missing[0]}.")
                console.advance(len(names) - len(left))
            if not moved:  # another launcher is at all of them
                time.sleep(PATIENCE)
                left = {id: None for id in left if where.missing(id, where.plan)}


def _launched(launch: Any, where: Folder, ids: list[str], device: str) -> Iterator[tuple[str, Outcome]]:
    with closing(launch(partial(work, device=device), str(where.path.resolve()), ids)) as outcomes:
        yield from outcomes


def _waiting(where: Folder, ids: Iterable[str]) -> dict[str, list[str]]:
    """What is missing of the cells for which something can be done now: a measure waits until its reference is
    trained."""
    plan = where.plan
    ready = {"training", *(each["folder"] for each in plan["measures"] if where.ready(each))}
    missing = {id: where.missing(id, plan) for id in ids}
    return {id: lacking for id, lacking in missing.items() if not ready.isdisjoint(lacking)}


def _told(where: Folder, id: str, plan: dict[str, Any]) -> str:
    numbers = {name: value for each in where.measured(id).values() for name, value in each.items()}
    leading = plan["leading"]
    return f"{leading} {numbers[leading]:.4f}" if leading in numbers else "trained"


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM and SIGHUP end an ablation as Ctrl-C does, but with another exit code."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Preempted(f"stopped by {signal.Signals(number).name}")

    ends = (signal.SIGTERM, signal.SIGHUP)
    handled = [each for each in ends if signal.getsignal(each) is not signal.SIG_IGN]  # as nohup has it
    before = {each: signal.signal(each, stop) for each in handled}
    try:
        yield
    finally:
        for each in handled:
            signal.signal(each, before[each])
