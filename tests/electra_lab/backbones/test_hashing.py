"""The lab's reformer layers compared with those of reformer-pytorch, which they replace."""

from typing import Any

import pytest
import torch
from reformer_pytorch.reformer_pytorch import LocalAttention, LSHSelfAttention, Reformer, apply_rotary_pos_emb
from torch import Tensor

from electra_lab.backbones._hashing import EVALUATION_SEED
from tests.electra_lab.backbones.test_reformer import DEPTH, DIM, HEADS, LENGTH, attentions, batch, reformer


class LibrarysLocalAttention(LocalAttention):  # the library has no types
    """The library's computation on turned queries."""

    def __init__(self, bucket_size: int, dropout: float, rotary: torch.nn.Module | None) -> None:
        super().__init__(2 * bucket_size, dropout=dropout, shared_qk=True, look_forward=1)
        self.rotary = rotary

    def forward(self, query: Tensor, key: Tensor, value: Tensor, input_mask: Tensor) -> Tensor:
        if self.rotary is not None:
            query = apply_rotary_pos_emb(query, self.rotary(query))
        attended: Tensor = super().forward(query, query, value, input_mask=input_mask)
        return attended


def librarys(attention: Any, rotary: torch.nn.Module | None) -> LSHSelfAttention:
    """Return the library's layer with the same weights, but with rotary positions for local heads, too."""
    size, dropout = attention.bucket_size, attention.lsh_attn.dropout.p
    made = LSHSelfAttention(
        DIM, HEADS, size, attention.lsh_attn.n_hashes, dropout=dropout, post_attn_dropout=dropout,
        num_mem_kv=attention.num_mem_kv, n_local_attn_heads=attention.n_local_attn_heads, full_attn_thres=0,
    ).double().train(attention.training)  # fmt: skip
    made.load_state_dict(attention.state_dict())
    made.local_attn = LibrarysLocalAttention(size, dropout, rotary)
    return made


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("real", [LENGTH, 17, 1])
@pytest.mark.parametrize("options", [{}, {"local_heads": 1}, {"memory": 8}, {"memory": 8, "local_heads": 1}], ids=str)
@pytest.mark.parametrize("hashes", [1, 3])
def test_attention_is_the_librarys(hashes: int, options: dict[str, Any], real: int, rotary: bool) -> None:
    """Forward and backward, at real positions, with the same rotations and dropout.

    In float64, as the library loses digits where a position sees only itself.
    """
    model = reformer(rotary=rotary, hashes=hashes, dropout=0.3, **options).double()
    ours = attentions(model)[0]
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    assert type(ours) is not LSHSelfAttention
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [real]])
    angles = model.rotary(batch()[0].double()) if model.rotary is not None else None
    turn = None if angles is None else (angles[0, :, angles.shape[-1] // 2 :], angles[0, :, : angles.shape[-1] // 2])
    weights = torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(2))
    found = []
    for attention, positions in ((ours, {"turn": turn}), (librarys(ours, model.rotary), {"pos_emb": angles})):
        x = batch()[0].detach().double().requires_grad_()
        torch.manual_seed(5)
        states = attention(x, input_mask=mask, **positions)
        (states * weights)[mask].sum().backward()
        found.append([states[mask], x.grad, *(parameter.grad for parameter in attention.parameters())])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("hashes", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_is_the_librarys(training: bool, hashes: int, rotary: bool) -> None:
    """States of padding in one layer decide which positions share a bucket with real ones in the next layer.

    In training rows are hashed at the length of the batch, in eval each at its own.
    """
    model = reformer(rotary=rotary, hashes=hashes).double().train(training)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    theirs = Reformer(DIM, DEPTH, HEADS, bucket_size=4, n_hashes=hashes, ff_chunks=1, reverse_thres=1 << 62)
    theirs.double().train(training).load_state_dict(model.encoder.state_dict())
    x = batch()[0].detach().double()
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    torch.manual_seed(EVALUATION_SEED)
    states = model(x, mask)
    for row, length in ((0, LENGTH), (1, LENGTH if training else 16)):
        alone, real = x[row : row + 1, :length], mask[row : row + 1, :length]
        torch.manual_seed(EVALUATION_SEED)
        angles = model.rotary(alone) if model.rotary is not None else None
        expected = model.norm(theirs(alone.masked_fill(~real.unsqueeze(-1), 0.0), input_mask=real, pos_emb=angles))
        torch.testing.assert_close(states[row][mask[row]], expected[real], rtol=1e-8, atol=1e-8)


def test_evaluation_asks_no_generator_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotations come from a separate generator on the CPU, so that all devices have the same ones."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a global generator was asked")

    model = reformer().double().eval()
    before = torch.get_rng_state()
    monkeypatch.setattr("torch.random.fork_rng", refused)  # would ask the driver for the device's generator state
    with torch.no_grad():
        model(torch.ones(2, LENGTH, DIM, dtype=torch.float64), torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]]))
    assert torch.equal(torch.get_rng_state(), before)
