"""The built-in task end to end, in small: a shipped file, real text, a small network that learns something."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from electra_lab.jobs.finetuning.run import finetune
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import datasets
from tests.helpers import ROOT

EXPERIMENTS = ROOT / "experiments"


@pytest.mark.slow
def test_a_small_network_learns_where_docstrings_come_from(tmp_path: Path) -> None:
    dataset = datasets.get("docstring_origin").component()
    text = "\n\n".join(example.text.replace("\n\n", "\n") for example in dataset.read("train"))
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    corpus = f"corpus={{type: text_files, paths: [{tmp_path / 'corpus.txt'}]}}"
    begun = [corpus, f"data.store={tmp_path / 'store'}", "train.steps=2", "schedules.learning_rate.warmup_steps=1"]
    model = execute.run(EXPERIMENTS / "transformer_tiny.yaml", begun, tmp_path / "model", "cpu")
    quick = ["train.epochs=3", "train.learning_rate=5e-3", "train.layer_decay=1.0", "train.precision=fp32"]
    file = EXPERIMENTS / "downstream" / "docstring_origin.yaml"
    folder = finetune(file, [f"model={model}", "seeds=[0]", *quick], tmp_path / "out", "cpu")
    examples = list(dataset.read("validation"))
    share = Counter(example.label for example in examples).most_common(1)[0][1] / len(examples)
    accuracy = FinetuningFolder(folder).values("validation", "accuracy")[0]
    assert accuracy > share + 4 * (share * (1 - share) / len(examples)) ** 0.5
