"""Fine-tuned models in transformers' pipelines: they give the lab's predictions."""

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers import BertForPreTraining

import electra_lab
import electra_lab.interop.hugging_face
from electra_lab.analysis.run_comparison import subjects
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.pretrained.opening import open_model
from electra_lab.storage.files import damage
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError
from tests.electra_lab.jobs.finetuning.small import predictions, pretrained, write_finetuning
from tests.electra_lab.model.theirs import model, saved

ONCE = pytest.mark.parametrize("run", ["bert"], indirect=True)
DENSE = {"type": "text_classification", "head": "dense"}
LONG = ["train.epochs=20", "train.layer_decay=1.0", "train.learning_rate=1e-2"]


@pytest.fixture(scope="module", params=["bert", "transformer"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = f"{{type: {request.param}, dim: 16, depth: 1, heads: 2, dropout: 0.0}}"
    return pretrained(tmp_path_factory.mktemp("run"), discriminator=backbone)


def test_a_classifier_has_the_labels_and_the_certainties_of_the_lab(tmp_path: Path, run: Path) -> None:
    path = write_finetuning(tmp_path, run, task=DENSE)
    folder = finetune(path, LONG, tmp_path / "out", "cpu") / "seed-0"
    assert damage(folder / "model") is None
    classify = transformers.pipeline("text-classification", model=str(folder / "model"), device="cpu")
    ours = predictions(folder, "validation")
    theirs = classify([answer["text"] for answer in ours])
    assert [label["label"] for label in theirs] == [answer["prediction"] for answer in ours]
    assert [label["score"] for label in theirs] == pytest.approx([answer["certainty"] for answer in ours], abs=1e-5)
    assert len({answer["prediction"] for answer in ours}) == 2  # otherwise the labels could be swapped
    tuned, *same = (electra_lab.load(path).embed("the cat") for path in (folder / "model", folder, folder.parent))
    assert all(torch.equal(tuned, states) for states in same)
    assert not torch.equal(tuned, electra_lab.load(run).embed("the cat"))


@ONCE
def test_a_fine_tuned_bert_is_written_as_the_electra_that_it_is(tmp_path: Path, run: Path) -> None:
    made = model(BertForPreTraining, vocab_size=RunDirectory(run).tokens()[0].get_vocab_size())
    shutil.copy(run / "tokenizer.json", saved(made, tmp_path / "bert"))
    file = write_finetuning(tmp_path, tmp_path / "bert", task=DENSE, network="generator")
    folder = finetune(file, ["train.epochs=1"], tmp_path / "out", "cpu") / "seed-0"
    kind = transformers.AutoModelForSequenceClassification
    loaded, report = kind.from_pretrained(folder / "model", output_loading_info=True)
    assert type(loaded).__name__ == "ElectraForSequenceClassification"
    assert not any(report.values()), report


@ONCE
def test_a_fine_tuning_without_one_model_says_so(tmp_path: Path, run: Path) -> None:
    path = write_finetuning(tmp_path, run)
    folder = finetune(path, ["seeds=[0, 1]", "train.epochs=1"], tmp_path / "out", "cpu")
    with pytest.raises(ConfigError, match="has saved no model") as refused:
        open_model(folder)
    assert f"electra-lab predict {folder} TEXT" in str(refused.value)
    assert "electra-lab registry describe tasks text_classification" in str(refused.value)
    with pytest.raises(ConfigError, match="is a fine-tuning") as refused:
        subjects([folder, run])
    assert f"electra-lab compare {folder}/seed-0 {run}" in str(refused.value)
    for seed in (0, 1):
        (folder / f"seed-{seed}" / "model").mkdir(exist_ok=True)
    with pytest.raises(ConfigError, match="has 2 models"):
        open_model(folder)


def test_the_dropout_of_the_task_is_that_of_the_exported_layers(tmp_path: Path, run: Path) -> None:
    """Neither that of the encoder, which is 0 here, nor a default."""
    path = write_finetuning(tmp_path, run, task=DENSE)
    folder = finetune(path, ["train.dropout=0.375", "train.epochs=1"], tmp_path / "out", "cpu") / "seed-0"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert model.config.classifier_dropout == 0.375
    dropouts = [module.p for module in model.classifier.modules() if isinstance(module, nn.Dropout)]
    assert {*dropouts} == {0.375}


@ONCE
def test_layers_that_transformers_does_not_have_are_not_exported(tmp_path: Path, run: Path) -> None:
    folder = finetune(write_finetuning(tmp_path, run), [], tmp_path / "out", "cpu") / "seed-0"
    assert not (folder / "model").exists()
