"""provenance.json: where a run comes from, and how large it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from electra_lab.storage.files import read_as
from registry import Metric
from registry.errors import CheckpointError

FORMAT = 3  # of a run directory; raise it when an older run could be misread


class Code(BaseModel):
    """The file of a plug-in; `package` is the installed package that it came with."""

    file: str
    sha256: str
    package: str | None = None


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
    documents: dict[str, int] = {}  # of train, validation and test
    tokens: dict[str, int] = {}
    skipped: dict[str, int] = {}  # rows of a dataset that were left out, by split
    overlap: float | None = None  # share of the 13-token runs of validation and test that are also in training text
    vocabulary: int | None = None
    rows: int | None = None  # of training: an epoch


class Start(BaseModel):
    """The weights that a network started from."""

    source: str
    sha256: dict[str, str]  # of the files with the tensors
    tokenizer: bool  # the source has one, with the same tokens
    new: list[str] = []  # the network's tensors that the source lacks
    unused: list[str] = []  # the source's tensors that the network lacks


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
    found = dict[str, Any]()
    for key, value in values.items():
        found |= flat(value, f"{above}.{key}" if above else str(key))
    return found


def described(found: Changes) -> str:
    def shown(value: Any) -> str:
        return "unset" if value is None else str(value)

    return "; ".join(f"{key} {shown(then)} -> {shown(now)}" for key, (then, now) in found.items())


class Change(BaseModel):
    """The config of a run was changed when it was resumed."""

    step: int  # after which
    values: Changes
    config_sha256: str  # of config.yaml before


class Provenance(BaseModel):
    """The content of provenance.json. Keys that it does not know are kept.

    id  of the run, which its checkpoints, results and measures carry: drawn when it begins; that of an ablation's cell
        is the cell's, and that of a seed is its fine-tuning's with the seed
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    format: int = 1  # the key came with format 2
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
    earlier_runs: dict[str, str] = {}  # by network, the checkpoint of another run that its weights were taken from
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


def read_provenance(folder: Path, id: str | None = None) -> Provenance:
    """Read provenance.json of a run, which must have the id, if any. Raises CheckpointError."""
    file = folder / "provenance.json"
    found = read_as(Provenance, file)
    if id is not None:
        refuse_other(file, found.id, id)
    return found


def refuse_other(file: Path, id: str, wanted: str) -> None:
    """Raise CheckpointError if a file has another id than the run in whose folder it lies."""
    if id != wanted:
        raise CheckpointError(
            f"{file}: belongs to {id or 'another run'}, not to {wanted}; it was moved or copied here."
        )
