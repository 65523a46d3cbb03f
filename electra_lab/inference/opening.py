"""From a path or a name to a model in use: a pre-trained pair, or a fine-tuned model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch

from electra_lab.assembly.networks import OpenedModel, build_networks
from electra_lab.assembly.task_head import TASKS, fill_head, kind_of_head, labels_of, outputs_of, task_of
from electra_lab.data.vocabulary import masks_take_words
from electra_lab.inference.finetuned import FIELDS, FineTuned, Job
from electra_lab.inference.pair import Pair
from electra_lab.model.task_model import TaskModel
from electra_lab.pretrained.families import prepare
from electra_lab.pretrained.hugging_face import locate, longest_of_tokenizer, read_config
from electra_lab.pretrained.opening import open_model, read_seed
from electra_lab.pretrained.trained_model import LAB, Part
from electra_lab.storage.files import read_json
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning, is_seed
from electra_lab.storage.records import Step
from electra_lab.storage.run_directory import is_run
from electra_lab.training.device import choose_device, choose_precision
from registry import Dataset, TextExample, datasets, tasks
from registry.errors import ConfigError, LabError, command

Seed = int | Literal["best", "all"]


def load(path_or_name: str | Path, *, device: str = "auto", step: Step = None, seed: Seed = "best") -> Pair | FineTuned:
    """Open a model for use: a pre-trained pair, or a fine-tuned model, which has `predict`.

    path_or_name  a run directory, a folder that `electra-lab export` wrote, a model in Hugging Face's format
                  (a folder, or a name on the hub, which needs the network), with or without the head of a task; or the
                  folder of a fine-tuning or of one of its seeds
    device        "cpu", "cuda", or "auto", which takes CUDA if there is a device
    step          checkpoint of a run directory, or "best"; by default the newest
    seed          seed of a fine-tuning: "best" on validation data, "all", which averages their probabilities or
                  numbers, or a number

    Raises registry.errors.LabError.
    """
    if not isinstance(path_or_name, str | os.PathLike):
        raise ConfigError(f"a model must be a path or a name, is {path_or_name!r:.60}.")
    if "\0" in str(path_or_name):
        raise ConfigError(f"{str(path_or_name)!r}: cannot be a path.")
    if step not in (None, "best") and not isinstance(step, int):
        raise ConfigError(f"step must be a whole number or 'best', is {step!r}.")
    if seed not in ("best", "all") and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError(f"seed must be 'best', 'all' or a whole number, is {seed!r}.")
    path, chosen_device = Path(os.path.expanduser(path_or_name)), choose_device(device)
    of_seed = is_seed(path)
    if step is not None and (of_seed or is_finetuning(path)):
        raise ConfigError(f"{path_or_name}: is a fine-tuning, so it has no checkpoint to choose.")
    if is_finetuning(path):
        folder = FinetuningFolder(path)
        return _finetuned(str(path_or_name), folder, _chosen(folder, seed), chosen_device)
    if seed != "best":
        kind = "is one seed" if of_seed else "is not the folder"
        raise ConfigError(f"{path_or_name}: {kind} of a fine-tuning, so it has no seeds to choose.")
    if of_seed:
        number = int(path.resolve().name.removeprefix("seed-"))
        return _finetuned(str(path_or_name), FinetuningFolder(path.resolve().parent), [number], chosen_device)
    head = None
    if not is_run(path) and step is None:
        with suppress(LabError):  # `load_pair` reports it
            head = kind_of_head(read_config(locate(str(path_or_name))))
    if head:
        return _of_transformers(path_or_name, head, chosen_device)
    return load_pair(path_or_name, device=device, step=step)


def load_pair(path_or_name: str | Path, *, device: str = "auto", step: Step = None) -> Pair:
    """Open a pre-trained pair; of a fine-tuning, its encoder."""
    opened = build_networks(open_model(path_or_name, step=step), choose_device(device))
    if opened.model.run:
        masks_take_words(opened.tokenizer, str(opened.tokenizer.id_to_token(opened.vocabulary.mask_id)))
    else:
        _refuse_other_rows(opened)
    return Pair(opened)


# Folders of fine-tunings


def _chosen(folder: FinetuningFolder, seed: Seed) -> list[int]:
    """Return the seeds to use, of those that are finished. Raises ConfigError if there are none."""
    done = [number for number in folder.seeds() if folder.results(number)]
    if not done:
        again = command("resume", folder.path)
        raise ConfigError(f"{folder.path}: is a fine-tuning without a finished seed. Finish it with: {again}")
    if seed == "all":
        return done
    if isinstance(seed, int):
        if seed not in done:
            raise ConfigError(f"{folder.path}: has no finished seed {seed}. It has: {', '.join(map(str, done))}.")
        return [seed]
    name, metric = next(iter(folder.seed(done[0]).provenance().metrics.items()))
    values = folder.values("validation", name)
    best = max if metric.higher_is_better else min
    return [best(values, key=values.__getitem__)] if values else done[:1]


def _finetuned(name: str, folder: FinetuningFolder, seeds: Sequence[int], device: torch.device) -> FineTuned:
    """Open seeds of a fine-tuning, from their own files alone."""
    opened: list[OpenedModel] = []
    for seed in seeds:
        model = read_seed(folder, seed)
        try:
            opened.append(build_networks(model, device))
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise model.part("discriminator").misfit(reason) from None
    models = [_of_seed(of_seed) for of_seed in opened]
    first = models[0].task
    if any(model.task.__dict__ != first.__dict__ for model in models):
        raise ConfigError(f"{folder.path}: its seeds have learned different labels. Choose one of them.")
    stored = replace(opened[0].model, source=name)
    assert stored.tuned is not None
    config = stored.tuned.config
    component = cast("type[Dataset]", datasets.get(config.dataset.type).component)
    dataset = {"type": config.dataset.type, **config.dataset.keywords()}
    job = Job(
        task=first,
        takes=tasks.get(config.task.type).declared["takes"],
        fields=component.fields(dataset),
        precision=choose_precision(config.train.precision, device),
        seed=seeds[0],
        dataset=dataset,
    )
    return FineTuned(replace(opened[0], model=stored), job, models)


def _of_seed(opened: OpenedModel) -> TaskModel:
    """Return the network of a seed with the layers of its task. Raises CheckpointError if they do not fit."""
    [part], [network], tuned = opened.model.parts.values(), opened.networks.values(), opened.model.tuned
    assert tuned is not None
    task: Any = tasks.get(tuned.config.task.type).component(**tuned.config.task.keywords())
    try:
        task.set_labels(tuned.facts)
        prepare(task, part.family)
        with torch.random.fork_rng(devices=[]):
            model = TaskModel(network, task, 0.0)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise part.misfit(f"{type(error).__name__}: {' '.join(str(error).split())}") from None
    layers = {name.removeprefix("head."): part.tensors[name] for name in part.tensors if name.startswith("head.")}
    expected = model.head.state_dict()
    wrong = layers.keys() ^ expected.keys()
    wrong |= {name for name in layers.keys() & expected.keys() if layers[name].shape != expected[name].shape}
    if wrong:
        raise part.misfit(f"head.{min(wrong)} (and {len(wrong) - 1} more) do not fit.")
    model.head.load_state_dict(layers)
    return model


# Folders of transformers


def _of_transformers(source: str | Path, kind: str, device: torch.device) -> FineTuned:
    """Open a folder of transformers with the head of a task. Raises DataError if its tensors do not fit."""
    opened = build_networks(open_model(source), device)
    [part], [network] = opened.model.parts.values(), opened.networks.values()
    config = read_config(part.path)
    name, task = _task_of(kind, config, outputs_of(kind, part), part)
    model = TaskModel(network, task, 0.0)
    fill_head(model.head, kind, part, config)
    _refuse_other_rows(opened)
    joins = not _joins_otherwise(opened, part)
    takes = tasks.get(name).declared["takes"]
    texts = (config.get("task_specific_params") or {}).get(LAB, {}).get("texts")  # of a fine-tuning here
    job = Job(task, takes, FIELDS[takes][:texts] if takes is TextExample and texts else None, joins_pairs=joins)
    stored = replace(opened.model, source=str(source), length=min(opened.length, longest_of_tokenizer(part.path)))
    return FineTuned(replace(opened, model=stored), job, [model])


def _refuse_other_rows(opened: OpenedModel) -> None:
    """Raise ConfigError if the owner's tokenizer does not put [CLS] and [SEP] around a text, as the rows here have."""
    if _writes_otherwise(opened, "a"):
        reason = "its tokenizer does not put one special token before a text and one after it, as the lab does"
        raise ConfigError(f"{opened.model.source}: {reason}, so its answers would be others. Fine-tune it.")


