"""ELECTRA whose discriminator also predicts the original of every masked token."""

from collections.abc import Mapping
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from electra_lab.objectives._shared import MaskedPrediction, Weight, copy_losses, detect, predict_masked, term
from electra_lab.objectives.electra import Electra
from registry import Batch, Losses, Masked, Metric, Needs, Streams, Term, objectives

ACCURACY = "share of the {} tokens at masked positions whose original the discriminator ranks first"


@objectives.register("electra_correct")
class ElectraCorrect(Electra):  # with its own forward, where options of `electra` must be applied, too
    """Replaced token detection, and correction at the masked positions, as in METRO (Bajaj et al. 2022) and COCO-LM.

    The loss is that of `electra` plus correction_weight times the correction: from the text with replacements, a token
    head of the discriminator predicts the originals. It is averaged over the masked tokens, replaced or not. With q the
    head's softmax and P the discriminator's probability that a token is replaced, which gets no gradient here, the
    loss of a masked token x, seen as x', is for the `correction`

    plain     -log q(x). METRO's later and larger configurations (gonglinyuan/metro_t0, base++ and large++)
    weighted  -P log q(x), divided by the number of masked tokens, not by the sum of P. The criterion that COCO-LM's
              authors posted (microsoft/COCO-LM, issue 2), and METRO's first base
    copy      -log((1 - P) [x = x'] + P q(x)), the formula of COCO-LM's paper (Meng et al. 2021)

    The default is the form that METRO's authors arrived at, and the simplest. `weighted` corrects little where the
    discriminator is fooled, `copy` learns little from tokens that were not replaced. Metrics are of q in all three.
    """

    needs = Needs(heads=("replaced", "tokens"))
    metrics = {  # noqa: RUF012
        f"correction_accuracy_{kind}": Metric(ACCURACY.format(kind), f"correction of {kind} tokens", comparable=False)
        for kind in ("replaced", "unreplaced")
    }

    correction: Literal["plain", "weighted", "copy"] = "plain"
    correction_weight: Weight = 1.0

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        return self.learn(batch, rng)[0]

    def learn(self, batch: Batch, rng: Streams) -> tuple[Losses, Float[Tensor, "B T D"]]:
        """Return the losses, and the discriminator's states of the text with replacements."""
        # 1) Let the generator fill in the masked tokens, as in `electra`.
        guess = self.guess(batch, rng)
        masked = guess.masked
        inputs = self.replace(guess, batch, rng)
        terms = {"generator": guess.term(self.generator_weight, self.generator_smoothing)}
        terms |= guess.z_term("generator", self.z_loss)
        predictions = {} if self.training else {"generator": guess.prediction(self.vocabulary)}
        del guess  # the logits, which no backward reads, need not wait for the discriminator

        # 2) Let the discriminator find the replaced tokens, and name their originals from the same states.
        correction = predict_masked(self.discriminator, Masked(inputs, masked.positions, masked.valid), batch)
        detection, losses = detect(self.discriminator, inputs, batch, self.discriminator_smoothing, correction.hidden)
        suspicion = detection.logits.detach().gather(1, masked.positions)  # [B T] -> [B K]
        unreplaced = inputs.gather(1, masked.positions) == correction.originals

        # 3) Detection counts at every token, correction at the masked ones.
        terms["discriminator"] = term(losses, batch.attention_mask, self.discriminator_weight)
        corrected = self.corrected(correction.losses(), suspicion, unreplaced)
        terms["correction"] = term(corrected, masked.valid, self.correction_weight)
        terms |= correction.z_term("discriminator", self.z_loss)
        if self.training:
            return Losses(terms), correction.hidden
        predictions["discriminator"] = correction.prediction(self.vocabulary)
        return Losses(terms, predictions, detection, metrics=self.accuracies(correction, unreplaced)), correction.hidden

    def corrected(
        self, losses: Float[Tensor, "B K"], suspicion: Float[Tensor, "B K"], unreplaced: Bool[Tensor, "B K"]
    ) -> Float[Tensor, "B K"]:
        """Return the loss of each correction, from the cross-entropy of the head and the logit of P."""
        if self.correction == "weighted":
            return suspicion.sigmoid() * losses
        if self.correction == "copy":
            return copy_losses(losses, -suspicion, unreplaced)
        return losses

    def accuracies(self, correction: MaskedPrediction, unreplaced: Bool[Tensor, "B K"]) -> dict[str, Term]:
        """Return the share of correct predictions among replaced tokens, and among masked but unreplaced ones."""
        correct, valid = correction.logits.argmax(-1) == correction.originals, correction.masked.valid
        kinds = {"replaced": valid & ~unreplaced, "unreplaced": valid & unreplaced}
        return {f"correction_accuracy_{kind}": Term((correct & at).sum(), at.sum()) for kind, at in kinds.items()}

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens, and of all tokens that are not padding."""
        counts = dict(super().counts(batch, rng))
        counts["correction"] = counts["generator"]
        return counts if self.z_loss is None else counts | {"discriminator_z": counts["generator"]}
