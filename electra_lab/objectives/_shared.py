"""Steps that objectives share: mask a batch, predict the masked tokens, draw replacements, count losses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, dataclass_transform

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from electra_lab.model.network import everywhere
from registry import (
    Batch,
    Choice,
    Detection,
    Masked,
    Network,
    Objective,
    Prediction,
    Random,
    Setup,
    Streams,
    Term,
    Vocabulary,
)

# Shapes: B rows of T positions, K masked ones, n chosen ones; D width of the states, V size of the vocabulary.
Weight = Annotated[float, Field(ge=0)]  # weight of a term of the loss
Smoothing = Annotated[float, Field(ge=0, lt=1)]
ZLoss = Annotated[float, Field(ge=0)] | None  # weight of the z-loss; None leaves the term out, 0 only reports it

AT_ONCE = 512  # positions whose vocabulary logits are held at once, in objectives that need them everywhere


@dataclass(frozen=True)
class MaskedPrediction:
    """A batch with masked tokens, and a network's predictions for them."""

    masked: Masked
    originals: Int[Tensor, "B K"]
    hidden: Float[Tensor, "B T D"]  # the network's states
    logits: Float[Tensor, "B K V"]  # in float32 or wider
    cross_entropy: Float[Tensor, "B K"]  # of each slot in nats

    def losses(self, smoothing: float | Tensor = 0.0) -> Float[Tensor, "B K"]:
        """Return the cross-entropy of each slot in nats. `smoothing` spreads a share of the target over all tokens."""
        if isinstance(smoothing, float) and not smoothing:
            return self.cross_entropy
        # All tokens share the softmax's denominator, so its logarithm is computed once.
        chosen = self.logits.gather(-1, self.originals.unsqueeze(-1)).squeeze(-1)
        return self.cross_entropy + smoothing * (chosen - self.logits.mean(-1))

    def term(self, weight: float | Tensor = 1.0, smoothing: float | Tensor = 0.0) -> Term:
        """Return the term of masked language modelling, over the masked tokens."""
        return term(self.losses(smoothing), self.masked.valid, weight)

    def z_term(self, network: str, weight: ZLoss) -> dict[str, Term]:
        """Return the z-loss under its name, nothing without a weight: the mean of log^2 sum exp(logits).

        It keeps logits from drifting (Chowdhery et al. 2022, PaLM, section 5, with the weight 1e-4), is taken over the
        masked tokens, and knows nothing of label smoothing.
        """
        if weight is None:
            return {}
        return {f"{network}_z": term(self.logits.logsumexp(-1).square(), self.masked.valid, weight)}

    def prediction(self, vocabulary: Vocabulary) -> Prediction:
        """Return the input of metrics."""
        saw_mask = self.masked.inputs.gather(1, self.masked.positions) == vocabulary.mask_id
        correct = self.logits.argmax(-1) == self.originals
        return Prediction(self.masked.positions, self.masked.valid, saw_mask, self.cross_entropy, correct)


def predict_masked(
    network: Network, masked: Masked, batch: Batch, hidden: Float[Tensor, "B T D"] | None = None
) -> MaskedPrediction:
    """Let `network` predict the masked tokens, at their positions alone; from its states `hidden` if there are some."""
    hidden = states(network, masked.inputs, batch) if hidden is None else hidden
    logits = widened(network.token_logits(hidden, masked.positions))
    originals = batch.tokens.gather(1, masked.positions)
    return MaskedPrediction(masked, originals, hidden, logits, cross_entropy(logits, originals))


