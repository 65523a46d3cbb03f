"""A folder that transformers loads, such as the model of a fine-tuning, with ONNX for programs without torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from electra_lab.assembly.networks import build_network
from electra_lab.export.card import CARD, finetuned_card
from electra_lab.pretrained.families import FAMILIES, task_layers
from electra_lab.pretrained.hugging_face import CONFIG, read_config, read_part
from electra_lab.pretrained.opening import model_of_finetuning
from electra_lab.storage.files import MANIFEST, disk, new_folder, refuse_unusable, seal
from electra_lab.storage.finetuning_folder import is_finetuning, is_seed
from registry.errors import ConfigError, DataError

if TYPE_CHECKING:
    from electra_lab.export.int8 import Change
    from electra_lab.export.onnx import Size


def model_folder(path: Path) -> Path | None:
    """Return the folder with the model of a fine-tuning, or of one of its seeds; or `path`, if it is such a folder."""
    refuse_unusable(path)
    if is_finetuning(path) or is_seed(path):
        return model_of_finetuning(path)
    return path if (path / CONFIG).is_file() else None


def copy_folder(
    model: Path, destination: Path, *, onnx: bool = False, size: Size | None = None, int8: bool = False
) -> Change | None:
    """Copy a folder with a model, and write model.onnx and model_int8.onnx; returns the difference that int8 makes.

    The options are those of `export`. Raises ConfigError if something else is at the destination, or the model cannot
    become ONNX; DataError, CheckpointError.
    """
    refuse_unusable(destination)
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise ConfigError(f"{destination}: exists. Choose another folder.")
    change = None
    with disk(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
    with disk(destination), new_folder(destination.resolve()) as folder:
        for file in model.iterdir():
            if file.is_file() and file.name != MANIFEST:
                shutil.copy(file, folder)
        if onnx or size or int8:
            change = _write_onnx(folder, model, size, int8=int8)
        if is_seed(model.resolve().parent) and not (folder / CARD).exists():
            (folder / CARD).write_text(finetuned_card(model.resolve()), encoding="utf-8")
        seal(folder)
    return change


def _write_onnx(folder: Path, model: Path, size: Size | None, *, int8: bool) -> Change | None:
    from electra_lab.export.onnx import NamedOutputs, write_onnx

    config, part = read_config(model), read_part(model, "discriminator")
    names: dict[str, str] = {}
    family = FAMILIES.get(part.format)
    for ending, of_task in task_layers(family).items():
        if str((config.get("architectures") or [""])[0]).endswith(ending):
            names = dict(of_task)
    layers = {ours: _linear(part.tensors, name) for ours, name in names.items()}
    network = build_network(part, config.get("pad_token_id") or 0)
    module, longest = NamedOutputs(network, layers), network.longest(part.embedding["max_length"])
    write_onnx(folder / "model.onnx", module, part.vocabulary_size, longest, size)
    if not int8:
        return None
    from electra_lab.export.int8 import validation_rows, write_int8

    rows = validation_rows(model, longest, size)
    return write_int8(folder / "model.onnx", module, rows, "validation text", part.vocabulary_size, longest, size)


def _linear(tensors: Mapping[str, Tensor], name: str) -> nn.Linear:
    try:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    except KeyError as error:
        raise DataError(f"the model has no tensor {error}: its head is another one than that of ELECTRA.") from None
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer
