"""Checkpoints: safetensors, JSON and a manifest of checksums. No pickle.

    checkpoints/step-00001000/  state.safetensors  state.json  MANIFEST.json

A checkpoint is written to a temporary folder, flushed to disk, then renamed: a folder called step-* is complete. The
manifest is verified before anything is loaded; a damaged checkpoint is reported and the one before it used.
"""

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from electra_lab.storage import files
from electra_lab.storage.files import MANIFEST, new_folder, read_as, read_json, seal
from electra_lab.storage.provenance import read_provenance
from electra_lab.storage.state import State
from registry import Objective
from registry.errors import CheckpointError, is_shortage

_NAME = re.compile(r"step-([0-9]{8,15})")
_LEFTOVER = re.compile(r"\.step-[0-9]{8,15}\.(part|old)")
_TENSORS, _STATE = "state.safetensors", "state.json"
BestUpTo = Callable[[int], int | None]  # the step whose weights are the best of those up to a step


def tensors_of(module: nn.Module, optimizer: Optimizer, *, keep: bool = True) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint: parameters, buffers, and the optimizer's state under the parameters' names.

    An objective's memory of rows follows, as `memory.*`; readers of the model alone leave it out.

    keep  False for processes that only take part in gathering divided tensors
    """
    named = {f"model.{name}": value.detach() for name, value in _model_tensors(module).items()}  # a shared one once
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            named[f"optimizer.{key}.{name}"] = value
    named |= {f"memory.{name}": value for name, value in _memory(module).items()}
    tensors = {}
    for name, tensor in named.items():
        divided = _is_divided(tensor)  # over several processes; it is put together on all of them
        whole = tensor.full_tensor() if divided else tensor  # type: ignore[attr-defined]
        if keep:
            tensors[name] = whole.cpu() if divided else whole.contiguous()
    return tensors


def not_finite(tensors: Mapping[str, Tensor], module: nn.Module) -> list[str]:
    """Return the names of the tensors with a number that is not finite, from which training cannot recover.

    Buffers of the module may be infinite, as a causal mask is.
    """
    buffers = {name for name, _ in module.named_buffers()}
    wrong = []
    for name, value in tensors.items():
        may_be_infinite = name.removeprefix("model.") in buffers
        if value.is_floating_point() and (value.isnan() if may_be_infinite else ~value.isfinite()).any():
            wrong.append(name)
    return wrong


def save(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    keep: int,
    milestones: Collection[int] = (),
    best: BestUpTo = lambda step: None,
) -> Path:
    """Write checkpoints/step-*, then remove checkpoints that `prune` does not keep, and those of later steps.

    Raises CheckpointError, losing nothing.
    """
    final = checkpoint_path(folder, step)
    try:
        sweep(folder)
        with new_folder(final) as building:  # an existing one was damaged and skipped
            text = json.dumps({"step": step, **state}, indent=1)
            (building / _STATE).write_text(text, encoding="utf-8")
            save_file(tensors, building / _TENSORS)
            (building / _TENSORS).chmod((building / _STATE).stat().st_mode)  # the library denies others access
            seal(building)
    except Exception as error:  # safetensors wraps a full disk in its own exception, so the type says little
        if is_shortage(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{final}: the checkpoint cannot be written ({reason}). Earlier ones are intact; make room and resume."
        ) from None
    remove_after(folder, step)
    prune(folder, step, keep, milestones, best)
    return final


def prune(
    folder: Path, step: int, keep: int, milestones: Collection[int] = (), best: BestUpTo = lambda step: None
) -> None:
    """Remove checkpoints up to `step` except the newest `keep`, milestones, which do not count, and the best.

    best  function from a step to the best one up to it; that of each of the newest `keep` stays, as the run may go back
    """
    ordinary = [path for path in checkpoints(folder) if _step(path) <= step and _step(path) not in milestones]
    best_steps = {best(_step(path)) for path in ordinary[-keep:]}
    _remove(folder, [path for path in ordinary[:-keep] if _step(path) not in best_steps])


def remove_after(folder: Path, step: int) -> bool:
    """Remove the checkpoints of later steps, damaged ones too; returns True if there were any."""
    later = [path for path in _named(folder) if _step(path) > step and not path.is_symlink() and _is_ours(path)]
    _remove(folder, later)
    return bool(later)


def _is_ours(path: Path) -> bool:
    return any((path / name).exists() for name in (MANIFEST, _STATE, _TENSORS))


def _remove(folder: Path, unwanted: Collection[Path]) -> None:
    for old in unwanted:
        with suppress(OSError):  # one that cannot be removed does no harm
            old.rename(old.with_name(f".{old.name}.old"))  # to remove it takes time, in which half of it would be there
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the leftovers of killed processes; the run directory is locked."""
    with suppress(OSError):
        for leftover in folder.glob(".step-*"):
            if _LEFTOVER.fullmatch(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first: the lab's own folders that have a manifest."""
    return [path for path in _named(folder) if not path.is_symlink() and (path / MANIFEST).is_file()]


def damage(path: Path, run: str | None = None) -> str | None:
    """Return the damage to a checkpoint in words, None if it is sound. That of another run counts as damaged.

    run  the id of its run, by default read from the folder
    """
    if reason := files.damage(path, (_TENSORS, _STATE)):
        return reason
    try:
        state = read_as(State, path / _STATE)
    except CheckpointError as error:
        return f"{_STATE} is damaged: {str(error).rsplit(': ', 1)[-1].rstrip('.')}"
    if state.run != (expected := _run_of(path.parent) if run is None else run):
        return f"it belongs to {state.run or 'no run'}, not to {expected or 'one here'}; it was moved or copied here"
    return None if state.step == _step(path) else f"{_STATE} is damaged: it is of step {state.step}"


def _run_of(folder: Path) -> str:
    """Return the id of the run whose checkpoints are in a folder; "" if no run has begun there."""
    return read_provenance(folder.parent).id if (folder.parent / "provenance.json").is_file() else ""


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints, ascending."""
    return [_step(path) for path in checkpoints(folder)]


def newest_sound(folder: Path) -> int | None:
    """Return the step of the newest checkpoint that is not damaged."""
    return next((_step(path) for path in reversed(checkpoints(folder)) if damage(path) is None), None)


def _named(folder: Path) -> list[Path]:
    folders = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted((path for path in folders if path == checkpoint_path(folder, _step(path))), key=_step)


def load_newest(
    folder: Path, module: nn.Module, optimizer: Optimizer, warn: Callable[[str], None], run: str | None = None
) -> dict[str, Any] | None:
    """Load the newest valid checkpoint; returns its state, None if there is no checkpoint at all.

    run  the id of their run, by default read from the folder

    Raises CheckpointError if there are some and none is usable, or if one belongs to other networks.
    """
    folders = _named(folder)
    for path in reversed(folders):
        if not (reason := damage(path, run)):
            try:
                tensors = _read(path)
                reason = f"{_TENSORS} has numbers that are not finite" if not_finite(tensors, module) else None
            except CheckpointError as error:
                reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        if reason:
            warn(f"{path}: {reason}; trying the checkpoint before it")
            continue
        _restore(path, tensors, module, optimizer)
        state: dict[str, Any] = read_json(path / _STATE)
        return state
    if folders:
        raise CheckpointError(f"{folder}: none of the {len(folders)} checkpoints is usable. Start a new run.")
    return None


def _read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint. Raises CheckpointError."""
    try:
        return load_file(path / _TENSORS)
    except MemoryError:
        raise
    except Exception as error:  # the file may be crafted, with a matching manifest
        raise CheckpointError(f"{path}: {_TENSORS} cannot be read ({error}).") from None


@dataclass(frozen=True)
class Saved:
    """The model in a checkpoint. The checkpoint may be gone by now: a running training keeps only its newest ones."""

    path: Path
    tensors: dict[str, Tensor]  # shared ones once
    sha256: str  # of the file that they were in

    @property
    def step(self) -> int:
        return _step(self.path)

    @property
    def sums(self) -> dict[str, str]:
        """The checksum by the name of the file."""
        return {f"{self.path.name}/{_TENSORS}": self.sha256}

    @torch.no_grad()
    def fill(self, module: nn.Module) -> None:
        """Copy the tensors into a module.

        Raises CheckpointError that names the tensors that do not fit or are not finite.
        """
        if wrong := not_finite(self.tensors, module):
            raise CheckpointError(
                f"{self.path / _TENSORS}: has numbers that are not finite in {wrong[0]} (and {len(wrong) - 1} more). "
                "Resume its run: it continues from the checkpoint before."
            )
        _fill(_model_tensors(module), self.tensors, f"{self.path}: belongs to other networks")


def read_model(folder: Path, step: int | None = None) -> Saved:
    """Return the model of the newest checkpoint, or of that of `step`.

    If its run removes the newest one meanwhile, the one that has become the newest is read. Raises CheckpointError if
    there is none, or if it is damaged: an older one would be another model.
    """
    chosen = _chosen(folder, step)
    while True:
        try:
            return _sound(chosen[0])
        except CheckpointError:
            before, chosen = chosen, _chosen(folder, step)
            if chosen == before:
                raise


def _chosen(folder: Path, step: int | None) -> tuple[Path, int | None]:
    """Return a checkpoint and the time when it was written, which changes if it is written again."""
    folders = _named(folder)
    if step is not None and checkpoint_path(folder, step) not in folders:
        steps = ", ".join(str(_step(path)) for path in folders)
        raise CheckpointError(f"{folder}: there is no checkpoint of step {step}. Kept: {steps or 'none'}.")
    if not folders:
        raise CheckpointError(f"{folder}: there is no checkpoint.")
    path = folders[-1] if step is None else checkpoint_path(folder, step)
    with suppress(OSError):
        return path, path.lstat().st_mtime_ns
    return path, None


def _sound(path: Path) -> Saved:
    if reason := damage(path):
        there = _named(path.parent)
        sound = [str(_step(other)) for other in there if damage(other) is None]
        others = f"Sound are those of the steps {', '.join(sound)}" if sound else "No other is sound"
        cure = "; resume its run to write it again" if sound and path == there[-1] else ""
        raise CheckpointError(f"{path}: {reason}. {others}{cure}.")
    tensors = {name.removeprefix("model."): t for name, t in _read(path).items() if name.startswith("model.")}
    return Saved(path, tensors, read_json(path / MANIFEST)[_TENSORS]["sha256"])


def _fits(source: Tensor, target: Tensor) -> bool:
    return source.shape == target.shape and source.dtype == target.dtype


def _fill(targets: dict[str, Tensor], sources: dict[str, Tensor], refusal: str) -> None:
    """Copy tensors by name. Raises CheckpointError if they do not fit."""
    _refuse_others(targets, sources, refusal)
    for name, target in targets.items():
        target.copy_(_like(target, sources[name]))


def _refuse_others(targets: Mapping[str, Tensor], sources: dict[str, Tensor], refusal: str) -> None:
    """Raise CheckpointError if a tensor is missing, left over, or of another shape or type."""
    wrong = targets.keys() ^ sources.keys()
    wrong |= {name for name in targets.keys() & sources.keys() if not _fits(sources[name], targets[name])}
    if wrong:
        raise CheckpointError(f"{refusal}; {min(wrong)} (and {len(wrong) - 1} more) do not fit.")


def _is_divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor


def _like(target: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor, or this process's part of it if the target is sharded; every process has read all of it."""
    if not _is_divided(target):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = target.device_mesh, target.placements  # type: ignore[attr-defined]
    return distribute_tensor(whole.to(target.device), mesh, placements, src_data_rank=None)


def _model_tensors(module: nn.Module) -> dict[str, Tensor]:
    persistent = module.state_dict(keep_vars=True)
    buffers = {name: value for name, value in module.named_buffers() if name in persistent}
    return dict(module.named_parameters()) | buffers


def _memory(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the memory of an objective that remembers rows."""
    return module.row_memory if isinstance(module, Objective) else {}


@torch.no_grad()
def _restore(path: Path, saved: dict[str, Tensor], module: nn.Module, optimizer: Optimizer) -> None:
    sources = {name.removeprefix("model."): tensor for name, tensor in saved.items() if name.startswith("model.")}
    targets, refusal = _model_tensors(module), f"{path}: belongs to other networks"
    _refuse_others(targets, sources, refusal)
    row_memory = {name.removeprefix("memory."): tensor for name, tensor in saved.items() if name.startswith("memory.")}
    _refuse_others(_memory(module), row_memory, f"{path}: has a memory of other rows")
    # torch numbers parameters group by group, and knows which state belongs on the host.
    parameters = _parameters(optimizer)
    numbers = {p: n for n, p in enumerate(parameters)}
    named, state = dict(module.named_parameters()), dict[int, dict[str, Any]]()
    _take_a_step(optimizer)  # creates the state; its numbers are overwritten
    for key in [key for key in saved if key.startswith("optimizer.")]:
        kind, _, name = key.removeprefix("optimizer.").partition(".")
        parameter, value = named.get(name), saved[key]
        moment = None if parameter is None or parameter not in numbers else optimizer.state[parameter].get(kind)
        if parameter is None or moment is None or not _fits(value, moment):
            raise CheckpointError(f"{path}: belongs to another optimizer; it has {key}.")
        exact = _like(parameter, value) if value.ndim else value
        state.setdefault(numbers[parameter], {})[kind] = exact.to(moment.device)
    stateful = [p for p in parameters if optimizer.state[p]]
    partly = [n for n, kinds in state.items() if kinds.keys() != optimizer.state[parameters[n]].keys()]
    if partly or (stateful and not state and _step(path)):
        raise CheckpointError(f"{path}: lacks a part of the optimizer's state.")
    _fill(targets, sources, refusal)
    for name, memory in _memory(module).items():
        memory.copy_(row_memory[name])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for number, kinds in state.items():  # torch has cast some of it to the type and the device of the parameter
        optimizer.state[parameters[number]].update(kinds)


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _take_a_step(optimizer: Optimizer) -> None:
    """Let the optimizer create its state by a step whose results are discarded: weights and state are loaded next."""
    for parameter in _parameters(optimizer):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
