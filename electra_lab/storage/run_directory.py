"""The run directory: its files, and the lock that keeps two processes from writing at once.

config.yaml  complete       source.yaml  as written     provenance.json  where it ran, on what
metrics.jsonl  the id of the run, then a record per line     checkpoints/step-*/     examples.json     report.html
plugins/  copies            best.json  the checkpoint with the best validation
tokenizer.json      vocabulary.safetensors  how often each token occurs in the training text
diverged.json  why the training ended, until it is resumed
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors.torch import load, save
from torch import Tensor

from electra_lab.storage.catalog import DIVERGED, jobs_in
from electra_lab.storage.checkpoint import checkpoint_path, remove_after, steps, sweep
from electra_lab.storage.files import (
    MANIFEST,
    Hold,
    config_of,
    disk,
    flush,
    load_tokenizer,
    lock,
    new_file,
    open_regular,
    read_bytes,
    read_json,
    reading,
    reason,
    refuse_unusable,
    sha256,
    write_whole,
)
from electra_lab.storage.provenance import FORMAT, Code, Provenance, changes, described, read_provenance, refuse_other
from electra_lab.storage.records import HEAD, LARGEST, Best, head_of, ranked, record_of
from registry.errors import CheckpointError, ConfigError, InUse, command

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_COUNTS, _SAVED = "vocabulary.safetensors", "saved.json"
_MOST_RECORDS = 1 << 30  # bytes of metrics.jsonl
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.part")  # files that a killed process was writing, see new_file
# How the page of a job begins that is not at its end, see presentation/page.html.j2.
UNFINISHED = '<!doctype html>\n<html lang="en" class="unfinished">'
# Files computed from the last weights; an ablation's measures are among them.
_DERIVED = ("report.html", "examples.json", "measures.json", "best.json")
# Files that a run directory may have before its provenance.json, which comes last: none would be missed.
_BEGINNING = {".lock", "source.yaml", "config.yaml", "plugins", "tokenizer.json", _COUNTS}


class RunDirectory:
    """The folder of a run. Errors of the file system become CheckpointError, so that nothing ends in a traceback.

    While it is held, nobody else writes, so that provenance.json and metrics.jsonl are read once.
    """

    def __init__(self, path: Path) -> None:
        refuse_unusable(path)
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self._hold(None)

    @classmethod
    def create(cls, out: Path | None, name: str) -> Self:
        """Create a new directory: `out`, which must be absent or empty, or runs/<name>/<time>-<short id>."""
        refuse_used(out)
        path = out or Path("runs") / name / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be created ({error.strerror}).") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of an existing run. Raises ConfigError."""
        if (path / ".lock").is_file() and is_unfinished_start(path):
            raise ConfigError(
                f"{path}: is not a run directory yet: the run was stopped before it began, and nothing is lost. Start "
                f"it again: {command('run', 'FILE', '--out', path)}"
            )
        if not is_run(path):
            others = jobs_in(path)
            raise ConfigError(f"{path}: is not a run directory: it has no config.yaml and provenance.json.{others}")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory. Raises InUse if another process does."""
        file = self.path / ".lock"
        with ExitStack() as stack:
            with disk(file):
                if not (hold := stack.enter_context(lock(file))):
                    raise self._in_use()
                with open_regular(file, os.O_WRONLY | os.O_TRUNC) as stream:
                    stream.write(str(os.getpid()).encode())
            with suppress(OSError):  # leftovers do no harm
                for leftover in unfinished(self.path):
                    leftover.unlink(missing_ok=True)
            self._hold(hold)
            try:
                yield
            finally:
                self._hold(None)

    def _hold(self, lock: Hold | None) -> None:
        """Begin or end to hold the directory."""
        self.lock = lock
        self._size = self.metrics.stat().st_size if lock and self.metrics.is_file() else 0
        self._provenance: Provenance | None = None
        self._records: list[dict[str, Any]] | None = None

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Keep others from changing it, without writing into it. Raises InUse if another process holds it."""
        with reading(self.path / ".lock") as free:
            if not free:
                raise self._in_use()
            yield

    def refuse_intruders(self) -> None:
        """Raise CheckpointError if another process has replaced the lock, or has changed metrics.jsonl."""
        if self.lock is None:
            return
        self.lock.refuse_lost()
        size = self.metrics.stat().st_size if self.metrics.exists() else 0
        if size != self._size:
            raise CheckpointError(
                f"{self.metrics}: has {size:,} bytes, but the run has written {self._size:,}: it was changed while the "
                f"run trained. Nothing more was saved. Resume from the last checkpoint: {command('resume', self.path)}"
            )

    def _in_use(self) -> InUse:
        with open_regular(self.path / ".lock") as stream:
            holder = stream.read(20).decode(errors="replace").strip()
        return InUse(f"{self.path}: is in use by process {holder or '?'}.")

    def write(self, name: str, text: str) -> None:
        if name == "provenance.json":
            self._provenance = None
        write_whole(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        return read_json(self.path / name)

    def plugin(self, code: Code) -> Path:
        """Return the place of the copy of a plug-in."""
        return self.path / "plugins" / code.copy_name

    def keep_plugin(self, code: Code, source: bytes) -> None:
        with disk(self.path):
            (self.path / "plugins").mkdir(exist_ok=True)
            with new_file(self.plugin(code), "wb") as stream:
                stream.write(source)

    def keep_tokens(self, tokenizer: Tokenizer, counts: Tensor, id: str) -> None:
        """Keep the tokenizer, and how often each token occurs in the training text: the model is read with them.

        id  id of the run
        """
        self.write("tokenizer.json", tokenizer.to_str())
        whose = {"run": id, "tokenizer": sha256(self.path / "tokenizer.json")}
        with disk(self.path), new_file(self.path / _COUNTS, "wb") as stream:
            stream.write(save({"counts": counts.cpu()}, whose))

    def tokens(self) -> tuple[Tokenizer, Tensor]:
        """Return the tokenizer and the counts that `keep_tokens` wrote. Raises CheckpointError."""
        try:
            tokenizer = load_tokenizer(self.path / "tokenizer.json")
            content = read_bytes(self.path / _COUNTS)
            counts = load(content)["counts"]
            whose = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
            if whose != {"run": self.provenance().id, "tokenizer": sha256(self.path / "tokenizer.json")}:
                raise ValueError("tokenizer.json or vocabulary.safetensors belongs to another run")
            return tokenizer, counts
        except MemoryError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exception
            cure = f"If its token store is still there, this restores them: {command('resume', self.path)}"
            raise CheckpointError(f"{self.path}: its tokenizer cannot be read ({reason(error)}). {cure}") from None

    def append(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl. JSON has no NaN: numbers that no chart could show become null, too."""
        finite = {k: None if isinstance(v, float) and not -LARGEST < v < LARGEST else v for k, v in record.items()}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        line = f"{self._head() if self.lock and not self._size else ''}{json.dumps(finite)}\n".encode()
        self.refuse_intruders()
        with disk(self.metrics), open_regular(self.metrics, flags) as stream:
            stream.write(line)
        self._size += len(line)
        if self._records is not None:
            self._records.append(finite)

    def records(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl, without a last line that a kill cut short. Raises CheckpointError."""
        if self._records is not None:
            return list(self._records)
        lines = list(self._lines())
        for number, record in lines[:-1]:
            if record is None:
                raise CheckpointError(f"{self.metrics}:{number}: is not a record; the file is damaged.")
        records = [record for _, record in lines if record is not None]
        if self.lock:
            self._records = records
        return list(records)

    def _head(self) -> str:
        """Return the first line of metrics.jsonl, which says whose records follow."""
        return json.dumps({"step": 0, "split": HEAD, "id": self.provenance().id}) + "\n"

    def _lines(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield the number and the record of each line, None for one that is not a record."""
        try:
            with open_regular(self.metrics) as stream:
                if os.fstat(stream.fileno()).st_size > _MOST_RECORDS:
                    raise OSError(None, f"it is larger than {_MOST_RECORDS:,} bytes")
                lines = stream.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{self.metrics}: cannot be read ({reason(error)}).") from None
        head = head_of(lines[0]) if lines else None
        if head is not None:
            refuse_other(self.metrics, head, self.provenance().id)
        for number, line in list(enumerate(lines, start=1))[head is not None :]:
            yield number, record_of(line)

    def provenance(self) -> Provenance:
        """Read provenance.json. Raises CheckpointError."""
        if self._provenance is not None:
            return self._provenance
        provenance = read_provenance(self.path)
        if self.lock:
            self._provenance = provenance
        return provenance

    def refuse_other_config(self) -> None:
        """Raise ConfigError if config.yaml is not the one that provenance.json names, or that of an earlier change."""
        began, file = self.provenance(), self.path / "config.yaml"
        if sha256(file) not in {began.config_sha256, *(change.config_sha256 for change in began.changes)}:
            diff = described(changes(began.config, config_of(file)))
            raise ConfigError(
                f"{file}: has changed since the run began{f' ({diff})' if diff else ''}. Undo the change. To change "
                f"a key on resume: {command('resume', self.path, '--set', 'KEY=VALUE')}."
            )

    def refuse_other_format(self, provenance: Provenance) -> None:
        """Raise CheckpointError if another version of the lab wrote the run in a way that this one could misread."""
        if provenance.format != FORMAT:
            raise CheckpointError(
                f"{self.path}: was written by electra_lab {provenance.electra_lab} in format {provenance.format}; this "
                f"version reads format {FORMAT}. Use that version, or start a new run."
            )

    def last_checkpoint(self) -> Path:
        """Return the path of the final checkpoint, there or not. Raises CheckpointError if it cannot be known."""
        return checkpoint_path(self.checkpoints, self.provenance().steps)

    def finished(self) -> bool:
        """Return True if the run came to its end: its final checkpoint and its last report are there."""
        try:
            with open_regular(self.path / "report.html") as page:
                whole = page.read(len(UNFINISHED)) != UNFINISHED.encode()
            return whole and (self.last_checkpoint() / MANIFEST).is_file()
        except (OSError, CheckpointError):
            return False

    def best_checkpoint(self) -> Best | None:
        """Return the best checkpoint that a run of pre-training keeps. Raises CheckpointError if files are damaged."""
        provenance, saved = self.provenance(), steps(self.checkpoints)
        chosen = provenance.config.get("checkpoint", {}).get("best")
        validations = ranked(self.records(), chosen, provenance.metrics)
        return min((best for best in validations if best.step in saved), default=None)

    def has_checkpoint(self, step: int) -> bool:
        return (checkpoint_path(self.checkpoints, step) / MANIFEST).is_file()

    def lost_checkpoints(self) -> bool:
        """Return True if checkpoints were saved, but none is there."""
        return (self.path / _SAVED).is_file() and not any(self.checkpoints.glob("step-*"))

    def forget_lost_checkpoints(self) -> None:
        """Let a run whose checkpoints are gone begin again."""
        if self.lost_checkpoints():
            with disk(self.path):
                (self.path / _SAVED).unlink(missing_ok=True)

    def refuse_lost_checkpoints(self) -> None:
        """Remove the remains of killed processes. Raises CheckpointError if all saved checkpoints are gone."""
        if self.lost_checkpoints():
            raise CheckpointError(
                f"{self.checkpoints}: is empty or missing, but this run has saved checkpoints. Is their disk "
                "mounted, or were they left out of a copy? Nothing was changed. To train again from the beginning: "
                f"{command('run', self.path / 'config.yaml')}"
            )
        sweep(self.checkpoints)

    def mark_saved(self, step: int) -> None:
        """Note, outside of the folder of checkpoints, that one was saved."""
        self.write_json(_SAVED, {"step": step})

    def note_divergence(self, error: str) -> None:
        """Note why the training ended, until it is resumed."""
        self.write_json(DIVERGED, {"error": error})

    def flush(self) -> None:
        """Bring metrics.jsonl to the disk: after a power cut it must not be behind a checkpoint."""
        if self.metrics.is_file():
            with disk(self.metrics):
                flush(self.metrics)

    def mend(self, say: Callable[[str], None]) -> None:
        """Remove the lines of metrics.jsonl that are not records, and keep a copy of the original file."""
        try:
            self.records()
        except CheckpointError as error:
            with disk(self.metrics):
                damaged = self.metrics.with_name("metrics.damaged.jsonl")
                with open_regular(self.metrics) as source, new_file(damaged, "wb") as copy:
                    shutil.copyfileobj(source, copy)
            say(f"note: {error} Its other records are kept; the file as it was is {damaged.name}")
            self._replace_records([record for _, record in self._lines() if record])

    def truncate(self, step: int, *, evaluated: bool = True) -> None:
        """Let the history of the run end with `step`, from which it continues.

        Later checkpoints and records go, and those of evaluations of `step` that are still to be done. If there were
        any, they are of another continuation, and so is all that was computed from its weights.
        """
        records = self.records()
        with disk(self.path):
            (self.path / DIVERGED).unlink(missing_ok=True)
        tested = step if evaluated else step - 1  # the last step whose evaluations stay
        remaining = [record for record in records if record["step"] <= (step if record["split"] == "train" else tested)]
        if remove_after(self.checkpoints, step) or len(remaining) < len(records):
            with disk(self.path):
                for name in _DERIVED:
                    (self.path / name).unlink(missing_ok=True)
        self._replace_records(remaining)

    def _replace_records(self, records: list[dict[str, Any]]) -> None:
        text = (self._head() if self.lock else "") + "".join(json.dumps(record) + "\n" for record in records)
        self.write("metrics.jsonl", text)
        self._records, self._size = records if self.lock else None, len(text.encode())


def unfinished(path: Path) -> list[Path]:
    """Return the files that a killed process was writing."""
    return [file for file in path.glob(".*.part") if _UNFINISHED.fullmatch(file.name) and file.is_file()]


def is_unfinished_start(path: Path) -> bool:
    """Return True for an empty folder, and for one of a run that was killed before it had begun."""
    names = {file.name for file in path.iterdir()} - {file.name for file in unfinished(path)}
    return not names or (".lock" in names and names <= _BEGINNING)  # the lock tells it from a user's own folder


def is_run(path: Path) -> bool:
    return all((path / name).is_file() for name in ("config.yaml", "provenance.json"))


def refuse_used(out: Path | None) -> None:
    """Raise ConfigError if `--out` is neither absent nor empty, or cannot be created."""
    if out is None:
        return
    refuse_unusable(out)
    above = next(folder for folder in (out, *out.absolute().parents) if os.path.exists(folder))
    if above != out and not above.is_dir():
        raise ConfigError(f"--out {out}: cannot be created: {above} is not a folder.")
    if above == out and (not out.is_dir() or not is_unfinished_start(out)):
        is_seed = (out.absolute().parent / "finetuning.yaml").is_file()  # which resumes with the others
        resumes = (is_run(out) and not is_seed) or (out / "finetuning.yaml").is_file()
        again = f" or continue it: {command('resume', out)}" if resumes else "."
        raise ConfigError(f"--out {out}: exists and is not empty. Choose another folder{again}")


def refuse_to_hold(out: Path | None, store: Path) -> None:
    """Raise ConfigError if the token stores, which other runs share, would lie inside `--out`."""
    if out is not None and store.absolute().is_relative_to(out.absolute()):
        raise ConfigError(
            f"--out {out}: holds the token stores (data.store: {store}). Choose another folder, such as {out / 'NAME'}."
        )
