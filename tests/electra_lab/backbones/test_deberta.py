"""`deberta` against DeBERTa-v2 of transformers, with the same weights; its decoder and head: test_deberta_step.py."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2Model

from electra_lab.backbones.deberta import Deberta

VOCABULARY, DIM, DEPTH, HEADS, BUCKETS = 50, 32, 3, 2, 32


def theirs(**changes: Any) -> DebertaV2Model:
    options = {"position_buckets": BUCKETS, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 0,
               "max_position_embeddings": 64, **changes}  # fmt: skip
    config = DebertaV2Config(
        vocab_size=VOCABULARY, hidden_size=DIM, intermediate_size=2 * DIM, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
        type_vocab_size=0, conv_act="gelu", pad_token_id=0, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = DebertaV2Model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ours(model: Any, **changes: Any) -> Deberta:
    config = model.config
    options = {"share_projections": config.share_att_key, "convolution": config.conv_kernel_size,
               "normalize_positions": config.norm_rel_ebd == "layer_norm", **changes}  # fmt: skip
    backbone: Any = Deberta(
        DIM, DEPTH, HEADS, 200, ff_mult=2, buckets=BUCKETS, max_distance=config.max_position_embeddings, **options
    ).eval()
    for mine, its in pairs(backbone, model):
        mine.load_state_dict(its.state_dict())
    return backbone


def pairs(backbone: Any, model: Any) -> list[tuple[nn.Module, nn.Module]]:
    pairs = [(backbone.embedding_norm, model.embeddings.LayerNorm),
             (backbone.relative_positions, model.encoder.rel_embeddings)]  # fmt: skip
    if backbone.position_norm:
        pairs.append((backbone.position_norm, model.encoder.LayerNorm))
    if backbone.convolution:
        pairs.append((backbone.convolution.conv, model.encoder.conv.conv))
        pairs.append((backbone.convolution.norm, model.encoder.conv.LayerNorm))
    for layer, other in zip(backbone.layers, model.encoder.layer, strict=True):
        attention = other.attention.self
        pairs += [(layer.query, attention.query_proj), (layer.key, attention.key_proj)]
        pairs += [(layer.value, attention.value_proj), (layer.attended, other.attention.output.dense)]
        pairs += [(layer.attention_norm, other.attention.output.LayerNorm), (layer.expand, other.intermediate.dense)]
        pairs += [(layer.contract, other.output.dense), (layer.output_norm, other.output.LayerNorm)]
        if layer.position_key:
            pairs += [(layer.position_key, attention.pos_key_proj), (layer.position_query, attention.pos_query_proj)]
    return pairs


def rows(length: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([[length], [length // 2], [5]])
    return torch.randint(3, VOCABULARY, (3, length)) * mask, mask


@pytest.mark.parametrize(
    "changes",
    [{}, {"share_att_key": False}, {"conv_kernel_size": 3}, {"norm_rel_ebd": "none"}, {"max_position_embeddings": 40}],
    ids=lambda changes: next(iter(changes), "v3"),
)
@pytest.mark.parametrize("length", [7, 40, 150])
def test_states_and_gradients_are_those_of_transformers(length: int, changes: dict[str, Any]) -> None:
    """In rows within the buckets that are not shared, within the longest distance, and beyond it."""
    model = theirs(**changes)
    backbone, (tokens, mask) = ours(model), rows(length)
    expected = model(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[mask]
    found = backbone(model.embeddings.word_embeddings(tokens).detach(), mask)[mask]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    target = torch.randn_like(expected)
    (found * target).sum().backward()
    (expected * target).sum().backward()
    layer, other = backbone.layers[0], model.encoder.layer[0].attention.self
    for mine, its in ((backbone.relative_positions, model.encoder.rel_embeddings), (layer.query, other.query_proj),
                      (layer.key, other.key_proj)):  # fmt: skip
        torch.testing.assert_close(mine.weight.grad, its.weight.grad, atol=1e-3, rtol=1e-3)


def test_blocks_are_the_same_attention_with_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, compared with gathered scores, which a compiler gets; some keys are too far from any of a block."""
    torch.manual_seed(0)
    backbone: Any = Deberta(16, 2, 2, 400, ff_mult=2, buckets=32, max_distance=40, mask_decoder=True).double()
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    x, numbers = torch.randn(2, 350, 16, dtype=torch.float64), (torch.arange(350) >= 300).long().expand(2, -1)
    mask = torch.arange(350) < torch.tensor([[350], [190]])
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        torch.manual_seed(1)
        backbone.zero_grad()
        states = backbone(x, mask, numbers)[mask]
        states.square().sum().backward()
        found.append([states.detach(), *(parameter.grad.clone() for parameter in backbone.parameters())])
    for blocks, gathered in zip(*found, strict=True):
        torch.testing.assert_close(blocks, gathered)


@pytest.mark.parametrize("mask_decoder", [False, True])
def test_a_document_is_read_as_if_it_were_alone(mask_decoder: bool) -> None:
    backbone = ours(theirs(), mask_decoder=mask_decoder)
    numbers = torch.tensor([[0] * 31 + [1] * 4 + [7] * 25, [3] * 60])
    x, mask = torch.randn(2, 60, DIM), torch.ones(2, 60, dtype=torch.bool)
    together = backbone(x, mask, numbers)
    for part in (slice(0, 31), slice(31, 35), slice(35, 60)):
        alone = backbone(x[:1, part], mask[:1, part])
        torch.testing.assert_close(together[:1, part], alone, atol=1e-5, rtol=0)


def test_position_tables_are_not_repeated_for_rows() -> None:
    """Twice the rows keep less than twice the memory of the tables: nothing [B, H, R, d] is saved."""
    backbone = Deberta(DIM, 1, HEADS, 64, dropout=0.0, attention_dropout=0.0)
    sizes: list[tuple[int, ...]] = []
    x, mask = torch.randn(5, 24, DIM), torch.ones(5, 24, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(tuple(t.shape)), t)[1], lambda t: t):
        backbone(x, mask)
    reached = 47
    assert any(reached in shape for shape in sizes)
    assert not [shape for shape in sizes if shape[0] in (5, 10) and shape[-2:] == (reached, DIM // HEADS)]


@pytest.mark.parametrize("options", [{"max_distance": 17, "buckets": 32}, {"convolution": 2}, {"ff_mult": 0.001}])
def test_a_shape_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    assert not Deberta(DIM, 1, HEADS, 64, convolution=3).separates_documents
    with pytest.raises(ValueError, match=r"\d"):
        Deberta(DIM, 1, HEADS, 64, **options)
