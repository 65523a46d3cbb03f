"""A tiny pre-trained run, and a task that it can learn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.jobs.finetuning.run import finetune
from electra_lab.jobs.pretraining import execute
from registry.errors import LabError
from tests.electra_lab.jobs.pretraining.tiny import experiment

PLUGIN = Path(__file__).with_name("lines.py")


def pretrained(folder: Path, **sections: str) -> Path:
    """Train the tiny experiment for a few steps; returns its run directory."""
    return execute.run(experiment(folder, **sections), [], folder / "run", "cpu")


def write_lines(folder: Path, *, train: int = 24, validation: int = 12, test: int = 6) -> Path:
    """Write texts labelled with their animal; texts of the test have no label."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", train), ("validation", validation), ("test", test)):
        lines = []
        for _ in range(number):
            animal = draw.choice(["cat", "dogs"])
            text = f"the {animal} sat on the mat number {draw.randrange(40)}"
            lines.append(f"{'' if split == 'test' else animal}\t{text}\n")
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def write_finetuning(folder: Path, model: Path, **sections: Any) -> Path:
    """Write a fine-tuning of some steps and its examples; `sections` replace keys, None removes one."""
    if not (folder / "texts").exists():
        write_lines(folder / "texts")
    values: dict[str, Any] = {
        "name": "animals",
        "imports": [str(PLUGIN)],
        "model": str(model),
        "task": {"type": "text_classification"},
        "dataset": {"type": "lines", "folder": "texts"},
        "train": {"epochs": 3, "batch_size": 6, "learning_rate": 3e-3, "precision": "fp32", "log_every": 5},
        "evaluate": {"every": 4},
        "checkpoint": {"every": 5},
        **sections,
    }
    path = folder / f"{values['name']}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return path


def predictions(folder: Path, split: str) -> list[dict[str, Any]]:
    text = (folder / f"predictions-{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def refusal(path: Path, *overrides: str) -> str:
    """Return the error of a file that cannot be fine-tuned from."""
    with pytest.raises(LabError) as caught:
        finetune(path, overrides, path.parent / "refused", "cpu")
    return str(caught.value)
