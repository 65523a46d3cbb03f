"""The folders of jobs below a folder, read without torch: hundreds in a second."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from electra_lab.storage.files import reading, reason, refuse_unusable
from registry.errors import ConfigError

Kind = Literal["run", "fine-tuning", "ablation"]
DIVERGED = "diverged.json"  # in a run directory, why its training ended; resuming removes it


def find(root: Path) -> Iterator[tuple[Path, Kind | None, str]]:
    """Yield the folder, the kind and an error of each job at or below a folder; nothing inside a job is listed.

    Links below it are not followed. A folder that cannot be read has no kind, but an error, and comes last. Raises
    ConfigError if there is no such folder.
    """
    refuse_unusable(root)
    if not root.is_dir():
        raise ConfigError(f"{root}: is not a folder. Give the folder of your runs.")
    unreadable = list[OSError]()
    for folder, below, files in os.walk(root, onerror=unreadable.append):
        if kind := _kind({*below, *files}):
            yield Path(folder), kind, ""
            below.clear()
        below[:] = [name for name in below if not name.startswith(".")]
    for error in unreadable:
        yield Path(error.filename), None, f"{error.filename}: cannot be read ({reason(error)})."


def jobs_in(folder: Path) -> str:
    """Return a hint for an error: a run or fine-tuning inside a folder of another kind, or next to a missing one.

    The one with a similar name, otherwise the newest.
    """
    exists = os.path.isdir(folder)
    place = folder if exists else folder.parent
    try:
        kinds = {below: _kind({*os.listdir(below)}) for below in place.iterdir() if below.is_dir()}
        times = {below.name: _made(below) for below, kind in kinds.items() if kind in ("run", "fine-tuning")}
    except OSError:
        return ""
    if close := get_close_matches(folder.name, [] if exists else times, n=1):
        return f" Did you mean {place / close[0]}?"
    return f" Did you mean {place / max(times, key=lambda name: times[name])}, the newest there?" if times else ""


def _made(job: Path) -> float:
    """Return the time at which a job began, that of its first file: the time of the folder is that of the last one."""
    first = job / "source.yaml"
    return (first if first.is_file() else job).stat().st_mtime


def _kind(names: set[str]) -> Kind | None:
    if "plan.json" in names:
        return "ablation"
    if "finetuning.yaml" in names:
        return "fine-tuning"
    begun = ".lock" in names and not names.isdisjoint({"source.yaml", "config.yaml", "metrics.jsonl"})
    return "run" if begun or "provenance.json" in names else None


def is_held(lock: Path) -> bool:
    """Return True if another process holds a lock file."""
    with reading(lock) as free:
        return not free


def has_diverged(job: Path) -> bool:
    """Return True if a run, or a seed of a fine-tuning, ended because it diverged."""
    return any((folder / DIVERGED).is_file() for folder in (job, *job.glob("seed-*")))
