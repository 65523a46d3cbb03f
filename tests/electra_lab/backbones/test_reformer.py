"""reformer-pytorch in the lab: reversible or not, its options, its random numbers; its attention: test_hashing."""

from typing import Any

import pytest
import torch
from reformer_pytorch.reformer_pytorch import FeedForward, LSHSelfAttention
from torch import Tensor

from electra_lab.backbones.reformer import Reformer

DIM, DEPTH, HEADS, LENGTH = 16, 2, 2, 32
OPTIONS = [
    {}, {"rotary": False}, {"local_heads": 1}, {"local_heads": 1, "rotary": False}, {"memory": 16}, {"glu": True},
]  # fmt: skip
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def reformer(dim: int = DIM, **options: Any) -> Reformer:
    torch.manual_seed(0)
    return Reformer(dim, DEPTH, HEADS, 64, **{"bucket_size": 4, "hashes": 2, "dropout": 0.0, **options}).train()


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 20:] = False
    return x.requires_grad_(), mask


def loss(model: Reformer, x: Tensor, mask: Tensor, seed: int = 5) -> Tensor:
    torch.manual_seed(seed)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    return (model(x, mask) * weights)[mask].sum()


def gradients(model: Reformer) -> dict[str, Tensor]:
    # The module lists of both modes hold the same modules, under two names; named_parameters gives the first.
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_option
def test_reversible_changes_neither_output_nor_gradients(options: dict[str, Any]) -> None:
    results = []
    for reversible in (False, True):
        model, (x, mask) = reformer(**options, reversible=reversible), batch()
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


@pytest.mark.parametrize("reversible", [False, True])
def test_reversible_keeps_no_more_for_more_layers(reversible: bool) -> None:
    kept = []
    for depth in (1, 3):
        model, (x, mask) = Reformer(DIM, depth, HEADS, 64, bucket_size=4, hashes=2, reversible=reversible), batch()
        tensors: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: tensors.append(t) or t, lambda t: t):  # noqa: B023
            model(x, mask)
        kept.append(len(tensors))
    assert (kept[1] > kept[0]) != reversible


def test_two_forwards_before_one_backward() -> None:
    """As when generator and discriminator share an encoder: gradients are the sum of separate backward passes."""
    model = reformer()
    (first, mask), (second, _) = batch(1), batch(2)
    loss(model, first, mask, seed=5).backward()
    loss(model, second, mask, seed=6).backward()
    separate = gradients(model)
    model.zero_grad()
    (loss(model, first, mask, seed=5) + loss(model, second, mask, seed=6)).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, separate[name], rtol=1e-5, atol=1e-5)


def test_training_hashes_follow_the_global_seed() -> None:
    model, (x, mask) = reformer(hashes=1), batch()
    with torch.no_grad():
        first, same, other = (loss(model, x, mask, seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other


@pytest.mark.parametrize("reversible", [False, True])
def test_layers_hold_the_encoder(reversible: bool) -> None:
    model = reformer(bucket_size=8, reversible=reversible)
    assert (len(model.layers), model.length_multiple) == (DEPTH, 16)  # two buckets
    assert {p for layer in model.layers for p in layer.parameters()} == set(model.encoder.parameters())


@every_option
@pytest.mark.parametrize("reversible", [False, True])
def test_bfloat16_autocast_trains(options: dict[str, Any], reversible: bool) -> None:
    model, (x, mask) = reformer(**options, reversible=reversible), batch()
    torch.manual_seed(5)
    with torch.autocast("cpu", torch.bfloat16):
        states = model(x, mask)
    states.square().sum().backward()
    assert all(t is not None and t.isfinite().all() for t in (states, x.grad, *gradients(model).values()))


@every_option
def test_networks_are_built_on_the_meta_device(options: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = reformer(**options)
    assert {p.device.type for p in model.parameters()} == {"meta"}


def attentions(model: Reformer) -> list[LSHSelfAttention]:
    return [module for module in model.modules() if isinstance(module, LSHSelfAttention)]


def test_options_reach_the_library() -> None:
    model = reformer(dropout=0.3, ff_mult=3)
    found = [(attention.lsh_attn.dropout.p, attention.post_attn_dropout.p) for attention in attentions(model)]
    assert found == [(0.3, 0.3)] * DEPTH
    forwards = [module for module in model.modules() if isinstance(module, FeedForward)]
    assert {(module.dropout.p, module.w2.in_features) for module in forwards} == {(0.3, 3 * DIM)}
    with pytest.raises(ValueError, match="memory 12 must be a multiple of "):
        reformer(memory=12)


def test_flops_of_local_heads_and_memory() -> None:
    """By hand, for one layer of width 16 with 4 heads of 4, over 32 positions and 8 of memory, buckets of 4."""
    sizes = {"bucket_size": 4, "hashes": 2, "dropout": 0.0, "ff_mult": 2}
    model = Reformer(16, 1, 4, 64, **sizes, local_heads=1, memory=8, glu=True)
    projections = 2 * 40 * 16 * 16 * 2 + 2 * 32 * 16 * 16
    hashing = 3 * 2 * (2 * 40 * 4 * 5)  # heads, rounds, products with 10 buckets / 2 rotations
    hashed = 3 * 2 * 2 * (2 * 40 * 8 * 4)  # heads, rounds, two products, over two buckets
    local = 1 * 2 * (2 * 32 * 24 * 4)  # two products over three windows of 8
    assert model.flops(32) == projections + hashing + hashed + local + 6 * 32 * 16 * 32