def _writes_otherwise(opened: OpenedModel, *texts: str) -> bool:
    tokenizer, row = opened.tokenizer, [opened.vocabulary.cls_id]
    for text in texts:
        row += [*tokenizer.encode(text, add_special_tokens=False).ids, opened.vocabulary.sep_id]
    return tokenizer.post_processor is not None and tokenizer.encode(*texts).ids != row  # type: ignore[arg-type]


def _joins_otherwise(opened: OpenedModel, part: Part) -> bool:
    """Return whether the owner's tokenizer or encoder reads two texts otherwise than the rows of tasks have them."""
    file, backbone = part.path / "tokenizer_config.json", part.backbone["type"]
    settings = read_json(file) if file.is_file() else {}
    named = str(settings.get("model_input_names", settings.get("tokenizer_class") or "Bert"))
    lacks_segments = backbone == "bert" and not any(name in named for name in ("token_type_ids", "Bert", "Electra"))
    return backbone == "hugging_face" or lacks_segments or _writes_otherwise(opened, "a", "b")


def _task_of(kind: str, config: Mapping[str, Any], outputs: int, part: Part) -> tuple[str, Any]:
    """Return the task that a config.json describes, with its name."""
    labels = labels_of(config, outputs)
    problem = config.get("problem_type") or ("regression" if outputs == 1 else None)
    if problem == "multi_label_classification":
        raise ConfigError(f"{part.path}: is a multi-label model, which the lab does not support.")
    written = (config.get("task_specific_params") or {}).get(LAB, {})  # of a fine-tuning here
    options, recorded = written.get("options", {}), written.get("facts", {})
    if kind == "ForQuestionAnswering":
        return TASKS[kind], task_of(kind, part, {"unanswerable": False, **recorded}, **options)
    if kind == "ForTokenClassification":
        entities = all(label == "O" or (label[:1] in "BIESLUM" and label[1:2] == "-") for label in labels)
        facts = {"tags": labels, "usual": "O" if "O" in labels else labels[0], **recorded}
        options = {"scheme": "entities" if entities else "plain", **options}
        return TASKS[kind], task_of(kind, part, facts, **options)
    if problem == "regression":
        return "text_regression", task_of(kind, part, {"low": 0.0, "high": 1.0}, "text_regression")
    return TASKS[kind], task_of(kind, part, {"labels": labels, "usual": labels[0], **recorded})
