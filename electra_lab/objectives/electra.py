"""ELECTRA: a generator fills in masked tokens, a discriminator finds those that it got wrong."""

from electra_lab.objectives._shared import Corrupting, Smoothing, Weight, ZLoss, detect, term
from registry import Batch, Losses, Streams, objectives


@objectives.register("electra")
class Electra(Corrupting):
    """Joint masked language modelling and replaced token detection (Clark et al. 2020, section 2).

    The loss is generator_weight * MLM + discriminator_weight * RTD. MLM is averaged over the masked tokens, RTD over
    all tokens that are not padding, [CLS] and [SEP] included, both over the global batch, as in
    google-research/electra. A sampled token that equals the original is labelled original.

    disallow_correct         True if samples never equal the original (an option of google-research/electra)
    generator_smoothing      label smoothing of the MLM loss (an option of richarddwang/electra_pytorch)
    discriminator_smoothing  the same for the RTD loss
    z_loss                   weight of the mean squared log-normalizer of the generator's softmax, such as 1e-4
    """

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0
    disallow_correct: bool = False
    generator_smoothing: Smoothing = 0.0
    discriminator_smoothing: Smoothing = 0.0
    z_loss: ZLoss = None

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        """Return both terms; in eval mode also the input of metrics. No host sync, no data-dependent shape."""
        # 1) Mask, and let the generator predict at the masked positions alone.
        guess = self.guess(batch, rng)
        masked = guess.masked

        # 2) Sample replacements into the original text. No gradient passes a sample.
        inputs = self.replace(guess, batch, rng)

        predicted = {"generator": guess.term(self.generator_weight, self.generator_smoothing)}
        predicted |= guess.z_term("generator", self.z_loss)
        predictions = {} if self.training else {"generator": guess.prediction(self.vocabulary)}
        del guess  # frees the logits before the discriminator runs

        # 3) Let the discriminator find the replaced tokens.
        detection, losses = detect(self.discriminator, inputs, batch, self.discriminator_smoothing)

        detected = term(losses, self.judged(batch, masked), self.discriminator_weight)
        return Losses({**predicted, "discriminator": detected}, predictions, None if self.training else detection)
