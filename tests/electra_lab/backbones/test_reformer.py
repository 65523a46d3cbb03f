"""reformer-pytorch in the lab: reversible or not, against its own full attention, its random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reformer_pytorch.reformer_pytorch import LSHSelfAttention
from torch import Tensor

from electra_lab.backbones.reformer import Reformer

DIM, DEPTH, HEADS, LENGTH = 16, 2, 2, 32


def reformer(dim: int = DIM, **options: Any) -> Reformer:
    torch.manual_seed(0)
    return Reformer(dim, DEPTH, HEADS, 64, **{"bucket_size": 4, "hashes": 2, "dropout": 0.0, **options}).train()


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    """States to encode, and a mask that leaves some of the second row out."""
    x = torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 20:] = False
    return x.requires_grad_(), mask


def loss(model: Reformer, x: Tensor, mask: Tensor, seed: int = 5) -> Tensor:
    """With hash rotations of its own for each seed."""
    torch.manual_seed(seed)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    return (model(x, mask) * weights)[mask].sum()


def gradients(model: Reformer) -> dict[str, Tensor]:
    # The module lists of both modes hold the same modules, under two names; named_parameters gives the first.
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rotary", [True, False])
def test_reversible_changes_neither_output_nor_gradients(rotary: bool) -> None:
    results = []
    for reversible in (False, True):
        model, (x, mask) = reformer(rotary=rotary, reversible=reversible), batch()
        torch.manual_seed(5)
        output = model(x, mask).detach()
        model.zero_grad()
        loss(model, x, mask).backward()
        results.append((output, {**gradients(model), "input": x.grad}))
    (output, expected), (other_output, found) = results
    torch.testing.assert_close(other_output, output, rtol=1e-6, atol=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max(), name


def test_two_forwards_before_one_backward() -> None:
    """As where generator and discriminator share an encoder: the sum of separate backward passes."""
    model = reformer()
    (one, mask), (two, _) = batch(1), batch(2)
    loss(model, one, mask, seed=5).backward()
    loss(model, two, mask, seed=6).backward()
    separate = gradients(model)
    model.zero_grad()
    (loss(model, one, mask, seed=5) + loss(model, two, mask, seed=6)).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, separate[name], rtol=1e-5, atol=1e-5)


def test_two_buckets_are_full_attention() -> None:
    """A bucket sees itself and the one before, so two of them see every key: the library's own full attention.

    With one round of hashing; with more, the first bucket of a round looks back at the last of the round before.
    """
    model = reformer(rotary=False, bucket_size=LENGTH // 2, hashes=1).eval()
    x, mask = batch()
    with torch.no_grad():
        hashed = model(x, mask)
        for module in model.modules():
            if isinstance(module, LSHSelfAttention):
                module.use_full_attn = True
        full = model(x, mask)
    torch.testing.assert_close(hashed[mask], full[mask], rtol=1e-5, atol=1e-5)


def test_small_buckets_are_not_full_attention() -> None:
    """Else the test above would compare a thing with itself."""
    few, many = (reformer(rotary=False, bucket_size=size, hashes=1).eval() for size in (LENGTH // 2, 2))
    x, mask = batch()
    assert (few(x, mask) - many(x, mask)).abs().max() > 1e-2


def test_without_rotary_positions_the_lab_gives_them() -> None:
    """Then the encoder itself does not know the order of its input; with them it does."""
    x, _ = batch()
    mask, order = torch.ones(2, LENGTH, dtype=torch.bool), torch.randperm(LENGTH)
    for rotary, positions in ((True, "own"), (False, "lab")):
        model = reformer(rotary=rotary, bucket_size=LENGTH // 2, hashes=1).eval()
        assert model.positions == positions
        same = torch.allclose(model(x, mask)[:, order], model(x[:, order], mask), atol=1e-5)
        assert same == (positions == "lab")


def test_rotary_positions_refuse_an_odd_head_width() -> None:
    with pytest.raises(ValueError, match=r"even head width; dim 6 / heads 2 is 3\."):
        reformer(dim=6)
    assert reformer(dim=6, rotary=False).positions == "lab"


def test_evaluation_neither_reads_nor_moves_the_global_generator() -> None:
    model, (x, mask) = reformer().eval(), batch()
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        outputs.append(model(x, mask))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*outputs)


def test_training_hashes_follow_the_global_seed() -> None:
    model, (x, mask) = reformer(hashes=1), batch()
    with torch.no_grad():
        one, same, other = (loss(model, x, mask, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_lengths_are_multiples_of_two_buckets() -> None:
    assert reformer(bucket_size=8).length_multiple == 16


@pytest.mark.parametrize("reversible", [False, True])
def test_layers_hold_the_encoder(reversible: bool) -> None:
    model = reformer(reversible=reversible)
    assert len(model.layers) == DEPTH
    assert {p for layer in model.layers for p in layer.parameters()} == set(model.encoder.parameters())
