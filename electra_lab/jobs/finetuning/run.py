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
from electra_lab.assembly.networks import OpenedModel, open_source
from electra_lab.assembly.trackers import absent_tracker
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, dump, load_finetuning
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
    declared,
    longest_row,
    make_task,
    open_dataset,
    read_examples,
)
from electra_lab.jobs.finetuning.facts import not_learned, notes, opening, what_is_left
from electra_lab.jobs.lifecycle import (
    Job,
    begin,
    continued,
    enough_memory,
    refuse_several_processes,
    say_differences,
    train_to_the_end,
)
from electra_lab.jobs.provenance import began, content, environment, refuse_others, with_copies
from electra_lab.jobs.saving import restore
from electra_lab.presentation.console import Console
from electra_lab.presentation.finetuning_page import closing, write_report
from electra_lab.pretrained.writing import write_finetuned
from electra_lab.storage.checkpoint import read_model
from electra_lab.storage.files import sha256
from electra_lab.storage.finetuning_folder import MODEL, FinetuningFolder, SeedResults, SplitResults
from electra_lab.storage.provenance import Code, Data, Provenance, changes, id_by_place, weights_of
from electra_lab.storage.run_directory import RunDirectory, refuse_used
from electra_lab.training.device import choose_device
from electra_lab.training.evaluation import checked, evaluation
from electra_lab.training.loop import Record
from registry import Dataset, Judgement, Metric, Pretrained, Results, WordsExample, tasks, using
from registry.errors import CheckpointError, ConfigError, DataError, command

# None of them would have changed the steps of a seed.
MAY_CHANGE = (
    "seeds", "train.micro_batch_size", "train.log_every", "train.on_non_finite", "evaluate.batch_size",
    "evaluate.errors", "checkpoint", "trackers", "imports", "model", "dataset.path", "dataset.folder",
    *(f"dataset.{split}" for split in ("train", "validation", "test")),
)  # fmt: skip


def finetune(file: Path, overrides: Sequence[str], out: Path | None, device: str) -> Path:
    """Fine-tune, or judge, as a file says; returns the folder. Raises LabError."""
    refuse_several_processes()
    refuse_used(out)
    with ending(lambda: "Nothing was saved. Start again with the same command."):
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
            with ending(lambda: f"Resume with: {command('resume', folder.path)}"):
                run_remaining_seeds(folder, loaded, target, read)
    return folder.path


