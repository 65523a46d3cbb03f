"""`modernbert` against transformers' ModernBERT: the same weights give the same states, gradients and deviations."""

from typing import Any

import pytest
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertForTokenClassification, ModernBertModel

from electra_lab.backbones.modernbert import ModernBert
from electra_lab.model.flops import counted_flops
from electra_lab.model.network import everywhere
from electra_lab.model.pair import EmbeddingSizes, make_pair

VOCABULARY, DIM, DEPTH, HEADS, INNER, WINDOW = 50, 32, 5, 2, 48, 16
LAYER = {"qkv": "attn.Wqkv", "attended": "attn.Wo", "expand": "mlp.Wi", "contract": "mlp.Wo",
         "feed_forward_norm": "mlp_norm", "attention_norm": "attn_norm"}  # fmt: skip


def config(**changes: Any) -> ModernBertConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": DIM, "intermediate_size": INNER, "num_hidden_layers": DEPTH,
             "num_attention_heads": HEADS, "local_attention": WINDOW}  # fmt: skip
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return ModernBertConfig(**{**sizes, **ids, **changes})


def theirs(window: int = WINDOW) -> ModernBertModel:
    torch.manual_seed(0)
    return ModernBertModel(config(local_attention=window)).eval()


def ours(model: ModernBertModel, window: int = WINDOW) -> ModernBert:
    backbone = ModernBert(DIM, DEPTH, HEADS, 128, ff_mult=INNER / DIM, local_attention=window).eval()
    names = {"embedding_norm": "embeddings.norm", "final_norm": "final_norm"}
    for number in range(DEPTH):
        names |= {f"layers.{number}.{part}": f"layers.{number}.{theirs}" for part, theirs in LAYER.items()}
    weights = {f"{part}.weight": model.state_dict().get(f"{name}.weight") for part, name in names.items()}
    backbone.load_state_dict({name: weight for name, weight in weights.items() if weight is not None})
    return backbone