def cross_entropy(logits: Float[Tensor, "*N V"], targets: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Return -log softmax(logits)[target] in nats."""
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view_as(targets)


def states(network: Network, inputs: Int[Tensor, "B T"], batch: Batch, **options: Any) -> Float[Tensor, "B T D"]:
    """Return the network's states for other tokens in the place of the batch's; `options` are those of `hidden`."""
    return network.hidden(inputs, batch.attention_mask, batch.segments, batch.attention_document_ids, **options)


def widened(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return the logits in at least float32, the precision of losses."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def in_parts(
    compute: Callable[..., tuple[Tensor, ...]], hidden: Float[Tensor, "B T D"], *inputs: Tensor
) -> list[Shaped[Tensor, "B T"]]:
    """Return the results of `compute(positions, hidden, *inputs)`, for some positions at a time, joined along T.

    They are computed again in the backward pass, so the memory of logits does not grow with T x V.
    """
    size = max(1, AT_ONCE // max(len(hidden), 1))
    parts = []
    for at in torch.split(everywhere(hidden), size, dim=1):
        parts.append(checkpoint(compute, at, hidden, *inputs, use_reentrant=False, preserve_rng_state=False))
    return [torch.cat(part, dim=1) for part in zip(*parts, strict=True)]


@torch.no_grad()
def draw(
    sampler: Callable[..., Tensor], logits: Float[Tensor, "B K V"], vocabulary: Vocabulary, rng: Random
) -> Int[Tensor, "B K"]:
    """Draw one token per slot from logits of any precision, never a special token.

    In float32 with autocast off: in bf16 the smallest probabilities vanish, and cumulative sums lose the tail.
    """
    with torch.autocast(logits.device.type, enabled=False):
        allowed = logits.float().masked_fill(vocabulary.is_special, float("-inf"))
        return sampler(allowed.flatten(0, 1), rng).view(logits.shape[:2])


def put(sampled: Int[Tensor, "B K"], masked: Masked, batch: Batch) -> Int[Tensor, "B T"]:
    """Put a token at each masked position of the text; slots that are not valid change nothing."""
    originals = batch.tokens.gather(1, masked.positions)
    return batch.tokens.scatter(1, masked.positions, torch.where(masked.valid, sampled, originals))


def detect(
    discriminator: Network,
    inputs: Int[Tensor, "B T"],
    batch: Batch,
    smoothing: float | Tensor = 0.0,
    hidden: Float[Tensor, "B T D"] | None = None,
) -> tuple[Detection, Float[Tensor, "B T"]]:
    """Return the detection and the cross-entropy at each position. A sample that equals the original is original.

    smoothing  label smoothing: both labels, 0 and 1, move by half of it towards each other
    hidden     the discriminator's states of `inputs`, if they have been computed
    """
    hidden = states(discriminator, inputs, batch) if hidden is None else hidden
    logits = widened(discriminator.replaced_logits(hidden))
    detection = Detection(inputs, inputs != batch.tokens, logits)
    labels = detection.replaced.to(logits.dtype) * (1 - smoothing) + smoothing / 2
    return detection, F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def copy_losses(
    losses: Float[Tensor, "B n"], copy: Float[Tensor, "B n"], seen: Bool[Tensor, "B n"]
) -> Float[Tensor, "B n"]:
    """Return -log(D [seen] + (1 - D) p) with D = sigmoid(copy) and p = exp(-losses), stably.

    seen  True where the input has the token to predict, so that it can be copied
    """
    log_generated = F.logsigmoid(-copy) - losses
    log_copied = torch.logaddexp(F.logsigmoid(copy), log_generated)
    return -torch.where(seen, log_copied, log_generated)


def choose(
    discriminator: Network,
    hidden: Float[Tensor, "B T D"],
    positions: Int[Tensor, "B N"],
    valid: Bool[Tensor, "B N"],
    candidates: Int[Tensor, "B N k"],
    answer: Int[Tensor, "B N"],
) -> tuple[Choice, Float[Tensor, "B N"]]:
    """Return the choice between candidates, whose head is `candidates`, and its cross-entropy at each position."""
    logits = widened(discriminator.predict("candidates", hidden, candidates, positions=positions))
    losses = F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none").view_as(answer)
    return Choice(positions, valid, candidates, logits, answer), losses


def term(losses: Float[Tensor, "*shape"], counted: Bool[Tensor, "*shape"], weight: float | Tensor) -> Term:
    """Sum the losses that count; the loop divides by the count of the global batch.

    Weights of single losses should have a mean of 1 over the training text, not each batch, as the divisor is a count.
    """
    return Term(losses.masked_fill(~counted, 0.0).sum(), counted.sum(), weight)


def is_masked(masked: Masked) -> Bool[Tensor, "B T"]:
    """Return the masked tokens of the text."""
    return torch.zeros_like(masked.inputs).scatter_add(1, masked.positions, masked.valid.to(masked.inputs.dtype)) > 0


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(eq=False, repr=False)
class Base(Objective, nn.Module):
    """Base of objectives whose options are annotated in the body of the class, with their defaults.

    Derived classes become dataclasses by themselves, with these fields first. Those that have a constructor, or are
    declared with `options=False`, stay as they are.
    """

    generator: Network
    discriminator: Network
    masking: Callable[..., Masked]
    sampler: Callable[..., Tensor]
    vocabulary: Vocabulary

    def __init_subclass__(cls, *, options: bool = True) -> None:
        super().__init_subclass__()
        if options and "__init__" not in vars(cls):
            dataclass(kw_only=True, eq=False, repr=False)(cls)
        for name in ("__eq__", "__hash__", "__repr__"):  # or a further @dataclass would write its own over them
            setattr(cls, name, getattr(cls, name))

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Call nn.Module.__init__ before the constructor of the dataclass assigns fields."""
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def mask(self, batch: Batch, rng: Streams, purpose: str = "masking") -> Masked:
        """Mask tokens that are neither padding nor special."""
        return self.masking(batch.tokens, self.maskable(batch), self.vocabulary, rng(purpose))

    def maskable(self, batch: Batch) -> Bool[Tensor, "B T"]:
        """Return the tokens that are neither padding nor special."""
        return batch.attention_mask & ~self.vocabulary.is_special[batch.tokens]


class Corrupting(Base, options=False):
    """Base of objectives that train a discriminator on text in which a generator has replaced the masked tokens."""

    disallow_correct = False  # the original is never drawn (an option of google-research/electra)
    frozen = False  # the generator does not learn, and stays in eval mode; it must not share parameters then
    z_loss: ZLoss = None  # of the generator

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.generator.eval()  # type: ignore[attr-defined]  # a module by contract
        return self

    def guess(self, batch: Batch, rng: Streams) -> MaskedPrediction:
        """Mask the batch, and let the generator predict at the masked positions alone."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return predict_masked(self.generator, self.mask(batch, rng), batch)

    def replace(self, guess: MaskedPrediction, batch: Batch, rng: Streams) -> Int[Tensor, "B T"]:
        """Put a sample of the generator at each masked position of the text. No gradient passes a sample."""
        return put(self.sample(guess, rng), guess.masked, batch)

    def sample(self, guess: MaskedPrediction, rng: Streams) -> Int[Tensor, "B K"]:
        """Draw a token for each slot."""
        logits = guess.logits.detach()
        if self.disallow_correct:
            logits = logits.scatter(-1, guess.originals.unsqueeze(-1), float("-inf"))
        return draw(self.sampler, logits, self.vocabulary, rng("sampling"))

    def judged(self, batch: Batch, masked: Masked) -> Bool[Tensor, "B T"]:
        """Return the tokens whose detection counts."""
        return batch.attention_mask

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the number of masked tokens, and of judged ones."""
        masked = self.mask(batch, rng)
        counts = {"generator": masked.valid.sum(), "discriminator": self.judged(batch, masked).sum()}
        return counts if self.z_loss is None else counts | {"generator_z": counts["generator"]}


def must_learn(name: str, setup: Setup) -> Iterator[tuple[str, str]]:
    """Refuse a generator that learns nothing."""
    if setup.generator == "fixed":
        yield "generator.type", f"{name} needs a network as generator. Write generator: {{scale: 0.5}}."


def must_share_nothing(name: str, setup: Setup) -> Iterator[tuple[str, str]]:
    """Refuse shared parameters."""
    if setup.tie != "none":
        yield "embedding.tie", f"must be none: {name} freezes the generator, so none of its parameters may be shared."