def resume(path: Path, device: str, overrides: Sequence[str] = ()) -> Path:
    """Continue a fine-tuning, with changed values if they may change: its finished seeds stay. Raises LabError."""
    refuse_several_processes()
    folder = FinetuningFolder(path)
    loaded = load_finetuning(path / "finetuning.yaml", overrides)
    with ending(lambda: f"Resume with: {command('resume', path)}"), folder.locked():
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

    read  the examples, if they have been read
    """
    config, console = loaded.config, Console()
    folder.begin()
    _refuse_other_settings(folder, loaded)
    codes = [Code(file=str(plugin.file), sha256=plugin.sha256) for plugin in loaded.plugins[: len(config.imports)]]
    for code, plugin in zip(codes, loaded.plugins, strict=False):
        folder.keep_plugin(code, plugin.source)
    folder.write("finetuning.yaml", dump(with_copies(loaded, folder.path, codes)))
    for number, seed in enumerate(config.seeds, start=1):
        console.title = f"seed {seed} ({number}/{len(config.seeds)})"
        if folder.results(seed) is None:
            with enough_memory():
                read = read or read_examples(loaded)
                (_train if config.trains else _judge)(folder, _with(seed, loaded), read, seed, device, console)
    page = write_report(folder)
    seconds = sum(training_seconds(folder.seed(seed).records()) or 0 for seed in folder.seeds())
    console.say(closing(folder, page, seconds))
    if config.trains:
        console.say(what_is_left(folder, config))


def _begun(folder: FinetuningFolder) -> dict[int, Provenance]:
    """Return the provenance of each seed that has begun."""
    found = {}
    for seed in folder.seeds():
        directory = folder.seed(seed)
        if (directory.path / "provenance.json").is_file():
            found[seed] = directory.provenance()
            directory.refuse_other_format(found[seed])
    return found


def _refuse_other_settings(folder: FinetuningFolder, loaded: Loaded[FinetuningConfig]) -> None:
    """Raise ConfigError if a seed began with other settings than those of a file, except for those that may change."""
    for seed, then in _begun(folder).items():
        now = content(with_copies(_with(seed, loaded), folder.seed(seed).path, then.plugins))
        refuse_others(changes(then.config, now), folder.path / "finetuning.yaml", MAY_CHANGE)


def _with(seed: int, loaded: Loaded[FinetuningConfig]) -> Loaded[FinetuningConfig]:
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
    facts = {**_facts(built, metrics), "network": _network(built, config.network)}
    _begin(folder, seed, loaded, built.source, device, built.settings.precision, console, **facts)
    directory.refuse_lost_checkpoints()
    restore(directory, run, console.say)
    evaluated = continued(job)
    console.say(opening(loaded, built, seed, directory.path))
    # Train.
    saver = train_to_the_end(job, evaluated=evaluated)
    step = saver.best_step() if best else run.step
    if step < run.step:
        try:
            read_model(directory.checkpoints, step).fill(built.model)
        except CheckpointError as error:
            raise CheckpointError(f"{error} To train this seed again, delete {directory.path} and resume.") from None
    # Finish.
    _keep_model(directory, config, built)
    found = {split: _results(built, split, console) for split in built.held_out}
    kept = SeedResults(run=directory.provenance().id, seed=seed, step=step, splits={}, lost=built.lost())
    _keep_results(directory, read.dataset, kept, found)


def _keep_model(directory: RunDirectory, config: FinetuningConfig, built: Finetuning) -> None:
    """Write model/, in Hugging Face format, if transformers has such layers on top."""
    kind, source = getattr(built.task, "exports_as", None), built.source
    if kind is None:
        return
    of_words = tasks.get(config.task.type).declared["takes"] is WordsExample
    facts = {name: fact for name, fact in built.read.facts.items() if not isinstance(fact, list)}
    write_finetuned(
        directory.path / "model",
        source.model.parts[config.network],
        built.model.network,
        getattr(built.task, "exported", lambda head: head)(built.model.head),
        for_words(source.tokenizer) if of_words else source.tokenizer,
        kind=kind,
        labels=next((fact for fact in built.read.facts.values() if isinstance(fact, list)), []),
        dropout=config.train.dropout,
        longest=built.length,
        task={"options": config.task.options.model_dump(mode="json", exclude={"head"}), "facts": facts},
    )


def _results(built: Finetuning, split: str, console: Console) -> Results:
    found, batches, size = built.accumulate(split), built.splits[split].batches, built.settings.evaluate_batch_size
    options: Any = {"precision": built.settings.precision, "device": built.device, "batch_size": size}
    phases = evaluation(built.run.learner, batches, lambda _: found, seed=built.settings.seed, **options)
    with console.progress(0, len(batches), f"testing on {split}", "rows"):
        for number, _ in enumerate(phases, start=1):
            console.advance(min(number * size, len(batches)))
    return found.results


def _facts(built: Finetuning, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    settings = built.settings
    sizes = {name: size_of(part) for name, part in built.model.named_children()}
    examples = {name: split.examples for name, split in built.splits.items()}
    tokens = {name: split.batches.tokens for name, split in built.splits.items()}
    return {
        "data": _data(built.read.dataset, built.source, examples, tokens),
        "parameters": {**sizes, "total": sum(sizes.values())},
        "weights": built.weights,
        "steps": settings.steps,
        "flops_per_step": settings.flops.per_step,
        "flops": settings.flops.total(settings.steps),
        "metrics": dict(metrics),
        "facts": dict(built.read.facts),
    }


def _network(built: Finetuning, name: str) -> dict[str, Any]:
    """Return the description of the network, from which `predict` builds it without its pre-trained model."""
    part = built.source.model.parts[name]
    embedding = {key: part.embedding[key] for key in ("dim", "max_length", "dropout")}
    sizes = {"vocabulary_size": part.vocabulary_size, "length": built.length}
    return {"backbone": part.backbone, "embedding": embedding, **sizes}


def _data(dataset: Dataset, source: OpenedModel, examples: Mapping[str, Sequence[Any]], tokens: dict[str, int]) -> Data:
    return Data(
        store=dataset.fingerprint(),
        documents={split: len(found) for split, found in examples.items()},
        tokens=tokens,
        skipped={split: len(rows) for split, rows in getattr(dataset, "skipped", {}).items() if rows},
        vocabulary=source.vocabulary.size,
    )


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
        "data": _data(read.dataset, source, read.splits, {}),
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
    found = {}
    for split, examples in read.splits.items():
        try:
            with using(tasks.get(config.task.type)):
                found[split] = checked(task(examples, model), examples)
        except (ConfigError, DataError) as error:
            raise loaded.caused(("task",), error) from None
    kept = SeedResults(run=folder.seed(seed).provenance().id, seed=seed, step=0, splits={})
    _keep_results(folder.seed(seed), read.dataset, kept, found)


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
) -> None:
    """Write the first files of a seed, and compare them with those of earlier seeds. Raises ConfigError, DataError."""
    plugins, init = (*loaded.plugins, *source.model.plugins), {loaded.config.network: source.start}
    path, made_on = folder.seed(seed).path, environment(device, precision)
    now = began(id_by_place(path) or "", loaded, path, plugins, made_on, init=init, **facts)
    earlier = _begun(folder)
    for other, then in earlier.items():
        _refuse_changes(folder.seed(other), then, now, source)
    if seed in earlier:
        say_differences(earlier[seed].environment, now.environment, console.say)
    else:
        path.mkdir(exist_ok=True)
        begin(folder.seed(seed), loaded, now, source.tokenizer, source.vocabulary, plugins)


def _refuse_changes(directory: RunDirectory, then: Provenance, now: Provenance, source: OpenedModel) -> None:
    path, model = directory.path, f"{source.start.source}, or its tokenizer,"
    if then.data.store != now.data.store:
        raise DataError(f"{path}: the examples have changed since the run began. Restore them, or start a new one.")
    if weights_of(then.init) != weights_of(now.init) or directory.tokens()[0].to_str() != source.tokenizer.to_str():
        raise DataError(f"{path}: the weights of {model} have changed since the run began. Start a new one.")
    if [code.sha256 for code in then.plugins] != [code.sha256 for code in now.plugins]:
        raise ConfigError(f"{path}: the plug-ins have changed since the run began. Restore them, or start a new one.")


def _keep_results(directory: RunDirectory, dataset: Dataset, kept: SeedResults, found: Mapping[str, Results]) -> None:
    """Write predictions, files for the benchmark and, last, results.json, which marks a finished run."""
    for split, results in found.items():
        lines = [json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in results.predictions]
        directory.write(f"predictions-{split}.jsonl", "".join(lines))
        submission = getattr(dataset, "submission", lambda *_: None)(split, results.predictions)
        if submission is not None:
            name, text = submission
            directory.path.joinpath("submission").mkdir(exist_ok=True)
            directory.write(f"submission/{name}", text)
        kept.splits[split] = SplitResults(
            examples=len(results.predictions),
            metrics={name: value if math.isfinite(value) else None for name, value in results.metrics.items()},
            tables=[{"title": t.title, "header": t.header, "rows": t.rows} for t in results.tables],
        )
    for name in (*(f"predictions-{split}.jsonl" for split in found), MODEL):
        if (directory.path / name).is_file():
            kept.sha256[name] = sha256(directory.path / name)
    directory.write_json("results.json", kept.model_dump(mode="json"))
