"""One piece of work: train a cell, or go on with it, and measure it. Runs in a process that a launcher started."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from electra_lab.ablation.folder import Folder
from electra_lab.config.ablation import digest
from electra_lab.config.load import load
from electra_lab.config.schema import Component
from electra_lab.data.rows import Rows
from electra_lab.runs import execute
from electra_lab.runs.directory import disk
from electra_lab.training.checkpoint import damage, seal
from electra_lab.training.device import autocast
from registry import Entry, Outcome, Trained, blame, load_plugin, measures
from registry.errors import (
    BadResult,
    CheckpointError,
    ConfigError,
    Interrupted,
    InUse,
    LabError,
    OutOfMemoryError,
    Preempted,
)
from registry.signature import validate


def work(folder: str, id: str, *, device: str) -> Outcome:
    """Bring a cell as far as it goes: train it, then measure it with what is there. Does nothing twice."""
    where = Folder(Path(folder))
    try:
        with where.claimed(id) as mine, ExitStack() as said:
            if not mine:
                return Outcome("elsewhere")
            log = said.enter_context((where.path / "logs" / f"{id}.txt").open("a", encoding="utf-8", buffering=1))
            said.enter_context(redirect_stderr(log))
            said.enter_context(redirect_stdout(log))
            try:
                plan = where.plan
                if where.missing(id, plan):
                    _train(where, id, device)
                    _measure(where, id, plan, device)
                where.note_failure(id, None, 0)
            except LabError as error:
                print(error)
                raise
            except BaseException:
                traceback.print_exc()
                raise
    except InUse:  # somebody resumes it by hand
        return Outcome("elsewhere")
    except (Preempted, Interrupted, KeyboardInterrupt) as error:
        return Outcome("preempted", str(error))
    except (CheckpointError, OutOfMemoryError, MemoryError, OSError) as error:
        return Outcome("lost", _sentence(error))
    except (Exception, SystemExit) as error:
        return Outcome("failed", _sentence(blame(error) or error))
    return Outcome("done")


def _sentence(error: BaseException) -> str:
    said = str(error).splitlines()[0] if str(error) else ""
    return said if isinstance(error, LabError) else f"{type(error).__name__}: {said}"


def heal(where: Folder, ids: Iterable[str], say: Callable[[str], None]) -> None:
    """Put into damaged/ what cannot be used any more of what is still needed, so that it is made anew."""
    plan = where.plan
    for name in [each["folder"] for each in plan["measures"]]:
        with where.claimed(f"shared-{name}", wait=True):
            shared = where.path / "shared" / name
            if shared.is_dir() and (problem := damage(shared, None)):
                _set_aside(where, shared, problem, say)
    for id in ids:
        with where.claimed(id) as mine, suppress(InUse):  # by hand
            if mine and (problem := _unusable(where, id, plan)):
                with where.run(id).locked():
                    _set_aside(where, where.run(id).path, problem, say)


def _unusable(where: Folder, id: str, plan: dict[str, Any]) -> str | None:
    """Why a run that is still needed can neither be gone on with nor be looked at."""
    directory = where.run(id)
    if not where.missing(id, plan):
        needed = id in {each["reference"] for each in plan["measures"]} and not where.used(id, plan)
        return damage(directory.last_checkpoint()) if needed else None
    if not (directory.path / "provenance.json").is_file():
        return None  # never was a run
    try:
        began = directory.read_json("provenance.json")["config_sha256"]
        directory.records()
        config = (directory.path / "config.yaml").read_bytes()
    except (CheckpointError, KeyError, TypeError, OSError) as error:
        return f"cannot be read ({_sentence(error)})"
    if hashlib.sha256(config).hexdigest() != began:
        return "config.yaml was changed since it began"
    found = list(directory.checkpoints.glob("step-*"))
    return "none of its checkpoints is sound" if found and all(map(damage, found)) else None


def _set_aside(where: Folder, path: Path, problem: str, say: Callable[[str], None]) -> None:
    with disk(where.path):
        (where.path / "damaged").mkdir(exist_ok=True)
        number = sum(1 for _ in (where.path / "damaged").glob(f"{glob.escape(path.name)}-*"))
        path.rename(aside := where.path / "damaged" / f"{path.name}-{number}")
    say(f"{path}: {problem}. It is in {aside} now, and is made anew.")


def _train(where: Folder, id: str, device: str) -> None:
    """Raises ConfigError if a plug-in is not the one that the plan was made with."""
    directory = where.run(id)
    if where.trained(id) and damage(directory.last_checkpoint()) is None:
        return
    if digest(load(where.experiment(id))) != id.rpartition("-")[2]:
        raise ConfigError(
            f"{where.experiment(id)}: a plug-in was changed since the plan was made. Start the ablation anew."
        )
    if (directory.path / "provenance.json").is_file():
        execute.resume(directory.path, device)
        return
    if directory.path.exists():  # killed before it was a run
        shutil.rmtree(directory.path)
    execute.run(where.experiment(id), [], directory.path, device)


def _measure(where: Folder, id: str, plan: dict[str, Any], device: str) -> None:
    """With each measure that can be had: one whose reference is not trained yet comes in a later call. One that fails
    keeps no other from being taken."""
    seen, missing = _Seen(where, device), where.missing(id, plan)
    first: BaseException | None = None
    for file in plan["imports"]:
        load_plugin(Path(file))
    for each in plan["measures"]:
        reference, key = each["reference"], each["folder"]
        if key not in missing or not where.ready(each):
            continue
        try:
            entry = measures.get(each["type"])
            options = Component(entry.name, validate(entry.schema, each["options"])).keywords()
            measure = entry.component(**options)
            shared = _prepared(where, key, partial(_prepare, measure, seen, id, reference))
            values = _numbers(entry, measure, seen.look(id, lambda run, m=measure, s=shared: m(run, s)))  # type: ignore[misc]
        except (Preempted, Interrupted):
            raise
        except (Exception, SystemExit) as error:
            first = first or error
            continue
        where.write(f"cells/{id}/measures.json", json.dumps({**where.measured(id), key: values}, indent=1) + "\n")
    if first is not None:
        raise first


def _numbers(entry: Entry[Any], measure: Any, found: object) -> dict[str, float]:
    """Raises BadResult."""
    if not isinstance(found, Mapping) or not all(isinstance(value, Real) for value in found.values()):
        raise BadResult(
            f"{entry.place}: measure '{entry.name}' returned {found!r:.80}, must be numbers by their names."
        )
    if unknown := sorted(found.keys() - measure.quantities.keys()):
        raise BadResult(f"{entry.place}: measure '{entry.name}' gave {unknown[0]}, which its quantities do not have.")
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _prepare(measure: Any, seen: _Seen, id: str, reference: str | None, folder: Path) -> None:
    def prepare(run: Trained) -> None:
        if reference is None:
            measure.prepare(run, None, folder)
        else:
            seen.look(reference, lambda other: measure.prepare(run, other, folder))

    seen.look(id, prepare)


def _prepared(where: Folder, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that all cells share for a measure: made by the first that comes, whole or not at all."""
    final = where.path / "shared" / name
    if not final.is_dir():
        with where.claimed(f"shared-{name}", wait=True):
            if not final.is_dir():
                building = final.with_name(f".{final.name}")
                shutil.rmtree(building, ignore_errors=True)  # of a process that was killed: the claim is ours
                building.mkdir(parents=True)
                make(building)
                seal(building)
                building.rename(final)
    return final


