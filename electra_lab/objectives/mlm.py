"""Masked language modelling: BERT's objective, the baseline."""

from collections.abc import Mapping

from jaxtyping import Int
from torch import Tensor

from electra_lab.objectives._shared import Base, Smoothing, ZLoss, predict_masked
from registry import Batch, Losses, Metric, Needs, Streams, objectives


@objectives.register("mlm")
class MaskedLanguageModelling(Base):
    """Masked language modelling (Devlin et al. 2019) with one network, the one under `discriminator`.

    The loss is averaged over the masked tokens of the global batch. There is no generator and nothing is sampled. BERT
    itself uses `masking: {mask_prob: 0.15, replace_prob: 0.8, random_prob: 0.1}`.

    smoothing  label smoothing
    z_loss     weight of the mean squared log-normalizer of the softmax, such as 1e-4
    """

    needs = Needs(generator=False, sampler=False, heads=("tokens",))
    # It compares runs, as nothing is replaced by a network.
    metrics = {  # noqa: RUF012
        "discriminator_loss": Metric("the loss that is trained, per masked token", "discriminator loss", "nats", False,
                                     chart=True, brief="discriminator")
    }  # fmt: skip

    smoothing: Smoothing = 0.0
    z_loss: ZLoss = None

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = predict_masked(self.discriminator, self.mask(batch, rng), batch)
        terms = {"discriminator": guess.term(smoothing=self.smoothing), **guess.z_term("discriminator", self.z_loss)}
        if self.training:
            return Losses(terms)
        return Losses(terms, {"discriminator": guess.prediction(self.vocabulary)})

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens."""
        number = self.mask(batch, rng).valid.sum()
        return {"discriminator": number} | ({} if self.z_loss is None else {"discriminator_z": number})
