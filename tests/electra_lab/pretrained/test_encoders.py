"""ModernBERT and DeBERTa of transformers as networks of the lab, and back: the same logits, the same tensors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_lab.assembly.networks import build_network
from electra_lab.model.network import Network, everywhere
from electra_lab.model.weights import own_tensors
from electra_lab.pretrained.hugging_face import read_part
from electra_lab.pretrained.writing import describe, stored_tensors, write_network
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.errors import ConfigError
from tests.electra_lab.model.theirs import inputs, saved

TOKENIZER = wordpiece(["a b c"] * 2, vocab_size=30)
SIZES = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24,
         "max_position_embeddings": 20, "pad_token_id": 0}  # fmt: skip
MODERN = hf.ModernBertConfig(**SIZES, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=6,
                          global_attn_every_n_layers=2, id2label={0: "ORIGINAL", 1: "REPLACED"})  # fmt: skip
DEBERTA: dict[str, Any] = {
    **SIZES, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False, "type_vocab_size": 0, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "legacy": False,
}  # fmt: skip
V2 = {"share_att_key": False, "norm_rel_ebd": "none", "conv_kernel_size": 3, "conv_act": "gelu", "legacy": True}
MODELS = {
    "modernbert encoder": (hf.ModernBertModel, MODERN),
    "modernbert generator": (hf.ModernBertForMaskedLM, MODERN),
    "modernbert discriminator": (hf.ModernBertForTokenClassification, MODERN),
    "deberta-v3 encoder": (hf.DebertaV2Model, hf.DebertaV2Config(**DEBERTA)),
    "deberta-v3 generator": (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config(**DEBERTA)),
    "deberta-v2 with legacy names": (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config(**{**DEBERTA, **V2})),
}


def model(name: str, seed: int = 0) -> Any:
    kind, config = MODELS[name]
    torch.manual_seed(seed)
    made: Any = kind(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if kind is hf.ModernBertForTokenClassification:  # as written by the lab
            made.classifier.weight[0], made.classifier.bias[0] = 0.0, 0.0
    return made


def outputs(network: Network, tokens: Tensor, mask: Tensor) -> Tensor:
    states = network.hidden(tokens, mask, torch.zeros_like(tokens))
    if "tokens" in network.heads:
        return network.token_logits(states, everywhere(states))
    if "replaced" in network.heads:
        logits = network.replaced_logits(states)
        return torch.stack([torch.zeros_like(logits), logits], dim=-1)
    return states


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_of_transformers_comes_and_goes(name: str, tmp_path: Path) -> None:
    theirs = model(name)
    folder = saved(theirs, tmp_path / "theirs")
    part = read_part(folder, "discriminator")
    network = build_network(part, 0).eval()
    tokens, mask, _ = inputs(37, 20)
    expected = theirs(input_ids=tokens, attention_mask=mask.long())[0]
    torch.testing.assert_close(outputs(network, tokens, mask)[mask], expected[mask], rtol=1e-5, atol=2e-5)
    assert expected[mask].std() > 0.1, "the states are zero"
    # Back: the same bits, and a complete class of transformers.
    part = replace(part, tensors=own_tensors(network))
    back, given = stored_tensors(part, part.family), load_file(folder / "model.safetensors")
    if "legacy" not in name:
        encoder = "model." if "modern" in name else "deberta."
        root = encoder if "encoder" in name else ""  # missing from the file of an encoder alone
        assert back.keys() == {f"{root}{key}" for key in given}
        assert all(torch.equal(back[f"{root}{key}"], tensor) for key, tensor in given.items())
    (tmp_path / "ours").mkdir()
    write_network(tmp_path / "ours", describe(part, TOKENIZER, part.family), back, part)
    loaded, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    found = loaded.eval()(input_ids=tokens, attention_mask=mask.long())[0]
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-6)


def test_a_classifier_of_transformers_is_no_discriminator(tmp_path: Path) -> None:
    """Its head, which has the names of a discriminator's head, is left out."""
    config = hf.ModernBertConfig(**{**MODERN.to_dict(), "id2label": {0: "bad", 1: "good"}})
    part = read_part(saved(hf.ModernBertForSequenceClassification(config), tmp_path), "discriminator")
    assert part.heads == ()
    assert not build_network(part, 0).heads


def test_a_discriminator_of_deberta_keeps_the_authors_head(tmp_path: Path) -> None:
    """transformers loads the encoder. The differences of gradient-disentangled tables are left out."""
    folder = saved(model("deberta-v3 encoder"), tmp_path)
    given = {f"deberta.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    given["deberta.embeddings.word_embeddings._weight"] = torch.randn(37, 16)
    for layer, shape in (("dense", (16, 16)), ("LayerNorm", (16,)), ("classifier", (1, 16))):
        given[f"mask_predictions.{layer}.weight"] = torch.randn(shape)
        given[f"mask_predictions.{layer}.bias"] = torch.randn(shape[0])
    save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
    part = read_part(folder, "discriminator")
    network: Any = build_network(part, 0)
    assert part.heads == ("replaced",)
    assert torch.equal(network.heads["replaced"].out.weight, given["mask_predictions.classifier.weight"])
    assert part.class_ending == "Model"
    back = stored_tensors(replace(part, tensors=own_tensors(network)), part.family)
    assert given.keys() - back.keys() == {"deberta.embeddings.word_embeddings._weight"}
    write_network(folder, describe(part, TOKENIZER, part.family), back, part)
    assert not hf.AutoModel.from_pretrained(folder, output_loading_info=True)[1]["missing_keys"]


REFUSED: list[tuple[str, str, Any]] = [
    ("modernbert encoder", "norm_bias", True),
    ("modernbert encoder", "layer_types", ["sliding_attention"] * 4),
    ("modernbert encoder", "local_attention", "all"),
    ("modernbert encoder", "rope_parameters", [10000]),
    ("deberta-v3 encoder", "pos_att_type", ["c2p"]),
    ("deberta-v3 encoder", "pos_att_type", 2),
    ("deberta-v3 encoder", "conv_kernel_size", "wide"),
    ("deberta-v3 encoder", "position_biased_input", True),
    ("deberta-v3 encoder", "embedding_size", 8),
]


@pytest.mark.parametrize(("name", "key", "value"), REFUSED)
def test_a_model_that_computes_otherwise_is_refused(name: str, key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name][1].to_dict() | {key: value}))
    with pytest.raises(ConfigError, match=rf"config\.json: {key} is "):
        read_part(tmp_path, "discriminator")
