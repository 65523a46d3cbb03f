"""The model card of an exported network: README.md with the front matter that the Hub reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from electra_lab.config.source import to_yaml
from electra_lab.data.overlap import RUN
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.pretrained.hugging_face import read_config
from electra_lab.pretrained.trained_model import LAB, Origin, TrainedModel
from electra_lab.storage.files import config_of
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning
from electra_lab.storage.provenance import Provenance
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry import BatchSizes
from registry.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from electra_lab.export.export import Exportable

CARD = "README.md"
Record = Mapping[str, Any]
Value = tuple[str, str, float | None]  # a metric, its title, its value
Values = Sequence[Value]
TASKS = {  # of the hub, by the end of the class in transformers
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
OWN = "on the run's own task"


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
    return _rendered(
        "model_card.md.j2",
        network=network,
        part=part,
        run=run,
        config=run.config,
        provenance=run.provenance,
        findings=findings,
        front_matter=front_matter(_metadata(model, network, findings)),
        flops=_flops(run, records),
        rows=BatchSizes.of(run.config["train"]).before(run.step),
        fills=_fills(model, network),
        of_tokens=part.class_ending == "ForTokenClassification",
        both=len(model.parts) > 1 and all(other.learned for other in model.parts.values()),
        overlap_run=RUN,
        experiment=to_yaml(without_folders(run.config)).rstrip(),
    )


def finetuned_card(model: Path) -> str:
    """Return the card of the model that a fine-tuning saved for one seed. Raises CheckpointError."""
    folder, seed = FinetuningFolder(model.parent.parent), model.parent.name.removeprefix("seed-")
    results = folder.results(int(seed)) if is_finetuning(folder.path) and seed.isdecimal() else None
    if results is None:
        cure = "Resume its fine-tuning, or write README.md there if it is a copy."
        raise CheckpointError(f"{model}: has no results for a model card. {cure}")
    config, provenance = config_of(folder.path / "finetuning.yaml"), folder.seed(int(seed)).provenance()
    described = read_config(model)
    kind = next(task for ending, task in TASKS.items() if described["architectures"][0].endswith(ending))
    # The results of each split: rows of a table, and in the form of the hub, without the shares that were left out.
    rows, indexed, measured = list[tuple[str, str, float, int]](), list[dict[str, Any]](), set[str]()
    for split, of_split in results.splits.items():
        values = list[Value]()
        for name, value in of_split.metrics.items():
            metric = provenance.metrics.get(name)
            values.append((name, metric.title if metric and metric.title else name, value))
        rows += [(split, title, value, of_split.examples) for _, title, value in values if value is not None]
        values = [value for value in values if value[0] not in results.lost]
        measured |= {name for name, _, value in values if value is not None}
        for index in model_index(config["name"], kind, config["dataset"], split, values):
            indexed += index["results"]
    examples = folder.predictions(int(seed), "validation") if "validation" in results.splits else []
    facts = provenance.model_extra or {}
    length = facts["network"]["length"]
    metadata = {
        "library_name": "transformers" if described["model_type"] != LAB else "electra_lab",
        "pipeline_tag": kind,
        "base_model": None if Path(config["model"]).is_absolute() else config["model"],
        "datasets": names_on_the_hub(config["dataset"]),
        "metrics": sorted(measured),
        "tags": ["electra_lab"],
        "model-index": [{"name": config["name"], "results": indexed}] if indexed else [],
    }
    return _rendered(
        "finetuned_card.md.j2",
        front_matter=front_matter(metadata),
        auto_class=f"AutoModelFor{described['architectures'][0].rpartition('For')[2]}",
        config=config,
        equal=_equally_read(model, folder.seed(int(seed)), examples, length) if examples and "words" in examples[0] else None,
        fields=examples[0] if examples else {},
        length=length,
        provenance=provenance,
        plain=described["model_type"] != LAB,
        results=results,
        rows=rows,
        selected=config["evaluate"]["select"] == "best",
        sentences=len(examples),
        task=kind,
        usual=facts["facts"].get("usual"),
    )


def _equally_read(model: Path, seed: RunDirectory, examples: Sequence[Mapping[str, Any]], length: int) -> int:
    """Return the number of sentences that the exported tokenizer turns into the tokens of the lab, in one row."""
    tokenizer, counts = seed.tokens()
    encoder = TextEncoder(tokenizer, make_vocabulary(tokenizer, counts, torch.device("cpu")))
    sentences = [example["words"] for example in examples]
    theirs = read_tokenizer(model).encode_batch(sentences, is_pretokenized=True, add_special_tokens=False)
    equal = 0
    for ours, read in zip(encoder.words(sentences), theirs, strict=True):
        equal += (ours.ids, ours.words) == (read.ids, read.word_ids) and len(read.ids) + 2 <= length
    return equal


def _rendered(name: str, **values: Any) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters |= {
        "cell": lambda text: text.replace("|", "\\|").replace("\n", " "),
        "described": _described,
        "file_name": lambda path: Path(path).name,
        "public": without_folders,
        "thousands": "{:,}".format,
        "rounded": "{:.3g}".format,
    }
    template = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(template).render(**values)


def front_matter(metadata: Mapping[str, Any]) -> str:
    """Return metadata as the first lines of a card; keys without a value are left out."""
    known = {key: value for key, value in metadata.items() if value}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True)}---\n"


def with_metadata(card: str, metadata: Mapping[str, Any]) -> str:
    """Return a card with more metadata. Raises ConfigError if its front matter is not YAML."""
    known, text = dict[str, Any](), card
    if card.startswith("---\n"):
        head, _, text = card.removeprefix("---\n").partition("\n---\n")
        try:
            known = dict(yaml.safe_load(head) or {})
        except (yaml.YAMLError, TypeError, ValueError):
            raise ConfigError("README.md: its front matter is not YAML. Correct it, or export again.") from None
    return front_matter(known | {key: value for key, value in metadata.items() if value}) + text


def names_on_the_hub(section: Any) -> list[str]:
    """Return the datasets of the hub that a section of a config names; a complete config has folders as full paths."""
    if isinstance(section, list):
        return list(dict.fromkeys(chain.from_iterable(map(names_on_the_hub, section))))
    if not isinstance(section, dict):
        return []
    if section.get("type") == "hugging_face":
        return [] if Path(str(section["path"])).is_absolute() else [section["path"]]
    return names_on_the_hub(list(section.values()))


def model_index(name: str, task: str, data: Mapping[str, Any], split: str, values: Values) -> list[dict[str, Any]]:
    """Return results in the form that the hub reads; none without values.

    task  a pipeline of the hub
    data  the component of the text or the examples
    """
    metrics = [{"type": key, "name": title, "value": value} for key, title, value in values if value is not None]
    named = {"type": (names_on_the_hub(data) or [data["type"]])[0], "name": data["type"], "split": split}
    result = {"task": {"type": task}, "dataset": named, "metrics": metrics}
    return [{"name": name, "results": [result]}] if metrics else []


def _metadata(model: TrainedModel, network: Exportable, findings: Findings | None) -> dict[str, Any]:
    """Return the metadata of a pre-trained network's card; its results are those that the run measured."""
    run, part = model.run, network.part
    assert run is not None
    fills, start = _fills(model, network), run.provenance.init.get(part.name)
    task, data = "fill-mask" if fills else "feature-extraction", run.config["corpus"]
    last = (findings and findings.evaluation) or {}
    tags = ["electra"] if len(model.parts) > 1 or network.head == "replaced" else []  # not of a masked language model
    tags += ["masked-language-modeling"] if fills else ["replaced-token-detection"] if network.head == "replaced" else []
    values = list[Value]()
    for name, metric in run.provenance.metrics.items():
        if name.startswith(part.name):
            title = metric.title if metric.comparable else f"{metric.title} ({OWN})"
            values.append((name, title, last.get(name)))
    return {
        "library_name": "transformers" if part.family else "electra_lab",
        "pipeline_tag": task,
        "base_model": start.source if start and not Path(start.source).is_absolute() else None,
        "datasets": names_on_the_hub(data),
        "tags": [*tags, "electra_lab"],
        "model-index": model_index(run.config["name"], task, data, last.get("split", ""), values),
    }


def _fills(model: TrainedModel, network: Exportable) -> bool:
    """Return whether a network has learned to fill in masks: a discriminator with a generator sees its replacements."""
    return network.head == "tokens" and (network.name == "generator" or "generator" not in model.parts)


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
    batches = BatchSizes.of(run.provenance.config.get("train", {"batch_size": 1}))
    rows = batches.before(run.step) - batches.before(step)
    return int(flops + run.provenance.flops_per_step * rows // batches.full)


def _described(component: Mapping[str, Any]) -> str:
    """Return a component and its options on one line."""
    options = without_folders(dict(component))
    name = options.pop("type")
    described = [f"{key} {_in_yaml(value)}" for key, value in options.items()]
    return f"`{name}` ({'; '.join(described)})" if described else f"`{name}`"


def _in_yaml(value: Any) -> str:
    """Return a value as YAML has it on one line; a list that is the whole value goes without brackets."""
    if isinstance(value, list):
        return ", ".join(map(_in_yaml, value))
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.removesuffix("...\n").rstrip()
