"""state.json of a checkpoint: all but its tensors."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator


class Window(BaseModel):
    """The steps since the last log line, see training/loop.py."""

    model_config = ConfigDict(strict=True)

    steps: NonNegativeInt
    names: list[str]
    totals: list[float] | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        terms = 3 * len(self.names)
        # Two more are the norms of the networks, if each is clipped by its own.
        if self.totals is not None and len(self.totals) - terms not in (3, 5):
            raise ValueError("window has another number of totals than its names need")
        return self


class LossScale(BaseModel):
    """The factor of float16 losses, see training/execution.py."""

    model_config = ConfigDict(strict=True, extra="forbid")

    scale: Annotated[FiniteFloat, Field(gt=0)]
    calm: Annotated[int, Field(ge=0, lt=2**31)]
    overflows: Annotated[int, Field(ge=0, lt=2**31)]


class Divergence(BaseModel):
    """The accepted and the rejected steps, see training/execution.py (Watch)."""

    model_config = ConfigDict(strict=True, extra="forbid")

    rejected: NonNegativeInt
    average: FiniteFloat
    accepted: Annotated[int, Field(ge=0, lt=2**63)]
    first: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    spiked: bool


class State(BaseModel):
    """The content of state.json."""

    model_config = ConfigDict(strict=True, extra="allow")

    run: str = ""  # its id; a checkpoint outside of a run directory has none
    step: NonNegativeInt
    tokens: NonNegativeInt
    skipped: NonNegativeInt
    window: Window
    trouble: Divergence
    loss_scale: LossScale | None = None  # of float16 alone
