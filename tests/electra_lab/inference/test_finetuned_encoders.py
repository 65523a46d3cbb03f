"""ModernBERT and DeBERTa, fine-tuned: plain models of transformers, which the lab reads again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from electra_lab.jobs.finetuning.facts import described_export
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.pretrained.families import FAMILIES, prepare
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import tasks
from tests.electra_lab.inference.test_finetuned import items, opened
from tests.electra_lab.inference.tuned import TASKS, all_tuned
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module

ENCODERS = {
    "ModernBert": "{type: modernbert, dim: 8, depth: 2, heads: 2, local_attention: 6, global_every: 2, dropout: 0.0}",
    "DebertaV2": "{type: deberta, dim: 8, depth: 2, heads: 2, buckets: 4, max_distance: 8, dropout: 0.0}",
}
ENDINGS = {"pairs": "SequenceClassification", "numbers": "SequenceClassification", "tags": "TokenClassification",
           "answers": "QuestionAnswering"}  # fmt: skip


# The heads of ModernBERT are also in export/test_onnx.py; its layers, in the laws and in pretrained/test_families.py.
@pytest.fixture(scope="module", params=[pytest.param("ModernBert", marks=pytest.mark.slow), "DebertaV2"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Rows are longer than a window, and than the distances with a bucket of their own."""
    chosen = {name: ({**TASKS[name][0], "head": "transformers"}, TASKS[name][1]) for name in ENDINGS}
    with for_a_module():
        yield request.param, all_tuned(tmp_path_factory.mktemp("encoders"), chosen, ENCODERS[request.param], epochs=2)


def test_they_leave_and_come_back(made: tuple[str, dict[str, Path]], tmp_path: Path) -> None:
    """With their layers, the labels, and the numbers of the fine-tuning, which are those of transformers."""
    prefix, folders = made
    for name, ending in ENDINGS.items():
        model = folders[name] / "seed-4" / "model"
        kind: Any = getattr(transformers, f"AutoModelFor{ending}")
        plain, report = kind.from_pretrained(model, output_loading_info=True)
        assert type(plain).__name__ == f"{prefix}For{ending}"
        assert not any(report.values()), report
        written, given = items(name, folders[name])
        ours, again = (opened(path).predict(given) for path in (folders[name], model))
        assert [found.prediction for found in ours] == [found["prediction"] for found in written] or name == "numbers"
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        for item, one, other in zip(given, ours, again, strict=True):
            text = (" ".join(item),) if name == "tags" else item if isinstance(item, tuple) else (item,)
            read = tokenizer(*text, return_tensors="pt", return_token_type_ids=False)
            fits = read["input_ids"].shape[1] <= 20  # the fine-tuning reads longer texts in another way
            with torch.no_grad():
                logits = plain.eval()(**read)
            if name == "pairs":
                expected = dict(zip(plain.config.id2label.values(), logits[0][0].softmax(-1).tolist(), strict=True))
                assert other.probabilities == pytest.approx(expected, abs=1e-5)
                assert not fits or one.probabilities == pytest.approx(expected, abs=1e-5)
            elif name == "numbers":
                assert other.prediction == pytest.approx(float(logits[0]), abs=1e-4)
                assert not fits or one.prediction == pytest.approx(float(logits[0]), abs=1e-4)
            elif name == "tags" and fits:
                chances, places = logits[0][0].softmax(-1).amax(-1), read.word_ids()
                expected = [float(chances[places.index(word)]) for word in range(len(item))]
                assert one.probabilities == pytest.approx(expected, abs=1e-5)
                assert other.probabilities == pytest.approx(expected, abs=1e-5)
            elif name == "answers" and fits:
                assert (one.prediction, one.probability) == (other.prediction, pytest.approx(one.probability, abs=2e-5))

    # In a pipeline, and as the start of another fine-tuning, whose head is new.
    model = folders["pairs"] / "seed-4" / "model"
    _, given = items("pairs", folders["pairs"])
    pipeline = transformers.pipeline("text-classification", model=str(model), device="cpu")
    scores = pipeline([{"text": text, "text_pair": pair} for text, pair in given], truncation=True)
    assert [score["label"] for score in scores] == [found.prediction for found in opened(model).predict(given)]
    further = finetune(write_finetuning(tmp_path, model, seeds=[0]), ["train.epochs=1"], tmp_path / "out", "cpu")
    assert FinetuningFolder(further).results(0)


@pytest.mark.parametrize(
    ("name", "head", "leaves"),
    [
        ("text_classification", "linear", "none none none"),
        ("text_classification", "dense", "own lab own"),
        ("text_classification", "transformers", "own own own"),
        ("text_regression", "transformers", "own own own"),
        ("token_classification", None, "own lab own"),
        ("token_classification", "transformers", "own own own"),
        ("question_answering", "joint", "none none none"),
        ("question_answering", "independent", "none none none"),  # has a classifier, as some have no answer
        ("question_answering", "transformers", "own own own"),
    ],
)
def test_what_can_leave_is_known_before_training(name: str, head: str | None, leaves: str) -> None:
    """As a class of transformers, of the lab, or not at all: ELECTRA, ModernBERT, DeBERTa."""
    facts = {"labels": ["a", "b"], "tags": ["O"], "usual": "O", "low": 0, "high": 1, "unanswerable": True}
    for model_type, expected in zip(("electra", "modernbert", "deberta-v2"), leaves.split(), strict=True):
        task: Any = tasks.get(name).component(head=head)
        task.set_labels(facts)
        prepare(task, FAMILIES[model_type])
        part: Any = SimpleNamespace(family=FAMILIES[model_type], plugin=None)
        said = described_export(task, task.head(8, 0.1), part)
        prefix = {"own": FAMILIES[model_type].prefix, "lab": "ElectraLab", "none": "none: "}[expected]
        assert f" {prefix}For" in said or said.startswith(prefix)
        assert ("{head: transformers}" in said) == (expected != "own")
