"""The sizes of batches: in `train` of an experiment or of a fine-tuning."""

from typing import Annotated

from pydantic import Field

from electra_lab.config.problems import problem
from registry.signature import Strict

Rows = Annotated[int, Field(gt=0, le=1 << 20)]  # of a batch: larger values are typos and would exhaust memory


class BatchWarmup(Strict):
    """A batch size that rises over the first steps."""

    start: Rows = Field(description="Rows of the first step, fewer than train.batch_size.")
    increment: Rows = Field(description="Rows to add after each stage, up to train.batch_size.")
    every: Annotated[int, Field(gt=0, le=10**8)] = Field(description="Steps of each stage.")

    def refuse_large(self, batch_size: int) -> None:
        """Raise ValidationError if batches do not begin smaller."""
        if self.start >= batch_size:
            raise problem(("batch_warmup", "start"), f"is not below train.batch_size, {batch_size}.", self.start)


def refuse_uneven(batch_size: int, micro_batch_size: int | str | None) -> None:
    """Raise ValidationError if micro-batches are not of one size."""
    if isinstance(micro_batch_size, int) and batch_size % micro_batch_size:
        raise problem(("micro_batch_size",), f"must divide batch_size {batch_size}.", micro_batch_size)
