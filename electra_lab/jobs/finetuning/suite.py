"""Several models on several tasks: a fine-tuning for each pair, and one table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from electra_lab.assembly.trackers import absent_tracker
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded, dump, load_finetuning, load_suite
from electra_lab.config.suite import Candidate, SuiteConfig
from electra_lab.jobs.finetuning.experiment import absent_examples, declared
from electra_lab.jobs.finetuning.run import advance
from electra_lab.jobs.pretraining.execute import refuse_several_processes
from electra_lab.presentation.console import Console
from electra_lab.presentation.suite_page import table_text, write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder, SuiteFolder, SuitePlan
from electra_lab.storage.run_directory import refuse_used
from electra_lab.training.device import choose_device
from registry.errors import CellsFailed, ConfigError, LabError, Stopped


@dataclass(frozen=True)
class Pair:
    """A model on a task."""

    model: str
    task: str
    loaded: Loaded[FinetuningConfig]


def run_suite(file: Path, out: Path | None, device: str) -> Path:
    """Run every pair of a suite; returns its folder. Raises LabError; CellsFailed if some pairs failed."""
    refuse_several_processes()
    refuse_used(out)
    suite = load_suite(file)
    pairs = list(pairs_of(suite))
    if absent := next(filter(None, (absent_tracker(pair.loaded) for pair in pairs)), None):
        raise absent
    folder = SuiteFolder.create(out, suite.config.name)
    with folder.locked():
        folder.write("source.yaml", file.read_text(encoding="utf-8-sig"))
        folder.write("suite.yaml", dump(suite.config))
        return _all(folder, suite, pairs, device)


def resume_suite(path: Path, device: str) -> Path:
    """Continue a suite: what is finished stays. Raises LabError."""
    refuse_several_processes()
    folder, suite = SuiteFolder(path), load_suite(path / "suite.yaml")
    with folder.locked():
        return _all(folder, suite, list(pairs_of(suite)), device)


def pairs_of(suite: Loaded[SuiteConfig]) -> Iterator[Pair]:
    """Validate every pair. Raises ConfigError."""
    config, names = suite.config, dict[str, Path]()
    for index, file in enumerate(config.tasks):
        for label, candidate in config.models.items():
            chosen = {**config.set, **{key: str(value) for key, value in candidate}}
            try:
                chosen |= {} if config.seeds is None else {"seeds": _needed(config.seeds, file, candidate)}
                loaded = load_finetuning(file, [f"{key}={json.dumps(value)}" for key, value in chosen.items()])
                absent_examples(loaded)
            except ConfigError as error:
                raise suite.problem(("tasks", index), str(error)) from None
            name = loaded.config.name
            if names.setdefault(name, file) != file:
                raise suite.problem(("tasks", index), f"{file} has the name '{name}' too, as {names[name]} has.")
            yield Pair(label, name, loaded)


def _needed(seeds: list[int], file: Path, candidate: Candidate) -> list[int]:
    """Return the seeds that differ: without training and random weights, one says all."""
    alike = candidate.init == "pretrained" and not load_finetuning(file).config.trains
    return seeds[:1] if alike else seeds


def _all(folder: SuiteFolder, suite: Loaded[SuiteConfig], pairs: list[Pair], device: str) -> Path:
    target, console = choose_device(device), Console()
    gaps, failures, leading = dict[str, str](), dict[str, str](), dict[str, str]()
    for pair in pairs:
        own = FinetuningFolder(folder.place(pair.model, pair.task))
        leading[pair.task] = next(iter(declared(pair.loaded)))
        if pair.task in gaps:
            continue
        unfinished = any(own.results(seed) is None for seed in pair.loaded.config.seeds)
        if unfinished and (absent := absent_examples(pair.loaded)):
            gaps[pair.task] = str(absent)
            console.say(f"{pair.task}: left out: {absent}")
            continue
        try:
            own.path.mkdir(parents=True, exist_ok=True)
            with own.locked():
                advance(own, pair.loaded, target)
        except Stopped as error:
            raise type(error)(str(error).replace(str(own.path), str(folder.path))) from None
        except LabError as error:
            failures[f"{pair.model} on {pair.task}"] = str(error)
            console.say(f"{pair.model} on {pair.task}: failed: {error}")
    plan = SuitePlan(models=list(suite.config.models), tasks=leading, gaps=gaps, failures=failures)
    folder.write_json("plan.json", plan.model_dump(mode="json"))
    report = write_report(folder)
    console.say(f"\n{table_text(folder)}\n\nreport {report}")
    if failures:
        raise CellsFailed(f"{len(failures)} of the fine-tunings failed: {'; '.join(failures)}.")
    return folder.path
