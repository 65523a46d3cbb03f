"""The laws bite: electra-pytorch 0.1.2 and mlm-pytorch 0.1.0 break them, each in the way that is known of it.

Numbers such as B1 name the defects in the order in which they were found in those packages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import electra_pytorch.electra_pytorch as electra_seed
import mlm_pytorch.mlm_pytorch as mlm_seed
import pytest
import torch
from torch import Tensor, nn

from electra_lab.testing import (
    CLS,
    MASK,
    PAD,
    SEP,
    SIGNIFICANCE,
    MaskingContract,
    ObjectiveContract,
    SamplerContract,
    assert_lawfully_masked,
    chi_square_p,
    count,
    vocabulary,
)
from registry import Masked, Vocabulary

SEEDS = pytest.mark.parametrize("seed", [electra_seed, mlm_seed], ids=["electra-pytorch", "mlm-pytorch"])


def slots(chosen: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return a boolean mask Bool[B T] as positions and valid of `number` slots."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :number]
    return order, chosen.gather(1, order)


def chosen_by(seed: Any, maskable: Tensor, mask_prob: float) -> Masked:
    """Return the choice of the package's position sampler, with the input unchanged."""
    torch.manual_seed(0)
    chosen = seed.get_mask_subset_with_prob(maskable, mask_prob)
    positions, valid = slots(chosen, count(mask_prob, maskable.shape[1]))
    assert valid.sum() == chosen.sum(), "the slots hold all that was chosen"
    return Masked(torch.full(maskable.shape, 7), positions, valid)


def judge(seed: Any, maskable: Tensor, mask_prob: float = 0.15) -> None:
    tokens = torch.full(maskable.shape, 7)
    masked = chosen_by(seed, maskable, mask_prob)
    assert_lawfully_masked(masked, tokens, maskable, vocabulary(24), mask_prob, exact=True)


def row(left: int, real: int, right: int) -> Tensor:
    return torch.tensor([[False] * left + [True] * real + [False] * right] * 8)


@SEEDS
def test_a_row_without_special_tokens_is_lawful(seed: Any) -> None:
    """The control: where nothing comes before the maskable tokens both packages are right, and the law says so."""
    judge(seed, row(0, 100, 0))
    judge(seed, row(0, 60, 40))


@SEEDS
@pytest.mark.parametrize(
    ("shape", "masked", "rule"),
    [((1, 126, 1), 20, 19), ((1, 60, 67), 10, 9), ((68, 60, 0), 20, 9), ((102, 26, 0), 20, 4)],
    ids=["CLS and SEP", "CLS, SEP and padding", "left padding", "much left padding"],
)
def test_b1_wrong_count_after_unmaskable_tokens(seed: Any, shape: tuple[int, int, int], masked: int, rule: int) -> None:
    with pytest.raises(AssertionError, match=f"{masked} tokens were masked, where the rule says {rule}"):
        judge(seed, row(*shape))


@SEEDS
@pytest.mark.parametrize("shape", [(1, 1, 126), (2, 0, 126), (122, 6, 0)], ids=["one word", "no word", "left padding"])
def test_b2_special_tokens_masked_where_few_are_maskable(seed: Any, shape: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError, match="special or padding tokens were masked"):
        judge(seed, row(*shape))


@SEEDS
def test_b1_and_b2_are_found_by_the_property_itself(seed: Any) -> None:
    """Hypothesis needs no hint: the law over random batches catches the position sampler."""

    class Theirs(MaskingContract):
        def mask(self, tokens: Tensor, maskable: Tensor, words: Vocabulary, step: int, **options: float) -> Masked:
            torch.manual_seed(step)
            chosen = seed.get_mask_subset_with_prob(maskable, options["mask_prob"])
            return Masked(tokens, *slots(chosen, count(options["mask_prob"], maskable.shape[1])))

    with pytest.raises(AssertionError, match=r"was masked|were masked"):
        Theirs().test_masks_what_it_may_and_as_much_as_it_must(device="cpu")


class Recorder(nn.Module):
    """A network that keeps its input and answers with the same logits for every token."""

    def __init__(self, size: int, width: int | None = None) -> None:
        super().__init__()
        self.size, self.width = size, width
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        self.seen = tokens
        return torch.zeros(*tokens.shape, self.width or self.size) + self.bias


