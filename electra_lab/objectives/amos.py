"""AMOS: the discriminator's gradient teaches a mixture of generators to mislead it."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from electra_lab.objectives._shared import (
    Corrupting,
    MaskedPrediction,
    Weight,
    ZLoss,
    cross_entropy,
    detect,
    must_learn,
    predict_masked,
    states,
    term,
)
from registry import Batch, Flops, Losses, Metric, Needs, Price, Setup, Streams, objectives


@objectives.register("amos", initialized_by_lab=True)
class Amos(Corrupting):
    """Detection of draws from several exits of one generator, mixed against the detector (Meng et al. 2022, AMOS).

    Every exit predicts the masked tokens by the same head, and trains the layers down to the exit below. At each masked
    position, a linear map of the exits' states and a softmax weight their logits; the replacement is drawn from the
    softmax of the weighted sum. A straight-through Gumbel-softmax brings the gradient of detection back to the weights,
    reversed, so that they learn to raise that loss; the logits get none. The loss is generator_weight * the sum of MLM
    at all exits (the authors' reduction is not published) + discriminator_weight * RTD.

    exits         layers of the generator, up to its last; by default those at one half, three quarters and all of it
    temperature   temperature of the softmax whose gradient replaces that of a draw; draws always have 1
    reversal      factor of the reversed gradient
    reverse_into  generator: it reaches all of the generator, as in the authors' code; mixture: the linear map alone
    z_loss        weight of the mean squared log-normalizer of each exit's softmax, such as 1e-4
    """

    needs = Needs(sampler=False)

    generator_weight: Weight = 1.0
    discriminator_weight: Weight = 50.0
    exits: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=2, max_length=100)] | None = None
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 0.3
    reversal: Weight = 1.0
    reverse_into: Literal["generator", "mixture"] = "generator"
    z_loss: ZLoss = None

    def __post_init__(self) -> None:
        top = self.generator.depth
        if not self.generator.inner_states:
            raise ValueError("its generator must return states of inner layers. Use type: bert, or transformer.")
        depths = self.exits or sorted({max(1, top // 2), max(1, 3 * top // 4), top})
        if len(depths) < 2 or depths != sorted(set(depths)) or depths[-1] != top:
            raise ValueError(
                f"exits {depths} must be two layers or more, in order; the last is the generator's, {top}."
            )
        self.depths = tuple(depths)
        self.mixture = nn.Linear(self.generator.dim, 1, bias=False)
        self.trains_generator = ("discriminator",) if self.reverse_into == "generator" else ()
        self.metrics = {f"mixture_{depth}": Metric(f"mean weight of the exit after layer {depth}") for depth in depths}

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        # 1) Mask, and let the generator predict from every exit.
        masked = self.mask(batch, rng)
        inputs = masked.inputs, batch.attention_mask, batch.segments, batch.attention_document_ids
        exits = self.generator.hidden_at(self.depths, *inputs, detach=True)
        guesses = [predict_masked(self.generator, masked, batch, states) for states in exits]
        originals = guesses[0].originals

        # 2) Mix their logits [B K V], by the weights [B K exits] of each position.
        weights = self._weights(exits, masked.positions)
        mixed = torch.zeros_like(guesses[0].logits)
        for weight, guess in zip(weights.unbind(-1), guesses, strict=True):
            mixed = mixed + weight.unsqueeze(-1) * guess.logits.detach()

        # 3) Draw by Gumbel-max, never a special token; the slope is that of the softmax of the same noisy logits.
        noise = -(-rng("sampling").uniform(originals.numel(), mixed.shape[-1]).log()).log()
        noisy = mixed.masked_fill(self.vocabulary.is_special, float("-inf")) + noise.view_as(mixed)
        drawn = torch.where(masked.valid, noisy.argmax(-1), originals)
        table = self.discriminator.embeddings.tokens.weight.detach()
        slope = -self.reversal * _only_slope((noisy / self.temperature).softmax(-1), table)  # [B K E]
        slope = slope.masked_fill(~masked.valid.unsqueeze(-1), 0.0)

        # 4) Let the discriminator find the replaced tokens.
        replaced = batch.tokens.scatter(1, masked.positions, drawn)
        hidden = states(self.discriminator, replaced, batch, added=(masked.positions, slope))
        detection, losses = detect(self.discriminator, replaced, batch, hidden=hidden)

        terms = {"discriminator": term(losses, batch.attention_mask, self.discriminator_weight)}
        for depth, guess in zip(self.depths, guesses, strict=True):
            name = f"generator_{depth}"
            terms |= {name: guess.term(self.generator_weight), **guess.z_term(name, self.z_loss)}
        if self.training:
            return Losses(terms)
        mixture = MaskedPrediction(masked, originals, exits[-1], mixed, cross_entropy(mixed, originals))
        by_exit = zip(self.metrics, weights.unbind(-1), strict=True)
        means = {name: term(weight, masked.valid, 1.0) for name, weight in by_exit}
        return Losses(terms, {"generator": mixture.prediction(self.vocabulary)}, detection, metrics=means)

    def _weights(self, exits: tuple[Tensor, ...], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K exits"]:
        stacked = torch.stack(exits, dim=2)  # [B T exits D]
        stacked = stacked.detach() if self.reverse_into == "mixture" else stacked
        stacked = stacked.gather(1, positions[..., None, None].expand(-1, -1, *stacked.shape[2:]))
        scores: Tensor = self.mixture(stacked).squeeze(-1).to(self.mixture.weight.dtype)  # not of autocast's type
        return scores.softmax(-1)

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        masked = self.mask(batch, rng).valid.sum()
        names = [f"generator_{depth}" for depth in self.depths]
        squares = [] if self.z_loss is None else [f"{name}_z" for name in names]
        return {**dict.fromkeys([*names, *squares], masked), "discriminator": batch.attention_mask.sum()}

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from must_learn("amos", setup)
        if setup.tie == "all":
            yield "embedding.tie", "amos trains two encoders against each other; all makes them one. Use tie: tokens."

    def flops(self, price: Price) -> Flops:
        """A head for each exit; the slope, one product with the token table, costs a head's forward pass."""
        head = price("generator") - price("generator", heads=())
        slope = price("generator", learns=False) - price("generator", learns=False, heads=())
        return Flops(price("generator") + (len(self.depths) - 1) * head + price("discriminator") + slope)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Float[Tensor, "*N V"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N E"]:
        ctx.save_for_backward(table)
        return weights.new_zeros(*weights.shape[:-1], table.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "*N E"]) -> tuple[Float[Tensor, "*N V"], None]:
        (table,) = ctx.saved_tensors
        return gradient @ table.t().to(gradient.dtype), None


def _only_slope(weights: Float[Tensor, "*N V"], table: Float[Tensor, "V E"]) -> Float[Tensor, "*N E"]:
    """Return zeros with the gradient that weights @ table would give to the weights; the table gets none.

    Added to a row of the table, it is the straight-through estimator of a draw (Bengio et al. 2013; Jang et al. 2017)
    without the product's forward pass.
    """
    zeros: Tensor = _Slope.apply(weights, table)  # type: ignore[no-untyped-call]
    return zeros