class _Seen:
    """Runs as measures see them, each opened once."""

    def __init__(self, where: Folder, device: str) -> None:
        self._where, self._device = where, device
        self._opened: dict[str, tuple[Trained, Callable[[], Any]]] = {}

    def look(self, id: str, act: Callable[[Trained], Any]) -> Any:
        if id not in self._opened:
            self._opened[id] = self._open(id)
        run, precision = self._opened[id]
        with torch.no_grad(), precision():
            return act(run)

    def _open(self, id: str) -> tuple[Trained, Callable[[], Any]]:
        directory = self._where.run(id)
        with torch.enable_grad():  # a reference is opened while a cell is looked at
            loaded, experiment = execute.reopen(directory.path, self._device)
        experiment.run.objective.eval()
        held_out = [record for record in directory.records() if record["split"] == "held_out"]

        def batches(rows: Rows) -> Callable[[int], Any]:
            return lambda number: rows.in_order(number, experiment.device)

        trained = Trained(
            network=experiment.study,
            detects=loaded.config.needs.head == "replaced",
            held_out=batches(experiment.held_out),
            train=batches(experiment.train),
            vocabulary=experiment.vocabulary,
            metrics=held_out[-1] if held_out else {},
        )
        return trained, partial(autocast, experiment.device, experiment.plan.precision)
