"""An ablation's folder as values: the plan, and what became of each cell. Reads files only, and needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from electra_lab.runs.directory import RunDirectory
from registry.errors import CheckpointError

Id = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]  # a folder's name, that leads nowhere else
Status = Literal["done", "failed", "unmeasured", "unfinished", "missing"]


class PlannedQuantity(BaseModel):
    summary: str = ""
    higher_is_better: bool = True
    own_task: bool = False

    @property
    def direction(self) -> str:
        """What its heading says of it."""
        if self.own_task:
            return "of each cell's own task"
        return f"{'higher' if self.higher_is_better else 'lower'} is better"


class PlannedMeasure(BaseModel):
    type: str
    folder: str  # its name with a hash of its options, by which cells and shared/ know it
    options: dict[str, Any] = {}
    quantities: dict[str, PlannedQuantity]
    reference: Id | None = None  # the run that was trained for this measure alone


class Variant(BaseModel):
    label: str
    changes: dict[str, Any] = {}


class PlannedCell(BaseModel):
    id: Id
    variant: str
    seed: int
    steps: int | None = None
    flops: float | None = None
    parameters: dict[str, int] = {}


class Plan(BaseModel):
    """plan.json. What it holds beyond this is left alone."""

    name: str
    question: str | None = ""
    base: str
    budget: dict[str, float] | None = None
    keys: list[str] = []
    variants: Annotated[list[Variant], Field(min_length=1)]
    baseline: str
    seeds: list[int]
    measures: Annotated[list[PlannedMeasure], Field(min_length=1)]
    leading: str
    cells: list[PlannedCell]

    @model_validator(mode="after")
    def _hangs_together(self) -> Plan:
        labels = [variant.label for variant in self.variants]
        names = [name for measure in self.measures for name in measure.quantities]
        ids = [cell.id for cell in self.cells]
        pairs = [(cell.variant, cell.seed) for cell in self.cells]
        lists: dict[str, Sequence[Any]] = {"variants": labels, "quantities": names, "cell ids": ids, "cells": pairs}
        for what, each in lists.items():
            if len(set(each)) < len(each):
                raise ValueError(f"two {what} are the same")
        if unknown := {self.baseline, *(cell.variant for cell in self.cells)} - set(labels):
            raise ValueError(f"{min(unknown)} is none of the variants")
        if self.leading not in names:
            raise ValueError(f"{self.leading} is a quantity of no measure")
        return self

    @property
    def references(self) -> list[str]:
        """Runs that measures needed, and that are no cells."""
        ids = [measure.reference for measure in self.measures]
        return list(dict.fromkeys(id for id in ids if id))

    @property
    def quantities(self) -> dict[str, PlannedQuantity]:
        """Of all measures, the leading one first."""
        every = {name: quantity for measure in self.measures for name, quantity in measure.quantities.items()}
        return {self.leading: every[self.leading]} | every

    def numbers(self, key: str) -> dict[str, float]:
        """By variant, the number that it sets `key` to; empty if it is not a number in each."""
        values = {variant.label: variant.changes.get(key) for variant in self.variants}
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers.values())) else {}

    @property
    def axis(self) -> dict[str, float]:
        """By variant, the number on the one key that is varied; empty if there is no such key."""
        return self.numbers(self.keys[0]) if len(self.keys) == 1 else {}


class _Provenance(BaseModel):
    """provenance.json, as far as a report reads it. What it holds beyond this is left alone."""

    model_config = ConfigDict(extra="allow")

    steps: int | None = None
    flops: float | None = None
    parameters: dict[str, int] = {}
    git: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    plugins: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Cell:
    """A planned run and what is there of it. `values` holds the quantities that it has."""

    plan: PlannedCell
    path: Path
    status: Status
    error: str = ""
    attempts: int = 0
    values: dict[str, float] = field(default_factory=dict)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        with self._curable():
            return RunDirectory(self.path).records()

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The filled-in config, if the run came so far."""
        file = self.path / "config.yaml"
        if not file.is_file():
            return None
        with self._curable():
            try:
                config = yaml.safe_load(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError) as error:
                raise CheckpointError(f"{file}: cannot be read ({_line(error)}).") from None
            if not isinstance(config, dict):
                raise CheckpointError(f"{file}: is damaged: it holds no mapping.")
            return config

    @cached_property
    def provenance(self) -> dict[str, Any] | None:
        file = self.path / "provenance.json"
        if not file.is_file():
            return None
        with self._curable():
            try:
                return _Provenance.model_validate(_read(file)).model_dump()
            except ValidationError as error:
                first = ".".join(map(str, error.errors()[0]["loc"]))
                raise CheckpointError(f"{file}: is damaged: {first} is none.") from None

    @contextmanager
    def _curable(self) -> Iterator[None]:
        """Tell the cure with what is damaged."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{error} Remove {self.path}, and `electra-lab ablate` makes it anew.") from None

    @property
    def steps(self) -> int | None:
        """Of the run; before it has begun, of the plan, which cannot know how large the vocabulary becomes."""
        return (self.provenance or {}).get("steps") or self.plan.steps

    @property
    def flops(self) -> float | None:
        """As `steps`."""
        return (self.provenance or {}).get("flops") or self.plan.flops

    @property
    def parameters(self) -> dict[str, int]:
        """As `steps`."""
        return (self.provenance or {}).get("parameters") or self.plan.parameters

    @property
    def trained(self) -> bool:
        return self.status in ("done", "unmeasured")

    def training(self, key: str) -> float | None:
        """A number of the last training record, of a cell that was trained to the end."""
        train = [r for r in self.records if r["split"] == "train"] if self.trained else []
        value = train[-1].get(key) if train else None
        return float(value) if isinstance(value, int | float) else None

    @property
    def seconds(self) -> float | None:
        """Time spent in training steps, evaluation left out: the tokens of each logged window over its rate. The
        window's own `seconds` would leave out what came before a resume."""
        total, before = 0.0, 0
        for r in self.records if self.trained else []:
            if r["split"] == "train":
                if not r.get("tokens_per_second") or not r.get("tokens"):
                    return None
                total, before = total + (r["tokens"] - before) / r["tokens_per_second"], r["tokens"]
        return total or None


