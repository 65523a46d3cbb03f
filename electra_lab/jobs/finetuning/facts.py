"""The facts of a fine-tuning that begins, for the terminal: notes on its examples, and its dry run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

from torch import nn

from electra_lab.analysis.records import last_evaluation
from electra_lab.assembly.budget import size_of
from electra_lab.assembly.networks import OpenedModel
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, load_finetuning
from electra_lab.jobs.finetuning.experiment import TRAIN, VALIDATION, Finetuning, assemble, declared, no_class
from electra_lab.jobs.lifecycle import enough_memory
from electra_lab.jobs.pretraining.facts import time_of, weights
from electra_lab.planning.forecast import Duration, duration
from electra_lab.presentation.finetuning_page import lost_shares
from electra_lab.presentation.run_page import verdicts
from electra_lab.presentation.text import fact_lines
from electra_lab.pretrained.families import task_class
from electra_lab.pretrained.trained_model import Part
from electra_lab.pretrained.writing import class_name
from electra_lab.storage.finetuning_folder import FinetuningFolder, predict_command
from electra_lab.storage.run_directory import refuse_used
from electra_lab.training.device import choose_device
from registry import Dataset, QuestionExample, Task, datasets, tasks
from registry.contracts.tasks import AnyExample, is_labelled
from registry.errors import ConfigError

UNREAD = ("id", "place", "paradigm", "field")  # fields that are not read by a model
LABELS = ("label", "tags", "answers")
DOMINANT = 0.9  # of the training examples with one label, from which on it is worth a note


def opening(
    loaded: Loaded[FinetuningConfig], built: Finetuning, seed: int, path: Path | None, time: Duration | str = ""
) -> str:
    """Describe the training that begins, with the file behind each name.

    path  folder of the seed, None for a dry run
    time  duration of one seed, for a dry run
    """
    config, settings, rows = loaded.config, built.settings, built.splits[TRAIN].batches
    size = size_of(built.model)
    held_out = ", ".join(f"{name} {len(built.splits[name].examples):,}" for name in built.held_out)
    frozen = ", frozen" if config.train.frozen else ""
    origin = built.source.model.run
    at = f" at step {origin.step:,}" if origin else ""
    facts = [
        ("model", f"{config.network} of {config.model}{at}, weights {config.init}{frozen}; {size:,} parameters"),
        *weights(built.weights),
        ("task", f"{config.task.type + '  ':<14}{tasks.get(config.task.type).place}"),
        ("dataset", f"{config.dataset.type + '  ':<14}{datasets.get(config.dataset.type).place}"),
        ("examples", f"{len(built.splits[TRAIN].examples):,} to train; {held_out}"),
        ("rows", f"{len(rows):,} of at most {built.length} tokens, {rows.tokens / len(rows):.0f} on average"),
    ]
    added = built.source.tokenizer.get_added_tokens_decoder().values()
    if markers := [token.content for token in added if not token.special]:
        shown = ", ".join(markers[:5]) + ", ..." * (len(markers) > 5)
        facts.append(("markers", f"{shown} are tokens; the names of special tokens, such as [SEP], are text"))
    for split, skipped in built.read.dataset.skipped.items():
        if skipped:
            text = f"{len(skipped):,} of {split}, the first {skipped[0].place}: {skipped[0].reason}"
            facts.append(("left out", text))
    lost = built.lost()
    for split, share in lost.pop("unseen_labels", {}).items():
        facts.append(("note", f"{share:.1%} of the labels of {split} are in no training example: errors"))
    facts += lost_shares({name: shares for name, shares in lost.items() if any(shares.values())}, built.task.metrics)
    facts.append(("export", described_export(built.task, built.model.head, built.source.model.parts[config.network])))
    if time:
        needed = f"{time_of(time, counted=True)}; {len(config.seeds)} seeds" if isinstance(time, Duration) else time
        facts.append(("time", needed))
    rows_of = f"{settings.steps:,} steps of {settings.batch_size} rows"
    title = f"{config.name}, seed {seed}: {rows_of} on {built.device}, {settings.precision}"
    return fact_lines(f"{title}, into {path}" if path else title, facts)


def not_learned(source: OpenedModel) -> list[str]:
    """Return the verdicts on the networks of a run that are not known to have learned anything."""
    run = source.model.run
    last = last_evaluation(run.directory.records()) if run else None
    return [str(judged) for judged in verdicts(last, run.provenance) if not judged.learned] if run and last else []


def described_export(task: Task, head: nn.Module, part: Part) -> str:
    """Describe the models that transformers will be able to load."""
    kind, cure = task.exports_as, task.exports_if
    layers = task_class(part.family, kind, head)
    if kind is None or layers is None:
        return f"none: {no_class(task)}"
    family, _ = layers
    name = class_name(family, kind)
    if family:
        return f"model/ in the folder of each seed: {name} of transformers"
    code = f" and the plug-in {part.plugin}" if part.plugin else ""
    needs = f"model/ in the folder of each seed: {name}, for which transformers needs electra_lab.interop.hugging_face"
    has_own = part.family is not None and part.family.classes and kind in part.family.task_layers
    return f"{needs}{code}" + (f"; with task: {{{cure}}} it needs nothing" if cure and has_own else "")


def what_is_left(folder: FinetuningFolder, config: FinetuningConfig) -> str:
    """Name the models, and the command that applies them to new text."""
    dataset = cast("type[Dataset]", datasets.get(config.dataset.type).component)
    pairs = len(dataset.fields(config.dataset.keywords()) or ()) > 1
    questions = tasks.get(config.task.type).declared["takes"] is QuestionExample
    needs = ("question", "context") if questions else ("text", "pair") if pairs else ("text",)
    models = [path for seed in folder.seeds() if (path := folder.seed(seed).path / "model").is_dir()]
    lines = [f"for transformers: {', '.join(map(str, models))}"] if models else []
    return "\n".join([*lines, f"for new text: {predict_command(folder.path, needs)}"])


def dry_run(file: Path, overrides: Sequence[str], out: Path | None, device: str, *, tries: bool = True) -> str:
    """Describe the training of the first seed, and the time that it takes here. Writes nothing. Raises LabError.

    tries  estimate the time from some of its steps
    """
    refuse_used(out)
    loaded, target = load_finetuning(file, overrides), choose_device(device)
    config = loaded.config
    declared(loaded)
    if not config.trains:
        raise ConfigError(f"{file}: {config.task.type} trains nothing, so there is nothing to describe.")
    seed = config.seeds[0]
    with enough_memory():
        built = assemble(loaded, seed, target)
        return opening(loaded, built, seed, None, _trial(config, built) if tries else "not tried (--no-trial)")


def _trial(config: FinetuningConfig, built: Finetuning) -> Duration:
    settings, validation = built.settings, built.splits[VALIDATION].batches
    rounds = settings.steps // config.evaluate.every if config.evaluate.every else 0
    rows = rounds * len(validation) + sum(len(built.splits[split].batches) for split in built.held_out)
    size = sum(parameter.nbytes for parameter in built.model.parameters())
    checkpoints = -(-settings.steps // config.checkpoint.every)
    return duration(
        built.run, settings, built.splits[TRAIN].batches, [(validation, rows)],
        lambda _: built.accumulate(VALIDATION), built.device, saved=3.0 * size * checkpoints,
    )  # fmt: skip


def notes(examples: Mapping[str, Sequence[AnyExample]]) -> Iterator[str]:
    """Yield notes on duplicates between training and held-out data, empty texts, and rare or dominant labels.

    Examples are equal if their texts are, but for case and white space.
    """
    if not all(isinstance(of_split[0], get_args(AnyExample)) for of_split in examples.values() if of_split):
        return  # of a plug-in's own type
    training = {_content(example): _label(example) for example in examples.get(TRAIN, ())}
    # Examples that are in training data too, and those that training data have with two labels.
    for split, of_split in examples.items():
        seen = [example for example in of_split if _content(example) in training] if split != TRAIN else []
        if seen:
            other = sum(_label(example) not in (None, training[_content(example)]) for example in seen)
            with_another = f", {other:,} of them with another label" if other else ""
            share = f"{len(seen):,} of {len(of_split):,} examples of {split} are in train too"
            yield f"{share}{with_another} ({_first(seen)}). Results on them are too good. Remove them from train."
    differing = [example for example in examples.get(TRAIN, ()) if _label(example) != training[_content(example)]]
    if differing:
        yield f"{len(differing):,} examples of train have a copy with another label ({_first(differing)})."
    # Texts without content.
    for split, of_split in examples.items():
        empty = [example for example in of_split if "" in _texts(example)]
        if empty:
            yield f"{len(empty):,} of {len(of_split):,} examples of {split} have an empty text ({_first(empty)})."
    # Labels of a single example, and a label that most examples have.
    words = [label for example in examples.get(TRAIN, ()) if isinstance(label := _label(example), str)]
    counts = Counter(words).most_common()
    if rare := [label for label, number in counts if number == 1]:
        shown = ", ".join(sorted(rare, key=_by_number)[:10])
        yield f"labels of a single training example: {shown}{', ...' * (len(rare) > 10)}."
    if counts and counts[0][1] >= DOMINANT * len(words):
        share = f"{counts[0][1] / len(words):.0%} of the training examples have the label '{counts[0][0]}'"
        yield f"{share}. Compare accuracy with this share, or set another evaluate.metric."


def _by_number(label: str) -> tuple[float, str]:
    """Return the key that sorts labels: numbers by their value, then words."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _first(examples: Sequence[AnyExample]) -> str:
    return f"the first is {examples[0].place or examples[0].id}"


def _texts(example: AnyExample) -> list[str]:
    """Return the texts of an example, in lower case, with single spaces."""
    values = [getattr(example, field.name) for field in fields(example) if field.name not in (*LABELS, *UNREAD)]
    texts = [" ".join(value) if isinstance(value, tuple) else value for value in values]
    return [" ".join(text.lower().split()) for text in texts if isinstance(text, str)]


def _content(example: AnyExample) -> int:
    """Return a hash of the texts, so that no copy of them is held."""
    return hash(tuple(_texts(example)))


def _label(example: AnyExample) -> Any:
    """Return the label, the tags or the answers of an example; None if they are unknown."""
    label = next((getattr(example, name) for name in LABELS if hasattr(example, name)), None)
    return label if is_labelled(example) else None
