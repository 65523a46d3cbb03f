"""The run directory: what is written where, and that two processes never write at once.

config.yaml  filled in      source.yaml  as written     provenance.json  where it ran, on what
metrics.jsonl  a record a line      checkpoints/step-*/     examples.json     report.html     plugins/
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError, ConfigError, InUse


class RunDirectory:
    """A run's folder. Errors of the file system become CheckpointError, so that nothing ends in a traceback."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, out: Path | None, name: str) -> RunDirectory:
        """A new directory: `out`, which must be absent or empty, or runs/<name>/<time>-<short id>."""
        refuse_used(out)
        path = out or Path("runs") / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be created ({error.strerror}).") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run's directory. Raises ConfigError."""
        if not (path / "config.yaml").is_file() or not (path / "provenance.json").is_file():
            raise ConfigError(f"{path}: is no run directory: it has no config.yaml and provenance.json.")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory. The lock goes with the process, so a killed one leaves nothing to clean up."""
        with disk(self.path):
            lock = (self.path / ".lock").open("a+")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise InUse(f"{self.path}: is in use by process {lock.read().strip() or '?'}.") from None
            with disk(self.path):
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
            yield

    def write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / name}: cannot be read ({error}).") from None

    def keep_plugin(self, name: str, source: bytes) -> None:
        with disk(self.path):
            (self.path / "plugins").mkdir(exist_ok=True)
            (self.path / "plugins" / name).write_bytes(source)

    def append(self, record: dict[str, Any]) -> None:
        """One line of metrics.jsonl. JSON knows no NaN: what is not finite is null."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        with disk(self.metrics), self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(finite) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """metrics.jsonl; a last line that a kill cut short is left out."""
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").splitlines()
        records: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                if not isinstance(record["step"], int) or not isinstance(record["split"], str):
                    raise TypeError
            except (ValueError, TypeError, KeyError):
                if number < len(lines):
                    raise CheckpointError(f"{self.metrics}:{number}: is no record; the file is damaged.") from None
            else:
                records.append(record)
        return records

    def last_checkpoint(self) -> Path:
        """Where the checkpoint of the run's end is, or will be. Raises CheckpointError if there is no telling."""
        try:
            steps = int(self.read_json("provenance.json")["steps"])
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{self.path / 'provenance.json'}: is damaged; the run cannot be resumed.") from None
        return self.checkpoints / f"step-{steps:08d}"

    def finished(self) -> bool:
        """Whether the run came to its end: the checkpoint of it is there."""
        try:
            return (self.last_checkpoint() / "MANIFEST.json").is_file()
        except CheckpointError:
            return False

    def flush(self) -> None:
        """Bring metrics.jsonl to the disk, as a checkpoint is: it must not be behind one after a power cut."""
        if self.metrics.is_file():
            with disk(self.metrics), self.metrics.open("a") as stream:
                os.fsync(stream.fileno())

    def truncate(self, step: int) -> None:
        """Forget the records after `step`: the run goes on from there."""
        kept = [json.dumps(record) + "\n" for record in self.records() if record["step"] <= step]
        self.write("metrics.jsonl", "".join(kept))


def write_whole(path: Path, text: str) -> None:
    """The file is whole or as it was. Raises CheckpointError."""
    with disk(path):
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")  # others may write it at once
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def refuse_used(out: Path | None) -> None:
    """Raises ConfigError if `--out` is neither absent nor empty, or cannot be made."""
    if out is None:
        return
    above = next(folder for folder in (out, *out.absolute().parents) if os.path.exists(folder))
    if above != out and not above.is_dir():
        raise ConfigError(f"--out {out}: cannot be created: {above} is no folder.")
    if above == out and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"--out {out}: exists and is not empty. To go on with a run: electra-lab resume {out}. "
            "For a new one choose another folder."
        )


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """What the file system refuses, told as CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path}: cannot be written ({error.strerror}). What was saved before is intact; "
            "mend the disk and resume."
        ) from None
