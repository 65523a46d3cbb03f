"""The laws bite: electra-pytorch 0.1.2 and mlm-pytorch 0.1.0 break them, each in the way that is known of it.

Numbers such as B1 name the defects in the order in which they were found in those packages. `make laws-peers` holds
their trainers as a whole to laws.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import electra_pytorch.electra_pytorch as electra_seed
import mlm_pytorch.mlm_pytorch as mlm_seed
import pytest
import torch
from torch import Tensor, nn

from electra_lab import testing
from electra_lab.testing import CLS, MASK, PAD, SEP, assert_lawfully_masked, count, vocabulary
from registry import Masked, Vocabulary

SEEDS = pytest.mark.parametrize("seed", [electra_seed, mlm_seed], ids=["electra-pytorch", "mlm-pytorch"])


def slots(chosen: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return a boolean mask Bool[B T] as positions and valid of `number` slots."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :number]
    return order, chosen.gather(1, order)


@SEEDS
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((0, 100, 0), ""), ((0, 60, 40), ""),  # the control: both are right where nothing comes before the text
        ((1, 126, 1), "20 tokens were masked, where the rule says 19"),
        ((1, 60, 67), "10 tokens were masked, where the rule says 9"),
        ((102, 26, 0), "20 tokens were masked, where the rule says 4"),
        ((1, 1, 126), "special or padding"), ((2, 0, 126), "special or padding"), ((122, 6, 0), "special or padding"),
    ],
)  # fmt: skip
def test_b1_wrong_counts_and_b2_special_tokens(seed: Any, shape: tuple[int, int, int], reason: str) -> None:
    """Of rows of (unmaskable, maskable, unmaskable) tokens."""
    left, real, right = shape
    maskable = torch.tensor([[False] * left + [True] * real + [False] * right] * 8)
    torch.manual_seed(0)
    tokens, chosen = torch.full(maskable.shape, 7), seed.get_mask_subset_with_prob(maskable, 0.15)
    masked = Masked(tokens, *slots(chosen, count(0.15, maskable.shape[1])))
    assert masked.valid.sum() == chosen.sum(), "the slots hold all that was chosen"
    with pytest.raises(AssertionError, match=reason) if reason else nullcontext():
        assert_lawfully_masked(masked, tokens, maskable, vocabulary(24), 0.15, exact=True)


@SEEDS
def test_b1_and_b2_are_found_by_the_property_itself(seed: Any) -> None:
    """Hypothesis needs no hint: the law over random batches catches the position sampler."""

    class Theirs(testing.MaskingContract):
        def mask(self, tokens: Tensor, maskable: Tensor, words: Vocabulary, step: int, **options: float) -> Masked:
            torch.manual_seed(step)
            chosen = seed.get_mask_subset_with_prob(maskable, options["mask_prob"])
            return Masked(tokens, *slots(chosen, count(options["mask_prob"], maskable.shape[1])))

    with pytest.raises(AssertionError, match=r"was masked|were masked"):
        Theirs().test_masks_what_it_may_and_as_much_as_it_must(device="cpu")


class Recorder(nn.Module):
    """A network that keeps its input and answers with the same logits for every token."""

    def __init__(self, width: int = 30) -> None:
        super().__init__()
        self.width, self.bias = width, nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        self.seen = tokens
        return torch.zeros(*tokens.shape, self.width) + self.bias


def trainer(seed: Any, generator: Recorder, **options: Any) -> Callable[[Tensor], Any]:
    """Return the package's own module."""
    ids = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP], "num_tokens": 30}
    if seed is electra_seed:
        return seed.Electra(generator, Recorder(1), **ids, **options)
    return seed.MLM(generator, **ids, **options)


@SEEDS
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_b4_random_tokens_strike_everywhere(seed: Any, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Tensor] = []
    choose: Callable[..., Tensor] = seed.get_mask_subset_with_prob
    monkeypatch.setattr(seed, "get_mask_subset_with_prob", lambda *a: chosen.append(choose(*a)) or chosen[0])
    generator, tokens = Recorder(), torch.full((8, 100), 7)
    tokens[:, 90:] = PAD if share else 7
    torch.manual_seed(0)
    trainer(seed, generator, random_token_prob=share)(tokens)
    masked = Masked(generator.seen, *slots(chosen[0], count(0.15, 100)))
    if not share:  # the control
        assert_lawfully_masked(masked, tokens, tokens == 7, vocabulary(30), 0.15, exact=True)
        return
    with pytest.raises(AssertionError, match="changed without being masked"):
        assert_lawfully_masked(masked, tokens, tokens == 7, vocabulary(30), 0.15, exact=True)
    assert (masked.inputs[:, 90:] != PAD).any(), "padding is struck too"


@SEEDS
def test_b3_a_batch_of_padding_gives_nan(seed: Any) -> None:
    """Where ObjectiveContract.test_a_batch_of_padding_alone_is_harmless demands a loss of zero."""
    found = trainer(seed, Recorder())(torch.full((3, 16), PAD))
    assert getattr(found, "loss", found).isnan()
    assert hasattr(testing.ObjectiveContract, "test_a_batch_of_padding_alone_is_harmless")


def test_b6_special_tokens_are_sampled() -> None:
    """Its sampler is given every logit; through the lab's draw the same function never returns a special id."""

    class Raw(testing.SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            torch.manual_seed(0)  # hypothesis runs an example again: its draw must be the same
            return lambda logits, _: electra_seed.gumbel_sample(logits.nan_to_num(neginf=0.0))

    with pytest.raises(AssertionError, match="special id"):
        Raw().test_draws_are_ordinary_ids(device="cpu")


@pytest.mark.parametrize(("dtype", "lawful"), [(torch.float32, True), (torch.bfloat16, False), (torch.float16, False)])
def test_b7_half_precision_never_draws_the_tail(dtype: torch.dtype, lawful: bool) -> None:
    """By the statistic and the number of draws of the law, for noise in the precision of the logits."""
    torch.manual_seed(0)
    logits = (torch.randn(30_522) * 3).to(dtype)
    drawn = [electra_seed.gumbel_sample(logits.expand(500, -1)) for _ in range(testing.SamplerContract.rounds)]
    counts = torch.bincount(torch.cat(drawn), minlength=30_522).double()
    assert (testing.chi_square_p(counts, logits.double().softmax(-1)) > testing.SIGNIFICANCE) == lawful


def test_b8_temperature_zero_is_not_argmax() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    assert electra_seed.gumbel_sample(logits, temperature=0.0).item() != logits.argmax().item()


def test_b9_draws_follow_the_global_generator() -> None:
    class Theirs(testing.SamplerContract):
        def component(self) -> Callable[..., Tensor]:
            return lambda logits, _: electra_seed.gumbel_sample(logits)

    with pytest.raises(AssertionError):
        Theirs().test_draws_depend_on_the_random_numbers_alone(device="cpu")
