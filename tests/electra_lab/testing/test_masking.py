"""The laws of masking strategies find mistakes: each one by the law for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.masking.replace_prob import replace_prob
from electra_lab.testing import CLS, MaskingContract
from registry import Masked

Change = Callable[[Masked, Tensor, Tensor], Masked]


def given(strategy: Callable[..., Masked], **changed: Any) -> MaskingContract:
    return type("Suite", (MaskingContract,), {"name": "mine", "component": lambda _: strategy, **changed})()


def after(change: Change, **changed: Any) -> MaskingContract:
    """Return the suite of a strategy that changes the choices of replace_prob."""

    def strategy(tokens: Tensor, maskable: Tensor, vocabulary: Any, rng: Any, /, **options: Any) -> Masked:
        return change(replace_prob(tokens, maskable, vocabulary, rng, **options), tokens, maskable)

    return given(strategy, **changed)


def elsewhere(masked: Masked, tokens: Tensor, maskable: Tensor) -> Masked:
    """Change a token that was not chosen."""
    chosen = torch.zeros_like(maskable).scatter(1, masked.positions, masked.valid)
    return replace(masked, inputs=torch.where(chosen, masked.inputs, (tokens + 1) % 24))


# fmt: off
MISTAKES: dict[str, tuple[Change, str]] = {
    "padding": (lambda m, t, ok: replace(m, positions=ok.int().argsort(-1)[:, :m.positions.shape[1]],
                                         valid=torch.ones_like(m.valid)), "special or padding tokens were masked"),
    "twice": (lambda m, t, ok: replace(m, positions=m.positions[:, :1].expand_as(m.positions)),
              "a position was masked twice"),
    "one too few": (lambda m, t, ok: replace(m, valid=m.valid.clone().index_fill(1, torch.tensor([0]), False)),
                    "tokens were masked, where the rule says"),
    "other slots": (lambda m, t, ok: replace(m, positions=m.positions[:, 1:], valid=m.valid[:, 1:]), "slots of shape"),
    "elsewhere": (elsewhere, "inputs changed without being masked"),
    "a special token": (lambda m, t, ok: replace(m, inputs=m.inputs.scatter(
        1, m.positions, torch.where(m.valid, CLS, t.gather(1, m.positions)))), "a special token other than"),
    "cut inputs": (lambda m, t, ok: replace(m, inputs=m.inputs[:, :-1]), "inputs of shape"),
}
# fmt: on


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    change, reason = MISTAKES[mistake]
    with pytest.raises(AssertionError, match=reason):
        after(change).test_masks_only_allowed_positions_and_the_required_number(device="cpu")


def test_the_rule_of_words_allows_fewer_but_not_none() -> None:
    first = torch.tensor([0])
    fewer = after(lambda m, t, ok: Masked(t, m.positions, m.valid.clone().index_fill(1, first, False)), exact=False)
    none = after(lambda m, t, ok: Masked(t, m.positions, m.valid & False), exact=False)
    for suite in (fewer, none):
        with pytest.raises(AssertionError, match="0 tokens were masked, where the rule says"):
            suite.test_masks_only_allowed_positions_and_the_required_number(device="cpu")


@pytest.mark.parametrize("ignored", ["replace_prob", "random_prob"])
def test_a_share_that_is_ignored_is_found(ignored: str) -> None:
    def strategy(*given: Any, **options: Any) -> Masked:
        return replace_prob(*given, **{name: value for name, value in options.items() if name != ignored})

    with pytest.raises(AssertionError, match=r"the share of .* is 0\.\d+, not"):
        given(strategy).test_shares("cpu", 0.3, 0.3)


def test_a_preference_for_some_positions_is_found() -> None:
    def strategy(tokens: Tensor, maskable: Tensor, vocabulary: Any, rng: Any, /, **options: Any) -> Masked:
        masked = replace_prob(tokens, maskable, vocabulary, rng, **options)
        moved = (torch.arange(len(tokens)) % 12 == 0).unsqueeze(1) & (masked.positions != 4).all(1, keepdim=True)
        first = torch.zeros_like(masked.positions, dtype=torch.bool)
        first[:, 0] = True
        return replace(masked, positions=torch.where(moved & first, 4, masked.positions))

    with pytest.raises(AssertionError, match="positions 4 to 16 were chosen"):
        given(strategy).test_every_position_alike("cpu")


def test_a_mask_prob_that_changes_must_count() -> None:
    def strategy(*given: Any, mask_prob: Any = 0.15, **options: Any) -> Masked:
        return replace_prob(*given, mask_prob=0.15 if isinstance(mask_prob, Tensor) else mask_prob, **options)

    with pytest.raises(AssertionError):
        given(strategy).test_a_mask_prob_that_changes_arrives_as_a_tensor("cpu")


@pytest.mark.parametrize("seeded", [False, True])
def test_another_generator_is_found(seeded: bool) -> None:
    class Own:
        def uniform(self, rows: int, *shape: int) -> Tensor:
            return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(0) if seeded else None)

    with pytest.raises(AssertionError, match="differ by"):
        given(lambda tokens, maskable, vocabulary, *_: replace_prob(tokens, maskable, vocabulary, Own())
              ).test_masks_depend_on_the_random_numbers_alone("cpu")  # fmt: skip
