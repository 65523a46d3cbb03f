"""`hugging_face`: the same states as AutoModel, for every family that can be a backbone."""

import os
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from electra_lab.backbones._families import AFTER_PAD, FAMILIES, REFUSED
from electra_lab.backbones.hugging_face import HuggingFace
from electra_lab.model.flops import counted_flops
from electra_lab.model.network import Embeddings
from electra_lab.testing import BackboneContract
from registry import backbones
from registry.errors import BadResult
from registry.signature import validate
from tests.helpers import ROOT, exit_code

pytest.importorskip("transformers")

ALL = "ELECTRA_LAB_ENCODERS" in os.environ  # make test-encoders
QUICK = "roberta", "albert", "gemma3_text"  # tests/test_laws.py has them
# Windows that are shorter than the rows of the tests
FIRST_LAYER = {"layer_types": ["sliding_attention", "full_attention"]}
SLIDING: dict[str, Any] = {"sliding_window": 4}
SWITCHED = {**SLIDING, **FIRST_LAYER, "use_sliding_window": True}
WINDOWS: dict[str, dict[str, Any]] = {
    "modernbert": {"local_attention": 8, **FIRST_LAYER},
    **{name: {**SLIDING, **FIRST_LAYER} for name in ("gemma2", "gemma3_text", "olmo3")},
    **dict.fromkeys(("qwen2", "qwen3", "smollm3"), SWITCHED),
    **dict.fromkeys(("mistral", "phi3", "ultrabert"), SLIDING),
}
TRIED = [(name, {}) for name in FAMILIES] + list(WINDOWS.items())
if ALL:

    class TestLaws(BackboneContract):
        name = "hugging_face"

        @pytest.fixture(autouse=True, params=TRIED, ids=str)
        def _family(self, request: pytest.FixtureRequest) -> None:
            model_type, config = request.param
            self.options = {"model_type": model_type, "config": config}

else:
    TRIED = [row for row in TRIED if row[0] in QUICK]


def made(model_type: str, config: dict[str, Any] | None = None, length: int = 24) -> Any:
    torch.manual_seed(0)
    backbone = HuggingFace(32, 2, 4, length, model_type=model_type, config=config or {}).eval()
    for parameter in backbone.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


def theirs(backbone: Any, table: Tensor) -> Any:
    from transformers import AutoModel

    config = deepcopy(backbone.model.config)
    config.vocab_size = len(table)
    model = AutoModel.from_config(config).eval()
    lacking, surplus = model.load_state_dict(backbone.model.state_dict(), strict=False)
    assert not surplus
    parts = {name.rpartition(".")[0] for name in lacking if "pooler" not in name and "contact_head" not in name}
    assert len(parts) == 1, "the table of tokens"
    model.get_input_embeddings().weight.data.copy_(table)
    return model


@pytest.mark.parametrize(("model_type", "config"), TRIED, ids=str)
def test_states_are_those_of_transformers(model_type: str, config: dict[str, Any]) -> None:
    backbone, table = made(model_type, config), 0.3 * torch.randn(50, 32)
    model, tokens = theirs(backbone, table), torch.randint(10, 50, (3, 20))
    mask = torch.arange(20) < torch.tensor([[20], [11], [5]])
    tokens = tokens.masked_fill(~mask, model.config.pad_token_id)
    for rows in (slice(0, 3), slice(0, 1)):  # with padding, and without, when transformers leaves out masks
        expected = model(input_ids=tokens[rows], attention_mask=mask[rows].long()).last_hidden_state[mask[rows]]
        found = backbone(table[tokens[rows]], mask[rows])[mask[rows]]
        assert expected.abs().max() > 0.5
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_embedding_dropout_is_the_labs_and_there_is_one() -> None:
    """Whether or not the model has a dropout there; other rates are those of the config."""
    x, mask = torch.ones(1, 24, 32), torch.ones(1, 24, dtype=torch.bool)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for model_type, config in (("roberta", still), ("esm", still), ("eurobert", {}), ("gpt_neox", {})):
        backbone = made(model_type, config).train()
        Embeddings.of(backbone, 50, 32, 24, 0.0)
        assert torch.equal(backbone(x, mask), backbone.eval()(x, mask)), model_type
        Embeddings.of(backbone.train(), 50, 32, 24, 0.5)
        rates = []
        dropouts = [module for module in backbone.modules() if isinstance(module, torch.nn.Dropout)]
        for dropout in dropouts:
            dropout.register_forward_hook(lambda module, *_, rates=rates: rates.append(module.p))
        backbone(x, mask)
        assert [rate for rate in rates if rate] == [0.5], model_type


@pytest.mark.parametrize(
    ("model_type", "config", "offset"),
    [("roberta", {}, 2), ("roberta", {"pad_token_id": 9}, 10), ("mpnet", {}, 2), ("bert", {}, 0)],
)
def test_all_positions_of_the_longest_row_have_a_vector_and_longer_rows_are_refused(model_type, config, offset) -> None:
    backbone = made(model_type, config, length=6)
    assert backbone.model.config.max_position_embeddings == 6 + offset
    x, mask = torch.randn(1, 7, 32), torch.ones(1, 7, dtype=torch.bool)
    backbone(x[:, :6], mask[:, :6])
    with pytest.raises(BadResult, match="7"):
        backbone(x, mask)
    with pytest.raises(ValueError, match=f"Write {6 + offset}"):
        made(model_type, {**config, "max_position_embeddings": 5 + offset}, length=6)


