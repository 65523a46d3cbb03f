"""`bert` against transformers' ELECTRA: the same weights give the same states and logits."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel

from electra_lab.backbones.bert import Bert
from electra_lab.model.network import Embeddings, Network
from electra_lab.model.pair import EmbeddingSizes, make_heads

VOCABULARY, DIM, DEPTH, HEADS, MAX_LENGTH, FF_MULT = 37, 24, 3, 4, 20, 1.5
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
BOTH = ("weight", "bias")

EMBEDDINGS = {
    "embeddings.tokens.weight": "electra.embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "electra.embeddings.position_embeddings.weight",
    "embeddings.segments.weight": "electra.embeddings.token_type_embeddings.weight",
    **{f"embeddings.norm.{kind}": f"electra.embeddings.LayerNorm.{kind}" for kind in BOTH},
}
PROJECTION = {f"project.{kind}": f"electra.embeddings_project.{kind}" for kind in BOTH}
LAYER = {
    **{name: f"attention.self.{name}" for name in ("query", "key", "value")},
    "attended": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense", "contract": "output.dense", "output_norm": "output.LayerNorm",
}  # fmt: skip
LAYERS = {}
for depth, (ours, theirs), kind in product(range(DEPTH), LAYER.items(), BOTH):
    LAYERS[f"backbone.layers.{depth}.{ours}.{kind}"] = f"electra.encoder.layer.{depth}.{theirs}.{kind}"
HEADS_OF: dict[type, dict[str, str]] = {
    ElectraModel: {},
    ElectraForMaskedLM: {
        **{f"heads.tokens.dense.{kind}": f"generator_predictions.dense.{kind}" for kind in BOTH},
        **{f"heads.tokens.norm.{kind}": f"generator_predictions.LayerNorm.{kind}" for kind in BOTH},
        "heads.tokens.bias": "generator_lm_head.bias",
    },
    ElectraForPreTraining: {
        **{f"heads.replaced.dense.{kind}": f"discriminator_predictions.dense.{kind}" for kind in BOTH},
        **{f"heads.replaced.out.{kind}": f"discriminator_predictions.dense_prediction.{kind}" for kind in BOTH},
    },
}


def theirs(kind: type, embedding_dim: int, dtype: torch.dtype) -> Any:
    config = ElectraConfig(
        vocab_size=VOCABULARY, embedding_size=embedding_dim, hidden_size=DIM, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, intermediate_size=round(DIM * FF_MULT), max_position_embeddings=MAX_LENGTH,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = kind(config).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data = (parameter.data.mean() > 0.5) + 0.3 * torch.randn_like(parameter)  # around 1: a gain
    return model


def name_map(kind: type, embedding_dim: int) -> dict[str, str]:
    names = EMBEDDINGS | (PROJECTION if embedding_dim != DIM else {}) | LAYERS | HEADS_OF[kind]
    return {ours: name.removeprefix("electra.") if kind is ElectraModel else name for ours, name in names.items()}


def ours(kind: type, model: nn.Module, embedding_dim: int, dtype: torch.dtype) -> Network:
    heads = {ElectraForMaskedLM: ["tokens"], ElectraForPreTraining: ["replaced"]}.get(kind, [])
    embeddings = Embeddings(VOCABULARY, embedding_dim, MAX_LENGTH, positions=True, dropout=0.1)
    bert = Bert(DIM, DEPTH, HEADS, MAX_LENGTH, ff_mult=FF_MULT)
    made = make_heads(heads, DIM, EmbeddingSizes(VOCABULARY, embedding_dim, MAX_LENGTH, 0.0))
    network = Network(embeddings, bert, DIM, pad_id=0, heads=made)
    weights = model.state_dict()
    network.to(dtype).load_state_dict({o: weights[t] for o, t in name_map(kind, embedding_dim).items()}, strict=True)
    return network.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (4, 13), generator=generator)
    mask = torch.ones(4, 13, dtype=torch.bool)
    mask[1, 7:] = mask[2, 1:] = mask[3, :4] = False
    return tokens, mask, torch.randint(0, 2, (4, 13), generator=generator)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("embedding_dim", [DIM, 8])
@pytest.mark.parametrize("kind", HEADS_OF, ids=lambda kind: kind.__name__)
def test_states_and_logits_are_those_of_transformers(kind: type, embedding_dim: int, dtype: torch.dtype) -> None:
    model = theirs(kind, embedding_dim, dtype)
    network = ours(kind, model, embedding_dim, dtype)
    tokens, mask, segments = inputs()
    everywhere = torch.arange(13).expand(4, -1)
    encoder = model if kind is ElectraModel else model.electra
    with torch.no_grad():
        hidden = network.hidden(tokens, mask, segments)
        arguments = {"input_ids": tokens, "attention_mask": mask.long(), "token_type_ids": segments}
        pairs = [(hidden, encoder(**arguments).last_hidden_state)]
        if kind is ElectraForMaskedLM:
            pairs.append((network.token_logits(hidden, everywhere), model(**arguments).logits))
        if kind is ElectraForPreTraining:
            pairs.append((network.replaced_logits(hidden), model(**arguments).logits))
    for found, expected in pairs:
        assert found.dtype == dtype
        torch.testing.assert_close(found[mask], expected[mask], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert expected[mask].std() > 0.1, "the states are zero"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_documents_are_separated_as_in_transformers(dtype: torch.dtype) -> None:
    """With a matrix of visible positions, and positions that restart."""
    model = theirs(ElectraModel, 8, dtype)
    network = ours(ElectraModel, model, 8, dtype)
    tokens, mask, segments = inputs()
    starts = torch.tensor([[0] * 5 + [5] * 8, [0] * 2 + [2] * 11, [0] * 13, [0] * 9 + [9] * 4])
    same = (starts.unsqueeze(1) == starts.unsqueeze(2)) & mask.unsqueeze(1)
    hidden_away = torch.zeros(4, 1, 13, 13, dtype=dtype).masked_fill(~same.unsqueeze(1), torch.finfo(dtype).min)
    with torch.no_grad():
        found = network.hidden(tokens, mask, segments, starts)
        expected = model(
            input_ids=tokens, attention_mask=hidden_away, token_type_ids=segments,
            position_ids=torch.arange(13) - starts,
        ).last_hidden_state  # fmt: skip
        whole = network.hidden(tokens, mask, segments)
    torch.testing.assert_close(found[mask], expected[mask], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert not torch.allclose(found[mask], whole[mask], atol=0.1), "documents make no difference"


def test_gradients_are_those_of_transformers() -> None:
    model = theirs(ElectraForPreTraining, 8, torch.float64)
    network = ours(ElectraForPreTraining, model, 8, torch.float64)
    tokens, mask, segments = inputs()
    tokens = tokens.masked_fill(~mask, 0)
    network.replaced_logits(network.hidden(tokens, mask, segments))[mask].square().sum().backward()
    logits = model(input_ids=tokens, attention_mask=mask.long(), token_type_ids=segments).logits
    logits[mask].square().sum().backward()
    parameters = dict(model.named_parameters())
    for name, parameter in network.named_parameters():
        expected = parameters[name_map(ElectraForPreTraining, 8)[name]].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-7, atol=1e-9)


def test_dropout_acts_on_attention_and_on_what_both_halves_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the three places where google-research/electra has it."""
    asked: list[float] = []
    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "dropout", lambda t, p: asked.append(p) or t)
    monkeypatch.setattr(
        F, "scaled_dot_product_attention",
        lambda *qkv, dropout_p, **options: asked.append(dropout_p) or attention(*qkv, **options),
    )  # fmt: skip
    Bert(DIM, 1, HEADS, MAX_LENGTH, dropout=0.3)(torch.randn(2, 8, DIM), torch.ones(2, 8, dtype=torch.bool))
    assert asked == [0.3, 0.3, 0.3]
