"""The budget of a training: in `train` of an experiment, or for all cells of an ablation."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from electra_lab.config.problems import problem
from electra_lab.config.source import BUDGETS
from registry.signature import Strict


class Budget(Strict):
    """The budget of every cell: exactly one of steps, epochs, tokens, FLOPs, and FLOPs as the paper counts them."""

    steps: Annotated[int, Field(gt=0, le=10**9)] | None = Field(None, description="Number of optimizer steps.")
    epochs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Number of passes over the training rows, such as 0.3; rounded to whole steps."
    )
    tokens: Annotated[float, Field(gt=0)] | None = Field(None, description="Tokens, padding included.")
    flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations of matrix products; see electra_lab/model/flops.py."
    )
    paper_flops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Floating point operations counted as in Clark et al. (2020) and google-research/electra."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        named = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(named) == 1:
            return self
        given = f"{' and '.join(named)} are" if named else "none is"
        raise problem((), f"set one of {', '.join(BUDGETS)}; {given} set.")
