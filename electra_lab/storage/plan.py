"""plan.json: all cells of an ablation, and everything that its reports need to know of them."""

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StrictFloat, model_validator

from electra_lab.storage.files import read_as
from electra_lab.storage.provenance import refuse_other
from registry import Metric

REFERENCE = "reference"  # stands for the variant of a run that is trained for a measure alone

Id = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]  # the name of a folder, which leads nowhere else


class Measures(BaseModel):
    """measures.json of a cell: the numbers of the run with the cell's id after a step, by measure and metric.

    documents  contributions of the test documents to a number
    """

    run: str
    step: int
    numbers: dict[str, dict[str, StrictFloat | None]] = {}
    documents: dict[str, dict[str, list[float]]] = {}


def read_measures(file: Path, id: str, step: int | None = None) -> Measures:
    """Return the measures of a cell; empty ones if there are none, or none of `step`.

    Raises CheckpointError, also for those of another cell.
    """
    empty = Measures(run=id, step=step or 0)
    if not file.is_file():
        return empty
    measures = read_as(Measures, file)
    refuse_other(file, measures.run, id)
    return measures if step in (None, measures.step) else empty


class PlannedMeasure(BaseModel):
    """A measure with its options."""

    type: str
    key: Id  # its name with a hash of everything that its numbers depend on; cells and shared/ know it by this name
    options: dict[str, Any] = {}
    metrics: dict[str, Metric]
    references: dict[str, Id] = {}  # by name, the runs that are trained for this measure alone
    finetunings: list[str] = []  # hashes of their settings and examples


class PlannedVariant(BaseModel):
    """A variant. `differs` has the keys of its complete config that differ from the baseline's, with both values.

    beyond  keys of `differs` that no change names, such as options of another `type`
    """

    label: str
    changes: dict[str, Any] = {}
    differs: dict[str, tuple[Any, Any]] = {}
    beyond: list[str] = []


class Cell(BaseModel):
    """A variant with a seed, or the run that a measure refers to. Its costs assume the largest vocabulary.

    id    digest of its content
    task  task of a fine-tuning
    """

    id: Id
    variant: str
    seed: int
    task: str = ""
    steps: int | None = None
    flops: float | None = None  # of matrix products
    paper_flops: float | None = None  # as Clark et al. (2020) count
    parameters: dict[str, int] = {}


class Trial(BaseModel):
    """A trial of a search: the values that it chose, and its outcome.

    variant  label of the variant with these values, which an earlier trial or the base may have had; "" if refused
    value    mean of the leading metric over the seeds
    note     reason why it was refused or pruned
    """

    number: int
    variant: str = ""
    values: dict[str, Any] = {}
    state: Literal["running", "done", "pruned", "refused"]
    value: float | None = None
    note: str = ""


class PlannedSearch(BaseModel):
    """The state of a search.

    trials        number of trials that it may have
    space         values that it may choose, by key
    budget        training FLOPs after which no trial begins
    spent         training FLOPs of all trials so far, if there is a budget
    confirmation  folder of the ablation that compares its best trial with the base; "" before it begins
    """

    trials: int
    space: dict[str, Any]
    prune: bool = False
    budget: float | None = None
    spent: float = 0.0
    begun: list[Trial] = []
    importances: dict[str, float] = {}
    confirmation: str = ""

    @property
    def may_begin(self) -> bool:
        """True if another trial may begin."""
        return len(self.begun) < self.trials and (self.budget is None or self.spent < self.budget)


class Plan(BaseModel):
    """The content of plan.json.

    base    files that are varied
    metric  leading metric of the report
    sd      standard deviation of paired differences that the file expects
    pilot   ablation from which it was estimated
    gaps    reason why data is missing, by task
    seals   digest of the complete file in plan/, by the id of a cell or reference
    """

    format: Literal[1] = 1  # raise it when an older plan could be misread
    name: str
    question: str = ""
    base: str
    imports: list[str] = []
    budget: dict[str, float] | None = None
    keys: list[str] = []
    variants: Annotated[list[PlannedVariant], Field(min_length=1)]
    baseline: str
    seeds: list[int]
    measures: Annotated[list[PlannedMeasure], Field(min_length=1)]
    metric: str
    sd: Annotated[float, Field(gt=0)] | None = None
    pilot: str = ""
    cells: list[Cell]
    gaps: dict[str, str] = {}
    seals: dict[Id, str] = {}
    search: PlannedSearch | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        labels = {variant.label for variant in self.variants}
        if unknown := {self.baseline, *(cell.variant for cell in self.cells)} - labels:
            raise ValueError(f"{min(unknown)} is not one of the variants")
        if not any(self.metric in measure.metrics for measure in self.measures):
            raise ValueError(f"{self.metric} is not a metric of any measure")
        return self

    def after(self, earlier: Self) -> Self:
        """Return this plan after the variants and cells of an earlier one, with the state of its search."""
        variants = {variant.label: variant for variant in (*earlier.variants, *self.variants)}
        cells = {cell.id: cell for cell in (*earlier.cells, *self.cells)}
        both = {"variants": [*variants.values()], "cells": [*cells.values()], "seals": earlier.seals | self.seals}
        both["search"] = self.search or earlier.search
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | both)

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        """The cells and the references by their ids."""
        references = {id: Cell(id=id, variant=REFERENCE, seed=0) for id in self.references}
        return references | {cell.id: cell for cell in self.cells}

    @property
    def wanted(self) -> list[str]:
        """The ids of the cells and references, except for tasks whose data is not here."""
        return [cell.id for cell in self.by_id.values() if cell.task not in self.gaps]

    @property
    def tasks(self) -> list[str]:
        """The tasks, if the cells are fine-tunings."""
        return list(dict.fromkeys(cell.task for cell in self.cells if cell.task))

    def measures_of(self, cell: Cell) -> list[PlannedMeasure]:
        """Return the measures of a cell: all of them, or the one of its task."""
        return [measure for measure in self.measures if not cell.task or measure.key == cell.task]

    @property
    def references(self) -> list[str]:
        """The ids of runs that measures need and that are not cells."""
        ids: dict[str, None] = {}
        for measure in self.measures:
            ids |= dict.fromkeys(measure.references.values())
        return list(ids)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of all measures, the leading one first."""
        metrics: dict[str, Metric] = {}
        for measure in self.measures:
            metrics |= measure.metrics
        return {self.metric: metrics[self.metric]} | metrics

    @property
    def trivial(self) -> set[str]:
        """The metrics that others are read against, such as those of word frequencies: they need no training."""
        baselines = set[str]()
        for metric in self.metrics.values():
            baselines |= set(metric.baselines)
        return baselines - {self.metric}

    @property
    def axis(self) -> dict[str, float]:
        """By variant, its number for the one key that is varied; empty if there is no such key."""
        numbers = {}
        for variant in self.variants if len(self.keys) == 1 else ():
            value = variant.changes.get(self.keys[0])
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return {}
            numbers[variant.label] = float(value)
        return numbers
