"""A text on the set-up of a job for a paper, made of its provenance alone, and the works to cite."""

import inspect
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from electra_lab.analysis.intervals import ENOUGH
from electra_lab.analysis.records import training_seconds
from electra_lab.analysis.results import Results, read
from electra_lab.presentation.paper import tex
from electra_lab.presentation.text import counted, listed, named, seconds, shown
from electra_lab.storage.ablation_folder import AblationFolder, is_ablation_folder
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.plan import Plan, PlannedSearch
from electra_lab.storage.provenance import flat
from electra_lab.storage.run_directory import RunDirectory
from registry import ALL, backbones, generators, schedules
from registry.errors import CheckpointError, LabError

Facts = Sequence[Mapping[str, Any]]  # of each run: its provenance, by dotted key
# Sentences with the keys of facts. If a fact is not known, the sentence is left out, and the fact is named as missing.
PRETRAINING = """
The text is {config.corpus}: {data.documents.train} documents with {data.tokens.train} tokens for training, \
{data.documents.validation} with {data.tokens.validation} for validation, {data.documents.test} with \
{data.tokens.test} for testing.
Of the 13-token runs of validation and test text, {data.overlap} also occur in training text.
The tokenizer is {config.tokenizer}, with a vocabulary of {data.vocab_size} tokens.
Rows have {config.data.sequence_length} tokens; the packing is {config.packing}.

The discriminator is {config.discriminator}, with {parameters.discriminator} parameters.
The generator is {config.generator}, with {parameters.generator} parameters.
In all there are {parameters.total} parameters (tied: {config.embedding.tie}).
The objective is {config.objective}, the masking {config.masking}.
The sampler is {config.sampler}.

A run has {steps} steps of {config.train.batch_size} rows, with the optimizer {config.optimizer}, a peak learning rate \
of {config.train.learning_rate} and the schedule {config.schedules.learning_rate}, in {environment.precision}.
It takes {flops} FLOPs counted as matrix products.
As Clark et al. (2020) count, it takes {paper_flops} FLOPs.
"""
FINETUNING = """
The task is {config.task} on the dataset {config.dataset}, with {data.documents.train} examples for training and \
{data.documents.validation} for validation.

The {config.network} of {config.model} (weights: {config.init}) has {parameters.total} parameters with its head.
A run has {config.train.epochs} epochs ({steps} steps of {config.train.batch_size} rows), with the optimizer \
{config.optimizer}, a learning rate of {config.train.learning_rate}, multiplied by {config.train.layer_decay} for each \
lower layer, and the schedule {config.schedules.learning_rate}, in {environment.precision}.
It takes {flops} FLOPs counted as matrix products.
The weights are those of the {config.evaluate.select} evaluation.
"""
MACHINE = """
The runs were begun with electra_lab {environment.electra_lab}, Python {environment.python}, torch \
{environment.packages.torch} and tokenizers {environment.packages.tokenizers} on {environment.device} (processor \
{environment.processor}, threads {environment.threads}, processes {environment.processes}).
The code is that of commit {git.commit}.
"""
INSTEAD = {"warmup_steps": "warmup_share", "held_out": "validation"}  # options, and those that count instead
WITHOUT = ("config.generator", "config.sampler")  # what some objectives do without is not missing
CITED = re.compile(r"([A-Z][\w-]+(?: and [A-Z][\w-]+| et al\.)?),? \(?((?:19|20)\d\d(?:, [^;:)\n]+)?)")
OPTIONS = re.compile(r"^\w+ {2,}", re.MULTILINE)  # of a component, described at the end of its docstring
CITE = "The electra_lab authors: electra_lab, version {electra_lab}, https://github.com/electra-lab/electra-lab"


def methods(folder: Path, kind: str, latex: bool = False) -> str:
    """Return the text; as LaTeX, what is not for readers is a comment. Raises CheckpointError."""
    if kind == "ablation":
        results = read(folder)
        runs, design = [cell.run for cell in results.cells if cell.provenance], _design(results)
    elif kind == "fine-tuning":
        job = FinetuningFolder(folder)
        runs = [job.seed(seed) for seed in job.seeds() if job.results(seed)]
        names = listed([run.path.name.removeprefix("seed-") for run in runs] or ["none"])
        design = f"There are {counted(len(runs), 'seed')} ({names}); means have 95% t intervals over them."
    else:
        runs, design = [RunDirectory.open(folder)], "This is one run, so nothing is tested."
    if not runs:
        raise CheckpointError(f"{folder}: no run is far enough to tell its set-up.")
    facts = [flat(run.provenance().model_dump(mode="json", exclude={"metrics", "init"})) for run in runs]
    missing, paragraphs = list[str](), list[str]()
    template = FINETUNING if "config.task.type" in facts[0] else PRETRAINING
    for paragraph in [*template.strip().split("\n\n"), MACHINE.strip()]:
        sentences = [_filled(sentence, facts, missing) for sentence in paragraph.split("\n")]
        paragraphs.append(" ".join(filter(None, sentences)))
    paragraphs.insert(-1, design)
    times = [time for run in runs if (time := training_seconds(run.records()))]
    if len(times) == len(runs):
        paragraphs[-1] += f" Training took {seconds(sum(times) / len(times))} a run, and {seconds(sum(times))} in all."
    else:
        missing.append("the time of all runs")
    works = dict.fromkeys([_filled(CITE, facts, missing), *_works(facts)])
    notes = [f"Not known from this folder: {', '.join(dict.fromkeys(missing))}."] if missing else []
    notes.append("\n".join(["To cite:", *(f"- {work}" for work in works if work)]))
    if latex:
        paragraphs = [tex(paragraph) for paragraph in paragraphs]
        notes = [textwrap.indent(note, "% ") for note in notes]
    return "\n\n".join(filter(None, [*paragraphs, *notes])) + "\n"


