"""The token store: a corpus tokenised once, found again by its content.

    <store>/<key>/  tokenizer.json  train.bin  held_out.bin  manifest.json

Each .bin is one flat stream of token ids with [SEP] after every document, memory-mapped when read. A store is
written beside its place and renamed, so that it is there whole or not at all; a lock lets one process build it
while others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from electra_lab.data.vocabulary import special_ids
from registry.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from registry.contracts import Corpus

FORMAT = 1  # raise it when the same inputs would give another store
SPLITS = ("train", "held_out")
CHUNK = 1000  # documents encoded at a time


@dataclass(frozen=True)
class Store:
    """A tokenised corpus. Streams are uint16 or uint32 token ids, memory-mapped."""

    key: str
    folder: Path
    tokenizer: Tokenizer
    train: NDArray[Any]
    held_out: NDArray[Any]
    documents: dict[str, int]


def open_store(
    root: Path,
    corpus: Corpus,
    train_tokenizer: Callable[[Iterable[str]], Tokenizer],
    held_out: float,
    description: dict[str, Any],
    announce: Callable[[str], None],
) -> Store:
    """The store for this corpus and tokenizer, built if it is not there. Raises DataError.

    `description` is what else decides the content: names and options of corpus and tokenizer.
    """
    identity = {
        "format": FORMAT,
        "corpus": corpus.fingerprint(),
        "held_out": held_out,
        "tokenizers": version("tokenizers"),
        **description,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = root / key
    if not os.path.exists(folder):  # it came by a rename, so it is whole
        announce("reading the corpus and training the tokenizer (once; the result is kept)")
        _build(folder, key, corpus, train_tokenizer, held_out, identity)
    return _load(folder, key)


def _load(folder: Path, key: str) -> Store:
    from tokenizers import Tokenizer

    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, size in manifest["bytes"].items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} has another size than its manifest says")
        train, held_out = (np.memmap(folder / f"{s}.bin", manifest["dtype"], mode="r") for s in SPLITS)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return Store(key, folder, tokenizer, train, held_out, manifest["documents"])
    except Exception as error:  # the tokenizers library raises bare Exception
        raise DataError(
            f"{folder}: the token store is damaged ({error}). Delete the folder; it is built anew."
        ) from None


def _build(
    folder: Path,
    key: str,
    corpus: Corpus,
    train_tokenizer: Callable[[Iterable[str]], Tokenizer],
    held_out: float,
    identity: dict[str, Any],
) -> None:
    created = _make_folders(folder.parent)
    try:
        with _locked(folder.parent / f".{key}.lock"):
            if not folder.exists():
                for leftover in folder.parent.glob(f".{key}-*"):  # of a process that was killed: we hold the lock
                    shutil.rmtree(leftover)
                building = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent))
                building.chmod(0o755)  # a store may be shared; mkdtemp makes it private
                try:
                    _write(building, corpus, train_tokenizer, held_out, identity)
                    building.rename(folder)
                finally:
                    shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{folder.parent}: the token store cannot be written ({error.strerror}).") from None
    finally:
        for parent in created:  # a failed build leaves no empty folders either
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def _write(
    building: Path,
    corpus: Corpus,
    train_tokenizer: Callable[[Iterable[str]], Tokenizer],
    held_out: float,
    identity: dict[str, Any],
) -> None:
    counts = dict.fromkeys(SPLITS, 0)
    spools = {split: _Spool(building / f"{split}.jsonl") for split in SPLITS}
    for document in corpus:
        split = "held_out" if _is_held_out(document, held_out) else "train"
        spools[split].write(document)
        counts[split] += 1
    for spool in spools.values():
        spool.close()
    if not sum(counts.values()):
        raise DataError("the corpus is empty: it has no document with any text.")
    for split, count in counts.items():
        if not count:
            raise DataError(
                f"the {split.replace('_', '-')} split is empty: of {sum(counts.values())} documents none fell "
                f"there with data.held_out {held_out}. Change it, or give more and shorter documents."
            )
    tokenizer = train_tokenizer(spools["train"])
    special_ids(tokenizer)
    tokenizer.encode_special_tokens = True  # "[MASK]" written in a document is text, not the mask token
    kind = "uint16" if tokenizer.get_vocab_size() <= 1 << 16 else "uint32"
    for split, spool in spools.items():
        with (building / f"{split}.bin").open("wb") as stream:
            for piece in _encode(tokenizer, spool, kind):
                stream.write(piece.tobytes())
        spool.path.unlink()
        if not (building / f"{split}.bin").stat().st_size:
            raise DataError(f"the {split.replace('_', '-')} split has no tokens: its documents are nothing but spaces.")
    tokenizer.save(str(building / "tokenizer.json"))
    files = ["tokenizer.json", *(f"{split}.bin" for split in SPLITS)]
    sizes = {name: (building / name).stat().st_size for name in files}
    manifest = {"identity": identity, "documents": counts, "dtype": kind, "bytes": sizes}
    (building / "manifest.json").write_text(json.dumps(manifest, indent=1, default=str))
    for name in (*files, "manifest.json"):
        with (building / name).open("rb") as written:
            os.fsync(written.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, and remove it at the end. One that its holder has removed meanwhile locks nobody out."""
    while True:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(lock, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


def _is(opened: IO[Any], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _make_folders(folder: Path) -> list[Path]:
    """Create `folder` and its parents; returns those that were not there, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be created ({error.strerror}).") from None
    return missing


def _is_held_out(document: str, fraction: float) -> bool:
    """By a hash of the text, so that duplicates stay on one side and the split never moves."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


class _Spool:
    """Documents on disk, one JSON string a line: written once, read as often as needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream = path.open("w", encoding="ascii")

    def write(self, document: str) -> None:
        self._stream.write(json.dumps(document) + "\n")

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[str]:
        with self.path.open(encoding="ascii") as stream:
            for line in stream:
                yield json.loads(line)


def _encode(tokenizer: Tokenizer, documents: Iterable[str], kind: str) -> Iterator[NDArray[Any]]:
    separator = tokenizer.token_to_id("[SEP]")
    for chunk in _chunks(documents):
        for encoding in tokenizer.encode_batch(chunk, add_special_tokens=False):
            if encoding.ids:
                yield np.array([*encoding.ids, separator], dtype=kind)


def _chunks(documents: Iterable[str]) -> Iterator[Sequence[str]]:
    iterator = iter(documents)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
