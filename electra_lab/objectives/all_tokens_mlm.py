"""Masked language modelling over all tokens, with a copy mechanism."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.objectives._shared import Corrupting, Weight, ZLoss, copy_losses, in_parts, states, term, widened
from registry import Batch, Flops, Losses, Needs, Prediction, Price, Streams, objectives


@objectives.register("all_tokens_mlm", initialized_by_lab=True)
class AllTokensMlm(Corrupting):
    """Predict the original of every token from text in which a generator has replaced some.

    "All-Tokens MLM" of Clark et al. (2020, section 3.5): Replace MLM over all tokens, with a copy mechanism. A gate
    gives the probability D that the input token is the original; the prediction is D on the input token plus (1 - D)
    times the softmax over the vocabulary. The loss is averaged over all tokens that are not padding. Vocabulary logits
    exist at every position, so memory and compute are a multiple of the other objectives'.

    disallow_correct  True if the generator's samples never equal the original
    z_loss            weight of the mean squared log-normalizer of the generator's softmax, such as 1e-4
    """

    needs = Needs(heads=("tokens",))

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 1.0
    disallow_correct: bool = False
    z_loss: ZLoss = None

    def __post_init__(self) -> None:
        self.copy = nn.Linear(self.discriminator.dim, 1)

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        guess = self.guess(batch, rng)
        inputs, masked = self.replace(guess, batch, rng), guess.masked
        hidden = states(self.discriminator, inputs, batch)
        copy = widened(self.copy(hidden)).squeeze(-1)
        losses, likeliest = in_parts(self._read, hidden, copy, inputs, batch.tokens)
        terms = {
            "generator": guess.term(self.generator_weight),
            **guess.z_term("generator", self.z_loss),
            "discriminator": term(losses, batch.attention_mask, self.discriminator_weight),
        }
        if self.training:
            return Losses(terms)
        at = masked.positions
        correct = likeliest.gather(1, at) == guess.originals
        saw_mask = torch.zeros_like(masked.valid)  # it never does
        second = Prediction(at, masked.valid, saw_mask, losses.gather(1, at), correct)
        return Losses(terms, {"generator": guess.prediction(self.vocabulary), "discriminator": second})

    def _read(
        self,
        at: Int[Tensor, "B n"],
        hidden: Float[Tensor, "B T D"],
        copy: Float[Tensor, "B T"],
        inputs: Int[Tensor, "B T"],
        tokens: Int[Tensor, "B T"],
    ) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]]:
        """Return the losses of the positions `at`, and in eval mode their most likely tokens, otherwise the inputs."""
        logits = widened(self.discriminator.token_logits(hidden, at))
        copy, inputs, tokens = (values.gather(1, at) for values in (copy, inputs, tokens))
        token_losses = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(copy)
        losses = copy_losses(token_losses, copy, inputs == tokens)
        if self.training:
            return losses, inputs
        gate = copy.sigmoid().unsqueeze(-1)
        mixed = ((1 - gate) * logits.softmax(-1)).scatter_add(-1, inputs.unsqueeze(-1), gate)
        return losses, mixed.argmax(-1)

    def flops(self, price: Price) -> Flops:
        return Flops(price("generator") + price("discriminator", everywhere=True))
