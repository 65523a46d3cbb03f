"""The token store: a corpus tokenized once, and identified by its content.

    <store>/<key>/  manifest.json  tokenizer.json  counts.npy  train-00000.bin  train-00000.lengths.npy  ...

Each .bin is a flat stream of token ids with [SEP] after every document, memory-mapped when read. A store is built in
another folder and renamed, so that it exists completely or not at all. Under a lock one process builds it while others
wait. Nothing in it depends on the machine, so the folder may be copied to another.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.data.build import COUNTS, MANIFEST, Manifest, Recipe, Unfinished, build
from electra_lab.data.raw_documents import Progress
from electra_lab.data.rows import REBUILD, Stream
from electra_lab.data.shards import TOKENIZER
from electra_lab.data.splits import SPLITS
from electra_lab.data.vocabulary import special_ids, unknown_id
from electra_lab.storage.files import Unreadable, load_tokenizer, lock, put_in_place, read_as, restore, write_whole
from registry import Split
from registry.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 2  # raise it when the same inputs would give another store
ELSEWHERE = "Name another folder for token stores: --set data.store=FOLDER"


@dataclass(frozen=True)
class Store:
    """A tokenized corpus."""

    key: str
    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    train: Stream
    validation: Stream
    test: Stream
    counts: NDArray[np.int64]  # of each token in the training split, [V]

    @property
    def documents(self) -> dict[str, int]:
        """The number of documents of each split."""
        return self._sums("documents")

    @property
    def tokens(self) -> dict[str, int]:
        """The number of tokens of each split, separators included."""
        return self._sums("tokens")

    def _sums(self, field: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for split in SPLITS:
            sums[split] = sum(getattr(shard, field) for shard in self.manifest.shards[split].values())
        return sums

    @property
    def special(self) -> dict[str, int]:
        """The ids of the special tokens by role: pad, cls, sep, mask."""
        return special_ids(self.tokenizer)

    @property
    def unknown(self) -> tuple[float, float]:
        """The shares of the training tokens, and of their characters without white space, that are unknown."""
        train, id = self.manifest.shards["train"].values(), unknown_id(self.tokenizer)
        tokens = sum(shard.tokens - shard.documents for shard in train)  # without [SEP]
        number = 0 if id is None else int(self.counts[id])
        characters = sum(shard.unknown or 0 for shard in train) / max(1, sum(shard.visible or 0 for shard in train))
        return number / tokens, min(1.0, characters)

    @property
    def unknown_text(self) -> str:
        return "{:.2%} of the training tokens and {:.2%} of the characters are unknown".format(*self.unknown)

    @property
    def overlap(self) -> float:
        """The share of the runs of 13 tokens in held-out text that also occur in training text."""
        return self.manifest.overlap


def open_store(
    root: Path,
    recipe: Recipe,
    announce: Callable[[str], None],
    progress: Progress = lambda *_: None,
    *,
    rebuild: bool = False,
) -> Store:
    """Open the store of this corpus and tokenizer, and build it if it does not exist. Raises DataError."""
    folder = root / key_of(recipe.identity)
    if rebuild or not os.path.exists(folder):
        _build(folder, recipe, announce, progress, rebuild=rebuild)
    elif os.path.exists(lock_of(folder)):
        # If nobody holds the lock, its process was killed when the store was complete.
        with suppress(OSError, ConfigError), lock(lock_of(folder)) as free:
            if free:
                lock_of(folder).unlink(missing_ok=True)
    return load_store(folder)


def key_of(identity: dict[str, Any]) -> str:
    """Return the key of a store, which names its folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_store(folder: Path) -> bool:
    """Return True if a folder holds a store, also a damaged one; a tokenizer alone may be there for other reasons."""
    return any(map(os.path.exists, (folder / MANIFEST, folder / COUNTS, *folder.glob("*-00000.lengths.npy"))))


def read_manifest(folder: Path, cure: str = REBUILD) -> Manifest:
    """Read the manifest of a store. Raises DataError that ends with `cure`."""
    try:
        return read_as(Manifest, folder / MANIFEST)
    except Unreadable as error:
        raise DataError(str(error)) from None
    except CheckpointError as error:
        raise DataError(f"the token store is damaged: {error} {cure}") from None


