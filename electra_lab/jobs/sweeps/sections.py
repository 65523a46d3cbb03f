"""A section of an ablation file: what is known of its metric."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from electra_lab.config.problems import problem
from registry.signature import Strict


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
