"""A folder that transformers loads, such as the model of a fine-tuning, with ONNX for programs without torch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from electra_lab.assembly.networks import build_network
from electra_lab.assembly.task_head import fill_head, kind_of_head, labels_of, outputs_of, task_of
from electra_lab.export.card import CARD, finetuned_card, with_metadata
from electra_lab.export.export import refuse_to_replace, whole, write_onnx_files
from electra_lab.pretrained.hugging_face import CONFIG, longest_of_tokenizer, read_config, read_part
from electra_lab.pretrained.opening import model_of_finetuning
from electra_lab.pretrained.trained_model import LAB
from electra_lab.pretrained.writing import POOLING
from electra_lab.storage.files import MANIFEST, refuse_unusable, seal
from electra_lab.storage.finetuning_folder import is_finetuning, is_seed

if TYPE_CHECKING:
    from electra_lab.export.int8 import Change
    from electra_lab.export.onnx import NamedOutputs, Size
    from electra_lab.pretrained.trained_model import Part


def model_folder(path: Path) -> Path | None:
    """Return the folder with the model of a fine-tuning, or of one of its seeds; or `path`, if it is such a folder."""
    refuse_unusable(path)
    if is_finetuning(path) or is_seed(path):
        return model_of_finetuning(path)
    return path if (path / CONFIG).is_file() else None


def copy_folder(
    model: Path, destination: Path, *, onnx: bool = False, size: Size | None = None, int8: bool = False,
    license: str | None = None,
) -> Change | None:  # fmt: skip
    """Copy a folder with a model, and write model.onnx and model_int8.onnx; returns the difference that int8 makes.

    The options are those of `export`. Raises ConfigError if something else is at the destination, or the model cannot
    become ONNX; DataError, CheckpointError.
    """
    refuse_unusable(destination)
    destination, model = destination.resolve(), model.resolve()
    refuse_to_replace(destination, onnx=onnx or bool(size) or int8, int8=int8)
    notes, change = list[str](), None
    with whole(destination) as folder:
        for file in model.iterdir():
            if file.is_file() and file.name != MANIFEST:
                shutil.copy(file, folder)
        if (model / POOLING).is_dir():
            shutil.copytree(model / POOLING, folder / POOLING)
        if onnx or size or int8:
            notes, change = _write_onnx(folder, model, size, int8=int8)
        card = folder / CARD
        if is_seed(model.parent) and not card.exists():
            card.write_text(finetuned_card(model, notes, size, license), encoding="utf-8")
        elif license:
            before = card.read_bytes() if card.exists() else b""
            card.write_text(with_metadata(before, {"license": license}), encoding="utf-8")
        seal(folder)
    return change


def with_head(model: Path, part: Part) -> NamedOutputs:
    """Return the network of a folder with its head. Raises ConfigError, DataError."""
    from electra_lab.export.onnx import NamedOutputs

    config = read_config(model)
    network = build_network(part, config.get("pad_token_id") or 0)
    kind = kind_of_head(config)
    if kind is None:
        return NamedOutputs(network)
    labels = labels_of(config, outputs_of(kind, part))
    task = task_of(kind, part, {"labels": labels, "tags": labels, "usual": labels[0], "unanswerable": False})
    head = task.head(network.dim, 0.0)
    fill_head(head, kind, part, config)
    recorded = (config.get("task_specific_params") or {}).get(LAB, {})  # of a fine-tuning here
    texts = recorded.get("texts", 0) if kind == "ForSequenceClassification" else 0
    if kind == "ForQuestionAnswering" or (kind == "ForSequenceClassification" and len(labels) < 2):
        return NamedOutputs(network, head, kind, texts=texts)
    return NamedOutputs(network, head, kind, labels, recorded.get("facts", {}).get("usual", task.usual), texts)


def _write_onnx(folder: Path, model: Path, size: Size | None, *, int8: bool) -> tuple[list[str], Change | None]:
    part = read_part(model, "discriminator")
    module = with_head(model, part)
    longest = min(module.network.longest(part.embedding["max_length"]), longest_of_tokenizer(model))
    rows = None
    if int8:
        from electra_lab.export.int8 import validation_rows

        rows = validation_rows(model, longest, size)
    return write_onnx_files(folder, module, part.vocabulary_size, longest, size, rows, "tokens of validation text")
