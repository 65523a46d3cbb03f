"""The model card of an exported network: README.md with the front matter that the Hub reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from electra_lab.config.source import to_yaml
from electra_lab.data.overlap import RUN
from electra_lab.pretrained.hugging_face import read_config
from electra_lab.pretrained.trained_model import LAB, Origin, TrainedModel
from electra_lab.storage.files import config_of
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning
from electra_lab.storage.provenance import Provenance
from registry import BatchSizes
from registry.errors import CheckpointError, ConfigError
from registry.signature import FolderOrName

if TYPE_CHECKING:
    from electra_lab.export.export import Exportable

CARD = "README.md"
Record = Mapping[str, Any]
Value = tuple[str, str, str, float]  # a split, a metric, its title, its value
TASKS = {  # of the hub, by the end of the class in transformers
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
}


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
    run, part = model.run, network.part
    assert run is not None
    records = [record for record in run.directory.records() if record["step"] <= run.step]
    findings = judge(records, run.provenance) if judge else None
    last = (findings and findings.evaluation) or {}
    # A discriminator with a generator has not seen masks, but replacements.
    fills = network.head == "tokens" and (network.name == "generator" or "generator" not in model.parts)
    tags = ["electra"] * (network.head == "replaced" or "generator" in model.parts)
    tags += ["masked-language-modeling"] * fills + ["replaced-token-detection"] * (network.head == "replaced")
    values = list[Value]()
    for name, metric in run.provenance.metrics.items():
        if name.startswith(part.name) and last.get(name) is not None:
            title = metric.title if metric.comparable else f"{metric.title} (on the run's own task)"
            values.append((last["split"], name, title, last[name]))
    start = run.provenance.init.get(part.name)
    metadata = {
        "library_name": "transformers" if part.family else "electra_lab",
        "base_model": start.source if start and not Path(start.source).is_absolute() else None,
        "tags": [*tags, "electra_lab"],
    }
    task = "fill-mask" if fills else "feature-extraction"
    batches = BatchSizes.of(run.config["train"])
    return _rendered(
        "model_card.md.j2",
        network=network,
        part=part,
        run=run,
        config=run.config,
        provenance=run.provenance,
        findings=findings,
        front_matter=_front_matter(run.config["name"], task, run.config["corpus"], values, metadata),
        flops=_flops(run, records, batches),
        batches=batches,
        fills=fills,
        of_tokens=part.class_ending == "ForTokenClassification",
        both=len(model.parts) > 1 and all(other.learned for other in model.parts.values()),
        overlap_run=RUN,
        experiment=to_yaml(without_folders(run.config)).rstrip(),
    )


def finetuned_card(model: Path, notes: Sequence[str] = ()) -> str:
    """Return the card of the model that a fine-tuning saved for one seed, with notes. Raises CheckpointError."""
    folder, number = FinetuningFolder(model.parent.parent), model.parent.name.removeprefix("seed-")
    results = folder.results(int(number)) if is_finetuning(folder.path) and number.isdecimal() else None
    if results is None:
        cure = "Resume its fine-tuning, or write README.md there if it is a copy."
        raise CheckpointError(f"{model}: has no results for a model card. {cure}")
    config, provenance = config_of(folder.path / "finetuning.yaml"), folder.seed(results.seed).provenance()
    described = read_config(model)
    ending = described["architectures"][0].rpartition("For")[2]
    plain, facts = described["model_type"] != LAB, provenance.model_extra or {}
    # The results of each split; the hub gets them without the shares of examples that were left out.
    rows, values = list[tuple[str, str, float, int]](), list[Value]()
    for split, of_split in results.splits.items():
        for name, value in of_split.metrics.items():
            metric = provenance.metrics.get(name)
            title = (metric and metric.title) or name
            rows += [(split, title, value, of_split.examples)] if value is not None else []
            values += [(split, name, title, value)] if value is not None and name not in results.lost else []
    metadata = {
        "library_name": "transformers" if plain else "electra_lab",
        "base_model": config["model"] if FolderOrName(config["model"]).is_name(folder.path) else None,
        "metrics": sorted({name for _, name, _, _ in values}),
        "tags": ["electra_lab"],
    }
    examples = folder.predictions(results.seed, "validation") if "validation" in results.splits else []
    return _rendered(
        "finetuned_card.md.j2",
        front_matter=_front_matter(config["name"], TASKS[ending], config["dataset"], values, metadata),
        auto_class=f"AutoModelFor{ending}",
        config=config,
        fields=examples[0] if examples else {},
        length=facts["network"]["length"],
        notes=notes,
        plain=plain,
        provenance=provenance,
        results=results,
        rows=rows,
        selected=config["evaluate"]["select"] == "best",
        task=TASKS[ending],
        usual=facts["facts"].get("usual"),
    )


def _rendered(name: str, **values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {
        "cell": lambda text: text.replace("|", "\\|").replace("\n", " "),
        "file_name": lambda path: Path(path).name,
        "public": without_folders,
        "thousands": "{:,}".format,
        "rounded": "{:.3g}".format,
    }
    template = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(template).render(**values)


def _front_matter(name: str, task: str, data: Mapping[str, Any], values: Sequence[Value], metadata: Record) -> str:
    """Return the metadata of a card, for the hub.

    task  a pipeline of the hub
    data  the component of the text or the examples
    """
    from huggingface_hub import EvalResult, ModelCardData

    names = names_on_the_hub(data)
    of_data = {"task_type": task, "dataset_type": (names or [data["type"]])[0], "dataset_name": data["type"]}
    results = []
    for split, metric, title, value in values:
        results.append(
            EvalResult(**of_data, dataset_split=split, metric_type=metric, metric_name=title, metric_value=value)
        )
    fields = {
        **metadata,
        "pipeline_tag": task,
        "datasets": names,
        "eval_results": results,
        "model_name": results and name,
    }
    return f"---\n{ModelCardData(**{key: value for key, value in fields.items() if value})}\n---\n"


def with_metadata(card: bytes, metadata: Mapping[str, Any]) -> str:
    """Return a card with more metadata. Raises ConfigError if its front matter is not YAML."""
    from huggingface_hub import RepoCard

    try:
        edited = RepoCard(card.decode())
    except (yaml.YAMLError, TypeError, ValueError):
        raise ConfigError("README.md: its front matter is not YAML in UTF-8. Correct it, or export again.") from None
    for key, value in metadata.items():
        edited.data[key] = value or edited.data.get(key)
    return str(edited)


def names_on_the_hub(section: Any) -> list[str]:
    """Return the datasets of the hub that a section of a config names; a complete config has folders as full paths."""
    if isinstance(section, list):
        return list(dict.fromkeys(chain.from_iterable(map(names_on_the_hub, section))))
    if not isinstance(section, dict):
        return []
    if section.get("type") == "hugging_face":
        return [] if Path(str(section["path"])).is_absolute() else [section["path"]]
    return names_on_the_hub(list(section.values()))


def without_folders(value: Any) -> Any:
    """Return plain data with the last part of each absolute path: cards are published, and folders name people."""
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    is_folder = isinstance(value, str) and (Path(value).is_absolute() or value.startswith("../"))
    return Path(value).name if is_folder else value


def _flops(run: Origin, records: Sequence[Record], batches: BatchSizes) -> int:
    """Return the FLOPs of training up to the step of the checkpoint, which may lie between two records."""
    logged = [record for record in records if record.get("flops")]
    step, flops = (logged[-1]["step"], logged[-1]["flops"]) if logged else (0, 0)
    rows = batches.before(run.step) - batches.before(step)
    return int(flops + run.provenance.flops_per_step * rows // batches.full)
