"""`transformer`: each option reaches the part of x-transformers that it names."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from x_transformers import Encoder
from x_transformers.x_transformers import Attend, Attention, FeedForward, LayerNorm, RMSNorm

from electra_lab.backbones.transformer import KernelAttention, OnePassNorm, Transformer
from electra_lab.model.attention import KERNELS, Kernel, use_kernel


def parts(kind: Any, **options: Any) -> list[Any]:
    found = [module for module in Transformer(96, 2, 2, 32, **options).modules() if isinstance(module, kind)]
    assert found, f"x-transformers has no {kind.__name__} here"
    return found


def test_dropout_acts_on_attention_and_within_the_feed_forward() -> None:
    assert [module.p for module in parts(nn.Dropout, dropout=0.3)] == [0.3] * 4
    assert [attend.dropout for attend in parts(Attend, dropout=0.3)] == [0.3] * 2  # what the fused kernel reads
    assert {module.p for module in parts(nn.Dropout)} == {0.1}


def test_options_reach_their_parts() -> None:
    for choice in (True, False):
        assert [attend.flash for attend in parts(Attend, flash=choice)] == [choice] * 2
        assert len(parts(RMSNorm if choice else LayerNorm, rmsnorm=choice)) == 5  # two a layer, and one at the end
        assert {part.ff[-1].in_features for part in parts(FeedForward, glu=choice, ff_mult=1.5)} == {144}
    assert {(attention.to_q.out_features, attention.heads) for attention in parts(Attention)} == {(96, 2)}
    rotary = Transformer(96, 1, 2, 32, rotary=True)
    assert rotary.encoder.rotary_pos_emb.inv_freq.shape == (96 // 2 // 2,)  # the whole head is turned
    with pytest.raises(ValueError, match=r"local_heads needs flash: true\."):
        Transformer(64, 1, 2, 32, local_heads=1, flash=False)


def test_the_library_is_called_in_eval_without_dropout() -> None:
    model, x = Transformer(96, 1, 2, 32, dropout=0.5), torch.randn(2, 8, 96)
    mask = torch.ones(2, 8, dtype=torch.bool)
    assert not torch.equal(model.train()(x, mask), model(x, mask))
    assert torch.equal(model.eval()(x, mask), model(x, mask))


def computed(model: Transformer, mask: Tensor, documents: Tensor | None) -> list[Tensor]:
    """Return the states of random input where it is real, and all gradients."""
    x = torch.randn(*mask.shape, 64, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    torch.manual_seed(3)
    states = model(x, mask, documents)
    (states * weights)[mask].sum().backward()
    return [states.detach()[mask], x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("by_document", [True, False])
def test_attention_and_norms_are_the_librarys(rotary: bool, by_document: bool) -> None:
    """With padding, a row of padding alone, and dropout. States of padding may be others."""
    torch.manual_seed(0)
    ours, theirs = (Transformer(64, 2, 4, 32, rotary=rotary).double() for _ in range(2))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.encoder = Encoder(
        dim=64, depth=2, heads=4, attn_dim_head=16, attn_flash=True, attn_dropout=0.1, ff_dropout=0.1,
        rotary_pos_emb=rotary, rotary_emb_dim=16, verbose=False,
    ).double()  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    theirs.flash = False  # the library computes angles itself
    assert sum(type(module) is KernelAttention for module in ours.modules()) == 2
    assert sum(type(module) is OnePassNorm for module in ours.modules()) == 5
    mask = torch.arange(20) < torch.tensor([[20], [13], [0]])
    documents = (torch.arange(20) // 6).expand(3, -1) if by_document else None
    for one, other in zip(computed(ours, mask, documents), computed(theirs, mask, documents), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("by_document", [True, False])
def test_padding_without_a_key_leaves_everything_finite(by_document: bool, kernel: Kernel) -> None:
    """A softmax of nothing is NaN, and so would be the gradient of every weight."""
    model = Transformer(64, 1, 4, 32, dropout=0.0)
    assert use_kernel(kernel, model)
    mask = torch.arange(20) < torch.tensor([[20], [13], [0]])
    documents = torch.where(mask, 0, -1) if by_document else None
    x = torch.randn(3, 20, 64).requires_grad_()
    states = model(x, mask, documents)
    states[mask].sum().backward()
    assert states.isfinite().all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (x, *model.parameters()))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "options", [{"rotary": True}, {}, {"qk_norm": True, "value_residual": True}, {"rotary": True, "softcap": 1.0}]
)
def test_local_heads_that_see_the_whole_row_are_the_others(options: dict[str, Any], kernel: Kernel) -> None:
    """Two windows beside each other are the row; each head keeps its weights."""
    torch.manual_seed(0)
    near, far = (
        Transformer(64, 2, 4, 32, dropout=0.0, **options, **local).double()
        for local in ({"local_heads": 3, "window": 10}, {})
    )
    near.load_state_dict(far.state_dict())
    assert use_kernel(kernel, near) == ("softcap" not in options)
    mask = torch.arange(20) < torch.tensor([[20], [13], [0]])
    for one, other in zip(computed(near, mask, None), computed(far, mask, None), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_dropout_acts_on_the_weights_of_local_heads() -> None:
    torch.manual_seed(0)
    model = Transformer(64, 1, 2, 32, local_heads=1, window=4, dropout=0.5)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # of what layers add; attention has its own number
    (attention,) = (module for module in model.modules() if isinstance(module, Attention))
    torch.nn.init.zeros_(attention.to_out.weight[:, 32:])
    x, mask = torch.randn(2, 24, 64), torch.ones(2, 24, dtype=torch.bool)
    assert not torch.equal(model(x, mask), model(x, mask))


def test_flops_of_local_heads() -> None:
    """By hand, for one layer of width 16 with 4 heads of 4, one of them local, over 32 positions in windows of 8."""
    model = Transformer(16, 1, 4, 64, local_heads=1, window=8, ff_mult=2.0)
    projections, feed_forward = 4 * (2 * 32 * 16 * 16), 2 * (2 * 32 * 16 * 32)
    far, local = 2 * (2 * 32 * 32 * 12), 2 * (2 * 32 * 24 * 4)  # two products over all positions, or over three windows
    assert model.flops(32) == projections + feed_forward + far + local
