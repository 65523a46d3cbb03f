"""Checkpoints: safetensors, JSON and a manifest of checksums. No pickle.

    checkpoints/step-00001000/  state.safetensors  state.json  MANIFEST.json

Written to a temporary folder, flushed to disk, then renamed: a folder called step-* is complete. The manifest is
checked before anything is loaded; a damaged checkpoint is named and passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from registry.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"step-(\d{8,})")
_FILES = ("state.safetensors", "state.json")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save(folder: Path, step: int, module: nn.Module, optimizer: Optimizer, state: dict[str, Any], keep: int) -> Path:
    """Write checkpoints/step-*; then remove all but the newest `keep`. Raises CheckpointError, losing nothing.

    Checkpoints of later steps belong to a past that this run has gone back behind (they were damaged): they go too.
    """
    final = folder / f"step-{step:08d}"
    building = folder / f".building-{step:08d}"
    try:
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob(".building-*"):  # of a process that was killed: the run directory is locked
            shutil.rmtree(leftover)
        building.mkdir()
        save_file(_tensors(module, optimizer), building / "state.safetensors")
        (building / "state.json").write_text(json.dumps({"step": step, **state}, indent=1))
        seal(building)
        if final.exists():  # this step again, after a damaged one was passed over
            shutil.rmtree(final)
        building.rename(final)
        flush(folder)
    except Exception as error:
        # safetensors wraps a full disk in its own exception, so the type says little.
        shutil.rmtree(building, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{final}: the checkpoint cannot be written ({reason}). Earlier checkpoints are untouched; "
            "make room and resume."
        ) from None
    found = checkpoints(folder)
    place = found.index(final)
    for old in (*found[place + 1 :], *found[: max(0, place + 1 - keep)]):
        shutil.rmtree(old, ignore_errors=True)  # what cannot be removed does no harm
    return final


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints, oldest first: folders of ours that carry a manifest."""
    return [path for path in _named(folder) if not path.is_symlink() and (path / "MANIFEST.json").is_file()]


def _named(folder: Path) -> list[Path]:
    found = [(int(m[1]), path) for path in folder.glob("step-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def load_newest(
    folder: Path, module: nn.Module, optimizer: Optimizer, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    """Load the newest valid checkpoint into `module` and `optimizer`; returns its state, None if there is none at all.

    Raises CheckpointError if there are some and none is usable, or one belongs to other networks.
    """
    found = _named(folder)
    for path in reversed(found):
        if problem := damage(path):
            warn(f"{path}: {problem}; trying the checkpoint before it")
            continue
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
        _restore(path, load_file(path / "state.safetensors"), module, optimizer)
        return state
    if found:
        raise CheckpointError(f"{folder}: none of the {len(found)} checkpoints is usable. Start a new run.")
    return None


@torch.no_grad()
def load_part(folder: Path, prefixes: tuple[str, ...], module: nn.Module) -> str:
    """Load what the newest valid checkpoint has under the first of `prefixes` that it knows into `module`.

    Returns the checkpoint's name and the checksum of its state. Raises CheckpointError, saying what does not fit.
    """
    for path in reversed(_named(folder)):
        if damage(path):
            continue
        saved = load_file(path / "state.safetensors")
        found = [prefix for prefix in prefixes if any(name.startswith(f"model.{prefix}.") for name in saved)]
        if not found:
            raise CheckpointError(f"{path}: has no network called {' or '.join(prefixes)}.")
        given = {
            n.removeprefix(f"model.{found[0]}."): t for n, t in saved.items() if n.startswith(f"model.{found[0]}.")
        }
        own = _model_tensors(module)
        if wrong := sorted(n for n in given.keys() | own.keys() if n not in given or n not in own
                           or given[n].shape != own[n].shape):  # fmt: skip
            raise CheckpointError(
                f"{path}: {found[0]} is another network; {wrong[0]} (and {len(wrong) - 1} more) differ."
            )
        for name, value in own.items():
            value.copy_(given[name])
        return f"{path.name} {_sha256(path / 'state.safetensors')}"
    raise CheckpointError(f"{folder}: there is no usable checkpoint.")


def seal(folder: Path) -> None:
    """Write the manifest of all files of a folder, and bring them to the disk."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    manifest = {file.name: {"sha256": _sha256(file), "bytes": _size(file)} for file in files}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1))
    for file in (*files, folder / "MANIFEST.json"):
        flush(file)
    flush(folder)


def damage(path: Path, names: Collection[str] | None = _FILES) -> str | None:
    """What is wrong with a checkpoint, or with those files of a sealed folder, or None. `names` None: with any."""
    try:
        manifest = json.loads((path / "MANIFEST.json").read_text())
        for name in manifest if names is None else names:
            if _size(path / name) != manifest[name]["bytes"]:
                return f"{name} is damaged: it has {_size(path / name)} bytes, not {manifest[name]['bytes']}"
            if _sha256(path / name) != manifest[name]["sha256"]:
                return f"{name} is damaged: its checksum is wrong"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"MANIFEST.json is damaged ({type(error).__name__})"
    return None


def _tensors(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters (a shared one once), buffers, and the optimizer's moments under the parameters' names."""
    tensors = {f"model.{name}": value.detach() for name, value in _model_tensors(module).items()}
    for name, parameter in module.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{moment}.{name}"] = value
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _model_tensors(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True)
    buffers = {name: value for name, value in module.named_buffers() if name in persistent}
    return dict(module.named_parameters()) | buffers


@torch.no_grad()
def _restore(path: Path, saved: dict[str, Tensor], module: nn.Module, optimizer: Optimizer) -> None:
    own = {f"model.{name}": value for name, value in _model_tensors(module).items()}
    other = {name for name in saved if name.startswith("model.")}
    if wrong := sorted(other ^ own.keys() | {n for n in other & own.keys() if saved[n].shape != own[n].shape}):
        raise CheckpointError(f"{path}: belongs to other networks; {wrong[0]} (and {len(wrong) - 1} more) do not fit.")
    for name, value in own.items():
        value.copy_(saved[name])
    for name, parameter in module.named_parameters():
        # "step" lives beside the parameter, as the fused optimizer wants it.
        values = {m: saved[key] for m in _MOMENTS if (key := f"optimizer.{m}.{name}") in saved}
        optimizer.state[parameter] = {m: v.to(parameter.device).clone() for m, v in values.items()}
        if not values:
            del optimizer.state[parameter]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size


def flush(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
