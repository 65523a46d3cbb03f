"""Clean: files and folders that nothing needs below a folder, and their removal."""

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError

from electra_lab.data.store import is_store, lock_of
from electra_lab.storage.ablation_folder import is_ablation_folder
from electra_lab.storage.catalog import is_held
from electra_lab.storage.checkpoint import checkpoint_path, newest_sound, steps
from electra_lab.storage.files import disk, lock, read_as, read_yaml, reason, refuse_unusable
from electra_lab.storage.finetuning_folder import is_finetuning, is_seed
from electra_lab.storage.provenance import flat, read_provenance
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry.errors import CheckpointError, ConfigError, InUse

STORE, CHECKPOINT, LEFTOVER, DAMAGED = "unused token store", "older checkpoint", "leftover", "set aside as damaged"
OLD = 3600.0  # seconds without a change, after which no process is about to use a store, or is writing a file
DAMAGED_FOLDER = "damaged"  # of an ablation
_KEY, _UNFINISHED = re.compile("[0-9a-f]{16}"), re.compile(r"\.(.+)\.(part|old)")


@dataclass(frozen=True)
class Removable:
    """A file or folder that nothing needs."""

    path: Path
    kind: str
    bytes: int


def clean(root: Path, *, remove: bool = False) -> list[Removable]:
    """Return the files and folders that no job needs, or those that were removed. Links are not followed.

    These are token stores that no run there uses, checkpoints that are neither the newest, the best nor milestones, and
    leftovers of killed processes; but nothing that a process holds. Raises ConfigError, CheckpointError.
    """
    refuse_unusable(root)
    if not root.is_dir():
        raise ConfigError(f"{root}: is not a folder. Give the folder of your runs.")
    folders, places = list[Path](), [root]
    for folder, below, _ in os.walk(root):
        folders.append(Path(folder))
        places += [Path(folder, name) for name in below]
    for linked in [place for place in places if place.is_symlink() and _is_job(place)]:  # their stores stay too
        places += [Path(folder) for folder, _, _ in os.walk(linked)]
    used = {read_provenance(place).data.store for place in places if is_run(place)}
    named = set[int]().union(*map(_named_steps, {*folders, *places}))
    # Jobs in progress, such as an ablation of which a process has claimed a part.
    busy = [job for job in folders if is_held(job / ".lock") or any(map(is_held, (job / "claims").glob("*")))]
    removable = list[Removable]()
    for path in folders:
        if not any(path.is_relative_to(job) for job in busy):
            has_checkpoints = is_run(path) and DAMAGED_FOLDER not in path.relative_to(root).parts
            removable += _checkpoints(path, named) if has_checkpoints else ()
            removable += _others(path, used)
    return [item for item in removable if not remove or _is_removed(item, named)]


def _named_steps(folder: Path) -> set[int]:
    """Return the steps of other runs that a job names. Raises CheckpointError for a file that cannot be read."""
    if not _is_job(folder):
        return set()
    files = [folder / name for name in ("finetuning.yaml", "config.yaml")] + [*(folder / "plan").glob("*.yaml")]
    steps = set[int]()
    for file in files:
        try:
            keys = flat(read_yaml(file)) if file.is_file() else {}
        except (OSError, YAMLError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file}: cannot be read ({reason(error)}); it may name steps of runs.") from None
        steps |= {value for key, value in keys.items() if key.split(".")[-1] == "step" and type(value) is int}
    return steps


def _checkpoints(run: Path, named: Set[int]) -> Iterator[Removable]:
    folder = run / "checkpoints"
    newest = None if folder.is_symlink() else newest_sound(folder)
    if newest is None:
        return
    best = read_as(dict[str, Any], run / "best.json") if (run / "best.json").is_file() else {}
    needed = {newest, best.get("step"), *read_provenance(run).milestones.values(), *named}
    for step in steps(folder):
        if step < newest and step not in needed:
            yield _sized(checkpoint_path(folder, step), CHECKPOINT)


def _is_job(folder: Path) -> bool:
    return is_run(folder) or is_finetuning(folder) or is_ablation_folder(folder)


def _others(folder: Path, used: set[str]) -> Iterator[Removable]:
    of_job = any(map(_is_job, (folder, *folder.parents)))
    of_run = folder.name == "checkpoints"  # elsewhere, the older version may have to come back
    stores = {path for path in folder.iterdir() if _KEY.fullmatch(path.name) and is_store(path)}
    for path in sorted(folder.iterdir()):
        unfinished = _UNFINISHED.fullmatch(path.name)
        final = path.with_name(unfinished[1]) if unfinished else path
        if path.is_symlink() or time.time() - path.stat().st_mtime < OLD or is_held(lock_of(final)):
            continue
        if path in stores and path.name not in used:
            yield _sized(path, STORE)
        elif folder.name == DAMAGED_FOLDER and is_ablation_folder(folder.parent):
            yield _sized(path, DAMAGED)
        elif unfinished and (of_job or stores) and (unfinished[2] == "part" or final.exists() or of_run):
            yield _sized(path, LEFTOVER)


def _sized(path: Path, kind: str) -> Removable:
    files = [file for file in path.rglob("*") if not file.is_dir()] or [path]
    return Removable(path, kind, sum(file.lstat().st_size for file in files))


def _is_removed(item: Removable, named: Set[int]) -> bool:
    """Remove something, unless it is in use now: it gets another name first, so that a kill leaves no half of it."""
    path = item.path
    run = path.parents[1]
    with suppress(InUse), disk(path):
        if item.kind == CHECKPOINT:
            with RunDirectory(run.parent if is_seed(run) else run).locked():
                if item in _checkpoints(run, named):
                    _remove(path)
        elif item.kind == STORE:
            with lock(lock_of(path)) as is_free:
                if is_free:
                    _remove(path)
                    lock_of(path).unlink(missing_ok=True)
        else:
            _remove(path)
    return not os.path.lexists(path)


def _remove(path: Path) -> None:
    if not os.path.lexists(path):  # to hold a run cleans up after it
        return
    aside = path.rename(path.with_name(f".{path.name.lstrip('.')}.{uuid.uuid4().hex[:8]}.part"))
    shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
