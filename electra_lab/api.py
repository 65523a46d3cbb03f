"""The Python API, which `electra_lab` exports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from electra_lab.assembly import experiment
from electra_lab.assembly.data import open_corpus
from electra_lab.config.load import load as read_config
from electra_lab.data.raw_documents import held_out_texts
from electra_lab.inference.opening import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.provenance import refuse_other_corpus
from electra_lab.pretrained.opening import run_config
from electra_lab.storage.run_directory import RunDirectory

__all__ = ["check", "held_out", "load", "run"]

Config = str | Path | Mapping[str, Any]


def held_out(run: str | Path) -> list[str]:
    """Return the documents that a run kept from training. Its corpus must be there, unchanged. Raises LabError."""
    loaded = run_config(Path(run))
    data, corpus = loaded.config.data, open_corpus(loaded)
    refuse_other_corpus(RunDirectory.open(Path(run)), corpus)
    return list(held_out_texts(corpus, data.held_out, data.split))


def run(config: Config, *, set: str | Iterable[str] = (), out: str | Path | None = None, device: str = "auto") -> Path:
    """Train an experiment, and return its run directory, which `load` opens.

    config  experiment file, or its content as a mapping; then paths begin in the working directory
    set     values to override, as with `--set`: ["train.steps=100"]
    out     run directory, absent or empty; by default runs/<name>/<time>

    Raises registry.errors.LabError.
    """
    return execute.run(_source(config), _changes(set), None if out is None else Path(out), device)


def check(config: Config, *, set: str | Iterable[str] = ()) -> dict[str, Any]:
    """Find all errors of an experiment without running it, and return it complete, with every default.

    Raises registry.errors.ConfigError with one line per error, and DataError for data that is not there.
    """
    loaded = read_config(_source(config), _changes(set))
    if absent := experiment.check(loaded):
        raise absent
    complete: dict[str, Any] = loaded.config.model_dump(mode="json", exclude_none=True)
    return complete


def _changes(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _source(config: Config) -> Path | Mapping[str, Any]:
    return Path(config) if isinstance(config, str) else config