def rows(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of three rows, two of them padded, one to less than half a window."""
    mask = torch.arange(length) < torch.tensor([[length], [length // 2], [5]])
    return torch.randint(3, VOCABULARY, (3, length)) * mask, mask


@pytest.mark.parametrize("length", [9, 10, 40, 75])
@pytest.mark.parametrize("window", [WINDOW, 7])
def test_states_and_gradients_are_those_of_transformers(length: int, window: int) -> None:
    """In rows within one window, in full and in partial blocks; an odd window is rounded down on each side."""
    model = theirs(window)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    backbone, (tokens, mask) = ours(model, window), rows(length)
    expected = model(input_ids=tokens, attention_mask=mask.long()).last_hidden_state[mask]
    vectors = model.embeddings.tok_embeddings(tokens).detach()
    found = backbone(vectors, mask)[mask]
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)
    assert backbone.flops(length) == pytest.approx(counted_flops(backbone, length, DIM), rel=0.01)
    target = torch.randn_like(expected)
    (found * target).sum().backward()
    (expected * target).sum().backward()
    for layer, other in zip(backbone.layers, model.layers, strict=True):
        torch.testing.assert_close(layer.qkv.weight.grad, other.attn.Wqkv.weight.grad, atol=5e-4, rtol=1e-3)
        torch.testing.assert_close(layer.expand.weight.grad, other.mlp.Wi.weight.grad, atol=5e-4, rtol=1e-3)


def test_what_is_computed_again_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, compared with separate torch operations, which compiled code uses."""
    backbone = ours(theirs()).double()
    x, mask = torch.randn(2, 40, DIM, dtype=torch.float64), torch.arange(40) < torch.tensor([[40], [20]])
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        given = x.clone().requires_grad_()
        backbone.zero_grad()
        backbone(given, mask)[mask].square().sum().backward()
        found.append([given.grad, *(parameter.grad for parameter in backbone.parameters())])
    for lean, plain in zip(*found, strict=True):
        torch.testing.assert_close(lean, plain)


def test_normed_queries_and_keys_have_directions_alone() -> None:
    """With separate scales for each head."""
    torch.manual_seed(0)
    x, mask = torch.randn(2, 30, DIM), torch.ones(2, 30, dtype=torch.bool)
    with torch.no_grad():
        for qk_norm in (False, True):
            backbone = ModernBert(DIM, 3, HEADS, 64, local_attention=WINDOW, dropout=0.0, qk_norm=qk_norm)
            for layer in backbone.layers:
                layer.qkv.weight *= 20
            states = backbone(x, mask)
            for layer in backbone.layers:
                layer.qkv.weight[: 2 * DIM] *= 2
            assert torch.allclose(backbone(x, mask), states, atol=1e-5) == qk_norm
        backbone.layers[0].key_norm.weight[: DIM // HEADS] *= 2
        assert not torch.allclose(backbone(x, mask), states, atol=1e-3)


@pytest.mark.parametrize("kind", [ModernBertForMaskedLM, ModernBertForTokenClassification])
def test_its_heads_are_those_of_transformers(kind: Any) -> None:
    model = kind(config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        tokens, mask = rows(40)
        sizes = EmbeddingSizes(VOCABULARY, DIM, 128, 0.0)
        _, network = make_pair(None, 0, ours(model.model), DIM, sizes, "none", 0, ["tokens", "replaced"])
        for head in network.heads.values():
            head.dense.weight.copy_(model.head.dense.weight)
            head.norm.weight.copy_(model.head.norm.weight)
        network.embeddings.tokens.weight.copy_(model.model.embeddings.tok_embeddings.weight)
        states = network.hidden(tokens, mask, torch.zeros_like(tokens))
        if kind is ModernBertForMaskedLM:
            network.heads["tokens"].bias.copy_(model.decoder.bias)
            found = network.token_logits(states, everywhere(states))
        else:
            for place, logit in ((0, torch.zeros(DIM + 1)), (1, torch.randn(DIM + 1))):
                model.classifier.weight[place], model.classifier.bias[place] = logit[:-1], logit[-1]
            network.heads["replaced"].out.weight[0] = model.classifier.weight[1]
            network.heads["replaced"].out.bias[0] = model.classifier.bias[1]
            logits = network.replaced_logits(states)
            found = torch.stack([torch.zeros_like(logits), logits], dim=-1)
        expected = model(input_ids=tokens, attention_mask=mask.long()).logits
    torch.testing.assert_close(found[mask], expected[mask], atol=5e-5, rtol=1e-5)


def test_initial_deviations_are_those_of_transformers() -> None:
    """Of every layer and head, built as a run builds them."""
    wide = config(hidden_size=256, intermediate_size=384, num_hidden_layers=8, num_attention_heads=4)
    mlm, classes = ModernBertForMaskedLM(wide), ModernBertForTokenClassification(wide)
    torch.manual_seed(1)
    backbone = ModernBert(256, 8, 4, 128)
    _, network = make_pair(None, 0, backbone, 256, EmbeddingSizes(60, 256, 128, 0.0), "none", 0, ["tokens", "replaced"])
    pairs: list[tuple[Any, Any]] = [
        (network.heads["tokens"].dense, mlm.head.dense),
        (network.heads["replaced"].dense, classes.head.dense),
        (network.heads["replaced"].out, classes.classifier),
    ]
    for layer, other in zip(backbone.layers, mlm.model.layers, strict=True):
        pairs += [(layer.qkv, other.attn.Wqkv), (layer.attended, other.attn.Wo)]
        pairs += [(layer.expand, other.mlp.Wi), (layer.contract, other.mlp.Wo)]
    for mine, its in pairs:
        few = mine.weight.numel() < 1000
        assert mine.weight.std().item() == pytest.approx(its.weight.std().item(), rel=0.15 if few else 0.02)
        assert mine.weight.abs().max().item() <= its.weight.abs().max().item() * (1.1 if few else 1.01)
