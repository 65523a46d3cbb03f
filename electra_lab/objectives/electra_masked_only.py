"""ELECTRA whose discriminator learns from the masked tokens alone."""

from jaxtyping import Bool
from torch import Tensor

from electra_lab.objectives._shared import is_masked
from electra_lab.objectives.electra import Electra
from registry import Batch, Masked, objectives


@objectives.register("electra_masked_only")
class ElectraMaskedOnly(Electra):
    """ELECTRA with a detection loss over the masked tokens only: "ELECTRA 15%" (Clark et al. 2020, section 3.5).

    The gain of `electra` over it is the value of learning from every token. Its RTD loss is averaged over fewer tokens;
    the paper does not change its weight.
    """

    def judged(self, batch: Batch, masked: Masked) -> Bool[Tensor, "B T"]:
        """Return the masked tokens, replaced or not."""
        return is_masked(masked)
