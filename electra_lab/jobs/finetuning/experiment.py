"""From a fine-tuning file and a seed to everything that training needs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from electra_lab.assembly.budget import rows_at_once, size_of, steps_of
from electra_lab.assembly.build import brought_by, loop_settings, optimizer_of, weights_from
from electra_lab.assembly.experiment import absent_tracker
from electra_lab.assembly.initial_weights import BROUGHT, DRAWN
from electra_lab.assembly.networks import OpenedModel, open_source
from electra_lab.checks.guards import rehearse
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, load_finetuning
from electra_lab.config.origins import dump_with_origins
from electra_lab.config.sections import rate_problem
from electra_lab.data.rows import permuted
from electra_lab.data.task_rows import TaskRows
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.jobs.provenance import steps_and_flops
from electra_lab.model.flops import MATRIX_PRODUCTS
from electra_lab.model.task_model import TaskModel, with_layer_rates
from electra_lab.presentation.console import Console
from electra_lab.pretrained.families import prepare
from electra_lab.storage.provenance import Data
from electra_lab.training.device import choose_precision
from electra_lab.training.evaluation import Collected, using_task
from electra_lab.training.loop import Run, Settings
from electra_lab.training.step import Learner
from registry import BatchSizes, Dataset, Flops, Metric, Row, Task, datasets, tasks, using
from registry.contracts.tasks import is_labelled
from registry.errors import DataError, LabError, did_you_mean, listed

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class Examples:
    """The examples of a fine-tuning, which are the same for all seeds."""

    dataset: Dataset
    splits: Mapping[str, list[Any]]
    facts: Mapping[str, Any]  # learned by the task from the training examples, such as the labels


@dataclass(frozen=True)
class Split:
    """The examples of a split with their rows."""

    examples: Sequence[Any]
    rows: Sequence[Sequence[Row]]  # of each example
    batches: TaskRows


@dataclass(frozen=True)
class Finetuning:
    """A fine-tuning with one seed, ready to be run."""

    run: Run
    settings: Settings
    model: TaskModel
    task: Task
    read: Examples
    splits: Mapping[str, Split]  # `train`, `validation`, and others of the dataset
    source: OpenedModel
    weights: dict[str, str]  # by part of the model, where they come from
    length: int  # of the longest row
    device: torch.device

    def accumulate(self, split: str) -> Collected:
        held = self.splits[split]
        return Collected(self.task, held.examples, held.rows, self.model.of_tokens)

    def lost(self) -> dict[str, dict[str, float]]:
        """Return the shares of the examples that are missing from the rows: by metric, its value on each split."""
        shares: dict[str, dict[str, float]] = {}
        for split in (TRAIN, *self.held_out):
            held = self.splits[split]
            for name, value in self.task.truncation(held.examples, held.rows).items():
                shares.setdefault(name, {})[split] = value
        return shares

    @property
    def held_out(self) -> list[str]:
        """The names of all splits except training, validation first."""
        return sorted((name for name in self.splits if name != TRAIN), key=lambda name: name != VALIDATION)


def check(loaded: Loaded[FinetuningConfig]) -> LabError | None:
    """Find every problem that does not require reading the examples. Raises ConfigError.

    Data, a model or a tracker's library that is not here is not an error of the file: the error that a run would raise
    is returned.
    """
    absent = absent_examples(loaded) or absent_tracker(loaded)
    try:
        longest_row(loaded, open_source(loaded))
    except DataError as error:
        if os.path.lexists(loaded.config.model):
            raise  # the model is here, and damaged
        return absent or error
    return absent


def overview(file: Path, overrides: Sequence[str]) -> tuple[str, LabError | None]:
    """Return the complete file with its origins, and the error that it would raise here. Raises ConfigError."""
    loaded = load_finetuning(file, overrides)
    absent = check(loaded)
    task = make_task(loaded)
    if isinstance(task, Task) and not task.exports_as:
        Console().say(f"note: {no_class(task)}.")
    return dump_with_origins(loaded), absent


def no_class(task: Task) -> str:
    """Say that fine-tuned models of a task cannot be exported to transformers, and with which options they could."""
    instead = f"; it has those of task: {{{task.exports_if}}}" if task.exports_if else ""
    return f"transformers has no class with these layers{instead}. `electra-lab predict` works without it"


def absent_examples(loaded: Loaded[FinetuningConfig]) -> DataError | None:
    """Return the error of a run for examples that this machine lacks, if any. Raises ConfigError."""
    declared(loaded)
    try:
        open_dataset(loaded)
    except DataError as error:
        return error
    return None


def identity(loaded: Loaded[FinetuningConfig]) -> str:
    """Return a hash of everything that affects the numbers except the model: settings, plug-ins, available examples."""
    config = loaded.portable.model_dump(mode="json", exclude={"model", "trackers"})
    examples = None if absent_examples(loaded) else open_dataset(loaded).fingerprint()
    content = json.dumps([config, [plugin.sha256 for plugin in loaded.plugins], examples], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def open_dataset(loaded: Loaded[FinetuningConfig]) -> Dataset:
    """Raises DataError if its files are not there, ConfigError if the component refuses its options."""
    chosen = loaded.config.dataset
    try:
        dataset: Dataset = datasets.get(chosen.type).component(**chosen.keywords())
    except DataError as error:
        raise loaded.problem(("dataset",), f"{chosen.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("dataset",), f"{chosen.type} refuses this: {error}") from error
    return dataset


def make_task(loaded: Loaded[FinetuningConfig]) -> Any:
    """Raises ConfigError if the component refuses its options."""
    chosen = loaded.config.task
    try:
        return tasks.get(chosen.type).component(**chosen.keywords())
    except ValueError as error:
        raise loaded.problem(("task",), f"{chosen.type} refuses this: {error}") from error


def declared(loaded: Loaded[FinetuningConfig]) -> Mapping[str, Metric]:
    """Return the metrics of the task, the one that reports lead with first; it is shown while training.

    Raises ConfigError if the task has no such metric.
    """
    config = loaded.config
    with using(tasks.get(config.task.type)):
        metrics: dict[str, Metric] = {**cast("Task", make_task(loaded)).metrics}
    first = config.evaluate.metric or next(iter(metrics))
    if first not in metrics:
        reason = f"{config.task.type} has no metric '{first}'.{did_you_mean(first, metrics)}"
        raise loaded.problem(("evaluate", "metric"), reason)
    leading = replace(metrics[first], brief=metrics[first].title or first)
    return {first: leading, **{name: metric for name, metric in metrics.items() if name != first}}


def longest_row(loaded: Loaded[FinetuningConfig], source: OpenedModel) -> int:
    """Return the length of the longest row in tokens. Raises ConfigError."""
    length = loaded.config.data.max_length or min(source.length, source.longest)
    if length > source.longest:
        reason = f"{length} is above the {source.longest} positions of {loaded.config.model}. Lower it."
        raise loaded.problem(("data", "max_length"), reason)
    return length


def read_examples(loaded: Loaded[FinetuningConfig], dataset: Dataset | None = None) -> Examples:
    """Read all splits; a task that trains learns its facts from all training examples, as a label may be rare.

    Raises DataError that names all problems: the bad rows of each split, examples that cannot be learned, no label for
    validation; a split that is missing or has no examples.
    """
    dataset, task = dataset or open_dataset(loaded), make_task(loaded)
    missing = [name for name in (TRAIN, VALIDATION) if name not in dataset.splits]
    if missing and loaded.config.trains:
        has = ", ".join(dataset.splits) or "none"
        reason = f"{loaded.config.dataset.type} has no split {missing[0]}: it has {has}."
        raise loaded.problem(("dataset",), reason, DataError)
    examples: dict[str, list[Any]] = {}
    errors: list[LabError] = []
    entry = datasets.get(loaded.config.dataset.type)
    for split in dataset.splits:
        try:
            with using(entry):
                examples[split] = list(dataset.read(split))
                if (kind := entry.declared["yields"]) and not all(isinstance(item, kind) for item in examples[split]):
                    raise TypeError(f"it must yield {kind.__name__}.")
        except LabError as error:
            errors.append(error)
            continue
        if not examples[split]:
            errors.append(DataError(f"the split {split} has no examples."))
        unknown = [example.place or example.id for example in examples[split] if not is_labelled(example)]
        if 0 < len(unknown) < len(examples[split]):
            reason = "has no label, but others of its split have one. Leave out those without."
            errors.append(DataError(listed([f"{place}: {reason}" for place in unknown])))
    facts: Mapping[str, Any] = {}
    if loaded.config.trains:
        labelled = [example for example in examples.get(TRAIN, ()) if is_labelled(example)] or examples.get(TRAIN)
        try:
            facts = task.fit_labels(labelled) if labelled else {}
            if (order := [*dataset.labels]) and {*facts.get("labels", ())} <= {*order}:
                facts = {**facts, "labels": sorted(facts["labels"], key=order.index)}
        except LabError as error:
            errors.append(error)
        if (held := examples.get(VALIDATION)) and not any(map(is_labelled, held)):
            errors.append(DataError("the examples of validation have no labels, so nothing can be measured on them."))
    if errors:
        together = DataError("\n".join(dict.fromkeys(map(str, errors))))
        raise loaded.caused(("dataset",), together if len(errors) > 1 else errors[0]) from None
    return Examples(dataset, examples, facts)


def assemble(
    loaded: Loaded[FinetuningConfig], seed: int, device: torch.device, read: Examples | None = None
) -> Finetuning:
    """Read model and data, and build everything for one seed. Raises LabError at the line that caused it.

    read  examples that another seed has read
    """
    config, train, task = loaded.config, loaded.config.train, cast("Task", make_task(loaded))
    source = open_source(loaded, seed if config.init == "random" else None)
    length = longest_row(loaded, source)
    read = read or read_examples(loaded)
    examples = dict(read.splits)
    task.set_labels(read.facts)
    try:
        examples[TRAIN] = _drawn(examples[TRAIN], config.data.train_examples, seed)
        encoder = TextEncoder(source.tokenizer, source.vocabulary)
        splits = dict[str, Split]()
        for name, of_split in examples.items():
            options = {}
            if name == TRAIN:
                options = {"group_by_length": config.data.group_by_length, "few_widths": device.type == "cuda"}
            splits[name] = _split(task, of_split, encoder, length, **options)
    except LabError as error:
        raise loaded.caused(("dataset",), error) from None
    network = source.networks[config.network]
    prepare(task, source.model.parts[config.network].family)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # for heads that draw weights themselves
        model = TaskModel(network, task, train.dropout, frozen=train.frozen)
    entry = tasks.get(config.task.type)
    brought = brought_by(entry, model.head)
    _draw_head(model.head, seed, brought)
    of_network = [part for part in source.weights if part.split(".")[0] == config.network and ".heads." not in part]
    weights = {part: source.weights[part] for part in of_network}
    ways = {BROUGHT if parameter in brought else DRAWN for parameter in model.head.parameters()}
    weights["head"] = " and ".join(sorted(ways))
    model = model.to(device)
    rows = len(splits[TRAIN].batches)
    steps = steps_of(train.epochs, rows, BatchSizes(train.batch_size))
    if misfit := rate_problem(config.schedules["learning_rate"], steps):
        raise loaded.problem(("schedules", "learning_rate"), f"{misfit} ({train.epochs:g} epochs are {steps:,} steps.)")
    mean = round(splits[TRAIN].batches.tokens / rows)
    at_once = rows_at_once(train.batch_size, train.micro_batch_size)
    forward = train.batch_size // at_once * MATRIX_PRODUCTS.forward(network, mean, 0, None, at_once)
    per_step = round(forward * (1 if train.frozen else 1 + MATRIX_PRODUCTS.backward))
    precision = choose_precision(train.precision, device)
    settings = loop_settings(config, seed=seed, steps=steps, flops=Flops(per_step), examples=0, precision=precision)
    optimizer = optimizer_of(config.optimizer, train.learning_rate, model)
    optimizer = with_layer_rates(optimizer, model, train.layer_decay, train.layer_decay_rule)
    built = Finetuning(
        Run(Learner(model), optimizer), settings, model, task, read, splits, source, weights, length, device
    )
    held = splits[VALIDATION]
    batch = next(TaskRows(held.rows[0]).in_order(len(held.rows[0]), device))
    accumulate = partial(Collected, task, held.examples[:1], held.rows[:1], model.of_tokens)
    rehearse(built.run.learner, entry, batch, seed, settings.precision, lambda _: accumulate())
    built.lost()
    return built


def _drawn(examples: list[Any], number: int | None, seed: int) -> list[Any]:
    """Return `number` of the examples, in the order of the source."""
    if number is None or number >= len(examples):
        return examples
    chosen = permuted(seed, np.full(number, -1), np.arange(number), len(examples))
    return [examples[place] for place in sorted(chosen.tolist())]


def _split(task: Task, examples: Sequence[Any], encoder: TextEncoder, length: int, **options: bool) -> Split:
    with using_task(task):
        rows = task.rows(examples, encoder, length)
        if len(rows) != len(examples) or not all(rows):
            raise TypeError(f"rows() must return at least one row for each of {len(examples):,} examples.")
        return Split(examples, rows, TaskRows(list(chain.from_iterable(rows)), **options))


@torch.no_grad()
def _draw_head(head: nn.Module, seed: int, brought: Set[nn.Parameter]) -> None:
    """Draw the task's own layers as google-research/electra does: TensorFlow's default, Glorot's uniform."""
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear) and module.weight not in brought:
            nn.init.xavier_uniform_(module.weight, generator=weights_from(seed, f"head.{name}", module.weight.shape))
            if module.bias is not None and module.bias not in brought:
                nn.init.zeros_(module.bias)