@dataclass(frozen=True)
class Results:
    folder: Path
    plan: Plan
    cells: list[Cell]

    def of(self, variant: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.plan.variant == variant]

    def values(self, quantity: str) -> dict[str, dict[int, float]]:
        """By variant, by seed, of the cells that have it."""
        return {
            v.label: {c.plan.seed: c.values[quantity] for c in self.of(v.label) if quantity in c.values}
            for v in self.plan.variants
        }

    def count(self, *status: Status) -> int:
        return sum(cell.status in status for cell in self.cells)

    @property
    def lacking(self) -> dict[str, list[Cell]]:
        """By quantity, the measured cells that have none."""
        done = [cell for cell in self.cells if cell.status == "done"]
        lacking = {name: [cell for cell in done if name not in cell.values] for name in self.plan.quantities}
        return {name: cells for name, cells in lacking.items() if cells}

    @property
    def failed_references(self) -> dict[str, str]:
        """By id, why a run that measures need is not there."""
        files = {id: self.folder / "failed" / f"{id}.json" for id in self.plan.references}
        return {id: _failure(self.folder, file)[0] for id, file in files.items() if file.is_file()}


def read(folder: Path) -> Results:
    """Raises CheckpointError, which names the file, where one is damaged."""
    try:
        plan = Plan.model_validate(_read(folder / "plan.json"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{folder / 'plan.json'}: is damaged: {where + ': ' if where else ''}{said}.") from None
    return Results(folder, plan, [_cell(folder, plan, planned) for planned in plan.cells])


def _cell(folder: Path, plan: Plan, planned: PlannedCell) -> Cell:
    path, failed = folder / "cells" / planned.id, folder / "failed" / f"{planned.id}.json"
    file = path / "measures.json"
    measured = _read(file) if file.is_file() else {}
    values = _numbers(file, measured, plan)
    if measured and all(measure.folder in measured for measure in plan.measures):
        return Cell(planned, path, "done", values=values)  # whatever befell an earlier attempt
    if failed.is_file():
        return Cell(planned, path, "failed", *_failure(folder, failed), values)
    if not (path / "metrics.jsonl").is_file():
        return Cell(planned, path, "unfinished" if path.is_dir() else "missing", values=values)
    begun = Cell(planned, path, "unfinished", values=values)
    last = max((r["step"] for r in begun.records if r["split"] == "train"), default=0)
    trained = measured or (begun.steps and last >= begun.steps)
    return replace(begun, status="unmeasured") if trained else begun


def _failure(folder: Path, file: Path) -> tuple[str, int]:
    """The reason, and the number of attempts."""
    said = _read(file)
    error, attempts = said.get("error"), said.get("attempts", 1)
    if not isinstance(error, str) or not isinstance(attempts, int):
        raise CheckpointError(f"{file}: is damaged: it does not say what failed.")
    return within(folder, error), attempts


def within(folder: Path, text: str) -> str:
    """Text that names files of the folder, naming them from there: the page may be read anywhere."""
    for above in sorted({str(folder.absolute()), str(folder.resolve())}):
        text = text.replace(f"{above}/", "").replace(above, ".") if len(above) > 1 else text
    return text


def _numbers(file: Path, measured: dict[str, Any], plan: Plan) -> dict[str, float]:
    """The planned quantities; what is null or not finite is not there."""
    values: dict[str, float] = {}
    for measure, found in measured.items():
        if measure not in {each.folder for each in plan.measures}:
            continue  # of other options, once
        if not isinstance(found, dict):
            raise CheckpointError(f"{file}: is damaged: {measure} is no mapping of quantities.")
        for name, value in found.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise CheckpointError(f"{file}: is damaged: {name} is no number.")
            if name in plan.quantities and value is not None and math.isfinite(value):
                values[name] = float(value)
    return values


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read ({_line(error)}).") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: is damaged: it holds no mapping.")
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
