"""Checkpoints: safetensors, JSON and a manifest of checksums. No pickle.

    checkpoints/step-00001000/  state.safetensors  state.json  MANIFEST.json

A checkpoint is written to a temporary folder, flushed to disk, then renamed: a folder called step-* is complete. The
manifest is verified before anything is loaded; a damaged checkpoint is reported and the one before it used.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from electra_lab.storage.files import MANIFEST, damage, new_folder, seal, sha256
from registry.errors import CheckpointError

_NAME = re.compile(r"step-(\d{8,})")
_TENSORS, _STATE = "state.safetensors", "state.json"


def save(
    folder: Path,
    step: int,
    module: nn.Module,
    optimizer: Optimizer,
    state: dict[str, Any],
    keep: int,
    milestones: Collection[int] = (),
    *,
    writes: bool = True,
) -> Path:
    """Write checkpoints/step-*, then remove all but the newest `keep`. Raises CheckpointError, losing nothing.

    Those of milestones stay and do not count. Checkpoints of later steps are from a continuation that was rolled back,
    as they were damaged: they go too.

    writes  this process does it; of several that share the tensors, the others only give their parts of them
    """
    final, tensors = place(folder, step), dict(_tensors(module, optimizer, keep=writes))
    if not writes:
        return final
    try:
        for leftover in folder.glob(".step-*"):  # of a process that was killed: the run directory is locked
            shutil.rmtree(leftover)
        with new_folder(final) as building:  # one that is there was damaged and skipped
            save_file(tensors, building / _TENSORS)
            (building / _STATE).write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
            seal(building)
    except Exception as error:  # safetensors wraps a full disk in its own exception, so the type says little
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{final}: the checkpoint cannot be written ({reason}). Earlier ones are intact; make room and resume."
        ) from None
    found = checkpoints(folder)
    index = found.index(final) + 1
    ordinary = [path for path in found[:index] if _step(path) not in milestones]
    for old in (*found[index:], *ordinary[: max(0, len(ordinary) - keep)]):
        shutil.rmtree(old, ignore_errors=True)  # one that cannot be removed does no harm
    return final


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first: the lab's own folders that have a manifest."""
    return [path for path in _named(folder) if not path.is_symlink() and (path / MANIFEST).is_file()]


def problem(path: Path) -> str | None:
    """Return the damage to a checkpoint in words, None if it is sound."""
    return damage(path, (_TENSORS, _STATE))