def provenance_of(built: Finetuning, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return the keys of provenance.json that describe a fine-tuning."""
    settings = built.settings
    sizes = {name: size_of(part) for name, part in built.model.named_children()}
    examples = {name: split.examples for name, split in built.splits.items()}
    tokens = {name: split.batches.tokens for name, split in built.splits.items()}
    return {
        "data": data_of(built.read.dataset, built.source, examples, tokens),
        "parameters": {**sizes, "total": sum(sizes.values())},
        "weights": built.weights,
        **steps_and_flops(settings),
        "metrics": dict(metrics),
        "facts": dict(built.read.facts),
    }


def description_of(built: Finetuning, name: str) -> dict[str, Any]:
    """Return the description of the network, from which `predict` builds it without its pre-trained model."""
    part = built.source.model.parts[name]
    embedding = {key: part.embedding[key] for key in ("dim", "max_length", "dropout")}
    sizes = {"vocab_size": part.vocabulary_size, "length": built.length}
    return {"backbone": part.backbone, "embedding": embedding, **sizes}


def data_of(
    dataset: Dataset, source: OpenedModel, examples: Mapping[str, Sequence[Any]], tokens: dict[str, int]
) -> Data:
    return Data(
        store=dataset.fingerprint(),
        documents={split: len(of_split) for split, of_split in examples.items()},
        tokens=tokens,
        skipped={split: len(rows) for split, rows in dataset.skipped.items() if rows},
        vocab_size=source.vocabulary.size,
    )
