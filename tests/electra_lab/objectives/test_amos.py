"""AMOS: against the authors' code, and the draws against the softmax of the mixture."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.heads.tokens import TokenHead
from electra_lab.model.network import Embeddings, Exits, Network
from electra_lab.objectives.amos import Amos
from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p, vocabulary
from registry import Backbone, Batch, EmbeddingSizes, Masked
from tests.electra_lab.objectives.tiny import gradients, streams, total

WORDS, WIDTH, LENGTH, EXITS = 14, 6, 6, (1, 3, 4)
TEXT = torch.tensor([[CLS, 5, 6, 7, 8, SEP], [CLS, 9, 10, 11, 12, SEP], [CLS, 6, 8, SEP, PAD, PAD]])
MASKED, VALID = torch.tensor([[1, 3], [2, 4], [1, 0]]), torch.tensor([[True, True], [True, True], [True, False]])

# The authors' code (microsoft/AMOS at 5a7c957, model and encoder unmodified, with a toy layer, in float64), its MLM
# summed over the exits: every tensor is 0.7 times a standard normal one of the seed given here, and each number is the
# product of its gradient with one of the seed 100 + that. Gumbel noise is standard normal, of the seed 93.
NOISE, LOSS = 93, 62.08869803065365
GRADIENTS = {
    "table": (1, -14.003784399654577), "mixture.weight": (2, -1.1781857772948832),
    "generator.backbone.places": (3, -0.09596681355763304),
    "generator.backbone.norm.weight": (4, -0.5433467252607014),
    "generator.backbone.norm.bias": (5, 0.4623784156335679),
    "generator.backbone.layers.0.a": (6, -0.6468698220207665),
    "generator.backbone.layers.0.b": (7, 0.06508365280903083),
    "generator.backbone.layers.1.a": (8, -0.43491417433708573),
    "generator.backbone.layers.1.b": (9, -0.36732964347199676),
    "generator.backbone.layers.2.a": (10, 1.01223236750572),
    "generator.backbone.layers.2.b": (11, 0.37457334131600467),
    "generator.backbone.layers.3.a": (12, 0.6262155261116625),
    "generator.backbone.layers.3.b": (13, 2.1055319467903106),
    "discriminator.backbone.places": (14, -15.603066425535397),
    "discriminator.backbone.norm.weight": (15, -1.0670463992512385),
    "discriminator.backbone.norm.bias": (16, 4.334697476350789),
    "discriminator.backbone.layers.0.a": (17, -14.068260758038786),
    "discriminator.backbone.layers.0.b": (18, 36.38507385150386),
    "discriminator.backbone.layers.1.a": (19, -8.068281105934911),
    "discriminator.backbone.layers.1.b": (20, -0.8219260725620523),
    "generator.heads.tokens.dense.weight": (21, -0.7001414918252787),
    "generator.heads.tokens.dense.bias": (22, 0.6250128406191042),
    "generator.heads.tokens.norm.weight": (23, -0.30555530453144675),
    "generator.heads.tokens.norm.bias": (24, -2.7673546127687443),
    "generator.heads.tokens.bias": (25, 2.329329459695413),
    "discriminator.heads.replaced.weight": (26, -2.4488049084729453),
    "discriminator.heads.replaced.bias": (27, 3.6922155880201686),
}  # fmt: skip


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.a + x.roll(1, 1) @ self.b)


class Encoder(Backbone, nn.Module):
    inner_states = True

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.places, self.norm = nn.Parameter(torch.zeros(LENGTH, WIDTH)), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))

    def forward(self, x: Tensor, mask: Tensor, *, depths: Sequence[int] = (), detach: bool = False) -> Any:
        x = self.norm(x + self.places) * mask.unsqueeze(-1)
        exits = Exits(depths, len(self.layers), detach)
        for depth, layer in enumerate(self.layers, 1):
            x = exits.after(depth, layer(x))
        return exits.result(x)


class Original(nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        return -super().forward(states).squeeze(-1)


def masking(tokens: Tensor, *_: Any, **__: Any) -> Masked:
    row = torch.arange(len(tokens)) % 3
    inputs = tokens.scatter(1, MASKED[row], torch.where(VALID[row], MASK, CLS))
    return Masked(inputs, MASKED[row], VALID[row])


def authors_networks(**options: Any) -> Any:
    sizes = EmbeddingSizes(WORDS, WIDTH, LENGTH, 0.0)
    table = Embeddings(WORDS, WIDTH, LENGTH, positions=False, dropout=0.0, bare=True)
    generator = Network(table, Encoder(4), WIDTH, pad_id=PAD, heads={"tokens": TokenHead(WIDTH, sizes, None)})
    discriminator = Network(table, Encoder(2), WIDTH, pad_id=PAD, heads={"replaced": Original(WIDTH, 1)})
    options = {"exits": [*EXITS], **options}
    made: Any = Amos(generator, discriminator, masking, None, vocabulary(WORDS), **options).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            seed, _ = GRADIENTS[name.replace("generator.embeddings.tokens.weight", "table")]
            parameter.copy_(0.7 * normal(seed, *parameter.shape))
    return made


def batch(copies: int = 1) -> Batch:
    text = TEXT.repeat(copies, 1)
    return Batch(text, text != PAD, torch.zeros_like(text), torch.arange(len(text)))


class Given:
    """Random numbers that give the Gumbel noise of the authors' run."""

    def __call__(self, _: str) -> Given:
        return self

    def uniform(self, slots: int, words: int) -> Tensor:
        noise = torch.zeros(slots, words, dtype=torch.float64)
        noise[VALID.flatten()] = normal(NOISE, 5, words)
        return (-(-noise).exp()).exp()


