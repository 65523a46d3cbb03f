"""electra-lab export RUN_DIR DEST"""

import json
import re
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli._texts import Best, step_of
from registry.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from electra_lab.export.card import Findings
    from electra_lab.export.export import Exportable
    from electra_lab.storage.provenance import Provenance

License = Annotated[str | None, typer.Option("--license", metavar="ID", help="Licence in the card, such as mit.")]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run, a fine-tuning, or a Hugging Face folder.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="Folder: absent, empty, or an earlier export.")],
    step: Annotated[int | None, typer.Option(metavar="N", help="Export the checkpoint of this step.")] = None,
    best: Best = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write the networks as ONNX.")] = False,
    onnx_size: Annotated[str | None, typer.Option(metavar="BATCHxLENGTH", help="Size of ONNX inputs: 1x128.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write int8 ONNX, and report its effect.")] = False,
    license_: License = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write the networks of a run as Hugging Face models, with tokenizer and model card.

    DEST/discriminator and DEST/generator are folders that transformers can load.
    """
    from electra_lab.export.export import export
    from electra_lab.export.model_folder import copy_folder, model_folder

    chosen = step_of(step, best)
    wanted: dict[str, Any] = {"onnx": onnx, "size": size_of(onnx_size), "int8": int8, "license": license_}
    # A model that is in the format already, such as a fine-tuning's, is copied.
    if model := model_folder(run):
        if chosen is not None:
            raise ConfigError(f"{run}: is not a run of pre-training, so it has no checkpoint to choose.")
        change = copy_folder(model, destination, **wanted)
        if as_json:
            answer(json.dumps({"path": str(destination), "int8": asdict(change) if change else None}, indent=1))
            return
        answer(f"{destination}: the model {model}")
        if change:
            answer(f"  in int8: {change}")
        return
    # The networks of a run are written.
    exported = export(run, destination, chosen, **wanted, judge=judge)
    folders = {str(destination / network.name): network for network in exported.networks}
    if as_json:
        networks: dict[str, dict[str, Any]] = {}
        for path, network in folders.items():
            described = {"path": path, "class": network.class_name, "auto_class": network.auto_class}
            networks[network.name] = {**described, "parameters": network.parameters}
            if network.int8:
                networks[network.name]["int8"] = asdict(network.int8[0])
        answer(json.dumps({"path": str(destination), "step": exported.step, "networks": networks}, indent=1))
        return
    answer(f"{destination}: the networks after step {exported.step:,}")
    for network in exported.networks:
        also = "".join(f", {file.name}" for file in sorted((destination / network.name).glob("*.onnx")))
        answer(f"  {network.name:<14}  {network.class_name}, {network.parameters:,} parameters{also}")
        for change in network.int8:
            answer(f"  {'':<14}  in int8: {change}")
    for limit in dict.fromkeys(chain.from_iterable(network.limits for network in exported.networks)):
        answer(f"  note: {limit}")
    answer("load with:\n")
    for line in loading(folders):
        answer(f"  {line}")


def size_of(text: str | None) -> tuple[int, int] | None:
    """Return batch and length. Raises ConfigError."""
    if not text:
        return None
    match = re.fullmatch(r"([1-9]\d{0,6})[xX]([1-9]\d{0,6})", text)
    if not match:
        raise ConfigError(f"--onnx-size {text}: must be a batch and a length, such as 1x128.")
    return int(match[1]), int(match[2])


def judge(records: "Sequence[dict[str, Any]]", provenance: "Provenance") -> "Findings":
    """Return the results in the records of a run, for the model card."""
    from electra_lab.analysis.records import last_evaluation, training_seconds
    from electra_lab.export.card import Findings
    from electra_lab.presentation.run_page import findings, verdicts

    seconds = training_seconds(records)
    last = last_evaluation(records)
    if last is None:
        return Findings(evaluation={}, verdicts=[], metrics=[], seconds=seconds)
    metrics = [(metric.title, metric.value, metric.meaning) for metric in findings(last, provenance.metrics)]
    return Findings(last, [str(verdict) for verdict in verdicts(last, provenance)], metrics, seconds)


def loading(networks: "dict[str, Exportable]") -> list[str]:
    """Return the lines of Python that load all networks, by folder. Two copies of a plug-in are loaded once."""
    before: dict[str, str] = {}
    loads = []
    for folder, network in networks.items():
        for line in network.before_loading(folder):
            before.setdefault(line.replace(folder, ""), line)
        loads.append(f"{network.name} = {network.auto_class}.from_pretrained({folder!r})")
    classes = ", ".join(sorted({network.auto_class for network in networks.values()}))
    return [*before.values(), f"from transformers import {classes}", *loads]
