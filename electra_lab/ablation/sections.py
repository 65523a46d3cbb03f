"""Sections of an ablation file: the budget of its cells, and what is known of its metric."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from electra_lab.config.problems import problem
from electra_lab.config.schema import one_budget
from registry.signature import Strict


class Budget(Strict):
    """The budget of every cell: exactly one of steps, tokens, FLOPs, and FLOPs as the paper counts them."""

    steps: Annotated[int, Field(gt=0, le=10**9)] | None = Field(None, description="Number of optimizer steps.")
    tokens: Annotated[float, Field(gt=0)] | None = Field(None, description="Tokens, padding included.")
    flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations of matrix products."
    )
    paper_flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations as Clark et al. (2020) count them."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if reason := one_budget(self.__dict__):
            raise problem((), reason)
        return self


class Power(Strict):
    """What is known of the leading metric before the ablation: exactly one of the two."""

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
