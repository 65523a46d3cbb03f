"""`electra-lab export`: a run's networks as folders that transformers loads. Writing them needs only safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from electra_lab.export.card import model_card
from electra_lab.export.networks import Exportable, exportable, tensors_of
from electra_lab.export.tokenizer import write_tokenizer
from electra_lab.pretrained.hugging_face import CONFIG, MARK, Mark, read_mark
from electra_lab.pretrained.opened import Opened, open_run
from electra_lab.storage.files import MANIFEST, damage, new_folder, read_json, refuse_unusable, seal
from electra_lab.storage.lock import lock
from electra_lab.version import __version__
from registry.errors import CheckpointError, ConfigError, DataError, InUse


@dataclass(frozen=True)
class Exported:
    path: Path
    step: int
    networks: list[Exportable]


def export(run: Path, destination: Path, step: int | None = None, *, onnx: bool = False) -> Exported:
    """Write the networks of a run to destination/discriminator and destination/generator, all or nothing.

    step  of the checkpoint; the newest by default
    onnx  also write discriminator/model.onnx

    Raises ConfigError if something else is at the destination, or a network cannot become ONNX; CheckpointError.
    """
    refuse_unusable(destination)
    destination = destination.resolve()
    refuse_others(destination)
    opened = open_run(run, torch.device("cpu"), step)
    networks = list(exportable(opened))
    with _whole(destination) as building:
        for each in networks:
            with new_folder(building / each.name) as folder:
                _write(folder, opened, each, onnx=onnx and each.name == "discriminator")
                seal(folder)
        mark = Mark(
            electra_lab=__version__,
            run=opened.loaded.config.name,
            step=opened.step,
            length=opened.length,
            networks={each.name: {"class": each.class_name, "parameters": each.parameters} for each in networks},
        )
        (building / MARK).write_text(json.dumps(mark.model_dump(), indent=2) + "\n", encoding="utf-8")
    return Exported(destination, opened.step, networks)


def refuse_others(destination: Path) -> None:
    """Raise ConfigError unless a folder is absent, empty, or as an earlier export left it."""
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return
    try:
        mark = read_mark(destination)
    except DataError:
        mark = None
    if mark is None:
        raise ConfigError(f"{destination}: exists, and is not an earlier export. Choose another folder.")
    names = list(mark.networks)
    wrong = [f"{name}/{problem}" for name in names if (problem := damage(destination / name))]
    known = {destination / MARK}
    for name in names if not wrong else []:
        known |= {destination / name / file for file in (MANIFEST, *read_json(destination / name / MANIFEST))}
    # A link is deleted as a file is, wherever it leads.
    there = (path for path in sorted(destination.rglob("*")) if path.is_symlink() or not path.is_dir())
    wrong += [f"{path} was added" for path in there if path not in known]
    if wrong:
        raise ConfigError(
            f"{destination}: has changed since it was exported ({wrong[0]}). Delete it, or choose another folder."
        )


def _write(folder: Path, opened: Opened, each: Exportable, *, onnx: bool) -> None:
    (folder / CONFIG).write_text(json.dumps(each.config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors_of(each.network), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / "model.safetensors")  # it comes readable for its owner alone
    write_tokenizer(folder, opened.tokenizer, opened.vocabulary, each.longest)
    if each.plugin and each.plugin_file:
        (folder / each.plugin_file).write_bytes(each.plugin.source)
    if onnx:
        from electra_lab.export.onnx import INPUTS, write_onnx

        write_onnx(folder / "model.onnx", each.network, opened.vocabulary.size, each.longest)
        each.notes.append(f"`model.onnx` turns {', '.join(f'`{name}`' for name in INPUTS)} into `logits`.")
    (folder / "README.md").write_text(model_card(opened, each), encoding="utf-8")


@contextmanager
def _whole(destination: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of `destination` in the end; a killed process leaves no part of either."""
    busy = destination.with_name(f".{destination.name}.lock")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with lock(busy) as held:
            if not held:
                raise InUse(f"{destination}: another process is exporting to it.")
            try:
                with new_folder(destination) as building:
                    yield building
            finally:
                busy.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{destination}: cannot be written ({reason}). Nothing was exported.") from None
