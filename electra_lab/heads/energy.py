"""The energy of the token at each position."""

from electra_lab.heads.replaced import ReplacedHead
from registry import heads


@heads.register("energy", initialized_by_lab=True, exports_as="Model")
class EnergyHead(ReplacedHead):
    """An energy per position, by the layers of `replaced`: dense, GELU, one number (high = unlikely).

    As `electric` trains it, the negative log-probability of the token in its context, in nats.
    """
