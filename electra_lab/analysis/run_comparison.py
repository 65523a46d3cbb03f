"""Runs side by side: what differs, and what can be compared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electra_lab.analysis.records import Records, last_evaluation, last_number, measured, titled, training_seconds
from electra_lab.storage.files import config_of, read_text, refuse_unusable
from electra_lab.storage.finetuning_folder import is_finetuning
from electra_lab.storage.provenance import Provenance, flat
from electra_lab.storage.run_directory import RunDirectory
from registry import Metric
from registry.errors import ConfigError, command

# The sections that determine the test of a run: with other values, its losses are those of another task.
TEST = "corpus.", "tokenizer.", "data.", "packing.", "masking.", "schedules.masking.", "objective.type", "evaluate."
OF_A_TASK = "task.", "dataset."  # the same of a fine-tuning
# Keys of these sections that change no number of a test.
SAME_TEST = "data.store", "evaluate.every", "evaluate.batch_size", "evaluate.at_start", "evaluate.examples"
ROWS = "corpus.", "tokenizer.", "data.", "packing."  # the sections that determine the rows of a test
BY_TIME = re.compile(r"\d{8}-\d{6}-([0-9a-f]{4})")  # the folder of a run that was given no `--out`


@dataclass(frozen=True)
class Subject:
    """A run that is compared with others."""

    label: str
    directory: RunDirectory
    began: Provenance
    records: Records
    config: Mapping[str, Any]  # flat

    @cached_property
    def last(self) -> dict[str, Any]:
        """Its last evaluation, of the test if it came to it; empty if there is none."""
        return last_evaluation(self.records) or {}

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of its last evaluation, without baselines; each has a title."""
        return measured(self.last, titled(self.began.metrics))

    @property
    def costs(self) -> dict[str, float | None]:
        """Parameters by part of the networks, and the compute and time of the steps so far."""
        done = max((record["step"] for record in self.records), default=0)
        tokens, seconds = last_number(self.records, "train", "tokens"), training_seconds(self.records)
        flops, paper = last_number(self.records, "train", "flops"), self.began.paper_flops
        share = done / self.began.steps if self.began.steps else 0
        return {
            **{f"parameters, {part}": float(size) for part, size in self.began.parameters.items()},
            "steps": done,
            "tokens": tokens,
            "FLOPs": flops if flops is not None else self.began.flops * share,
            "FLOPs as the paper counts": None if paper is None else paper * share,
            "seconds of training": seconds,
            "tokens/s": tokens / seconds if tokens and seconds else None,
        }


def subjects(paths: Sequence[Path]) -> list[Subject]:
    """Read the run directories. Raises ConfigError for other folders, CheckpointError for damaged ones."""
    if len(paths) < 2:
        raise ConfigError("give two or more run directories to compare.")
    for path in paths:
        refuse_unusable(path)
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("a run directory is given twice.")
    for path in paths:
        _refuse_other_jobs(path, paths)
    directories = [RunDirectory.open(path) for path in paths]
    configs = [flat(config_of(path / "config.yaml")) for path in paths]
    tuned = [path for path, config in zip(paths, configs, strict=True) if "task.type" in config]
    if tuned and len(tuned) < len(paths):
        raise ConfigError(f"{tuned[0]}: is a seed of a fine-tuning; it cannot be compared with pre-training runs.")
    compared, labels = list[Subject](), _labels(paths, [str(config.get("name")) for config in configs])
    for label, directory, config in zip(labels, directories, configs, strict=True):
        began = directory.provenance()
        directory.refuse_other_format(began)
        directory.refuse_other_config()
        compared.append(Subject(label, directory, began, directory.records(), config))
    return compared


def _refuse_other_jobs(path: Path, paths: Sequence[Path]) -> None:
    if (path / "plan.json").is_file():
        raise ConfigError(
            f"{path}: is an ablation. Its page compares the variants: {command('report', path)}. To compare cells, "
            f"give their folders, such as {path / 'cells' / 'ID'}."
        )
    if is_finetuning(path):
        seeds = [min(folder.glob("seed-*"), default=folder) if is_finetuning(folder) else folder for folder in paths]
        raise ConfigError(f"{path}: is a fine-tuning. Compare seeds: {command('compare', *seeds)}")


def _labels(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Return the names of the configs if these differ, otherwise those of the folders, or the whole paths."""
    folders = []
    for path, name in zip(paths, names, strict=True):
        folder = path.resolve().name
        by_time = BY_TIME.fullmatch(folder)
        folders.append(f"{name}-{by_time[1]}" if by_time else folder)
    for labels in (names, folders):
        if len({*labels}) == len(labels):
            return list(labels)
    return [str(path) for path in paths]


def side_by_side(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the value of each run by key, None where it has none."""
    by_key = dict[str, list[Any]]()
    for i, values in enumerate(of_runs):
        for key, value in values.items():
            by_key.setdefault(key, [None] * len(of_runs))[i] = value
    return by_key


def differing(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys whose values differ, with the value of each run."""
    rows = side_by_side(of_runs)
    return {key: values for key, values in rows.items() if values.count(values[0]) < len(values)}


def changes(compared: Sequence[Subject]) -> dict[str, list[Any]]:
    """Return the keys of the complete configs that differ, with the value of each run; names differ anyway."""
    differ = differing([subject.config for subject in compared])
    return {key: values for key, values in differ.items() if key != "name"}


def obstacles(compared: Sequence[Subject]) -> list[str]:
    """Return the keys by which the tests of the runs differ, so that their metrics do not compare the models."""
    keys = [key for key in changes(compared) if key.startswith((*TEST, *OF_A_TASK)) and key not in SAME_TEST]
    if _one_store(compared):  # the same text, wherever its files lie
        keys = [key for key in keys if not key.startswith("corpus.")]
    if same_tokens(compared):
        return [key for key in keys if not key.startswith("tokenizer.")]
    return keys or ["the text"]


def same_tokens(compared: Sequence[Subject]) -> bool:
    """Return True if all read one token store, or have one tokenizer and as many documents and tokens of each split.

    The latter as in continued pre-training, which reads the tokenizer of an earlier run.
    """
    if _one_store(compared):
        return True
    files = {_text_of(subject.directory.path / "tokenizer.json") for subject in compared}
    texts = [subject.began.data.model_dump(include={"documents", "tokens", "overlap"}) for subject in compared]
    return files != {""} and len(files) == 1 and texts.count(texts[0]) == len(texts)


def _one_store(compared: Sequence[Subject]) -> bool:
    return len({subject.began.data.store for subject in compared}) == 1


def _text_of(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, ValueError):
        return ""


def same_rows(compared: Sequence[Subject]) -> bool:
    """Return True if the runs have the same test rows: the same text, divided in the same way."""
    return not any(key.startswith(ROWS) for key in obstacles(compared)) and same_tokens(compared)
