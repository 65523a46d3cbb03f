"""What the objectives share: masking a batch, predicting the masked tokens, drawing replacements, counting losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from registry import Batch, Masked, Prediction, Term, Vocabulary

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from registry.contracts import Network, Random, Streams


@dataclass(frozen=True)
class Cloze:
    """A batch with masked tokens, and what a network predicts there.

    masked as the strategy returned it; originals Int[B K]; hidden Float[B T D], the network's states;
    logits Float[B K V] in float32 or wider.
    """

    masked: Masked
    originals: Int[Tensor, "B K"]
    hidden: Float[Tensor, "B T D"]
    logits: Float[Tensor, "B K V"]

    def losses(self, smoothing: float | Tensor = 0.0) -> Float[Tensor, "B K"]:
        """Cross-entropy of each slot in nats; `smoothing` gives that share of the target to all tokens alike."""
        return slot_losses(self.logits, self.originals, smoothing)

    def prediction(self, vocabulary: Vocabulary) -> Prediction:
        return prediction(self.masked, self.originals, self.logits, vocabulary)


def slot_losses(
    logits: Float[Tensor, "B K V"], originals: Int[Tensor, "B K"], smoothing: float | Tensor = 0.0
) -> Float[Tensor, "B K"]:
    flat, targets = logits.flatten(0, 1), originals.flatten()
    if isinstance(smoothing, float):
        return F.cross_entropy(flat, targets, reduction="none", label_smoothing=smoothing).view_as(originals)
    # The same for a schedule's number, which label_smoothing would read on the host. The log of the softmax's
    # denominator is that of all tokens, so it is computed once.
    plain = F.cross_entropy(flat, targets, reduction="none").view_as(originals)
    chosen = logits.gather(-1, originals.unsqueeze(-1)).squeeze(-1).to(plain.dtype)
    return plain + smoothing * (chosen - logits.mean(-1, dtype=plain.dtype))


def prediction(
    masked: Masked, originals: Int[Tensor, "B K"], logits: Float[Tensor, "B K V"], vocabulary: Vocabulary
) -> Prediction:
    """What metrics need of a prediction at the masked positions."""
    hidden = masked.inputs.gather(1, masked.positions) == vocabulary.mask_id
    correct = logits.argmax(-1) == originals
    return Prediction(masked.positions, masked.valid, hidden, slot_losses(logits, originals), correct)


def mask(masking: Callable[..., Masked], batch: Batch, vocabulary: Vocabulary, rng: Streams) -> Masked:
    """Any token may be masked that is neither padding nor special."""
    maskable = batch.mask & ~vocabulary.is_special[batch.tokens]
    return masking(batch.tokens, maskable, vocabulary, rng("masking"))


def cloze(network: Network, masked: Masked, batch: Batch) -> Cloze:
    """`network` predicts the masked tokens, at their positions alone."""
    hidden = network.hidden(masked.inputs, batch.mask, batch.segments)
    logits = full_precision(network.token_logits(hidden, masked.positions))
    return Cloze(masked, batch.tokens.gather(1, masked.positions), hidden, logits)


def full_precision(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """At least float32: what losses are computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def replace(
    guess: Cloze,
    batch: Batch,
    sampler: Callable[..., Tensor],
    vocabulary: Vocabulary,
    rng: Streams,
    disallow_correct: bool = False,
) -> Int[Tensor, "B T"]:
    """The original text with a sample of the generator at each masked position. No gradient passes a sample.

    disallow_correct  the original token is never drawn (an option of google-research/electra)
    """
    logits = guess.logits.detach()
    if disallow_correct:
        logits = logits.scatter(-1, guess.originals.unsqueeze(-1), float("-inf"))
    sampled = draw(sampler, logits, vocabulary, rng("sampling"))
    return batch.tokens.scatter(1, guess.masked.positions, torch.where(guess.masked.valid, sampled, guess.originals))


@torch.no_grad()
def draw(
    sampler: Callable[..., Tensor], logits: Float[Tensor, "B K V"], vocabulary: Vocabulary, rng: Random
) -> Int[Tensor, "B K"]:
    """One token a slot, from logits of any precision, never a special one.

    In float32, with autocast off: in bf16 the smallest probabilities vanish, and cumulative sums lose the tail.
    """
    with torch.autocast(logits.device.type, enabled=False):
        allowed = logits.float().masked_fill(vocabulary.is_special, float("-inf"))
        return sampler(allowed.flatten(0, 1), rng).view(logits.shape[:2])


def detect(
    discriminator: Network, inputs: Int[Tensor, "B T"], batch: Batch, smoothing: float | Tensor = 0.0
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Logits of "replaced" and the cross-entropy of each position; a token that equals the original is original.

    smoothing  moves both labels, 0 and 1, half as far towards each other
    """
    logits = full_precision(discriminator.replaced_logits(discriminator.hidden(inputs, batch.mask, batch.segments)))
    labels = (inputs != batch.tokens).to(logits.dtype) * (1 - smoothing) + smoothing / 2
    return logits, F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def term(losses: Float[Tensor, "B N"], counted: Bool[Tensor, "B N"], weight: float) -> Term:
    """What is counted, summed; the loop divides by the count of the global batch."""
    return Term(losses.masked_fill(~counted, 0.0).sum(), counted.sum(), weight)
