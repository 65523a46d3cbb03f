"""electra-lab export RUN_DIR DEST"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from electra_lab.cli._streams import answer

if TYPE_CHECKING:
    from electra_lab.export.networks import Exportable


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")],
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="The folder to write: absent, empty, or an earlier export.")
    ],
    step: Annotated[int | None, typer.Option(metavar="N", help="Export the checkpoint of this step.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write the discriminator as ONNX, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the networks of a run as Hugging Face models, with tokenizer and model card.

    DEST/discriminator and DEST/generator are folders that transformers loads.
    """
    from electra_lab.export.export import export

    exported = export(run, destination, step, onnx=onnx)
    if as_json:
        networks = {
            each.name: {
                "path": str(destination / each.name),
                "class": each.class_name,
                "auto_class": each.auto_class,
                "parameters": each.parameters,
            }
            for each in exported.networks
        }
        answer(json.dumps({"path": str(destination), "step": exported.step, "networks": networks}, indent=1))
        return
    answer(f"{destination}: the networks after step {exported.step:,}")
    for each in exported.networks:
        answer(f"  {each.name:<14}  {each.class_name}, {each.parameters:,} parameters")
    for limit in dict.fromkeys(limit for each in exported.networks for limit in each.limits):
        answer(f"  note: {limit}")
    answer("load with:\n")
    for line in loading({str(destination / each.name): each for each in exported.networks}):
        answer(f"  {line}")


def loading(networks: "dict[str, Exportable]") -> list[str]:
    """Return the lines of Python that load all networks, by folder. Two copies of a plug-in are loaded once."""
    before: dict[str, str] = {}
    for folder, each in networks.items():
        for line in each.before_loading(folder):
            before.setdefault(line.replace(folder, ""), line)
    classes = ", ".join(sorted({each.auto_class for each in networks.values()}))
    loads = [f"{each.name} = {each.auto_class}.from_pretrained({folder!r})" for folder, each in networks.items()]
    return [*before.values(), f"from transformers import {classes}", *loads]
