"""The model card of an exported network: README.md with the front matter that the Hub reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from electra_lab.config.source import to_yaml
from electra_lab.data.overlap import RUN
from electra_lab.pretrained.trained_model import Origin, TrainedModel
from electra_lab.storage.provenance import Provenance

if TYPE_CHECKING:
    from electra_lab.export.export import Exportable

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Findings:
    """The records of a run up to a step in words."""

    evaluation: Record | None  # the last one
    verdicts: Sequence[str]
    metrics: Sequence[tuple[str, float | None, str]]  # title, value, meaning
    seconds: float | None  # of training


Judge = Callable[[Sequence[dict[str, Any]], Provenance], Findings]


def model_card(model: TrainedModel, network: Exportable, judge: Judge | None = None) -> str:
    """Return the card as Markdown. Raises CheckpointError if the run's records are damaged."""
    from jinja2 import Environment, StrictUndefined

    run, part = model.run, network.part
    assert run is not None
    records = [record for record in run.directory.records() if record["step"] <= run.step]
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {
        "cell": lambda text: text.replace("|", "\\|").replace("\n", " "),
        "described": _described,
        "file_name": lambda path: Path(path).name,
        "public": without_folders,
        "thousands": "{:,}".format,
        "rounded": "{:.3g}".format,
    }
    template = files(__package__).joinpath("model_card.md.j2").read_text(encoding="utf-8")
    start = run.provenance.init.get(part.name)
    return environment.from_string(template).render(
        network=network,
        part=part,
        run=run,
        config=run.config,
        provenance=run.provenance,
        findings=judge(records, run.provenance) if judge else None,
        base=start.source if start and not Path(start.source).is_absolute() else None,
        flops=_flops(run, records),
        both="generator" in model.parts,
        overlap_run=RUN,
        experiment=to_yaml(without_folders(run.config)).rstrip(),
    )


def without_folders(value: Any) -> Any:
    """Return plain data with the last part of each absolute path: cards are published, and folders name people."""
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _flops(run: Origin, records: Sequence[Record]) -> int:
    """Return the FLOPs of training up to the step of the checkpoint, which may lie between two records."""
    logged = [record for record in records if record.get("flops")]
    step, flops = (logged[-1]["step"], logged[-1]["flops"]) if logged else (0, 0)
    return int(flops + run.provenance.flops_per_step * (run.step - step))


def _described(component: Mapping[str, Any]) -> str:
    """Return a component and its options on one line."""
    options = without_folders(dict(component))
    name = options.pop("type")
    given = [f"{key} {_in_yaml(value)}" for key, value in options.items()]
    return f"`{name}` ({'; '.join(given)})" if given else f"`{name}`"


def _in_yaml(value: Any) -> str:
    """Return a value as YAML has it on one line; a list that is the whole value goes without brackets."""
    if isinstance(value, list):
        return ", ".join(map(_in_yaml, value))
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.removesuffix("...\n").rstrip()