def load_store(folder: Path, cure: str = REBUILD, *, verify: bool = True) -> Store:
    """Open a store, and verify it if that has not been done on this machine. Raises DataError that ends with `cure`."""
    manifest = read_manifest(folder, cure)
    try:
        _allow_open_files(sum(map(len, manifest.shards.values())))
        if verify:
            _verify(folder, manifest)
        streams = {split: _stream(folder, manifest, split) for split in SPLITS}
        tokenizer = load_tokenizer(folder / TOKENIZER)
        counts = np.load(folder / COUNTS)
    except MemoryError:
        raise
    except PermissionError as error:
        raise DataError(f"{error.filename or folder}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # the tokenizers library raises bare Exception
        raise DataError(f"{folder}: the token store is damaged ({error}). {cure}") from None
    return Store(key_of(manifest.identity), folder, manifest, tokenizer, **streams, counts=counts)


def _stream(folder: Path, manifest: Manifest, split: Split) -> Stream:
    shards = manifest.shards[split].items()
    return Stream(
        [np.memmap(folder / f"{name}.bin", manifest.dtype, "r") for name, shard in shards if shard.tokens],
        [folder / f"{name}.lengths.npy" for name, _ in shards],
        [folder / f"{name}.words.npy" for name, _ in shards],
    )


def _allow_open_files(shards: int) -> None:
    """Raise the limit of open files, often 1,024, if possible: each shard is one."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = shards + 256
        if soft != resource.RLIM_INFINITY and soft < needed:
            most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _verify(folder: Path, manifest: Manifest) -> None:
    """Compare the files with their checksums, once for each state of them on this machine. Raises ValueError, OSError.

    The sizes and times of verified files are recorded in the store, so that a copy or a changed file is read again.
    """
    if manifest.checksum != manifest.own_checksum():
        raise ValueError(f"the checksum of {MANIFEST} is wrong")
    stats = {name: os.stat(folder / name) for name in manifest.all_bytes}
    for name, size in manifest.all_bytes.items():
        if stats[name].st_size != size:
            raise ValueError(f"{name} has {stats[name].st_size:,} bytes, not {size:,}")
    state: dict[str, Any] = {name: [s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev] for name, s in stats.items()}
    state[MANIFEST] = manifest.checksum
    record = folder / f".verified-{platform.node() or 'here'}.json"
    with suppress(OSError, ValueError):
        if json.loads(record.read_text(encoding="utf-8")) == state:
            return
    manifest.compare(folder)
    with suppress(OSError, CheckpointError):  # the disk may be read-only
        write_whole(record, json.dumps(state))


def _build(folder: Path, recipe: Recipe, announce: Callable[[str], None], progress: Progress, *, rebuild: bool) -> None:
    """Build the store in one process, completely or not at all."""
    part, created = folder.with_name(f".{folder.name}.part"), _make_folders(folder.parent)
    try:
        with _only_one(folder, announce):
            restore(folder)
            if rebuild or not folder.exists():
                _build_in(part, folder, recipe, announce, progress)
    except OSError as error:
        raise DataError(f"{folder.parent}: the token store cannot be written ({error.strerror}). {ELSEWHERE}") from None
    except CheckpointError as error:
        raise DataError(f"the token store cannot be built: {error}") from None
    finally:
        with suppress(OSError):  # the disk may have caused the failure
            for parent in created:  # a failed build leaves no empty folders
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


def _build_in(part: Path, folder: Path, recipe: Recipe, announce: Callable[[str], None], progress: Progress) -> None:
    """Build in the folder `part`, and put it in place. A failure removes it, unless it is a complete store."""
    try:
        part.mkdir(exist_ok=True)
        build(part, recipe, announce, progress)
        put_in_place(part, folder)
    except Unfinished:
        raise
    except Exception:  # but not KeyboardInterrupt and the like: progress is saved
        if not os.path.exists(part / MANIFEST):
            shutil.rmtree(part, ignore_errors=True)
        raise


def lock_of(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


@contextmanager
def _only_one(folder: Path, announce: Callable[[str], None]) -> Iterator[None]:
    file = lock_of(folder)
    with ExitStack() as stack:
        if not stack.enter_context(lock(file)):
            announce("another process is building this token store; waiting for it")
            stack.enter_context(lock(file, wait=True))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _make_folders(folder: Path) -> list[Path]:
    """Create `folder` and its parents; returns those that did not exist, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be created ({error.strerror}). {ELSEWHERE}") from None
    return missing
