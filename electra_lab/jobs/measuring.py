"""Measure finished runs on one task that is the same for all, outside of an ablation; the numbers are kept.

<run>/compared.json    numbers by measure, with the checkpoint that they are of
<run>/compared/<key>/  of one of the runs: the reference runs of a measure, and shared/, the data that all runs read
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from electra_lab.analysis.run_comparison import Subject, same_tokens
from electra_lab.assembly.budget import Scale
from electra_lab.assembly.launcher import component_of_flag
from electra_lab.config.load import Loaded, load
from electra_lab.config.source import BUDGETS
from electra_lab.data.store import is_store
from electra_lab.jobs.identity import decisive, rows_of
from electra_lab.jobs.measured import as_measured, measured, prepare, reference, shared_damage
from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.compare_page import Measured
from electra_lab.presentation.console import Console
from electra_lab.storage.checkpoint import damage as checkpoint_damage
from electra_lab.storage.files import MANIFEST, disk, lock, read_json, sha256
from electra_lab.storage.provenance import refuse_other
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry import Trained, measures
from registry.errors import CheckpointError, ConfigError, command

KEPT = "compared.json"  # the numbers of a run


def measure(subjects: Sequence[Subject], chosen: str, device: str) -> Measured:
    """Return the numbers of a measure, by its name or as `{type: NAME, ...}`, of each run. Raises LabError.

    Those of the same measure and checkpoint are not measured again. The networks that replace tokens are trained first,
    with the config of the run that began first.
    """
    # Refuse what cannot be measured.
    options = component_of_flag(chosen, "--on", measures)
    configs = {subject.label: _config_of(subject) for subject in subjects}
    entry = measures.get(options.type)
    measuring = entry.component(**options.keywords())
    if not measuring.same_rows:
        raise ConfigError(
            f"--on {entry.name}: does not show all runs the same rows. Use another measure, or an ablation."
        )
    first = min(subjects, key=lambda subject: subject.began.started)
    base = configs[first.label]
    _refuse_other_rows(subjects, configs, first)
    # Everything that its numbers depend on.
    references = _references(measuring.references, base, first)
    depends = [options.dump(), [*map(decisive, references.values())], rows_of(base), sha256(entry.file)]
    key = f"{entry.name}-{hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:10]}"
    # Measure the rest.
    numbers, say = dict[str, dict[str, float]](), Console().say
    homes = [subject.directory.path / "compared" / key for subject in subjects]
    home = next((path for path in homes if path.is_dir()), first.directory.path / "compared" / key)
    train = partial(execute.run, device=device, scale=Scale.of(base, first.began.flops))
    for subject in subjects:
        of_run = _stored_numbers(subject, key)
        if of_run is None:
            say(f"{subject.label}: measuring {entry.name}")
            run, precision = _open(subject.directory.path, device)  # first, as it refuses other text
            shared = _shared(home, measuring, subject.directory.path, references, train, device)
            of_run, _ = measured(entry, measuring, run, precision, shared)
            _store_numbers(subject, key, of_run, say)
        numbers[subject.label] = of_run
    names = set[str]().union(*numbers.values())
    metrics = {name: metric for name, metric in measuring.metrics.items() if name in names}
    return Measured(entry.name, metrics, numbers)


def _config_of(subject: Subject) -> Loaded:
    """Raises ConfigError for a seed of a fine-tuning, CheckpointError for a run that is not finished."""
    if "task.type" in subject.config:
        raise ConfigError(f"--on: {subject.directory.path} is a seed of a fine-tuning; only pre-training is measured.")
    if not subject.directory.has_checkpoint(subject.began.steps):
        final, again = subject.directory.last_checkpoint(), command("resume", subject.directory.path)
        raise CheckpointError(f"{final}: is missing, so the run cannot be measured. Finish the run: {again}")
    return load(subject.directory.path / "config.yaml")


def _refuse_other_rows(subjects: Sequence[Subject], configs: Mapping[str, Loaded], first: Subject) -> None:
    """Raise ConfigError if a run does not read the rows of the first one."""
    base, same = rows_of(configs[first.label]), same_tokens(subjects)
    for subject in subjects:
        rows = rows_of(configs[subject.label])
        other = next((key for key in base if base[key] != rows[key] and (key != "tokenizer" or not same)), None)
        if other or not same:
            raise ConfigError(
                f"--on: {subject.label} reads other rows than {first.label} ({other or 'the text'} differs), so they "
                "cannot be measured on the same task. Compare them without --on."
            )


def _references(references: Any, base: Loaded, first: Subject) -> dict[str, dict[str, Any]]:
    """Return, by name, the complete configs of the runs that the measure needs for itself."""
    values = base.config.model_dump(mode="json")
    values["train"] |= {**dict.fromkeys(BUDGETS), "steps": first.began.steps}
    values["trackers"] = []
    if is_store(store := base.config.data.store / first.began.data.store):  # the text may be gone
        values["data"]["store"] = str(store)
    return {name: reference(values, f"reference-{name}", sections) for name, sections in references(values).items()}


def _stored_numbers(subject: Subject, key: str) -> dict[str, float] | None:
    """Return the numbers that were measured of the final checkpoint; None for those that are damaged, too."""
    try:
        of_key = read_json(subject.directory.path / KEPT)[key]
        return dict(of_key["numbers"]) if of_key["checkpoint"] == _identity(subject) else None
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def _store_numbers(subject: Subject, key: str, numbers: Mapping[str, float], say: Any) -> None:
    """Keep numbers for the next comparison, as far as the run directory can be written."""
    try:
        stored = read_json(subject.directory.path / KEPT)
    except CheckpointError:
        stored = {}
    stored = stored if isinstance(stored, dict) else {}
    try:
        subject.directory.write_json(KEPT, stored | {key: {"checkpoint": _identity(subject), "numbers": numbers}})
    except CheckpointError as error:
        say(f"note: the numbers are not kept: {error}")


def _identity(subject: Subject) -> str:
    return sha256(subject.directory.last_checkpoint() / MANIFEST)


def _shared(
    home: Path, measuring: Any, run: Path, references: Mapping[str, Mapping[str, Any]], train: Any, device: str
) -> Path:
    """Return the folder with the data that all runs read; makes it, and the references that it needs, if absent."""
    final = home / "shared"
    with ExitStack() as held:
        with disk(home):
            home.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock(home / ".lock", wait=True))
        if final.is_dir() and shared_damage(final, home.name) is None:
            return final
        opened, precision = dict[str, Trained](), None
        for name, config in references.items():
            Console().say(f"training the reference {name} for this measure, in {home / name}")
            _train(home / name, config, train, device)
            opened[name], context = _open(home / name, device)
            precision = precision or context
        view, context = _open(run, device)
        prepare(measuring, home.name, final, view, opened, precision or context)
    return final


def _train(path: Path, config: Mapping[str, Any], train: Any, device: str) -> None:
    """Train a reference, or continue it. Raises CheckpointError if it is not that of this measure."""
    id = f"{path.parent.name}-{path.name}"
    if not is_run(path):
        train(config, [], path, id=id)
    run = RunDirectory(path)
    refuse_other(path / "provenance.json", run.provenance().id, id)
    if checkpoint_damage(run.last_checkpoint()) is not None:
        execute.resume(path, device)


def _open(path: Path, device: str) -> tuple[Trained, Any]:
    return as_measured(RunDirectory.open(path), device, _refuse_to_finetune)


def _refuse_to_finetune(file: Path) -> float:
    raise ConfigError(f"--on: {file}: a comparison does not fine-tune runs. Use: {command('ablate', 'FILE')}")