def _named(folder: Path) -> list[Path]:
    found = [(int(m[1]), path) for path in folder.glob("step-*") if (m := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def load_newest(
    folder: Path, module: nn.Module, optimizer: Optimizer, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    """Load the newest valid checkpoint; returns its state, None if there is no checkpoint at all.

    Raises CheckpointError if there are some and none is usable, or if one belongs to other networks.
    """
    found = _named(folder)
    for path in reversed(found):
        if reason := problem(path):
            warn(f"{path}: {reason}; trying the checkpoint before it")
            continue
        state: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        _restore(path, load_file(path / _TENSORS), module, optimizer)
        return state
    if found:
        raise CheckpointError(f"{folder}: none of the {len(found)} checkpoints is usable. Start a new run.")
    return None


def read_model(folder: Path, step: int | None = None) -> tuple[Path, dict[str, Tensor]]:
    """Return the file of the newest valid checkpoint, or of that of `step`, and the model's tensors, shared ones once.

    Raises CheckpointError if there is none.
    """
    found = _named(folder) if step is None else [place(folder, step)]
    if step is not None and found[0] not in _named(folder):
        kept = ", ".join(str(_step(path)) for path in _named(folder))
        raise CheckpointError(f"{folder}: there is no checkpoint of step {step}. Kept: {kept or 'none'}.")
    for path in reversed(found):
        if reason := problem(path):
            if step is not None:
                raise CheckpointError(f"{path}: {reason}. Choose another step.")
            continue
        saved = load_file(path / _TENSORS)
        return path / _TENSORS, {n.removeprefix("model."): t for n, t in saved.items() if n.startswith("model.")}
    raise CheckpointError(f"{folder}: there is no usable checkpoint.")


@torch.no_grad()
def load_module(folder: Path, module: nn.Module, step: int | None = None) -> int:
    """Load the module of the newest valid checkpoint, or of that of `step`; returns its step.

    Raises CheckpointError, naming what does not fit.
    """
    file, given = read_model(folder, step)
    _fill(_model_tensors(module), given, f"{file.parent}: belongs to other networks")
    return int(file.parent.name.removeprefix("step-"))


@torch.no_grad()
def load_network(folder: Path, prefixes: tuple[str, ...], module: nn.Module) -> str:
    """Load a network of the newest valid checkpoint into `module`: the first of `prefixes` that the checkpoint has.

    Returns the checkpoint's name and the checksum of its tensors. Raises CheckpointError, naming what does not fit.
    """
    file, saved = read_model(folder)
    found = [prefix for prefix in prefixes if any(name.startswith(f"{prefix}.") for name in saved)]
    if not found:
        raise CheckpointError(f"{file.parent}: has no network called {' or '.join(prefixes)}.")
    start = f"{found[0]}."
    given = {name.removeprefix(start): tensor for name, tensor in saved.items() if name.startswith(start)}
    _fill(_model_tensors(module), given, f"{file.parent}: {found[0]} is another network")
    return f"{file.parent.name} {sha256(file)}"


def _fill(own: dict[str, Tensor], given: dict[str, Tensor], refusal: str) -> None:
    """Copy tensors by name. Raises CheckpointError if one is missing, left over or of another shape."""
    wrong = [n for n in given.keys() | own.keys() if n not in given or n not in own or given[n].shape != own[n].shape]
    if wrong:
        raise CheckpointError(f"{refusal}; {min(wrong)} (and {len(wrong) - 1} more) do not fit.")
    for name, value in own.items():
        value.copy_(_like(value, given[name]))


def _tensors(module: nn.Module, optimizer: Optimizer, *, keep: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters (a shared one once), buffers, and the optimizer's state under the parameters' names.

    Those that are divided over several processes are put together on all of them, and yielded if this one keeps them.
    """

    def named() -> Iterator[tuple[str, Tensor]]:
        yield from ((f"model.{name}", value.detach()) for name, value in _model_tensors(module).items())
        for name, parameter in module.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                yield f"optimizer.{key}.{name}", value

    for name, tensor in named():
        if _is_divided(tensor):
            whole = tensor.full_tensor()  # type: ignore[attr-defined]
            if keep:
                yield name, whole.cpu()
        elif keep:
            yield name, tensor.contiguous()


def _is_divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor


def _like(target: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor, or this process's part of it if the target is divided over several; all have read the whole."""
    if not _is_divided(target):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
    return distribute_tensor(whole.to(target.device), mesh, placements, src_data_rank=None)


def _model_tensors(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True)
    buffers = {name: value for name, value in module.named_buffers() if name in persistent}
    return dict(module.named_parameters()) | buffers


@torch.no_grad()
def _restore(path: Path, saved: dict[str, Tensor], module: nn.Module, optimizer: Optimizer) -> None:
    given = {name.removeprefix("model."): tensor for name, tensor in saved.items() if name.startswith("model.")}
    _fill(_model_tensors(module), given, f"{path}: belongs to other networks")
    # torch numbers parameters group by group, and knows which state belongs on the host.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {p: n for n, p in enumerate(parameters)}
    named, state = dict(module.named_parameters()), dict[int, dict[str, Any]]()
    for key in [key for key in saved if key.startswith("optimizer.")]:
        _, kind, name = key.split(".", 2)
        if named.get(name) not in numbers:
            raise CheckpointError(f"{path}: belongs to another optimizer; it has {key}.")
        parameter, value = named[name], saved[key]
        state.setdefault(numbers[parameter], {})[kind] = _like(parameter, value) if value.ndim else value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for number, exact in state.items():  # torch has cast all of it to the type of the parameter
        held = optimizer.state[parameters[number]]
        held.update({k: v.to(held[k].device) for k, v in exact.items() if v.dtype != held[k].dtype})
