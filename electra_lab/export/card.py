"""The model card of an exported network: README.md with the front matter that the Hub reads."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from electra_lab.analysis.records import last_evaluation, training_seconds
from electra_lab.assembly.budget import training_flops
from electra_lab.config.component import Component
from electra_lab.config.source import read_file, to_yaml
from electra_lab.model.flops import MATRIX_PRODUCTS, PAPER
from electra_lab.presentation.findings import findings, verdicts
from electra_lab.presentation.text import data_facts
from electra_lab.pretrained.opened import Opened

if TYPE_CHECKING:
    from electra_lab.export.networks import Exportable

WHAT = {
    "replaced": "A text encoder, pre-trained by replaced token detection (ELECTRA, Clark et al. 2020). At each "
    "position it gives a logit, which is positive if the token seems to be replaced.",
    "tokens": "A masked language model: at each position it gives logits over the vocabulary.",
    "": "A text encoder.",
}
USE = {
    "replaced": "Fine-tuning on classification, tagging and question answering, sentence embeddings, and research on "
    "pre-training. It detects replacements like those of the generator that it was trained with; it does not detect "
    "text that was written by a machine.",
    "tokens": "Filling in masked tokens, fine-tuning, and research on pre-training. It is not made for writing text.",
    "": "Fine-tuning, and research on pre-training.",
}
CODE = {
    "replaced": """\
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

folder = "."  # this folder, or its name on the Hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForPreTraining.from_pretrained(folder)
inputs = tokenizer("the cat sat on the mat", return_tensors="pt")
with torch.no_grad():
    probabilities = model(**inputs).logits.sigmoid()  # that a token was replaced
for token, probability in zip(inputs.tokens(), probabilities[0].tolist()):
    print(f"{probability:.2f} {token}")""",
    "tokens": """\
from transformers import pipeline

fill = pipeline("fill-mask", model=".")  # this folder, or its name on the Hub
print(fill(f"the cat sat on the {fill.tokenizer.mask_token}"))""",
    "": """\
from transformers import AutoModel, AutoTokenizer

folder = "."  # this folder, or its name on the Hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder)
print(model(**tokenizer("the cat sat on the mat", return_tensors="pt")).last_hidden_state.shape)""",
}


def model_card(opened: Opened, part: Exportable) -> str:
    """Return the card as Markdown. Raises CheckpointError if the run's records are damaged."""
    from jinja2 import Environment, StrictUndefined

    config, provenance, step = opened.loaded.config, opened.provenance, opened.step
    records = [record for record in opened.directory.records() if record["step"] <= step]
    last = last_evaluation(records)
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    template = files(__package__).joinpath("model_card.md.j2").read_text(encoding="utf-8")
    fill, start = part.head == "tokens", provenance.init.get(part.name)
    return environment.from_string(template).render(
        library="transformers" if part.plain else "electra_lab",
        base=start.source if start and not Path(start.source).is_absolute() else None,
        pipeline="fill-mask" if fill else "feature-extraction",
        tags=["electra", "masked-language-modeling" if fill else "replaced-token-detection", "electra_lab"],
        name=config.name,
        role=part.name,
        class_name=part.class_name,
        parameters=part.parameters,
        what=WHAT[part.head],
        backbone=part.component.dump(),
        use=USE[part.head],
        code="\n".join([*part.before_loading("."), CODE[part.head]]),
        notes=part.notes,
        limits=part.limits,
        step=step,
        steps=provenance.steps,
        data=_data(opened),
        compute=_compute(opened, records),
        last=last,
        findings=findings(last, provenance.metrics) if last else [],
        verdicts=verdicts(last, provenance) if last else [],
        length=config.data.sequence_length,
        longest=part.longest,
        provenance=_provenance(opened),
        config=to_yaml(without_folders(read_file(opened.directory.path / "config.yaml").plain())).rstrip(),
    )


def without_folders(value: Any) -> Any:
    """Return plain data with the last part of each absolute path: cards are published, and folders name people."""
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _data(opened: Opened) -> list[tuple[str, str]]:
    config, data = opened.loaded.config, opened.provenance.data
    return [
        ("corpus", _described(config.corpus)),
        *data_facts(data),
        ("tokenizer", f"{_described(config.tokenizer)}; {opened.vocabulary.size:,} tokens"),
    ]


def _described(component: Component) -> str:
    options = without_folders(component.dump())
    name = options.pop("type")
    given = [f"{key} {_in_yaml(value)}" for key, value in options.items()]
    return f"`{name}` ({'; '.join(given)})" if given else f"`{name}`"


def _in_yaml(value: Any) -> str:
    """Return a value as YAML has it on one line; a list that is the whole value goes without brackets."""
    if isinstance(value, list):
        return ", ".join(map(_in_yaml, value))
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.removesuffix("...\n").rstrip()


def _compute(opened: Opened, records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    config, step, environment = opened.loaded.config, opened.step, opened.provenance.environment
    rows, length = config.train.batch_size, config.data.sequence_length
    flops, paper_flops = (
        training_flops(opened.objective, opened.networks, config, each).total(step) for each in (MATRIX_PRODUCTS, PAPER)
    )
    of = " of both networks" if "generator" in opened.networks else ""
    seconds = training_seconds(records)
    return [
        ("steps", f"{step:,} of {rows:,} rows, {step * rows * length:,} tokens with padding"),
        ("FLOPs", f"{flops:.3g} of matrix products{of}; {paper_flops:.3g} as the ELECTRA paper counts"),
        ("device", f"{environment.device}, {environment.precision}"),
        *([("time", f"{seconds:,.0f} s of training")] if seconds else []),
    ]


def _provenance(opened: Opened) -> list[tuple[str, str]]:
    provenance, packages = opened.provenance, opened.provenance.environment.packages
    git = provenance.git
    changed = " with uncommitted changes" if git and git.get("changed") else ""
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    return [
        ("electra_lab", provenance.electra_lab + (f", commit {git.get('commit')}{changed}" if git else "")),
        ("run", f"started {provenance.started}, seed {opened.loaded.config.seed}"),
        ("software", f"Python {provenance.environment.python}, {versions}"),
        ("checksum of config.yaml (sha256)", provenance.config_sha256),
        ("token store", provenance.data.store),
        *((f"plug-in {Path(code.file).name} (sha256)", code.sha256) for code in provenance.plugins),
        *((f"weights of the {name}", f"from an earlier run, {run}") for name, run in provenance.earlier_runs.items()),
        *((f"weights of the {name}", f"from {without_folders(it.source)}") for name, it in provenance.init.items()),
    ]