def test_weights_are_drawn_as_transformers_draws_them() -> None:
    from transformers import RobertaConfig, RobertaModel

    torch.manual_seed(3)
    drawn = RobertaModel(RobertaConfig(vocab_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                       intermediate_size=128, max_position_embeddings=26, initializer_range=0.3),
                         add_pooling_layer=False).state_dict()  # fmt: skip
    torch.manual_seed(3)
    found = HuggingFace(32, 2, 4, 24, model_type="roberta", config={"initializer_range": 0.3}).model.state_dict()
    assert found.keys() == drawn.keys() - {"embeddings.word_embeddings.weight"}
    assert all(torch.equal(found[name], drawn[name]) for name in found)


def test_torch_counts_the_operations_of_berts_formula() -> None:
    """Also on the meta device, which forecasts use."""
    expected = backbones.get("bert").component(32, 2, 4, 24).flops(24)
    for device in ("cpu", "meta"):
        with torch.device(device):
            assert counted_flops(HuggingFace(32, 2, 4, 24, model_type="roberta"), 24, 32) == expected


def test_albert_has_one_layer_for_all_depths() -> None:
    shared = HuggingFace(32, 4, 4, 24, model_type="albert").layers
    grouped = HuggingFace(32, 4, 4, 24, model_type="albert", config={"num_hidden_groups": 2}).layers
    assert len(shared) == 4
    assert len({*shared}) == 1
    assert grouped[0] is grouped[1] is not grouped[2] is grouped[3]


@pytest.mark.parametrize("model_type", [*REFUSED, "roberto"])
def test_other_families_are_refused_with_the_reason(model_type: str) -> None:
    with pytest.raises(ValidationError, match=REFUSED.get(model_type, "Did you mean 'roberta'")):
        validate(backbones.get("hugging_face").schema, {"model_type": model_type})


@pytest.mark.parametrize(
    ("model_type", "key", "value", "reason"),
    [
        ("roberta", "hiden_dropout_prob", 0.1, "Did you mean 'hidden_dropout_prob'"),
        ("roberta", "hidden_size", 64, "dim"),
        ("distilbert", "hidden_dim", 64, "ff_mult"),
        ("modernbert", "embedding_dropout", 0.1, "embedding.dropout"),
        ("roberta", "is_decoder", True, "is_decoder"),
        ("gemma3_text", "use_bidirectional_attention", True, "use_bidirectional_attention"),
        ("roberta", "output_hidden_states", True, "output_hidden_states"),
        ("roberta", "hidden_dropout_prob", "high", "hidden_dropout_prob"),
        ("roberta", "hidden_dropout_prob", 2, "between 0 and 1"),
        ("roberta", "hidden_act", "gulu", "gulu"),
        ("roberta", "pad_token_id", None, "pad_token_id"),
        ("qwen3", "layer_types", ["full_attention"], "layer_types"),
    ],
)
def test_keys_that_the_config_lacks_or_the_lab_sets_are_refused(model_type: str, key: str, value, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        HuggingFace(32, 2, 4, 24, model_type=model_type, config={key: value})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"electra-lab\[hugging-face\]"):
        HuggingFace(32, 2, 4, 24, model_type="roberta")


def test_transformers_loads_what_the_labs_class_saves(tmp_path: Path) -> None:
    """With the buffers that are missing from files."""
    from electra_lab.interop.hugging_face.models import ElectraLabConfig, ElectraLabModel

    backbone = {"type": "hugging_face", "model_type": "roberta", "dim": 32, "depth": 2, "heads": 4}
    embedding = {"dim": 16, "max_length": 24, "dropout": 0.1}
    model = ElectraLabModel(ElectraLabConfig(vocab_size=50, pad_token_id=0, backbone=backbone, embedding=embedding))
    model.save_pretrained(tmp_path)
    again, tokens = ElectraLabModel.from_pretrained(tmp_path), torch.randint(5, 50, (3, 24))
    assert torch.equal(again(tokens).last_hidden_state, model.eval()(tokens).last_hidden_state)


def test_the_page_of_encoders_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| (yes|no|if .*?) \| (the same|any|2 more|\+ .*?) \|", page, re.M)
    facts = {name: row for row in rows for name in re.findall(r"`(\S+)`", row[0])}
    assert facts.keys() == FAMILIES.keys()
    for name, family in FAMILIES.items():
        _, separates, positions = facts[name]
        assert (separates == "no") == (family.masks == "rows"), name
        assert {"any": None, "the same": 0, "2 more": 2}.get(positions, AFTER_PAD) == family.first, name
    tried = ("roberta", {}, 24), ("roformer", {}, 24), ("ultrabert", SLIDING, 5), ("ultrabert", SLIDING, 6)
    assert [made(*given).separates_documents for given in tried] == [True, False, True, False]
    example = page.partition("```yaml\n")[2].partition("```")[0]
    file = tmp_path / "mine.yaml"
    file.write_text(example.replace("experiments/", f"{ROOT}/experiments/"))
    assert exit_code("check", str(file)) == 0
