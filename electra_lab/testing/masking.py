"""Laws of masking strategies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.testing.common import (
    MASK,
    SIGNIFICANCE,
    Contract,
    batches,
    binomial_p,
    chi_square_p,
    count,
    law,
    random_numbers,
    vocabulary,
    worst,
)
from registry import Masked, Vocabulary, masking_strategies


class MaskingContract(Contract):
    """Laws of masking strategies.

    exact    each row has exactly count(maskable) masked tokens; otherwise at most as many, and at least one
    uniform  every maskable token is equally likely to be chosen; None: if `exact`
    """

    registry = masking_strategies
    exact: bool = True
    uniform: bool | None = None

    def mask(self, tokens: Tensor, maskable: Tensor, words: Vocabulary, step: int, **options: float | Tensor) -> Masked:
        random = random_numbers(step, len(tokens), tokens.device.type)
        masked: Masked = self.component()(tokens, maskable, words, random, **options)
        return masked

    @law
    @given(data=st.data(), mask_prob=st.one_of(st.sampled_from([0.15, 0.25, 1.0]), st.floats(0.01, 1)))
    def test_masks_only_allowed_positions_and_the_required_number(
        self, device: str, data: st.DataObject, mask_prob: float
    ) -> None:
        """For every padding, every number of maskable tokens, 0, 1, 2 and all-pad rows included."""
        words = vocabulary(24, device)
        tokens, maskable = (t.to(device) for t in data.draw(batches(24)))
        masked = self.mask(tokens, maskable, words, 1, mask_prob=mask_prob)
        assert_lawfully_masked(masked, tokens, maskable, words, mask_prob, exact=self.exact)

    @pytest.mark.parametrize(
        ("replace_prob", "random_prob"), [(0.85, 0.0), (0.8, 0.1), (0.0, 1.0), (1.0, 0.0), (0.3, 0.3)]
    )
    def test_shares(self, device: str, replace_prob: float, random_prob: float) -> None:
        """Shares of [MASK], random and kept tokens lie within binomial bounds."""
        size = 1000
        words = vocabulary(size, device)
        tokens = torch.randint(5, size, (256, 128), generator=torch.Generator().manual_seed(0)).to(device)
        options = {"mask_prob": 0.15, "replace_prob": replace_prob, "random_prob": random_prob}
        masked = self.mask(tokens, torch.ones_like(tokens, dtype=torch.bool), words, 1, **options)
        seen = masked.inputs.gather(1, masked.positions)[masked.valid]
        originals = tokens.gather(1, masked.positions)[masked.valid]
        kept_by_chance = random_prob / (size - 4)  # a random token may be the original
        shares = {
            "[MASK]": (int((seen == MASK).sum()), replace_prob),
            "kept": (int((seen == originals).sum()), 1 - replace_prob - random_prob + kept_by_chance),
        }
        for what, (number, share) in shares.items():
            p = binomial_p(number, len(seen), share)
            assert p > SIGNIFICANCE, f"the share of {what} is {number / len(seen):.4f}, not {share:.4f} (p = {p:.2g})"

    def test_every_position_alike(self, device: str) -> None:
        """Uniform strategies choose every maskable position equally often, also next to padding."""
        if not (self.exact if self.uniform is None else self.uniform):
            pytest.skip("this strategy does not claim to choose uniformly")
        length, rows = 20, 4000
        tokens = torch.full((rows, length), 7, device=device)
        maskable = torch.zeros(rows, length, dtype=torch.bool, device=device)
        maskable[:, 4:17] = True
        masked = self.mask(tokens, maskable, vocabulary(24, device), 1, mask_prob=0.2)
        counts = torch.bincount(masked.positions[masked.valid].cpu(), minlength=length)[4:17]
        p = chi_square_p(counts.double(), torch.full((13,), 1 / 13).double())
        assert p > SIGNIFICANCE, f"positions 4 to 16 were chosen {counts.tolist()} times (p = {p:.2g})"

    def test_a_mask_prob_that_changes_arrives_as_a_tensor(self, device: str) -> None:
        """It masks the same as the number itself; the slots that count come first."""
        words = vocabulary(500, device)
        tokens = torch.randint(5, 500, (16, 64), generator=torch.Generator().manual_seed(0)).to(device)
        maskable = tokens != 7
        for mask_prob in (0.15, 0.5):
            fixed = self.mask(tokens, maskable, words, 1, mask_prob=mask_prob)
            changing = self.mask(tokens, maskable, words, 1, mask_prob=torch.tensor(mask_prob, dtype=torch.float64))
            slots = count(mask_prob, 64)
            assert torch.equal(changing.inputs, fixed.inputs), worst(changing.inputs, fixed.inputs)
            assert torch.equal(changing.valid[:, :slots], fixed.valid), f"other slots count at mask_prob {mask_prob}"
            assert not changing.valid[:, slots:].any(), f"slots beyond the first {slots} count"
            assert torch.equal(changing.positions[:, :slots][fixed.valid], fixed.positions[fixed.valid])

    def test_masks_depend_on_the_random_numbers_alone(self, device: str) -> None:
        words = vocabulary(500, device)
        tokens = torch.randint(5, 500, (16, 64), generator=torch.Generator().manual_seed(0)).to(device)
        maskable = torch.ones_like(tokens, dtype=torch.bool)
        whole, again, other = (self.mask(tokens, maskable, words, step) for step in (1, 1, 2))
        half = self.component()(tokens[8:], maskable[8:], words, random_numbers(1, 8, device, start=8))
        for first, second in ((whole, again), (Masked(whole.inputs[8:], whole.positions[8:], whole.valid[8:]), half)):
            assert torch.equal(first.inputs, second.inputs), worst(first.inputs, second.inputs)
            assert torch.equal(first.positions, second.positions), worst(first.positions, second.positions)
        assert not torch.equal(whole.inputs, other.inputs), "another step masks the same tokens"


def assert_lawfully_masked(
    masked: Masked, tokens: Tensor, maskable: Tensor, words: Vocabulary, mask_prob: float, *, exact: bool
) -> None:
    """Assert the law of a masked batch, row by row."""
    positions, valid, length = masked.positions, masked.valid, tokens.shape[1]
    slots = (len(tokens), count(mask_prob, length))
    assert positions.shape == valid.shape == slots, f"slots of shape {list(positions.shape)}, must be {list(slots)}"
    assert masked.inputs.shape == tokens.shape, f"inputs of shape {list(masked.inputs.shape)}"
    for row in range(len(tokens)):
        chosen, most = positions[row][valid[row]], count(mask_prob, int(maskable[row].sum()))
        forbidden = chosen[~maskable[row][chosen]].tolist()
        assert not forbidden, f"row {row}: special or padding tokens were masked, at {forbidden}"
        assert len(set(chosen.tolist())) == len(chosen), f"row {row}: a position was masked twice: {chosen.tolist()}"
        right = len(chosen) == most if exact else min(most, 1) <= len(chosen) <= most
        assert right, f"row {row}: {len(chosen)} tokens were masked, where the rule says {most}"
        untouched = torch.ones(length, dtype=torch.bool, device=tokens.device)
        untouched[chosen] = False
        changed = ((masked.inputs[row] != tokens[row]) & untouched).nonzero().flatten().tolist()
        assert not changed, f"row {row}: inputs changed without being masked, at {changed}"
        seen, originals = masked.inputs[row][chosen], tokens[row][chosen]
        allowed = (seen == MASK) | (seen == originals) | ~words.is_special[seen]
        assert allowed.all(), f"row {row}: a special token other than [MASK] was put in, at {chosen[~allowed].tolist()}"
