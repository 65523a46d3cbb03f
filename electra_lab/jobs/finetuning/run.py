"""Fine-tune a pre-trained model, or judge it without training: once per seed, with a summary of all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from electra_lab.analysis.records import training_seconds
from electra_lab.assembly.budget import size_of
from electra_lab.assembly.experiment import absent_tracker
from electra_lab.assembly.networks import OpenedModel, open_source
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, load_finetuning
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.vocabulary import for_words
from electra_lab.jobs.endings import ending
from electra_lab.jobs.finetuning.experiment import (
    TRAIN,
    VALIDATION,
    Examples,
    Finetuning,
    absent_examples,
    assemble,
    data_of,
    declared,
    description_of,
    longest_row,
    make_task,
    open_dataset,
    provenance_of,
    read_examples,
)
from electra_lab.jobs.finetuning.facts import not_learned, notes, opening, what_is_left
from electra_lab.jobs.lifecycle import (
    NOTHING_SAVED,
    Job,
    begin,
    continued,
    enough_memory,
    how_to_resume,
    refuse_several_processes,
    say_differences,
    train_to_the_end,
    write_config,
)
from electra_lab.jobs.provenance import began, codes_of, environment, refuse_changes, refuse_other_plugins
from electra_lab.jobs.saving import restore
from electra_lab.presentation.console import Console
from electra_lab.presentation.finetuning_page import closing, write_report
from electra_lab.pretrained.writing import write_finetuned
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.files import sha256
from electra_lab.storage.finetuning_folder import MODEL, FinetuningFolder, SeedResults, SplitResults
from electra_lab.storage.provenance import Provenance, id_by_place, weights_of
from electra_lab.storage.run_directory import RunDirectory, refuse_used
from electra_lab.training.device import choose_device
from electra_lab.training.evaluation import checked, evaluation
from electra_lab.training.graph import record_steps
from electra_lab.training.loop import Record
from registry import Dataset, Judgement, Metric, Pretrained, Results, WordsExample, tasks, using
from registry.errors import CheckpointError, ConfigError, DataError, command

# None of them would have changed the steps of a seed.
MAY_CHANGE = (
    "seeds", "train.micro_batch_size", "train.graph", "train.log_every", "train.on_non_finite", "evaluate.batch_size",
    "evaluate.errors", "checkpoint", "trackers", "imports", "model", "dataset.path", "dataset.folder",
    *(f"dataset.{split}" for split in ("train", "validation", "test")),
)  # fmt: skip


def finetune(file: Path, overrides: Sequence[str], out: Path | None, device: str) -> Path:
    """Fine-tune, or judge, as a file says; returns the folder. Raises LabError."""
    refuse_several_processes()
    refuse_used(out)
    with ending(lambda: NOTHING_SAVED):
        loaded, target = load_finetuning(file, overrides), choose_device(device)
        declared(loaded)  # a mistake of the file comes before anything is written
        dataset = open_dataset(loaded)
        source = open_source(loaded)
        read = read_examples(loaded, dataset)
        for note in (*(not_learned(source) if loaded.config.init != "random" else ()), *notes(read.splits)):
            Console().say(f"note: {note}")
        if absent := absent_tracker(loaded):
            raise absent
        folder = FinetuningFolder.create(out, loaded.config.name)
        with folder.locked():
            folder.write("source.yaml", file.read_text(encoding="utf-8-sig"))
            with ending(lambda: how_to_resume(folder.path)):
                run_remaining_seeds(folder, loaded, target, read)
    return folder.path


def resume(path: Path, device: str, overrides: Sequence[str] = ()) -> Path:
    """Continue a fine-tuning, with changed values if they may change: its finished seeds stay. Raises LabError."""
    refuse_several_processes()
    folder = FinetuningFolder(path)
    loaded = load_finetuning(path / "finetuning.yaml", overrides)
    with ending(lambda: how_to_resume(path)), folder.locked():
        left = any(folder.results(seed) is None for seed in loaded.config.seeds)
        if left and (absent := absent_examples(loaded)):
            cure = command("resume", path, "--set", "dataset.KEY=PLACE")
            raise DataError(f"{absent} If the examples were moved, name their new place: {cure}")
        run_remaining_seeds(folder, loaded, choose_device(device))
    return path


def report(path: Path) -> Path:
    """Write report.html of a fine-tuning again. Raises LabError."""
    folder = FinetuningFolder(path)
    _refuse_other_settings(folder, load_finetuning(path / "finetuning.yaml"))
    return write_report(folder)


def run_remaining_seeds(
    folder: FinetuningFolder, loaded: Loaded[FinetuningConfig], device: torch.device, read: Examples | None = None
) -> None:
    """Run the seeds that are not finished, and report. Raises LabError.

    Seeds may be added to a folder. ConfigError if a seed began with settings that must not change, DataError if with
    other data or weights: the numbers of one folder go together.

    read  examples, if they have been read
    """
    config, console = loaded.config, Console()
    folder.begin()
    _refuse_other_settings(folder, loaded)
    imported = loaded.plugins[: len(config.imports)]
    write_config(folder, "finetuning.yaml", loaded, codes_of(imported), imported)
    for number, seed in enumerate(config.seeds, start=1):
        console.title = f"seed {seed} ({number}/{len(config.seeds)})"
        if folder.results(seed) is None:
            with enough_memory():
                read = read or read_examples(loaded)
                (_train if config.trains else _judge)(folder, _of_seed(seed, loaded), read, seed, device, console)
    page = write_report(folder)
    seconds = sum(training_seconds(folder.seed(seed).records()) or 0 for seed in folder.seeds())
    console.say(closing(folder, page, seconds))
    if config.trains:
        console.say(what_is_left(folder, config))


def _begun(folder: FinetuningFolder) -> dict[int, Provenance]:
    """Return the provenance of each seed that has begun."""
    begun = {}
    for seed in folder.seeds():
        directory = folder.seed(seed)
        if (directory.path / "provenance.json").is_file():
            begun[seed] = directory.provenance()
            directory.refuse_other_format(begun[seed])
    return begun


def _refuse_other_settings(folder: FinetuningFolder, loaded: Loaded[FinetuningConfig]) -> None:
    """Raise ConfigError if a seed began with other settings than those of a file, except for those that may change."""
    for seed, then in _begun(folder).items():
        seed_path, file = folder.seed(seed).path, folder.path / "finetuning.yaml"
        refuse_changes(then, _of_seed(seed, loaded), seed_path, MAY_CHANGE, file=file)


def _of_seed(seed: int, loaded: Loaded[FinetuningConfig]) -> Loaded[FinetuningConfig]:
    """Return the file for one seed."""
    return replace(loaded, config=loaded.config.model_copy(update={"seeds": [seed]}))


_LOSS = {"loss": Metric("loss of the task", "loss", "nats", higher_is_better=False, brief="loss")}


# Tasks that train


def _train(
    folder: FinetuningFolder,
    loaded: Loaded[FinetuningConfig],
    read: Examples,
    seed: int,
    device: torch.device,
    console: Console,
) -> None:
    config, directory = loaded.config, folder.seed(seed)
    with using(tasks.get(config.task.type)):
        built = assemble(loaded, seed, device, read)
    run, metrics = built.run, declared(loaded)
    first = next(iter(metrics))
    best = first if config.evaluate.select == "best" else None

    def show(record: Record) -> None:
        if best and record.values["split"] == VALIDATION and not math.isfinite(record.values.get(first, math.nan)):
            reason = f"{first} has no value on validation data, so the best weights are not known."
            raise loaded.problem(("evaluate", "metric"), reason, DataError)

    job = Job(
        run,
        built.settings,
        built.splits[TRAIN].batches,
        {VALIDATION: built.splits[VALIDATION].batches},
        lambda _: built.accumulate(VALIDATION),
        device,
        loaded,
        directory,
        console,
        _LOSS | dict(metrics),
        label=f"{config.name}-{folder.path.resolve().name}-{directory.path.name}",
        resume=folder.path,
        show=show,
        best=best,
        page=lambda unfinished: write_report(folder, unfinished),
    )
    # Begin, or continue.
    facts = {**provenance_of(built, metrics), "network": description_of(built, config.network)}
    is_new = _begin(folder, seed, loaded, built.source, device, built.settings.precision, console, **facts)
    directory.refuse_lost_checkpoints()
    restored = restore(directory, run, console.say)
    evaluated = continued(job, None if is_new else restored)
    console.say(opening(loaded, built, seed, directory.path))
    # Train.
    record_steps(config.train.graph, run, built.settings, device, console.say)
    saver = train_to_the_end(job, evaluated=evaluated)
    step = saver.best_step() if best else run.step
    if step < run.step:
        try:
            read_model(directory.checkpoints, step).fill(built.model)
        except CheckpointError as error:
            raise CheckpointError(f"{error} To train this seed again, delete {directory.path} and resume.") from None
    # Finish.
    _keep_model(directory, config, built)
    results = {split: _results(built, split, console) for split in built.held_out}
    summary = SeedResults(run=directory.provenance().id, seed=seed, step=step, splits={}, lost=built.lost())
    _keep_results(directory, read.dataset, summary, results)


def _keep_model(directory: RunDirectory, config: FinetuningConfig, built: Finetuning) -> None:
    """Write model/, in Hugging Face format, if transformers has such layers on top."""
    kind, source = built.task.exports_as, built.source
    if kind is None:
        return
    of_words = tasks.get(config.task.type).declared["takes"] is WordsExample
    dataset = {"type": config.dataset.type, **config.dataset.keywords()}
    recorded = {
        "options": config.task.options.model_dump(mode="json", exclude={"head"}),
        "facts": {name: fact for name, fact in built.read.facts.items() if not isinstance(fact, list)},
        "texts": len(built.read.dataset.fields(dataset) or ()),
    }
    write_finetuned(
        directory.path / "model",
        source.model.parts[config.network],
        built.model.network,
        built.task.exported(built.model.head),
        for_words(source.tokenizer) if of_words else source.tokenizer,
        kind=kind,
        labels=next((fact for fact in built.read.facts.values() if isinstance(fact, list)), []),
        dropout=config.train.dropout,
        longest=built.length,
        task=recorded,
    )


def _results(built: Finetuning, split: str, console: Console) -> Results:
    collected, batches, size = built.accumulate(split), built.splits[split].batches, built.settings.evaluate_batch_size
    options: Any = {"precision": built.settings.precision, "device": built.device, "batch_size": size}
    phases = evaluation(built.run.learner, batches, lambda _: collected, seed=built.settings.seed, **options)
    with console.progress(0, len(batches), f"testing on {split}", "rows"):
        for number, _ in enumerate(phases, start=1):
            console.advance(min(number * size, len(batches)))
    return collected.results


# Tasks without training


@torch.no_grad()
def _judge(
    folder: FinetuningFolder,
    loaded: Loaded[FinetuningConfig],
    read: Examples,
    seed: int,
    device: torch.device,
    console: Console,
) -> None:
    config = loaded.config
    task = cast("Judgement", make_task(loaded))
    source = open_source(loaded, seed if config.init == "random" else None)
    facts = {
        "data": data_of(read.dataset, source, read.splits, {}),
        "parameters": {name: size_of(network) for name, network in source.networks.items()},
        "weights": source.weights,
        "steps": 0,
        "flops_per_step": 0,
        "flops": 0,
        "metrics": dict(declared(loaded)),
    }
    judged = [config.network] if config.network == "generator" else list(source.networks)
    if judged[0] not in source.networks:
        raise loaded.problem(("network",), f"{config.model} has no {judged[0]}.")
    _begin(folder, seed, loaded, source, device, "fp32", console, **facts)
    model = Pretrained(
        networks={name: source.networks[name].to(device).eval() for name in judged},
        heads={name: tuple(source.networks[name].heads) for name in judged},
        encoder=TextEncoder(source.tokenizer, source.vocabulary),
        length=longest_row(loaded, source),
        device=device,
        batch_size=config.evaluate.batch_size,
    )
    results = {}
    for split, examples in read.splits.items():
        try:
            with using(tasks.get(config.task.type)):
                results[split] = checked(task(examples, model), examples)
        except (ConfigError, DataError) as error:
            raise loaded.caused(("task",), error) from None
    summary = SeedResults(run=folder.seed(seed).provenance().id, seed=seed, step=0, splits={})
    _keep_results(folder.seed(seed), read.dataset, summary, results)


# Both


def _begin(
    folder: FinetuningFolder,
    seed: int,
    loaded: Loaded[FinetuningConfig],
    source: OpenedModel,
    device: torch.device,
    precision: str,
    console: Console,
    **facts: Any,
) -> bool:
    """Write the first files of a seed, and compare them with those of other seeds; returns True for a new seed.

    Raises ConfigError, DataError.
    """
    plugins, init = (*loaded.plugins, *source.model.plugins), {loaded.config.network: source.start}
    path, made_on = folder.seed(seed).path, environment(device, precision)
    now = began(id_by_place(path) or "", loaded, path, plugins, made_on, init=init, **facts)
    begun = _begun(folder)
    for other, then in begun.items():
        _refuse_changes(folder.seed(other), then, now, source)
    if seed in begun:
        say_differences(begun[seed].environment, now.environment, console.say)
        return False
    path.mkdir(exist_ok=True)
    begin(folder.seed(seed), loaded, now, source.tokenizer, source.vocabulary, plugins)
    return True


def _refuse_changes(directory: RunDirectory, then: Provenance, now: Provenance, source: OpenedModel) -> None:
    path, model = directory.path, f"{source.start.source}, or its tokenizer,"
    if then.data.store != now.data.store:
        raise DataError(f"{path}: the examples have changed since the run began. Restore them, or start a new one.")
    if weights_of(then.init) != weights_of(now.init) or directory.tokens()[0].to_str() != source.tokenizer.to_str():
        raise DataError(f"{path}: the weights of {model} have changed since the run began. Start a new one.")
    refuse_other_plugins(then.plugins, now.plugins, path)


def _keep_results(
    directory: RunDirectory, dataset: Dataset, summary: SeedResults, by_split: Mapping[str, Results]
) -> None:
    """Write predictions, files for the benchmark and, last, results.json, which marks a finished run."""
    for split, results in by_split.items():
        lines = [json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in results.predictions]
        directory.write(f"predictions-{split}.jsonl", "".join(lines))
        submission = dataset.submission(split, results.predictions)
        if submission is not None:
            name, text = submission
            directory.path.joinpath("submission").mkdir(exist_ok=True)
            directory.write(f"submission/{name}", text)
        summary.splits[split] = SplitResults(
            examples=len(results.predictions),
            metrics={name: value if math.isfinite(value) else None for name, value in results.metrics.items()},
            tables=[{"title": t.title, "header": t.header, "rows": t.rows} for t in results.tables],
        )
    for name in (*(f"predictions-{split}.jsonl" for split in by_split), MODEL):
        if (directory.path / name).is_file():
            summary.sha256[name] = sha256(directory.path / name)
    directory.write_json("results.json", summary.model_dump(mode="json"))