def _design(results: Results) -> str:
    """Describe the variants of an ablation, its seeds, measures and tests."""
    plan, metric = results.plan, results.plan.metrics[results.plan.metric]
    means = f"{metric.direction}{': ' * bool(metric.summary)}{metric.summary}"
    tested = any(d.p is not None for d in results.comparisons.against(plan.metric).values())
    test = f"Differences are tested from {ENOUGH} seeds on, so nothing is tested."
    if tested:
        test = (
            "Two-sided tests are corrected by Holm's procedure (1979), at 5% for all comparisons together: four fifths "
        )
        test += "for those of the primary metric with the baseline, one fifth for all others."
    variants = "; ".join(variant.label for variant in plan.variants)
    compared = f"{counted(len(plan.variants), 'variant')} ({variants}) were compared"
    compared = _search(plan.search) if plan.search else compared
    return (
        f"{compared} over {_seeds(plan)}; {results.count('done')} of {len(plan.cells)} runs are finished. "
        f"{_confirmation(results) if plan.search else ''}The measures are "
        f"{listed([measure.type for measure in plan.measures])}; the primary metric is {plan.metric} ({means}). "
        f"Differences to the baseline {named(plan.baseline)} are taken seed by seed, with 95% intervals over seeds "
        f"and, where measured, over test documents and references. {test}"
    )


def _search(search: PlannedSearch) -> str:
    """Describe the sampler, the space and the trials of a search."""
    pruned = sum(trial.state == "pruned" for trial in search.begun)
    return (
        f"A search by Optuna's TPE sampler varied {listed([_range(key, of) for key, of in search.space.items()])}. "
        f"{len(search.begun)} of at most {counted(search.trials, 'trial')} were begun, {pruned} of them pruned, and "
        "compared with the base"
    )


def _range(key: str, values: Any) -> str:
    if isinstance(values, Mapping):
        scale = ", on a logarithmic scale" if values.get("log") else ""
        return f"{key} ({shown(values.get('low'))} to {shown(values.get('high'))}{scale})"
    return f"{key} ({', '.join(map(shown, values))})"


def _confirmation(results: Results) -> str:
    search = results.plan.search
    if search and search.confirmation and is_ablation_folder(results.folder / search.confirmation):
        plan = AblationFolder(results.folder / search.confirmation).plan
        return f"The best trial was compared with the base again on fresh seeds: {_seeds(plan)}. "
    return "The best trial was not confirmed on fresh seeds. "


def _seeds(plan: Plan) -> str:
    return f"{counted(len(plan.seeds), 'seed')} ({', '.join(map(str, plan.seeds))})"


def _filled(sentence: str, runs: Facts, missing: list[str]) -> str:
    """Return a sentence with its facts; "" if one of them is missing in all runs."""
    keys = re.findall(r"\{([\w.]+)\}", sentence)
    texts = {key: _said(key, runs) for key in keys}
    lacking = [key for key in keys if not texts[key]]
    missing += lacking if not lacking or lacking[0] not in WITHOUT else []
    return "" if lacking else re.sub(r"\{([\w.]+)\}", lambda match: texts[match[1]], sentence)


def _said(key: str, runs: Facts) -> str:
    """Return a fact of all runs: `3`, `3 or 4`; a component with its options: `adamw (weight_decay 0.01)`."""
    values = [run[key] for run in runs if run.get(key) not in (None, {}, [])]
    texts = dict.fromkeys(_shown(key, value) for value in values)
    if len(texts) > 3 and not isinstance(values[0], str):
        return f"{_shown(key, min(values))} to {_shown(key, max(values))}"
    if values or not any(f"{key}.type" in run for run in runs):
        return " or ".join(filter(None, texts))
    by_type = defaultdict[str, list[Mapping[str, Any]]](list)
    for run in runs:
        by_type[run.get(f"{key}.type", "")].append(run)
    return " or ".join(_component(key, type, by_type[type]) for type in by_type if type)


def _component(key: str, type: str, runs: Facts) -> str:
    """Return a component with its options in the runs that have it."""
    names = [name for name in dict.fromkeys(chain.from_iterable(runs)) if name.startswith(f"{key}.")]
    described = list[str]()
    for name in names:
        option = name.removeprefix(f"{key}.")
        does_count = not any(run.get(f"{key}.{INSTEAD.get(option)}") for run in runs)
        if option != "type" and does_count and (text := _said(name, runs)):
            described.append(f"{option} {text}")
    return f"{type} ({', '.join(described)})" if described else type


def _shown(key: str, value: Any) -> str:
    """Format a value. Paths mean nothing to readers, except for the name of a model."""
    if key.endswith("flops"):
        return f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:.1%}" if key == "data.overlap" else f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = os.path.basename(value) if key == "config.model" else str(value)
    return "" if os.sep in text and key.startswith("config.") else text


def _works(runs: Facts) -> Iterator[str]:
    """Yield the components of runs with the works that their docstrings name, or that they are plug-ins."""
    kinds = {kind.key or kind.singular: kind for kind in ALL} | {"schedules": schedules}
    for key, name in chain.from_iterable(map(Mapping.items, runs)):
        section = key.split(".")[1] if key.startswith("config.") and key.endswith(".type") else ""
        if section not in kinds:
            continue
        kind = backbones if section == "generator" and name not in generators.names() else kinds[section]
        try:
            described = inspect.getdoc(kind.get(name).component) or ""
        except LabError:
            yield f"{kind.singular} {name}: a plug-in; ask its author"
            continue
        for work, year in CITED.findall(OPTIONS.split(described)[0]):
            yield f"{kind.singular} {name}: {work} {year}"