def learned(**options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the losses of a step and all gradients."""
    objective = authors_networks(**options).train()
    losses = objective(batch(), Given())
    return losses, gradients(objective, total(losses))


def by_hand(objective: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the exits' states, the weights and the logits of all slots of one batch."""
    exits = objective.generator.hidden_at(EXITS, masking(TEXT).inputs, TEXT != PAD, torch.zeros_like(TEXT))
    states = torch.stack([part.gather(1, MASKED.unsqueeze(-1).expand(-1, -1, WIDTH)) for part in exits], dim=-2)
    logits = torch.stack([objective.generator.token_logits(part, MASKED) for part in exits], dim=-2)
    return states.detach(), (states @ objective.mixture.weight[0]).softmax(-1).detach(), logits.detach()


def test_losses_and_gradients_are_those_of_the_authors_code() -> None:
    """With a hit, padding and an empty slot."""
    losses, found = learned()
    counts = authors_networks().counts(batch(), streams(batch()))
    assert {name: int(term.count) for name, term in losses.terms.items()} == {k: int(v) for k, v in counts.items()}
    assert total(losses).item() == pytest.approx(LOSS, rel=1e-9)
    found["table"] = found.pop("generator.embeddings.tokens.weight")
    assert found.keys() == GRADIENTS.keys()
    for name, (seed, expected) in GRADIENTS.items():
        product = (found[name].flatten() * normal(100 + seed, found[name].numel())).sum()
        assert product.item() == pytest.approx(expected, rel=1e-9), name


def test_the_reversed_gradient_reaches_the_generator_or_the_mixture_alone() -> None:
    """Without it the generator learns only by prediction; the discriminator and the weights' map do not differ."""
    into_mixture: Any = {"reverse_into": "mixture"}
    (_, whole), (_, mixture), (_, none) = learned(), learned(**into_mixture), learned(reversal=0.0)
    for name in whole:
        inside = name.startswith(("generator.backbone", "generator.embeddings"))
        torch.testing.assert_close(mixture[name], none[name] if inside else whole[name], rtol=1e-9, atol=1e-12)
        assert torch.allclose(whole[name], none[name]) != (inside or name == "mixture.weight"), name
    assert not none["mixture.weight"].any()
    torch.testing.assert_close(learned(reversal=3.0)[1]["mixture.weight"], 3 * whole["mixture.weight"])


def test_the_slope_is_that_of_the_softmax_of_the_noisy_mixture() -> None:
    """By Jacobians: of the softmax at another temperature, then of the weights; logits are constants. Without tying."""
    objective, added = authors_networks(temperature=1.7, reversal=0.5).train(), list[Any]()
    objective.generator.embeddings = deepcopy(objective.generator.embeddings)
    objective.generator.embeddings.tokens.weight.data.neg_()
    hidden = objective.discriminator.hidden

    def listening(*inputs: Any, **options: Any) -> Any:
        added.append(options["added"][1])
        added[0].retain_grad()
        return hidden(*inputs, **options)

    objective.discriminator.hidden = listening
    objective(batch(), Given()).terms["discriminator"].sum.backward()
    assert not added[0].any()
    given, table = added[0].grad, objective.discriminator.embeddings.tokens.weight
    states, weights, logits = by_hand(objective)
    expected, noise = torch.zeros(WIDTH, dtype=torch.float64), iter(normal(NOISE, 5, WORDS))
    for slot in VALID.nonzero().tolist():
        weight, values = weights[*slot], logits[*slot]
        noisy = weight @ values + next(noise)
        noisy[[PAD, CLS, SEP, MASK]] = -torch.inf
        soft = (noisy / 1.7).softmax(-1)
        of_logits = (soft.diag() - soft.outer(soft)) / 1.7 @ (table @ given[*slot])
        of_scores = (weight.diag() - weight.outer(weight)) @ (values @ of_logits)
        expected += -0.5 * states[*slot].T @ of_scores
    torch.testing.assert_close(objective.mixture.weight.grad[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 30.0])
def test_draws_follow_the_softmax_of_the_mixture(temperature: float) -> None:
    objective, text = authors_networks(temperature=temperature).eval(), batch(2000)
    with torch.no_grad():
        losses = objective(text, streams(text))
    _, weights, logits = by_hand(objective)
    mixed = (weights.unsqueeze(-1) * logits).sum(-2)
    for row, slot in VALID.nonzero().tolist():
        expected = mixed[row, slot].exp()
        expected[[PAD, CLS, SEP, MASK]] = 0
        drawn = losses.detection.inputs[row::3, MASKED[row, slot]].bincount(minlength=WORDS)
        assert not drawn[expected == 0].any()
        assert chi_square_p(drawn[expected > 0], (expected / expected.sum())[expected > 0]) > SIGNIFICANCE
    loss = -mixed.log_softmax(-1).gather(-1, TEXT.gather(1, MASKED).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(losses.predictions["generator"].loss[:3], loss, rtol=1e-9, atol=1e-12)
    for number, depth in enumerate(EXITS):
        mean = losses.metrics[f"mixture_{depth}"]
        torch.testing.assert_close(mean.sum / mean.count, weights[VALID][:, number].mean(), rtol=1e-9, atol=1e-12)
    assert losses.metrics.keys() == objective.metrics.keys()


def test_exits_are_checked_and_by_default_at_half_three_quarters_and_all() -> None:
    def depths(depth: int, exits: list[int] | None = None, inner: bool = True) -> tuple[int, ...]:
        networks: Any = SimpleNamespace(depth=depth, dim=2, inner_states=inner)
        sampler: Any = None
        return Amos(networks, networks, masking, sampler, vocabulary(WORDS), exits=exits).depths

    assert [depths(depth) for depth in (12, 8, 3, 2)] == [(6, 9, 12), (4, 6, 8), (1, 2, 3), (1, 2)]
    for wrong in ([1, 2], [4, 2], [2, 2, 4], [2, 5], [4]):
        with pytest.raises(ValueError, match=r"exits \[.*\] .* 4"):
            depths(4, wrong)
    with pytest.raises(ValueError, match=r"exits \[1\]"):
        depths(1)
    with pytest.raises(ValueError, match="inner layers"):
        depths(4, inner=False)
