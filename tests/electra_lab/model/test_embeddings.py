"""Embeddings: sums, normalisation, dropout, and a table that is another table plus a difference."""

import pytest
import torch
from torch import nn

from electra_lab.backbones.modernbert import ModernBert
from electra_lab.model.network import Embeddings, Shifted

SIZE, LENGTH = 30, 32


def made(*, dim: int = 8, positions: bool = True, dropout: float = 0.0) -> Embeddings:
    torch.manual_seed(0)
    return Embeddings(SIZE, dim, LENGTH, positions=positions, dropout=dropout)


@pytest.mark.parametrize("positions", [True, False])
def test_tables_are_added_up_and_normalised(positions: bool) -> None:
    """Positions count from the left, if the lab adds them."""
    embeddings = made(positions=positions)
    nn.init.normal_(embeddings.norm.weight)
    nn.init.normal_(embeddings.norm.bias)
    tokens, segments = torch.randint(SIZE, (3, 10)), torch.randint(2, (3, 10))
    x = embeddings.tokens.weight[tokens] + embeddings.segments.weight[segments]
    if positions:
        assert embeddings.positions is not None
        x = x + embeddings.positions.weight[:10]
    x = (x - x.mean(-1, keepdim=True)) / x.var(-1, unbiased=False, keepdim=True).sqrt()
    expected = x * embeddings.norm.weight + embeddings.norm.bias
    torch.testing.assert_close(embeddings(tokens, segments), expected)
    assert (embeddings.positions is not None) == positions
    assert embeddings.dim == 8


def test_a_backbone_may_ask_for_the_token_table_alone() -> None:
    """Its own embeddings have dropout at the config's rate."""
    backbone = ModernBert(8, 1, 2, LENGTH)
    embeddings = Embeddings.of(backbone, SIZE, 8, LENGTH, 0.5)
    assert backbone.embedding_dropout.p == 0.5
    tokens = torch.randint(SIZE, (3, 10))
    assert torch.equal(embeddings(tokens, torch.ones_like(tokens)), embeddings.tokens.weight[tokens])
    assert [name for name, _ in embeddings.named_parameters()] == ["tokens.weight"]


def test_positions_restart_at_each_document() -> None:
    """Wherever the document number changes, also to an earlier one; without documents they do not."""
    embeddings = made()
    assert embeddings.positions is not None
    nn.init.zeros_(embeddings.tokens.weight)
    nn.init.zeros_(embeddings.segments.weight)
    nothing = torch.zeros(2, 7, dtype=torch.long)
    documents = torch.tensor([[4, 4, 4, 7, 7, 4, -1], [0, 0, 0, 0, 0, 0, 0]])
    places = torch.tensor([[0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5, 6]])
    expected = embeddings.norm(embeddings.positions.weight[places])
    assert torch.equal(embeddings(nothing, nothing, documents), expected)
    assert torch.equal(embeddings(nothing, nothing)[0], expected[1])


def test_dropout_acts_after_the_norm() -> None:
    embeddings = made(dim=400, dropout=0.3)
    tokens = torch.randint(SIZE, (2, 12))
    plain, dropped = (embeddings.train(mode)(tokens, torch.zeros_like(tokens)) for mode in (False, True))
    kept = dropped != 0
    assert kept.float().mean() == pytest.approx(0.7, abs=0.03)
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.7)


def test_a_difference_starts_at_zero_and_takes_all_of_the_gradient() -> None:
    """DeBERTa-v3, section 3.3: the other table is read unchanged, and gets no gradient."""
    torch.manual_seed(0)
    table = nn.Embedding(SIZE, 8)
    shifted, tokens = Shifted(table), torch.tensor([[3, 3, 7]])
    assert torch.equal(shifted(tokens), table(tokens))
    shifted.difference.weight.data[7] = 0.5
    table.weight.data[3] = 2.0
    torch.testing.assert_close(shifted(tokens), table.weight.data[tokens] + 0.5 * (tokens == 7).unsqueeze(-1))
    torch.testing.assert_close(shifted.weight[7], table.weight.data[7] + 0.5)
    shifted(tokens).sum().backward()
    assert table.weight.grad is None
    assert shifted.difference.weight.grad is not None
    assert shifted.difference.weight.grad.sum(1).nonzero().flatten().tolist() == [3, 7]
    shifted.weight.sum().backward()
    assert table.weight.grad is None
    assert (shifted.num_embeddings, shifted.embedding_dim) == (SIZE, 8)
