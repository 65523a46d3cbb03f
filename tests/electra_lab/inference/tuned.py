"""Fine-tunings of each task with two seeds; their pre-trained model is deleted."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.jobs.finetuning.run import finetune
from tests.electra_lab.jobs.finetuning.small import pretrained, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module

BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
LONG = "the mat on the mat and 9 and 5 saw the mat, "  # so that a row does not fit the text
JOINT = {"type": "question_answering", "head": "joint", "beam": 4, "stride": 3, "max_answer": 4}
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "labels": ({"type": "text_classification", "head": "dense"}, {"type": "table", "text": "review", "label": "what"}),
    "pairs": ({"type": "text_classification", "head": "dense"}, {"type": "json_lines", "text": "a.b", "pair": "c"}),
    "numbers": ({"type": "text_regression", "head": "dense"}, {"type": "json_lines", "label_type": "number"}),
    "tags": ({"type": "token_classification", "stride": 4}, {"type": "conll"}),
    "answers": ({"type": "question_answering", "head": "independent", "max_answer": 4}, {"type": "squad"}),
    "joint answers": (JOINT, {"type": "squad"}),
}
TWICE = ("labels", "joint answers")
SPOILED = ("embedding", "layer", "head", "one row", "diverged")
ENDINGS = {"table": ".csv", "json_lines": ".jsonl", "conll": ".txt", "squad": ".json"}


def write_examples(folder: Path, name: str, dataset: str) -> dict[str, str]:
    """Write training and validation data of a task; texts differ in length, and some are longer than a row."""
    draw, paths = random.Random(0), {}
    for split, number in (("train", 32), ("validation", 14)):
        lines, questions = [], []
        for n in range(number):
            animal, place = draw.choice(["cat", "dogs"]), draw.randrange(40)
            more, short = LONG * (n % 3 == 0), f"the {animal} sat on the mat{' and saw 2' * (n % 2)} {place}"
            text = f"{short} {more}" if dataset in ("table", "json_lines") else f"{more}{short}"
            if dataset == "table":
                lines.append(f'"{text}, [MASK]",{animal},{n}\n')
            elif name == "pairs":
                label = draw.choice(["yes", "no"])
                pair = "the cat" if label == "yes" else "the dogs"
                lines.append(json.dumps({"a": {"b": text}, "c": pair, "label": label}))
            elif dataset == "json_lines":
                lines.append(json.dumps({"text": text, "label": 7.0 * place - 3}))
            elif dataset == "conll":
                tags = ["B-X" if word == animal else "I-X" if word == "sat" else "O" for word in text.split()]
                lines.append("".join(f"{word} {tag}\n" for word, tag in zip(text.split(), tags, strict=True)))
            else:
                answers = [] if n % 4 == 0 else [{"text": animal, "answer_start": text.rindex(animal)}]
                answers = answers if name == "joint answers" or answers else [{"text": "the", "answer_start": 0}]
                asked = {"id": f"{split}{n}", "question": "who sat?", "is_impossible": not answers, "answers": answers}
                questions.append({"context": text, "qas": [asked]})
        table, squad = "review,what,n\n" + "".join(lines), json.dumps({"data": [{"paragraphs": questions}]})
        content = {"table": table, "squad": squad}
        paths[split] = f"{name}-{split}{ENDINGS[dataset]}".replace(" ", "_")
        (folder / paths[split]).write_text(content.get(dataset, "\n".join(lines) + "\n"), encoding="utf-8")
    return paths


_FOUND: dict[str, Path] = {}


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fine-tunings by name, created once for all test folders."""
    if not _FOUND:
        with for_a_module():
            _FOUND.update(all_tuned(tmp_path_factory.mktemp("tuned")))
    return _FOUND


def all_tuned(
    folder: Path,
    tasks: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = TASKS,
    backbone: str = BERT,
    epochs: int = 6,
) -> dict[str, Path]:
    """Fine-tune a model for each task; returns the folders."""
    model, found = pretrained(folder / "pretrained", discriminator=backbone, embedding="{dim: 8, max_length: 32}"), {}
    for name, (task, dataset) in tasks.items():
        paths = write_examples(folder, name, dataset["type"])
        file = write_finetuning(
            folder,
            model,
            name=name.replace(" ", "_"),
            imports=None,
            task=task,
            dataset={**dataset, **paths},
            data={"max_length": 20},
            train={"epochs": epochs, "batch_size": 8, "learning_rate": 2e-2, "layer_decay": 1.0, "precision": "fp32"},
            evaluate=None,
            checkpoint=None,
            seeds=[4, 7] if name in TWICE else [4],
        )
        found[name] = finetune(file, [], folder / "out" / file.stem, "cpu")
    model.rename(folder / "elsewhere")
    return found


@torch.no_grad()
def spoil(where: str, network: Any, head: torch.nn.Module, word: int) -> None:
    """Give a network finite weights that overflow, for the embedding of one word (`one row`) if not for all; or NaN."""
    embedded = network.embeddings.tokens.weight
    if where == "one row":
        embedded[word] = 3e38
    elif where == "embedding":
        embedded.copy_(embedded.sign() * 3e38)
    elif where == "layer":
        for weight in network.backbone.layers[-1].parameters():
            weight.fill_(3e38)
    elif where == "head":
        for weight in head.parameters():
            weight.copy_(weight.sign() * 3e38)
    else:
        for weight in network.parameters():
            weight.fill_(math.nan)
