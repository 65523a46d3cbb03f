"""The token store: a corpus tokenized once, found again by its content.

    <store>/<key>/  tokenizer.json  train.bin  held_out.bin  manifest.json

Each .bin is one flat stream of token ids with [SEP] after every document, memory-mapped when read. A store is written
to a temporary folder and renamed, so that it is there whole or not at all; under a lock one process builds it while
others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from electra_lab.data.vocabulary import special_ids
from electra_lab.storage.files import new_folder
from electra_lab.storage.lock import lock
from registry import Corpus
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    Trainer = Callable[[Iterable[str]], Tokenizer]

FORMAT = 1  # raise it when the same inputs would give another store
SPLITS = ("train", "held_out")
CHUNK = 1000  # documents encoded at a time


@dataclass(frozen=True)
class Store:
    """A tokenized corpus. Streams are uint16 or uint32 token ids, memory-mapped."""

    key: str
    folder: Path
    tokenizer: Tokenizer
    train: NDArray[Any]
    held_out: NDArray[Any]
    documents: dict[str, int]


def open_store(
    root: Path,
    corpus: Corpus,
    train_tokenizer: Trainer,
    held_out: float,
    description: dict[str, Any],
    announce: Callable[[str], None],
) -> Store:
    """Open the store of this corpus and tokenizer, and build it if it is not there. Raises DataError.

    `description` is everything else that decides the content: names and options of corpus and tokenizer.
    """
    identity = {"format": FORMAT, "corpus": corpus.fingerprint(), "held_out": held_out} | description
    identity["tokenizers"] = version("tokenizers")
    key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = root / key
    if not os.path.exists(folder):  # it came by a rename, so it is whole
        announce("reading the corpus and training the tokenizer (once; the result is kept)")
        _build(folder, partial(_write, corpus, train_tokenizer, held_out, identity))
    return _load(folder)


def _load(folder: Path) -> Store:
    from tokenizers import Tokenizer

    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, size in manifest["bytes"].items():
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} has another size than its manifest says")
        train, held_out = (np.memmap(folder / f"{s}.bin", manifest["dtype"], mode="r") for s in SPLITS)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return Store(folder.name, folder, tokenizer, train, held_out, manifest["documents"])
    except Exception as error:  # the tokenizers library raises bare Exception
        cure = "Delete the folder; it will be rebuilt."
        raise DataError(f"{folder}: the token store is damaged ({error}). {cure}") from None


def _build(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill the folder, in one process, whole or not at all."""
    key = folder.name
    created = _make_folders(folder.parent)
    try:
        with lock(file := folder.parent / f".{key}.lock", wait=True):
            try:
                if not folder.exists():
                    with new_folder(folder) as building:
                        write(building)
            finally:
                file.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{folder.parent}: the token store cannot be written ({error.strerror}).") from None
    finally:
        for parent in created:  # a failed build leaves no empty folders either
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def _write(corpus: Corpus, train_tokenizer: Trainer, held_out: float, identity: dict[str, Any], building: Path) -> None:
    counts = dict.fromkeys(SPLITS, 0)
    spools = {split: _Spool(building / f"{split}.jsonl") for split in SPLITS}
    with ExitStack() as stack:
        streams = {s: stack.enter_context(spools[s].path.open("w", encoding="ascii")) for s in SPLITS}
        for document in corpus:
            split = "held_out" if is_held_out(document, held_out) else "train"
            streams[split].write(json.dumps(document) + "\n")
            counts[split] += 1
    if not sum(counts.values()):
        raise DataError("the corpus is empty: no document has any text.")
    for split, count in counts.items():
        if not count:
            raise DataError(
                f"the {split.replace('_', '-')} split is empty: none of {sum(counts.values())} documents fell into it "
                f"with data.held_out {held_out}. Change it, or use more and shorter documents."
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
            raise DataError(f"the {split.replace('_', '-')} split has no tokens: its documents contain only spaces.")
    tokenizer.save(str(building / "tokenizer.json"))
    files = ["tokenizer.json", *(f"{split}.bin" for split in SPLITS)]
    sizes = {name: (building / name).stat().st_size for name in files}
    manifest = {"identity": identity, "documents": counts, "dtype": kind, "bytes": sizes}
    (building / "manifest.json").write_text(json.dumps(manifest, indent=1, default=str))


def _make_folders(folder: Path) -> list[Path]:
    """Create `folder` and its parents; returns those that did not exist, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be created ({error.strerror}).") from None
    return missing


def is_held_out(document: str, fraction: float) -> bool:
    """Decide by a hash of the text, so that duplicates stay on one side and the split never changes."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


@dataclass(frozen=True)
class _Spool:
    """Documents on disk, one JSON string per line: written once, read as often as needed."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        with self.path.open(encoding="ascii") as stream:
            yield from map(json.loads, stream)


def _encode(tokenizer: Tokenizer, documents: Iterable[str], kind: str) -> Iterator[NDArray[Any]]:
    separator, iterator = tokenizer.token_to_id("[SEP]"), iter(documents)
    while chunk := list(islice(iterator, CHUNK)):
        for encoding in tokenizer.encode_batch(chunk, add_special_tokens=False):
            if encoding.ids:
                yield np.array([*encoding.ids, separator], dtype=kind)
