"""Models of transformers as pairs: their answers are those of transformers itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import electra_lab
from electra_lab.export.export import export
from electra_lab.tokenizers.wordpiece import wordpiece
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run
from tests.electra_lab.pretrained.conftest import DOCUMENTS

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
         "max_position_embeddings": 16}  # fmt: skip
TEXTS = ["the cat sat on the mat", "", "dogs"]


def saved(folder: Path, model: type, config: type, tokenizer: hf.PreTrainedTokenizerFast) -> Any:
    torch.manual_seed(0)
    size = {"embedding_size": 8} if config is hf.ElectraConfig else {}
    made = model(config(vocab_size=len(tokenizer), initializer_range=0.5, **SIZES, **size)).eval()
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return made


@torch.no_grad()
def logits(model: Any, tokenizer: hf.PreTrainedTokenizerFast, text: str) -> torch.Tensor:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    found: torch.Tensor = model(torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])).logits[0, 1:-1]
    return found


def test_a_discriminator_detects_as_in_transformers(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    model = saved(tmp_path / "model", hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    pair = electra_lab.load(tmp_path / "model", device="cpu")
    assert pair.generator is None
    assert pair.length == 16
    for found, text in zip(pair.detect(TEXTS), TEXTS, strict=True):
        assert found.probabilities == pytest.approx(logits(model, tokenizer, text).sigmoid().tolist(), abs=1e-5)
    with pytest.raises(ConfigError, match=f"{tmp_path / 'model'}: has no generator and no head that predicts tokens"):
        pair.corrupt("the cat")


@pytest.mark.parametrize(
    ("model", "config"), [(hf.ElectraForMaskedLM, hf.ElectraConfig), (hf.BertForMaskedLM, hf.BertConfig)]
)
def test_a_masked_language_model_fills_as_in_transformers(
    tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast, model: type, config: type
) -> None:
    made = saved(tmp_path / "model", model, config, tokenizer)
    pair = electra_lab.load(str(tmp_path / "model"), device="cpu")
    [candidates] = pair.fill("the [MASK] sat", top=3).candidates
    scores = logits(made, tokenizer, "the [MASK] sat")[1].clone()
    scores[tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[MASK]"])] = -torch.inf
    best = scores.softmax(-1).topk(3)
    assert [each.token for each in candidates] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
    assert [each.probability for each in candidates] == pytest.approx(best.values.tolist(), abs=1e-5)
    with pytest.raises(ConfigError, match="has no detection head"):
        pair.detect("the cat")


def test_two_folders_are_a_pair(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    saved(tmp_path / "discriminator", hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    saved(tmp_path / "generator", hf.ElectraForMaskedLM, hf.ElectraConfig, tokenizer)
    found = electra_lab.load(tmp_path, device="cpu").corrupt("the cat sat on the mat", mask_prob=0.5)
    assert found.probabilities
    assert sum(found.masked) == 3
    other = wordpiece(DOCUMENTS[:1] * 2, vocab_size=130)
    hf.PreTrainedTokenizerFast(tokenizer_object=other).save_pretrained(tmp_path / "generator")
    with pytest.raises(ConfigError, match="generator and discriminator have different vocabularies"):
        electra_lab.load(tmp_path)


def test_a_step_or_a_tokenizer_that_is_not_there_is_a_sentence(tmp_path: Path, tokenizer: Any) -> None:
    saved(tmp_path, hf.ElectraForPreTraining, hf.ElectraConfig, tokenizer)
    with pytest.raises(ConfigError, match="is not a run directory, so it has no step 3"):
        electra_lab.load(tmp_path, step=3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match=f"{tmp_path}"):
        electra_lab.load(tmp_path)


def test_an_exported_pair_answers_as_its_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also about a text longer than the rows of training, with positions to spare; of any backbone; without a word."""
    for kind in ("bert", "transformer"):
        with for_a_module():
            backbone = f"{{type: {kind}, dim: 16, depth: 1, heads: 2}}"
            file = experiment(tmp_path / kind, discriminator=backbone, embedding="{dim: 8, max_length: 32}")
            made = run(file, tmp_path / kind / "run")
        export(made, tmp_path / kind / "exported")
        capfd.readouterr()
        before, after = (electra_lab.load(path, device="cpu") for path in (made, tmp_path / kind / "exported"))
        assert before.length == after.length == 16
        long = " ".join(DOCUMENTS[:4])
        assert after.detect(long).probabilities == pytest.approx(before.detect(long).probabilities, abs=1e-5)
        assert after.corrupt(long).inputs == before.corrupt(long).inputs
        assert capfd.readouterr().err == ""


def test_a_table_may_be_padded_but_not_too_small(tmp_path: Path, tokenizer: hf.PreTrainedTokenizerFast) -> None:
    size = len(tokenizer)
    for rows, name in ((size + 7, "padded"), (size - 2, "small")):
        config = hf.ElectraConfig(vocab_size=rows, embedding_size=8, **SIZES)
        hf.ElectraForMaskedLM(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    pair = electra_lab.load(tmp_path / "padded", device="cpu")
    assert pair.corrupt("the cat sat on the mat", mask_prob=1.0).inputs
    assert len(pair.fill("the [MASK]", top=10**6).candidates[0]) == size
    with pytest.raises(DataError, match=f"has {size} tokens, but its network only {size - 2}"):
        electra_lab.load(tmp_path / "small")
