"""Compare fine-tuning with transformers' Trainer: the same model, examples, batches and padding policy, in one process.

    python benchmarks/finetuning.py [--size tiny|small] [--rounds 5] [--threads 2]

The examples are those of docstring_origin; the model is an ElectraForSequenceClassification with random weights,
which the lab reads from its folder as it reads any ELECTRA. Both take batches of 32 of similar lengths, padded to the
longest, AdamW, warm-up and linear decay, clipping and a log line every 50 steps, in fp32; neither evaluates or saves.
A round is an epoch by each, timed from its first step to its last; the order changes from round to round. An epoch,
because Trainer begins with its longest rows. Needs accelerate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    DataCollatorWithPadding,
    ElectraConfig,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

from electra_lab.config.load import Loaded, load_finetuning
from electra_lab.jobs.finetuning.experiment import TRAIN, VALIDATION, assemble
from electra_lab.training.loop import Training, train
from registry import datasets, tokenizers

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512},
    "small": {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024},
}
BATCH, LENGTH, RATE, CPU = 32, 128, 3e-4, torch.device("cpu")


def write_model(folder: Path, size: str) -> list[Any]:
    """Write an ELECTRA with random weights and its tokenizer; returns the training examples."""
    examples = list(datasets.get("docstring_origin").component().read(TRAIN))
    trained: Tokenizer = tokenizers.get("wordpiece").component([example.text for example in examples], vocab_size=8192)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=trained, model_max_length=LENGTH, **special).save_pretrained(folder)
    config = ElectraConfig(
        vocab_size=trained.get_vocab_size(), embedding_size=128, max_position_embeddings=LENGTH, **SIZES[size]
    )
    ElectraForPreTraining(config).save_pretrained(folder)
    return examples


def of_the_lab(folder: Path) -> Loaded[Any]:
    file = folder / "finetuning.yaml"
    sections = {
        "name": "bench",
        "model": str(folder),
        "task": {"type": "text_classification", "head": "dense"},
        "dataset": {"type": "docstring_origin"},
        "data": {"max_length": LENGTH},
        "optimizer": {"type": "adamw", "weight_decay": 0.01},
        "train": {
            "epochs": 1.0,
            "batch_size": BATCH,
            "learning_rate": RATE,
            "layer_decay": 1.0,
            "precision": "fp32",
        },
    }
    file.write_text(json.dumps(sections), encoding="utf-8")
    return load_finetuning(file)


def lab(loaded: Loaded[Any], seed: int) -> tuple[float, int]:
    """Return the seconds of an epoch, and how many tokens it reads, padding included."""
    built = assemble(loaded, seed, CPU)
    batches, settings = built.splits[TRAIN].batches, built.settings
    longer = replace(settings, steps=settings.steps + 1)  # the last record would wait for an evaluation
    held_out = {VALIDATION: built.splits[VALIDATION].batches}
    training = Training(built.run, longer, batches, held_out, lambda _: built.accumulate(VALIDATION), CPU)
    records = train(training)
    began = time.perf_counter()
    for _ in range(settings.steps):
        next(records)
    seconds = time.perf_counter() - began
    return seconds, sum(batches.training_batch(seed, step, BATCH, CPU).tokens.numel() for step in range(settings.steps))


class Clock(TrainerCallback):  # type: ignore[misc]
    """Measures the time of the training only."""

    seconds = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.seconds -= time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds += time.perf_counter()


class Counted(DataCollatorWithPadding):  # type: ignore[misc]
    """Batches that are padded to their longest row, and their tokens."""

    tokens = 0

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        batch = super().__call__(features)
        self.tokens += batch["input_ids"].numel()
        return batch


def trainer(folder: Path, examples: list[Any], seed: int) -> tuple[float, int]:
    """The same by transformers' Trainer."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    labels = sorted({example.label for example in examples})
    model = ElectraForSequenceClassification.from_pretrained(folder, num_labels=len(labels))
    encoded = tokenizer([example.text for example in examples], truncation=True, max_length=LENGTH)
    rows = [
        {"input_ids": ids, "labels": labels.index(example.label)}
        for ids, example in zip(encoded["input_ids"], examples, strict=True)
    ]
    steps = -(-len(rows) // BATCH)
    given = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=RATE,
        weight_decay=0.01,
        warmup_steps=max(1, steps // 10),
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        train_sampling_strategy="group_by_length",
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    clock, collate = Clock(), Counted(tokenizer)
    Trainer(model=model, args=given, train_dataset=rows, data_collator=collate, callbacks=[clock]).train()
    return clock.seconds, collate.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples = write_model(folder, given.size)
        loaded = of_the_lab(folder)
        ways: dict[str, Callable[[int], tuple[float, int]]] = {
            "electra_lab": lambda seed: lab(loaded, seed),
            "Trainer": lambda seed: trainer(folder, examples, seed),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for round in range(given.rounds + 1):
            for way in list(ways)[:: 1 if round % 2 else -1]:
                taken, tokens = ways[way](round)
                if round:  # the first one warms up
                    seconds[way].append(taken)
                    print(f"round {round}  {way:<12} {taken:6.1f} s  {tokens:,} tokens with padding", flush=True)
    ratios = [theirs / ours for ours, theirs in zip(*seconds.values(), strict=True)]
    print(
        f"{given.size}, {given.threads} threads: {statistics.median(ratios):.2f} times as fast as Trainer, median of "
        f"{len(ratios)} rounds ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
