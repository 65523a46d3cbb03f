"""The folders of jobs below a folder, and the end of their records, read without torch: hundreds in a second."""

import json
import mmap
import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from electra_lab.storage.files import open_regular, reading, reason, refuse_unusable
from electra_lab.storage.provenance import refuse_other
from registry.errors import CheckpointError, ConfigError

Kind = Literal["run", "fine-tuning", "ablation"]
DIVERGED = "diverged.json"  # in a run directory, why its training ended; resuming removes it
EVALUATIONS = b'"split": "test"', b'"split": "validation"'  # the first goes before the second
HEAD = "run"  # the split of the first line of metrics.jsonl, which has the id of the run
TAIL = 1 << 13  # bytes at the end of metrics.jsonl


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
    """Return a hint for an error: a run or fine-tuning in a folder that is none itself, or next to one that is missing.

    It is the one with a similar name, otherwise the newest by the time at which it was made.
    """
    exists = os.path.isdir(folder)
    place = folder if exists else folder.parent
    try:
        kinds = {below: _kind({*os.listdir(below)}) for below in place.iterdir() if below.is_dir()}
        found = {below.name: _made(below) for below, kind in kinds.items() if kind in ("run", "fine-tuning")}
    except OSError:
        return ""
    if close := get_close_matches(folder.name, [] if exists else found, n=1):
        return f" Did you mean {place / close[0]}?"
    return f" Did you mean {place / max(found, key=lambda name: found[name])}, the newest there?" if found else ""


def _made(job: Path) -> float:
    """Return when a job began: its first file is written once. The time of the folder is that of the last one."""
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


def head_of(line: str | bytes) -> str | None:
    """Return the id in the first line of metrics.jsonl; None if the line is a record."""
    record = _record(line)
    return str(record.get("id")) if record and record["split"] == HEAD else None


def last_records(file: Path, id: str | None = None) -> list[dict[str, Any]]:
    """Return the last records of metrics.jsonl, after the last test, or evaluation, that is not among them.

    Raises CheckpointError for a line that is not a record, unless it is the last, which a kill cut short, and for the
    records of another run than that of `id`.
    """
    try:
        with open_regular(file) as stream:
            head = head_of(stream.readline(TAIL))
            if id is not None and head is not None:
                refuse_other(file, head, id)
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - TAIL))
            tail = stream.read(TAIL)
            if size > TAIL:  # its first line may be cut
                tail = tail.partition(b"\n")[2]
                if EVALUATIONS[0] not in tail:
                    tail = _last_evaluation(stream, size - len(tail)) + b"\n" + tail
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({reason(error)}).") from None
    found = [_record(line) for line in tail.split(b"\n") if line.strip()]
    records = [record for record in found if record is not None]
    lost = len(found) - len(records)
    records = [record for record in records if record["split"] != HEAD]
    if lost > (found[-1:] == [None]):
        raise CheckpointError(f"{file}: has a line that is not a record; the file is damaged.")
    return records


def _last_evaluation(stream: Any, before: int) -> bytes:
    """Return the line of the last evaluation in the first bytes of a long file; b"" if there is none."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for split in EVALUATIONS:
            at = text.rfind(split, 0, before)
            if at >= 0:
                return text[text.rfind(b"\n", 0, at) + 1 : text.find(b"\n", at)]
    return b""


def _record(line: str | bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(record, dict) and isinstance(record.get("step"), int) and isinstance(record.get("split"), str)
    return record if known else None


def refuse_to_hold(out: Path | None, store: Path) -> None:
    """Raise ConfigError if the token stores, which other runs share, would lie inside `--out`."""
    if out is not None and store.absolute().is_relative_to(out.absolute()):
        raise ConfigError(
            f"--out {out}: holds the token stores (data.store: {store}). Choose another folder, such as {out / 'NAME'}."
        )
