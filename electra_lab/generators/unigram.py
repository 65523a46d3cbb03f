"""A generator that guesses by word frequencies."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from registry import Vocabulary, generators


@generators.register("unigram", cloze=True)
class Unigram(nn.Module):
    """Draw replacements by how often tokens occur in the training text, regardless of context.

    The unigram generator of Clark et al. (2020, section 3.2 and figure 3). It learns nothing; its predictions are
    proportional to (1 + count)^power, so that tokens which occur only in held-out text are possible too.

    power  0.75 is word2vec's choice for negative samples (Mikolov et al. 2013); 0 is `uniform`
    """

    dim = 1
    scores: Tensor
    log_probabilities: Tensor

    def __init__(self, vocabulary: Vocabulary, /, *, power: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__()
        scores = power * (vocabulary.counts + 1).float().log()
        # Far below every other score, but finite: label smoothing needs the loss of every token.
        self.register_buffer("scores", scores.masked_fill(vocabulary.is_special, -30.0), persistent=False)
        allowed = scores.masked_fill(vocabulary.is_special, float("-inf"))
        self.register_buffer("log_probabilities", allowed.log_softmax(-1), persistent=False)

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T 1"]:
        """Return zeros: there are no states."""
        return torch.zeros(*tokens.shape, 1, device=tokens.device)

    def token_logits(self, hidden: Float[Tensor, "B T 1"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        return self.scores.expand(*positions.shape, -1)

    def token_log_probability(self, hidden: Float[Tensor, "B T 1"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return self.log_probabilities[tokens]
