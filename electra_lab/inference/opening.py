"""From a path or a name to a model in use: a pre-trained pair, or a fine-tuned model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from electra_lab.assembly.networks import Networks, build_networks, make_network
from electra_lab.assembly.task_head import TASKS, fill_head, kind_of_head, labels_of, outputs_of, task_of
from electra_lab.data.vocabulary import make_vocabulary, masks_take_words
from electra_lab.inference.finetuned import FineTuned, Job
from electra_lab.inference.pair import Pair
from electra_lab.model.task_model import TaskModel
from electra_lab.pretrained.families import prepare, writing
from electra_lab.pretrained.hugging_face import locate, longest_of_tokenizer, read_config
from electra_lab.pretrained.opening import finetuned_config, open_model
from electra_lab.pretrained.trained_model import LAB, Part
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.files import read_json
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning, is_seed
from electra_lab.storage.records import Step
from electra_lab.storage.run_directory import is_run
from electra_lab.training.device import choose_device, choose_precision
from registry import Vocabulary, backbones, datasets, generators, tasks
from registry.errors import CheckpointError, ConfigError, LabError, command

Seed = int | Literal["best", "all"]


def load(path_or_name: str | Path, *, device: str = "auto", step: Step = None, seed: Seed = "best") -> Pair | FineTuned:
    """Open a model for use: a pre-trained pair, or a fine-tuned model, which has `predict`.

    path_or_name  a run directory, a folder that `electra-lab export` wrote, a model in Hugging Face's format
                  (a folder, or a name on the hub, which needs the network), with or without the head of a task; or the
                  folder of a fine-tuning or of one of its seeds
    device        "cpu", "cuda", or "auto", which takes CUDA if there is a device
    step          of a run directory, the checkpoint to open, or "best"; by default the newest
    seed          of a fine-tuning: "best" on validation data, "all", which averages their probabilities or numbers, or
                  the number of one

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
    writer = opened.model.part("generator")
    known = backbones if writer.learned else generators
    return Pair(
        opened.model.source,
        opened.tokenizer,
        opened.vocabulary,
        opened.length,
        generator=opened.networks.get("generator") or opened.fixed,
        discriminator=opened.networks.get("discriminator"),
        cloze=known.get(writer.backbone["type"]).declared["cloze"],
    )


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
    models = []
    for seed in seeds:
        tokenizer, counts = folder.seed(seed).tokens()
        vocabulary = make_vocabulary(tokenizer, counts, device)
        try:
            models.append(_of_seed(folder, seed, vocabulary, device))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"does not describe its model ({type(error).__name__}: {error})"
            raise CheckpointError(f"{folder.seed(seed).path / 'provenance.json'}: {reason}.") from None
    if any(job.task.__dict__ != models[0][0].task.__dict__ for job, _ in models):
        raise ConfigError(f"{folder.path}: its seeds have learned different labels. Choose one of them.")
    return FineTuned(name, models[0][0], [model for _, model in models], tokenizer, vocabulary)


def _of_seed(
    folder: FinetuningFolder, seed: int, vocabulary: Vocabulary, device: torch.device
) -> tuple[Job, TaskModel]:
    """Return the task and the model of a seed, with the weights that its results are about."""
    directory, results = folder.seed(seed), folder.results(seed)
    if results is None:
        raise ConfigError(f"{directory.path}: is not finished. Continue with: {command('resume', folder.path)}")
    # The task.
    loaded = finetuned_config(directory.path)
    config, recorded = loaded.config, directory.provenance().model_extra or {}
    if not config.trains:
        raise ConfigError(f"{folder.path}: {config.task.type} trains nothing, so there is nothing to predict with.")
    entry = tasks.get(config.task.type)
    task: Any = entry.component(**config.task.keywords())
    task.set_labels(recorded["facts"])
    # The network, from its description.
    sections = recorded["network"]
    family = writing(sections["backbone"])
    prepare(task, family if family and family.writes(sections["backbone"], sections["embedding"]) else None)
    with torch.random.fork_rng(devices=[]):
        described = sections["backbone"], sections["embedding"], sections["vocabulary_size"]
        network = make_network(*described, vocabulary.pad_id, ())
        model = TaskModel(network, task, config.train.dropout)
    # Its weights.
    read_model(directory.checkpoints, results.step).fill(model)
    fields = getattr(datasets.get(config.dataset.type).component, "fields", None)
    dataset = {"type": config.dataset.type, **config.dataset.keywords()}
    columns = fields(dataset) if fields else None
    precision = choose_precision(config.train.precision, device)
    return Job(task, entry.declared["takes"], columns, int(sections["length"]), precision, seed, dataset), model


# Folders of transformers


def _of_transformers(source: str | Path, kind: str, device: torch.device) -> FineTuned:
    """Open a folder of transformers with the head of a task. Raises DataError if its tensors do not fit."""
    opened = build_networks(open_model(source), device)
    [part], [network] = opened.model.parts.values(), opened.networks.values()
    config = read_config(part.path)
    name, task = _task_of(kind, config, outputs_of(kind, part), part)
    model = TaskModel(network, task, 0.0)
    fill_head(model.head, kind, part, config)
    length = min(opened.length, longest_of_tokenizer(part.path))
    _refuse_other_rows(opened)
    joins = not _joins_otherwise(opened, part)
    job = Job(task, tasks.get(name).declared["takes"], None, length, joins_pairs=joins)
    return FineTuned(str(source), job, [model], opened.tokenizer, opened.vocabulary)


def _refuse_other_rows(opened: Networks) -> None:
    """Raise ConfigError if the owner's tokenizer does not put [CLS] and [SEP] around a text, as the rows here have."""
    if _writes_otherwise(opened, "a"):
        reason = "its tokenizer does not put one special token before a text and one after it, as the lab does"
        raise ConfigError(f"{opened.model.source}: {reason}, so its answers would be others. Fine-tune it.")


def _writes_otherwise(opened: Networks, *texts: str) -> bool:
    tokenizer, row = opened.tokenizer, [opened.vocabulary.cls_id]
    for text in texts:
        row += [*tokenizer.encode(text, add_special_tokens=False).ids, opened.vocabulary.sep_id]
    return tokenizer.post_processor is not None and tokenizer.encode(*texts).ids != row  # type: ignore[arg-type]


def _joins_otherwise(opened: Networks, part: Part) -> bool:
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
    options, known = written.get("options", {}), written.get("facts", {})
    if kind == "ForQuestionAnswering":
        return TASKS[kind], task_of(kind, part, {"unanswerable": False, **known}, **options)
    if kind == "ForTokenClassification":
        entities = all(label == "O" or (label[:1] in "BIESLUM" and label[1:2] == "-") for label in labels)
        facts = {"tags": labels, "usual": "O" if "O" in labels else labels[0], **known}
        options = {"scheme": "entities" if entities else "plain", **options}
        return TASKS[kind], task_of(kind, part, facts, **options)
    if problem == "regression":
        return "text_regression", task_of(kind, part, {"low": 0.0, "high": 1.0}, "text_regression")
    return TASKS[kind], task_of(kind, part, {"labels": labels, "usual": labels[0], **known})
