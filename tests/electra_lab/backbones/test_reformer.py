"""reformer-pytorch in the lab: reversible or not, against its own full attention, its options, its random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reformer_pytorch import reformer_pytorch as library
from reformer_pytorch.reformer_pytorch import FeedForward, LocalAttention, LSHSelfAttention
from torch import Tensor

from electra_lab.backbones.reformer import Reformer

DIM, DEPTH, HEADS, LENGTH = 16, 2, 2, 32
OPTIONS = [
    {},
    {"rotary": False},
    {"local_heads": 1},
    {"local_heads": 1, "rotary": False},
    {"memory": 16},
    {"glu": True},
]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


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
    full_attention = library.Reformer(DIM, DEPTH, HEADS, ff_chunks=1, use_full_attn=True, reverse_thres=1 << 62).eval()
    full_attention.load_state_dict(model.encoder.state_dict())
    x, mask = batch()
    with torch.no_grad():
        hashed = model(x, mask)
        full = model.norm(full_attention(x.masked_fill(~mask.unsqueeze(-1), 0.0), input_mask=mask))
    torch.testing.assert_close(hashed[mask], full[mask], rtol=1e-5, atol=1e-5)


def test_small_buckets_are_not_full_attention() -> None:
    """Else the test above would compare a thing with itself."""
    few, many = (reformer(rotary=False, bucket_size=size, hashes=1).eval() for size in (LENGTH // 2, 2))
    x, mask = batch()
    assert (few(x, mask) - many(x, mask)).abs().max() > 1e-2


@pytest.mark.parametrize("rotary", [True, False])
def test_padding_takes_no_part_in_attention(rotary: bool) -> None:
    """Two buckets are full attention, in which a row with padding is the row without it."""
    padded, alone = (reformer(rotary=rotary, bucket_size=LENGTH // n, hashes=1).eval() for n in (2, 4))
    x, half = batch()[0], LENGTH // 2
    mask = (torch.arange(LENGTH) < half).expand(2, -1)
    torch.testing.assert_close(padded(x, mask)[:, :half], alone(x[:, :half], mask[:, :half]), rtol=1e-5, atol=1e-5)


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


def one_local_head(rotary: bool = True) -> Reformer:
    """A layer of which only the local head is heard; windows of 4."""
    torch.manual_seed(0)
    model = Reformer(DIM, 1, 2, 64, rotary=rotary, bucket_size=2, hashes=1, local_heads=1, dropout=0.0).eval()
    [attention] = attentions(model)
    attention.to_out.weight.data[:, DIM // 2 :] = 0.0  # local heads come first
    return model.requires_grad_(False)


@pytest.mark.parametrize("rotary", [True, False])
def test_a_window_over_the_whole_row_is_full_attention(rotary: bool) -> None:
    """So are two buckets: then it makes no difference which heads are local, what they mask and where things stand."""
    hashed, local = (
        reformer(rotary=rotary, bucket_size=LENGTH // 2, hashes=1, local_heads=number).eval() for number in (0, 1)
    )
    x, mask = batch()
    torch.testing.assert_close(local(x, mask)[mask], hashed(x, mask)[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(("changed", "seeing"), [(0, range(0, 8)), (13, range(8, 20)), (31, range(24, 32))])
def test_a_local_head_sees_its_window_and_the_two_beside(rotary: bool, changed: int, seeing: range) -> None:
    model, x = one_local_head(rotary), batch()[0].detach()
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    other = x.clone()
    other[:, changed] += torch.randn(DIM, generator=torch.Generator().manual_seed(3))
    differs = (model(x, mask) != model(other, mask)).any(-1)
    assert all(row.nonzero().flatten().tolist() == list(seeing) for row in differs)


@pytest.mark.parametrize("real", [24, 23])
def test_a_local_head_does_not_feel_how_much_padding_there_is(real: int) -> None:
    """There is no hash in it that depends on the length."""
    model, x = one_local_head(), batch()[0].detach()
    mask = torch.arange(LENGTH).expand(2, -1) < real
    whole, cut = model(x, mask), model(x[:, :24], mask[:, :24])
    torch.testing.assert_close(whole[:, :real], cut[:, :real])


@pytest.mark.parametrize("rotary", [True, False])
def test_a_local_head_knows_the_order_of_its_window_by_rotary_positions(rotary: bool) -> None:
    """Which the library does not give it."""
    model, x = one_local_head(rotary), batch()[0].detach()[:, :4]
    mask, order = torch.ones(2, 4, dtype=torch.bool), torch.tensor([2, 0, 3, 1])
    assert torch.allclose(model(x, mask)[:, order], model(x[:, order], mask), atol=1e-5) != rotary


@pytest.mark.parametrize("rotary", [True, False])
def test_local_heads_have_the_dropout_of_the_others(rotary: bool) -> None:
    model = reformer(rotary=rotary, local_heads=1, dropout=0.3)
    found = [module.dropout.p for module in model.modules() if isinstance(module, LocalAttention)]
    assert found == [0.3] * DEPTH


def test_memory_is_positions_that_hold_learned_vectors() -> None:
    """An attention layer with memory is one without it, on a row that goes on with the memory, never masked."""
    with_memory, without = (attentions(reformer(memory=number, rotary=False))[0] for number in (8, 0))
    weights = with_memory.state_dict()
    memory = weights.pop("mem_kv")
    assert memory.shape == (1, 8, DIM)
    without.load_state_dict(weights)
    x, mask = batch()
    longer = torch.cat([x, memory.expand(2, -1, -1)], dim=1)
    attended = []
    for attention, row, real in (
        (with_memory, x, mask),
        (without, longer, torch.nn.functional.pad(mask, (0, 8), value=True)),
    ):
        torch.manual_seed(5)
        attended.append(attention(row, input_mask=real)[:, :LENGTH])
    torch.testing.assert_close(*attended)


def test_memory_changes_the_states_of_real_positions() -> None:
    model, (x, mask) = reformer(memory=8).eval(), batch()
    before = model(x, mask)
    assert before.shape == x.shape
    for attention in attentions(model):
        attention.mem_kv.data.neg_()
    assert ((model(x, mask) - before).abs().amax(-1) > 1e-6)[mask].float().mean() > 0.5


def test_memory_comes_in_whole_pairs_of_buckets() -> None:
    with pytest.raises(ValueError, match=r"memory 12 must be a multiple of twice bucket_size, here 8"):
        reformer(memory=12)


def test_dropout_acts_on_attention_after_it_and_within_the_feed_forward() -> None:
    model = reformer(dropout=0.3)
    found = [(a.lsh_attn.dropout.p, a.post_attn_dropout.p) for a in attentions(model)]
    assert found == [(0.3, 0.3)] * DEPTH
    assert {module.dropout.p for module in model.modules() if isinstance(module, FeedForward)} == {0.3}


def test_the_feed_forward_is_as_wide_as_ff_mult_says() -> None:
    widths = {m.w2.in_features for m in reformer(ff_mult=3).modules() if isinstance(m, FeedForward)}
    assert widths == {3 * DIM}


def test_glu_gates_the_feed_forward() -> None:
    """GELU(a) * b instead of GELU(a)."""
    for glu in (False, True):
        feed_forward = next(m for m in reformer(glu=glu).modules() if isinstance(m, FeedForward))
        x = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1))
        inner = feed_forward.w1(x)
        assert inner.shape[-1] == (8 if glu else 4) * DIM
        a, *gate = inner.split(4 * DIM, dim=-1)
        gated = torch.nn.functional.gelu(a) * (gate[0] if glu else 1.0)
        torch.testing.assert_close(feed_forward(x), feed_forward.w2(gated))


def test_flops_of_local_heads_and_memory() -> None:
    """By hand, for one layer of width 16 with 4 heads of 4, over 32 positions and 8 of memory, buckets of 4."""
    sizes = {"bucket_size": 4, "hashes": 2, "dropout": 0.0, "ff_mult": 2}
    model = Reformer(16, 1, 4, 64, **sizes, local_heads=1, memory=8, glu=True)
    projections = 2 * 40 * 16 * 16 * 2 + 2 * 32 * 16 * 16
    hashing = 3 * 2 * (2 * 40 * 4 * 5)  # heads, rounds, products with 10 buckets / 2 rotations
    hashed = 3 * 2 * 2 * (2 * 40 * 8 * 4)  # heads, rounds, two products, over two buckets
    local = 1 * 2 * (2 * 32 * 24 * 4)  # two products over three windows of 8
    assert model.flops(32) == projections + hashing + hashed + local + 6 * 32 * 16 * 32