def masked_by_module(
    seed: Any, monkeypatch: pytest.MonkeyPatch, tokens: Tensor, **options: Any
) -> tuple[Masked, Recorder]:
    """Run the package's own forward pass; return its generator's input and the positions that it meant to mask."""
    chosen: list[Tensor] = []
    choose: Callable[..., Tensor] = seed.get_mask_subset_with_prob
    monkeypatch.setattr(seed, "get_mask_subset_with_prob", lambda *a: chosen.append(choose(*a)) or chosen[0])
    generator, size = Recorder(30), 30
    ids = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP], "num_tokens": size}
    torch.manual_seed(0)
    if seed is electra_seed:
        seed.Electra(generator, Recorder(size, 1), **ids, **options)(tokens)
    else:
        seed.MLM(generator, **ids, **options)(tokens)
    return Masked(generator.seen, *slots(chosen[0], count(0.15, tokens.shape[1]))), generator


@SEEDS
def test_b4_random_tokens_strike_everywhere(seed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.full((8, 100), 7)
    tokens[:, 90:] = PAD
    maskable = tokens == 7
    masked, _ = masked_by_module(seed, monkeypatch, tokens, random_token_prob=0.1)
    with pytest.raises(AssertionError, match="changed without being masked"):
        assert_lawfully_masked(masked, tokens, maskable, vocabulary(30), 0.15, exact=True)
    assert (masked.inputs[:, 90:] != PAD).any(), "padding is struck too"


@SEEDS
def test_without_random_tokens_nothing_else_is_changed(seed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control for b4."""
    tokens = torch.full((8, 100), 7)
    masked, _ = masked_by_module(seed, monkeypatch, tokens)
    assert_lawfully_masked(masked, tokens, tokens == 7, vocabulary(30), 0.15, exact=True)


def test_b3_a_batch_of_padding_gives_nan() -> None:
    """Where ObjectiveContract.test_a_batch_of_padding_alone_is_harmless demands a loss of zero."""
    tokens = torch.full((3, 16), PAD)
    ids = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP], "num_tokens": 30}
    assert electra_seed.Electra(Recorder(30), Recorder(30, 1), **ids)(tokens).loss.isnan()
    assert mlm_seed.MLM(Recorder(30), **ids)(tokens).isnan()
    assert hasattr(ObjectiveContract, "test_a_batch_of_padding_alone_is_harmless")


def test_b6_special_tokens_are_sampled() -> None:
    """Its sampler is given every logit; through the lab's draw the same function never returns a special id."""

    class Raw(SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            torch.manual_seed(0)  # hypothesis runs an example again: its draw must be the same
            return lambda logits, _: electra_seed.gumbel_sample(logits.nan_to_num(neginf=0.0))

    with pytest.raises(AssertionError, match="special id"):
        Raw().test_draws_are_ordinary_ids(device="cpu")


@pytest.mark.parametrize(("dtype", "lawful"), [(torch.float32, True), (torch.bfloat16, False), (torch.float16, False)])
def test_b7_half_precision_never_draws_the_tail(dtype: torch.dtype, lawful: bool) -> None:
    """By the statistic and the number of draws of the law, for noise in the precision of the logits."""
    torch.manual_seed(0)
    logits = torch.randn(30_522) * 3
    rows = 500
    drawn = torch.cat(
        [electra_seed.gumbel_sample(logits.to(dtype).expand(rows, -1)) for _ in range(SamplerContract.rounds)]
    )
    counts = torch.bincount(drawn, minlength=30_522).double()
    p = chi_square_p(counts, logits.to(dtype).double().softmax(-1))
    assert (p > SIGNIFICANCE) == lawful


def test_b8_temperature_zero_is_not_argmax() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    assert electra_seed.gumbel_sample(logits, temperature=0.0).item() != logits.argmax().item()


def test_b9_draws_follow_the_global_generator() -> None:
    class Theirs(SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            return lambda logits, _: electra_seed.gumbel_sample(logits)

    with pytest.raises(AssertionError):
        Theirs().test_draws_depend_on_the_random_numbers_alone(device="cpu")
