"""plan.json: all cells of an ablation, and everything that its reports need to know of them."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from registry import Metric

FORMAT = 3  # raise it when an older plan could be misread

Id = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]  # the name of a folder, which leads nowhere else


class PlannedMeasure(BaseModel):
    """A measure with its options."""

    type: str
    key: Id  # its name with a hash of everything that its numbers depend on; cells and shared/ know it by this name
    options: dict[str, Any] = {}
    metrics: dict[str, Metric]
    references: dict[str, Id] = {}  # by name, the runs that are trained for this measure alone


class PlannedVariant(BaseModel):
    """A variant. `differs` has the keys of its complete config that differ from the baseline's, with both values.

    beyond  those of them that no change names, such as options of another `type`
    """

    label: str
    changes: dict[str, Any] = {}
    differs: dict[str, tuple[Any, Any]] = {}
    beyond: list[str] = []


class Shared(BaseModel):
    """What documents, or references, that all seeds share add to the variance of a difference."""

    units: Annotated[int, Field(gt=1)]
    variance: Annotated[float, Field(ge=0)]  # of the mean over them, whatever the number of seeds
    noise: Annotated[float, Field(ge=0)]  # of the same, of one seed: by what only a unit and a seed together do


class Expected(BaseModel):
    """How much the differences of the leading metric vary, and who says so."""

    sd: Annotated[float, Field(gt=0)]  # of the differences between two variants with the same seed
    source: str
    shared: dict[str, Shared] = {}  # by what it is, such as documents


class PlannedCell(BaseModel):
    """A cell and its forecast, which does not know yet how large the vocabulary becomes."""

    id: Id
    variant: str
    seed: int
    steps: int | None = None
    flops: float | None = None  # of matrix products
    paper_flops: float | None = None  # as Clark et al. (2020) count
    parameters: dict[str, int] = {}


class Plan(BaseModel):
    """The content of plan.json. `metric` is the one that the report leads with."""

    format: int = 1  # the key came with format 2
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
    expected: Expected | None = None
    cells: list[PlannedCell]

    @model_validator(mode="before")
    @classmethod
    def _is_of_this_format(cls, values: Any) -> Any:
        if isinstance(values, dict) and (written := values.get("format", 1)) != FORMAT:
            reason = (
                f"was written by another version of electra_lab, in format {written}; this version reads format "
                f"{FORMAT}. Use that version, or start the ablation in another folder."
            )
            raise PydanticCustomError("lab", "{reason}", {"reason": reason})
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        labels = [variant.label for variant in self.variants]
        names = [name for measure in self.measures for name in measure.metrics]
        ids = [cell.id for cell in self.cells]
        pairs = [(cell.variant, cell.seed) for cell in self.cells]
        lists: dict[str, Sequence[Any]] = {"variants": labels, "metrics": names, "cell ids": ids, "cells": pairs}
        for kind, each in lists.items():
            if len(set(each)) < len(each):
                raise ValueError(f"two {kind} are the same")
        if unknown := {self.baseline, *(cell.variant for cell in self.cells)} - set(labels):
            raise ValueError(f"{min(unknown)} is not one of the variants")
        if self.metric not in names:
            raise ValueError(f"{self.metric} is not a metric of any measure")
        return self

    @property
    def references(self) -> list[str]:
        """The ids of runs that measures need and that are not cells."""
        return list(dict.fromkeys(id for measure in self.measures for id in measure.references.values()))

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of all measures, the leading one first."""
        every = {name: metric for measure in self.measures for name, metric in measure.metrics.items()}
        return {self.metric: every[self.metric]} | every

    @property
    def trivial(self) -> set[str]:
        """The metrics that others are read against, such as those of word frequencies: they need no training."""
        return {name for metric in self.metrics.values() for name in metric.baselines} - {self.metric}

    def numbers(self, key: str) -> dict[str, float]:
        """Return, by variant, the number that it sets `key` to; empty if one of them sets no number."""
        values = {variant.label: variant.changes.get(key) for variant in self.variants}
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        return numbers if len(numbers) == len(values) and all(map(math.isfinite, numbers.values())) else {}

    @property
    def axis(self) -> dict[str, float]:
        """By variant, its number for the one key that is varied; empty if there is no such key."""
        return self.numbers(self.keys[0]) if len(self.keys) == 1 else {}
