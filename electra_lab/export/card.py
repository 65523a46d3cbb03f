"""The model card of an exported network: README.md with the front matter that the Hub reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from electra_lab.analysis.intervals import Estimate, estimate
from electra_lab.config.source import to_yaml
from electra_lab.data.encoding import encode
from electra_lab.data.overlap import RUN
from electra_lab.pretrained.hugging_face import read_config
from electra_lab.pretrained.trained_model import LAB, Origin, TrainedModel
from electra_lab.storage.files import config_of
from electra_lab.storage.finetuning_folder import FinetuningFolder, is_finetuning
from electra_lab.storage.provenance import Provenance
from registry import BatchSizes, Metric
from registry.errors import CheckpointError, ConfigError
from registry.signature import FolderOrName

if TYPE_CHECKING:
    from electra_lab.export.export import Exportable
    from electra_lab.export.onnx import Size

CARD = "README.md"
Record = Mapping[str, Any]
Value = tuple[str, str, str, float]  # a split, a metric, its title, its value
Measured = tuple[str, str, float, Estimate, int]  # a split, the title of a metric, its value, over seeds, examples
REGISTER = "import electra_lab.interop.hugging_face  # pip install 'electra-lab[hugging-face]'"
SERVED = {  # by task, the parameters of a function that predicts, and an example of them
    "text-classification": ("text", '"the cat sat on the mat"'),
    "pairs": ("text, pair", '"the cat sat", "on the mat"'),
    "token-classification": ("words", '["the", "cat", "sat"]'),
    "question-answering": ("question, context", '"who sat?", "the cat sat on the mat"'),
}
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


def model_card(model: TrainedModel, network: Exportable, judge: Judge | None = None, license: str | None = None) -> str:
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
        "license": license,
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


def finetuned_card(model: Path, notes: Sequence[str] = (), size: Size | None = None, license: str | None = None) -> str:
    """Return the card of the model that a fine-tuning saved for one seed. Raises CheckpointError.

    notes    sentences on its ONNX files, if it has any
    size     only batch and length that they take
    license  its licence, by the hub's name
    """
    folder, number = FinetuningFolder(model.parent.parent), model.parent.name.removeprefix("seed-")
    results = folder.results(int(number)) if is_finetuning(folder.path) and number.isdecimal() else None
    if results is None:
        cure = "Resume its fine-tuning, or write README.md there if it is a copy."
        raise CheckpointError(f"{model}: has no results for a model card. {cure}")
    config, provenance = config_of(folder.path / "finetuning.yaml"), folder.seed(results.seed).provenance()
    described, facts = read_config(model), provenance.model_extra or {}
    ending = described["architectures"][0].rpartition("For")[2]
    task, length, options = TASKS[ending], facts["network"]["length"], config["task"]
    plain, plugin = described["model_type"] != LAB, described.get("plugin")
    # The results of each split. The hub gets them without baselines, and without shares of examples that were left out.
    measured, values = list[Measured](), list[Value]()
    baselines = set[str]().union(*(metric.baselines for metric in provenance.metrics.values()))
    for split, of_split in results.splits.items():
        for name, value in of_split.metrics.items():
            metric = provenance.metrics.get(name, Metric(""))
            if value is not None:
                title, over = metric.title or name, estimate([*folder.values(split, name).values()], metric.bounds)
                measured.append((split, title, value, over, of_split.examples))
                values += [(split, name, title, value)] if name not in results.lost.keys() | baselines else []
    metadata = {
        "library_name": "transformers" if plain else "electra_lab",
        "license": license,
        "base_model": config["model"] if FolderOrName(config["model"]).is_name(folder.path) else None,
        "metrics": sorted({name for _, name, _, _ in values}),
        "tags": ["electra_lab"],
    }
    examples = folder.predictions(results.seed, "validation") if "validation" in results.splits else []
    parameters, example = SERVED["pairs" if examples and "pair" in examples[0] else task]
    return _rendered(
        "finetuned_card.md.j2",
        front_matter=_front_matter(config["name"], task, config["dataset"], values, metadata),
        auto_class=f"AutoModelFor{ending}",
        before_loading=[] if plain else before_loading(".", plugin if plugin and (model / plugin).is_file() else None),
        config=config,
        example=example,
        facts=facts["facts"],
        finetuning=to_yaml(without_folders(config)).rstrip(),
        labels=[] if described.get("problem_type") == "regression" else [*described.get("id2label", {}).values()],
        listed=", ".join(f"[{parameter}]" for parameter in parameters.split(", ")),  # an empty second text stays one
        length=min(length, size[1]) if size else length,
        longest_question=min(options.get("max_query", length), length // 2),
        measured=measured,
        network=facts["network"],
        notes=notes,
        parameters=parameters,
        provenance=provenance,
        results=results,
        special=_read_as_special(model),
        seeds=[seed for seed in folder.seeds() if folder.results(seed)],
        size=size,
        task=task,
    )


def _read_as_special(model: Path) -> list[str]:
    """Return the special tokens whose names in a text transformers and tokenizers read otherwise than the lab.

    Unigram and lists of words have them among their pieces; the lab writes such names with a space, see `SpecialNames`.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    special = list[str]()
    for token in tokenizer.get_added_tokens_decoder().values():
        read = tokenizer.encode(token.content, add_special_tokens=False).ids
        if token.special and read != encode(tokenizer, [token.content], "int64")[0].tolist():
            special.append(token.content)
    return special


def before_loading(folder: str, plugin: str | None) -> list[str]:
    """Return the lines of Python that must run before transformers can load a folder in the lab's own format.

    plugin  file in the folder that defines the backbone
    """
    if not plugin:
        return [REGISTER]
    load = f"registry.load_plugin(pathlib.Path({f'{folder}/{plugin}'!r}))  # read it first"
    return [REGISTER, "import pathlib", "import registry", load]


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
