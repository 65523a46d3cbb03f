"""An objective."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from registry import Batch, Losses, Streams, objectives


@objectives.register("my_objective")
@dataclass(kw_only=True, eq=False, repr=False)
class MyObjective(objectives.get("electra").component):  # type: ignore[misc]  # known at run time only
    """As `electra`, with a limit on the loss of the generator.

    limit  in nats per masked token; above it, the loss no longer grows
    """

    limit: Annotated[float, Field(gt=0)] = 20.0

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        losses: Losses = super().forward(batch, rng)
        # A term is a sum and the number of what is summed, so that micro-batches and ranks can be added.
        term = losses.terms["generator"]
        limited = term.sum.clamp(max=self.limit * term.count)
        return replace(losses, terms={**losses.terms, "generator": replace(term, sum=limited)})
