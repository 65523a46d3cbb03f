"""ELECTRA whose discriminator learns from the masked tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from electra_lab.objectives.electra import Electra
from registry import Batch, Masked, objectives

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor


@objectives.register("electra_masked_only")
class ElectraMaskedOnly(Electra):
    """ELECTRA with a detection loss over the masked tokens only: "ELECTRA 15%" (Clark et al. 2020, section 3.5).

    What the gain of `electra` over it shows is the worth of learning from every token. Its RTD loss is averaged over
    fewer tokens; the paper gives it no other weight.
    """

    def judged(self, batch: Batch, masked: Masked) -> Bool[Tensor, "B T"]:
        """The masked tokens, replaced or not."""
        chosen: Tensor = batch.tokens.new_zeros(batch.tokens.shape).scatter_add(
            1, masked.positions, masked.valid.to(batch.tokens.dtype)
        )
        return chosen > 0
