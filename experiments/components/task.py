"""A task."""

from collections.abc import Mapping
from typing import Annotated

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from registry import Batch, Term, TextExample, tasks


@tasks.register("my_task", takes=TextExample, initialized_by_lab=True)
class MyTask(tasks.get("text_classification").component):  # type: ignore[misc]  # known at run time only
    """As `text_classification`, from softened logits.

    temperature  that the logits are divided by in training
    """

    def __init__(self, /, *, temperature: Annotated[float, Field(gt=0)] = 2.0) -> None:
        super().__init__()
        self.temperature = temperature

    def losses(self, outputs: Mapping[str, Float[Tensor, "B ..."]], batch: Batch) -> Mapping[str, Term]:
        softened = {**outputs, "logits": outputs["logits"] / self.temperature}
        terms: Mapping[str, Term] = super().losses(softened, batch)
        return terms
