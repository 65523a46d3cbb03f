"""The keys of `checkpoint` in an experiment file."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from electra_lab.config.problems import problem
from registry.signature import Strict

Count = Annotated[int, Field(gt=0, le=10**9)]
Amounts = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
MILESTONES = "Points of training at which a checkpoint is kept permanently, in addition to step 0."


class Milestones(Strict):
    __doc__ = MILESTONES

    tokens: Amounts | None = Field(
        None, description="Numbers of training tokens, padding included. The first step that reaches a number is kept."
    )
    words: Amounts | None = Field(
        None,
        description="Numbers of words read, as in BabyLM's rules: words of the raw text, separated by white space, and "
        "counted again in each epoch. The words of a document are spread evenly over its tokens.",
    )

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.tokens is None and self.words is None:
            raise problem((), "set tokens, words, or both.")
        return self


def milestone_name(unit: str, number: float) -> str:
    """Return the name of a milestone, such as `tokens-10M`, `words-1.5B`, `tokens-300`."""
    for letter, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{unit}-{number / size:.12g}{letter}"
    return f"{unit}-{number:.12g}"


def _off_if_null(given: Any) -> Any:
    return "off" if given is None else given


class Checkpoint(Strict):
    """Checkpoints."""

    every: Count = Field(1000, description="Steps between checkpoints. The end of training is always saved.")
    keep: Count = Field(5, description="Number of newest checkpoints to keep, milestones not included.")
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Maximum number of minutes between checkpoints, in addition to `every`."
    )
    best: Annotated[str, BeforeValidator(_off_if_null, json_schema_input_type=str | None)] = Field(
        "auto",
        description="Metric on validation data. The checkpoint with its best value is also saved and kept. auto: keep "
        "the best saved checkpoint by the objective's first metric that can compare steps, such as "
        "generator_mask_loss. off: keep none.",
    )
    milestones: Milestones | None = Field(None, description=MILESTONES)
    asynchronous: bool = Field(
        False, description="Write checkpoints in the background, from a copy in CPU memory, while training continues."
    )
