"""provenance.json: where a run comes from, and how large it is."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from electra_lab.storage.files import read_as
from registry import Metric
from registry.errors import CheckpointError

FORMAT = 1  # of a run directory; raise it when an older run could be misread
IDENTITY = "identity.json"  # in the folder of a fine-tuning, its id, with which those of its seeds begin


class Code(BaseModel):
    """The file of a plug-in; `package` is the installed package that it came with."""

    file: str
    sha256: str
    package: str | None = None

    @property
    def copy_name(self) -> str:
        """The name of its copy in plugins/ of a run directory; two plug-ins may have the same name."""
        start = f"{self.sha256[:8]}-"
        return start + Path(self.file).name.removeprefix(start)  # it may have been loaded from a copy


class Environment(BaseModel):
    """The parts of the machine and its software that a run's numbers can depend on."""

    python: str
    packages: dict[str, str | None]
    device: str
    processor: str
    threads: int
    precision: str
    electra_lab: str | None = None  # its version, and a hash of its code
    processes: int = 1  # that train together
    compile: str = "off"
    attention: str = "fused"
    micro_batch_size: int | None = None  # of each process
    reasons: dict[str, str] = {}  # by key of `train` that says `auto`, why it has this value


class Data(BaseModel):
    """The token store and its content."""

    store: str
    corpus: str = ""  # its fingerprint
    files: list[str] = []  # their names, if there are few
    documents: dict[str, int] = {}  # of train, validation and test
    tokens: dict[str, int] = {}
    skipped: dict[str, int] = {}  # rows of a dataset that were left out, by split
    overlap: float | None = None  # share of the 13-token runs of validation and test that are also in training text
    vocab_size: int | None = None
    rows: int | None = None  # of training: an epoch


class Start(BaseModel):
    """The weights that a network started from."""

    source: str
    sha256: dict[str, str]  # of the files with the tensors
    tokenizer: bool  # the source has one, with the same tokens
    new: list[str] = []  # the network's tensors that the source lacks
    unused: list[str] = []  # the source's tensors that the network lacks


def weights_of(starts: Mapping[str, Start]) -> dict[str, Any]:
    """Return the weights that networks started from, without their places."""
    return {network: start.model_dump(exclude={"source"}) for network, start in starts.items()}


Changes = dict[str, tuple[Any, Any]]  # by key, the value before and now


def compared(metrics: Mapping[str, Metric], record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record that can be compared between runs and steps; baselines are constants."""
    baselines = set[str]().union(*(metric.baselines for metric in metrics.values()))
    names = [name for name, metric in metrics.items() if metric.comparable and name not in baselines]
    return {name: float(record[name]) for name in names if record.get(name) is not None}


def flat(values: Any, above: str = "") -> dict[str, Any]:
    """Turn `{a: {b: 1}}` into `{a.b: 1}`; an empty mapping is a value."""
    if not isinstance(values, Mapping) or not values:
        return {above: values}
    values_by_key = dict[str, Any]()
    for key, value in values.items():
        values_by_key |= flat(value, f"{above}.{key}" if above else str(key))
    return values_by_key


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Return the values that differ, before and now, by dotted key. A missing value is None."""
    then, today = flat(before), flat(now)
    keys = [key for key in then | today if then.get(key) != today.get(key)]
    return {key: (then.get(key), today.get(key)) for key in keys}


def described(differences: Changes) -> str:
    def shown(value: Any) -> str:
        return "unset" if value is None else str(value)

    return "; ".join(f"{key} {shown(then)} -> {shown(now)}" for key, (then, now) in differences.items())


class Change(BaseModel):
    """The config of a run was changed when it was resumed."""

    step: int  # after which
    values: Changes
    config_sha256: str  # of config.yaml before


class Provenance(BaseModel):
    """The content of provenance.json. Keys that it does not know are kept.

    id  random id of the run, in its checkpoints, results and measures; for an ablation's cell, the cell's id; for a
        seed, its fine-tuning's id with the seed
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    format: int
    id: str
    started: str
    command: list[str] = []
    electra_lab: str
    git: dict[str, Any] | None = None
    config_sha256: str
    config: dict[str, Any] = {}
    changes: list[Change] = []  # of the config, when the run was resumed
    plugins: list[Code] = []
    environment: Environment
    platform: str = ""
    data: Data
    init: dict[str, Start] = {}  # by network
    weights: dict[str, str] = {}  # by part of a network, where its first weights came from, in words
    parameters: dict[str, int]
    steps: int
    flops_per_step: int
    flops: int  # of matrix products
    paper_flops: int | None = None  # as Clark et al. (2020) count
    metrics: dict[str, Metric] = {}
    milestones: dict[str, int] = {}  # by name, such as `tokens-10M`, the step whose checkpoint is kept

    @property
    def changed(self) -> list[tuple[str, str]]:
        """For a page, the changes in words, each with a title."""
        return [("changed", f"after step {c.step:,}: {described(c.values)}") for c in self.changes if c.values]


def read_provenance(folder: Path) -> Provenance:
    """Read provenance.json. Raises CheckpointError, also for the run of another cell or seed."""
    provenance = read_as(Provenance, folder / "provenance.json")
    refuse_other(folder / "provenance.json", provenance.id, id_by_place(folder) or provenance.id)
    return provenance


def id_by_place(folder: Path) -> str | None:
    """Return the id that a cell of an ablation, or a seed of a fine-tuning, has by its place; None for other folders.

    Raises CheckpointError.
    """
    folder = Path(os.path.realpath(folder))
    above = folder.parent
    if above.name == "cells" and (above.parent / "plan.json").is_file():
        return folder.name
    if (above / IDENTITY).is_file():
        id = id_by_place(above) or read_as(dict[str, str], above / IDENTITY).get("id")
        return f"{id}-{folder.name.removeprefix('seed-')}"
    return None


def refuse_other(file: Path, id: str, expected: str) -> None:
    """Raise CheckpointError if a file has another id than the run in whose folder it lies."""
    if id != expected:
        raise CheckpointError(
            f"{file}: belongs to {id or 'another run'}, not to {expected}; it was moved or copied here."
        )
