"""Original, drawn by the sampler, or random by the masking: a head, an objective and its metric."""

from torch import nn

from registry import Losses, Metric, Needs, Term, heads, objectives


@heads.register("three_classes", initialized_by_lab=True)
class ThreeClassHead(nn.Linear):
    """Three logits per position: original, drawn by the sampler, put there by masking.random_prob."""

    def __init__(self, dim, sizes, vocabulary, /):
        super().__init__(dim, 3)

    def flops(self, length, masked):
        return 2 * length * 3 * self.in_features


@objectives.register("three_classes")
class ThreeClasses(objectives.get("electra").component):
    """ELECTRA whose discriminator reads the masking's random tokens too, and tells them from the sampler's."""

    needs, metrics = Needs(heads=["three_classes"]), {"class_accuracy": Metric("token accuracy", comparable=False)}

    def forward(self, batch, rng):
        guess, real = self.guess(batch, rng), batch.attention_mask
        places, seen = guess.masked.positions, guess.masked.inputs.gather(1, guess.masked.positions)  # [B K]
        random = guess.masked.valid & (seen != guess.originals) & (seen != self.vocabulary.mask_id)
        inputs = self.replace(guess, batch, rng)
        inputs = inputs.scatter(1, places, seen.where(random, inputs.gather(1, places)))
        classes = (inputs != batch.tokens).long().scatter_add(1, places, random.long())  # [B T] of 0, 1 and 2
        states = self.discriminator.hidden(inputs, real, batch.segments, batch.attention_document_ids)
        logits = self.discriminator.predict("three_classes", states).float()  # [B T 3]
        smoothing = {"reduction": "none", "label_smoothing": self.discriminator_smoothing}
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), classes, **smoothing).masked_fill(~real, 0.0)
        guessed = guess.term(self.generator_weight, self.generator_smoothing)
        told = Term(losses.sum(), real.sum(), self.discriminator_weight)
        accuracy = Term(((logits.argmax(-1) == classes) & real).sum(), real.sum())
        return Losses({"generator": guessed, "discriminator": told}, metrics={"class_accuracy": accuracy})
