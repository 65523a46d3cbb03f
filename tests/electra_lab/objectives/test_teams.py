"""TEAMS: against the same losses put together by hand, and candidates against the enumeration of Plackett-Luce."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.testing import CLS, MASK, PAD, SEP, SIGNIFICANCE, chi_square_p
from registry import samplers
from tests.electra_lab.objectives.tiny import (
    SIZE,
    Fixed,
    Says,
    assert_close,
    berts,
    gradients,
    needs_of,
    rows,
    sentences,
    streams,
    tables,
    total,
)  # fmt: skip


def stacked(network: Any, layers: Any, x: Tensor, mask: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, mask[:, None, None, :])
    return x


def embedded(network: Any, tokens: Tensor, batch: Any) -> Tensor:
    x = network.embeddings(tokens, batch.segments)
    return x if network.project is None else network.project(x)


def vectors(head: Any, hidden: Tensor) -> Tensor:
    return head.norm(F.gelu(head.dense(hidden)))


@pytest.mark.parametrize(
    ("below_top", "branch", "own"), [(1, "as_meant", 1), (2, "as_meant", 2), (2, "as_released", 1)]
)
def test_losses_and_gradients_by_hand(below_top: int, branch: str, own: int) -> None:
    """Layer by layer, with logits over the whole vocabulary and a candidate's softmax taken from them."""
    sampler = samplers.get("temperature").component
    objective = berts("teams", 1, sampler=sampler, equal=True, depth=3, below_top=below_top, branch=branch, k=4)
    objective, batch = objective.double().eval(), sentences()
    losses = objective(batch, streams(batch))
    seen, choice, asked = losses.detection, losses.choice, losses.predictions["generator"]
    mask, real = batch.attention_mask, batch.attention_mask
    model, at = objective.discriminator, choice.positions
    head, chooser = model.heads["replaced_branch"], model.heads["candidates"]
    assert len(head.encoder.layers) == own
    originals = batch.tokens.gather(1, at)

    # The candidates: the original, and others that are distinct and not special.
    assert torch.equal(choice.candidates[..., 0], originals)
    assert all(len(set(slot)) == 4 for slot in choice.candidates.flatten(0, 1).tolist())
    assert choice.candidates.min() > 4 or set(choice.candidates.unique().tolist()) <= {1, *range(5, 30)}

    # Detection: the branch leaves some layers below the top.
    bottom, top = model.backbone.layers[: 3 - below_top], model.backbone.layers[3 - below_top :]
    inner = stacked(model, bottom, embedded(model, seen.inputs, batch), mask)
    x = stacked(model, head.encoder.layers, inner, mask)
    logits = head.out(F.gelu(head.dense(x))).squeeze(-1)
    labels = (seen.inputs != batch.tokens).double()
    signs = 2 * labels - 1
    detection = -(F.logsigmoid(signs * logits)[real]).mean()

    # Choice: at the top.
    hidden = stacked(model, top, inner, mask)
    whole = vectors(chooser, hidden) @ model.embeddings.tokens.weight.T
    place = at.unsqueeze(-1).expand(-1, -1, whole.shape[-1])
    few = whole.gather(1, place).gather(-1, choice.candidates)
    chosen = (few.logsumexp(-1) - few[..., 0])[asked.valid].mean()

    # The generator's loss, on what it read; it has no other part than in `electra`.
    mlm = losses.terms["generator"].sum / losses.terms["generator"].count
    expected = mlm + 5 * detection + 2 * chosen
    assert {name: int(t.count) for name, t in losses.terms.items()} == {
        "generator": int(asked.valid.sum()), "discriminator": int(real.sum()), "choice": int(asked.valid.sum())
    }  # fmt: skip
    torch.testing.assert_close(total(losses), expected, rtol=1e-9, atol=1e-12)
    assert_close(gradients(objective, total(losses)), gradients(objective, expected))
    beforehand = objective.counts(batch, streams(batch))
    assert {name: int(n) for name, n in beforehand.items()} == {n: int(t.count) for n, t in losses.terms.items()}


def test_candidates_follow_plackett_luce_without_the_original() -> None:
    """Every ordered pair, of a generator whose original is the likeliest; special tokens are never drawn."""
    batch = rows(CLS, 7, 8, SEP, number=6000)
    objective = tables("teams", Fixed(1), Says(5), 4, k=3)
    objective.generator.guesses.data[1, 7] = 3.0
    drawn = objective._draws(objective.guess(batch, streams(batch)), streams(batch))[:, 0]
    weights = objective.generator.guesses[1].detach().exp()
    weights[[PAD, CLS, SEP, MASK, 7]] = 0
    pairs = weights.unsqueeze(1) * weights / (weights.sum() - weights).unsqueeze(1) / weights.sum()
    pairs.fill_diagonal_(0)
    counts = (drawn[:, 0] * SIZE + drawn[:, 1]).bincount(minlength=SIZE**2)
    chances = pairs.flatten()
    assert not counts[chances == 0].any()
    assert chi_square_p(counts[chances > 0], chances[chances > 0]) > SIGNIFICANCE


def test_a_branch_of_one_layer_is_the_same_as_released() -> None:
    assert needs_of("teams", branch="as_released") == needs_of("teams", branch="as_meant")
    assert needs_of("teams", branch="as_released", below_top=3) != needs_of("teams", below_top=3)
