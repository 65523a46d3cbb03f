"""The keys of an ablation file: variants of experiments, or of fine-tunings, over several seeds.

base: ../transformer_small.yaml              base: [cola.yaml, rte.yaml]
vary: {generator.scale: [0.25, 0.5, 1.0]}    vary: {pre-trained: {model: runs/a}, random: {model: runs/a, init: random}}
seeds: [0, 1, 2]                             seeds: [0, 1, 2]

A search tries values of the same keys, from lists or ranges:

vary: {train.learning_rate: {low: 1e-4, high: 4e-3, log: true}, generator.scale: [0.25, 0.5]}
search: {trials: 30}
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from electra_lab.config.schema import Name, Seed, Seeds
from electra_lab.config.sections import Budget, Of, default
from electra_lab.config.source import DEFAULTS, Loc
from registry import launchers, measures
from registry.component import Component
from registry.signature import Strict, problem, problems, validate

LONGEST_NAME = 80  # characters of a variant's name, which appears in tables and under charts


class Power(Strict):
    """Known spread of the leading metric: exactly one of sd and pilot."""

    sd: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Standard deviation of the differences between two variants with the same seed."
    )
    pilot: Path | None = Field(
        None, description="The folder of an earlier ablation with the same metric, relative to this file."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.sd is None) == (self.pilot is None):
            raise problem((), "needs either `sd` or `pilot`.")
        return self


class Range(Strict):
    """Numbers of a key that a search may choose; whole ones if both ends are whole."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise problem(("high",), f"must be greater than low, {self.low}.")
        if self.log and self.low <= 0:
            raise problem(("low",), "must be greater than 0 on a logarithmic scale.")
        return self


class Search(Strict):
    """A search over the keys of `vary`, in place of all combinations."""

    type: Literal["optuna"] = Field("optuna", description="The sampler is Optuna's TPE; it needs the extra `search`.")
    trials: Annotated[int, Field(gt=0, le=1000)] = Field(description="Number of trials, each with all `seeds`.")
    budget: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Training FLOPs of all trials together; once they are spent, no trial begins."
    )
    prune: bool = Field(
        False,
        description="End a trial whose loss at [MASK] on validation text is, at an evaluation, worse than the median "
        "of the finished trials at this step. The first five trials are not pruned. Needs a single seed.",
    )
    confirm: Seeds | None = Field(
        None,
        description="Further seeds, with which the best trial and the base are compared afterwards, as the best of "
        "many trials was partly lucky.",
    )
    seed: Seed = Field(0, description="Seed of the sampler: with one worker, the same seed proposes the same trials.")


def is_range(values: Any) -> bool:
    """Return True for a range of numbers, not the changes of a variant."""
    return isinstance(values, dict) and bool(values.keys() & {"low", "high"})


def _varied(vary: dict[str, Any]) -> dict[str, Any]:
    wrong: dict[Loc, str] = {} if vary else {(): "is empty; write a key of the base and a list of values."}
    for key, values in vary.items():
        if is_range(values):
            try:
                validate(Range, values)
            except ValidationError as error:
                wrong |= {(key, *part["loc"]): part["msg"] for part in error.errors()}
            continue
        is_name = key == key.strip() and key.isprintable() and 0 < len(key) <= LONGEST_NAME
        if values == []:
            wrong[key,] = "has no values."
        elif not isinstance(values, dict | list):
            wrong[key,] = "must be a list of values of this key, or a mapping with the changes of a variant."
        elif isinstance(values, dict) and not is_name:
            reason = f"a variant's name is one line of at most {LONGEST_NAME} characters, without spaces around it."
            wrong[key,] = reason
    forms = {type(values) for values in vary.values() if isinstance(values, list | dict) and not is_range(values)}
    if len(forms) > 1:
        wrong[()] = "mixes keys (with lists of values) and names (with changes). Use one of the two forms."
    if wrong:
        raise problems((loc, reason, None) for loc, reason in wrong.items())
    return vary


class AblationConfig(Strict):
    """An ablation file."""

    name: Name = Field(description="Name of the ablation; its default folder is `runs/<name>`.")
    question: str = Field("", description="The question of the ablation, which is the headline of the report.")
    imports: list[Path] = Field(
        default_factory=list,
        description="Plug-in files, relative to this file. Each cell imports those that contain its components.",
    )
    base: Path | Annotated[list[Path], Field(min_length=1)] = Field(
        description="The file to vary, relative to this file: an experiment, a fine-tuning, or a list of fine-tunings. "
        "Each fine-tuning of a list is a column of the table."
    )
    set: dict[str, Any] = Field(default_factory=dict, description="Changes to the base that apply to every cell.")
    vary: Annotated[dict[str, Any], AfterValidator(_varied)] = Field(
        description="Keys with lists of values, run in all combinations; or names of variants with their changes. For "
        "a search, keys with lists of values or ranges such as `{low: 1e-4, high: 4e-3, log: true}`."
    )
    seeds: Seeds = Field(description="Each variant is run with each seed. With five or more, differences are tested.")
    search: Search | None = Field(None, description="Let a search choose the values of `vary`.")
    budget: Budget | None = Field(None, description="The budget of every experiment. By default, `train` of the base.")
    baseline: str | None = Field(
        None, description="The variant to compare others with. By default, the one that equals the base, or the first."
    )
    measure: Annotated[list[Annotated[Component, Of(measures)]], Field(min_length=1)] = Field(
        default_factory=lambda: [default(measures, "fixed_corruption"), default(measures, "pretraining")],
        description="The measures that compare experiments. Fine-tunings are compared by the metric of their task.",
    )
    metric: str | None = Field(
        None,
        description="The primary metric, which answers the question. By default, the first metric of the first "
        "measure, or the average over the tasks. All others are secondary.",
    )
    power: Power | None = Field(
        None,
        description="Known spread of the metric. From it, the dry run and the report compute the smallest difference "
        "that can be found. It does not change any cell.",
    )
    launcher: Annotated[Component, Of(launchers, default=DEFAULTS["launcher",])] = Field(
        default_factory=lambda: default(launchers, DEFAULTS["launcher",]), description="Where cells run."
    )
    retries: Annotated[int, Field(ge=0, le=10**9)] = Field(
        1, description="Number of times that a failed cell is tried again, unless it diverged."
    )

    @model_validator(mode="after")
    def _searched(self) -> Self:
        wrong: dict[Loc, str] = {}
        search = self.search
        for key, values in self.vary.items():
            if search and not is_range(values) and not isinstance(values, list):
                wrong["vary", key] = "must be a list of values or a range such as {low: 1, high: 8}: this is a search."
            elif is_range(values) and not search:
                wrong["vary", key] = "is a range, which needs `search`."
        if search and search.prune and len(self.seeds) > 1:
            wrong["search", "prune"] = "needs a single seed; others belong under `confirm`."
        if search and (both := {*(search.confirm or [])} & {*self.seeds}):
            wrong["search", "confirm"] = f"must have fresh seeds; {min(both)} is one of `seeds`."
        if search and self.baseline is not None:
            wrong["baseline",] = "is the base, as this is a search; remove it."
        if wrong:
            raise problems((loc, reason, None) for loc, reason in wrong.items())
        return self

    @property
    def bases(self) -> list[Path]:
        return self.base if isinstance(self.base, list) else [self.base]
