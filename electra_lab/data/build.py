"""Build a token store: read the corpus, train the tokenizer, encode held-out text, then the training shards.

A store is built in a folder next to its final place. An interrupted build is continued: files whose checksums match
stay, the others are written again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from electra_lab.data.overlap import Hashes, HeldOutRuns, runs
from electra_lab.data.raw_documents import Contents, Order, Progress, Sample, read_contents, read_piece, write_documents
from electra_lab.data.shards import (
    PLAN,
    RAW,
    TOKENIZER,
    Plan,
    Shard,
    Texts,
    encode_shard,
    encode_texts,
    is_complete,
    write_shard,
)
from electra_lab.data.splits import HELD_OUT, Unsplittable
from electra_lab.data.vocabulary import special_ids
from electra_lab.storage.files import MANIFEST as SEAL
from electra_lab.storage.files import damage, flush, load_tokenizer, new_file, read_as, seal, sha256, write_text
from registry import Command, Corpus, Launcher, Outcome, Split
from registry.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


COUNTS, MANIFEST, TOKENIZER_SEAL = "counts.npy", "manifest.json", "tokenizer.seal.json"
UNFINISHED = 2  # raise it when the files of an interrupted build mean something else


class Unfinished(DataError):
    """Some shards are missing; progress is saved, and the same command continues."""


class Manifest(BaseModel):
    """manifest.json: the origin and the content of a store."""

    identity: dict[str, Any]
    dtype: str
    shards: dict[Split, dict[str, Shard]]  # by split and name, in order
    read: Contents
    overlap: float  # the share of the held-out runs of 13 tokens that also occur in training text
    sha256: dict[str, str]  # of the files other than shards
    bytes: dict[str, int]
    checksum: str = ""  # of the other fields

    def own_checksum(self) -> str:
        """Return the checksum of the other fields that are set."""
        fields = self.model_copy(update={"checksum": ""}).model_dump_json(exclude_unset=True)
        return hashlib.sha256(fields.encode()).hexdigest()

    @property
    def all_shards(self) -> list[Shard]:
        """The shards of all splits."""
        return list(chain.from_iterable(split.values() for split in self.shards.values()))

    @property
    def all_bytes(self) -> dict[str, int]:
        """The size of every file."""
        return dict(ChainMap(self.bytes, *(shard.bytes for shard in self.all_shards)))

    def compare(self, folder: Path) -> None:
        """Raise ValueError for the first file in `folder` whose checksum is wrong."""
        for name, sha in ChainMap(self.sha256, *(shard.sha256 for shard in self.all_shards)).items():
            if sha256(folder / name) != sha:
                raise ValueError(f"the checksum of {name} is wrong")


@dataclass(frozen=True)
class Recipe:
    """The inputs of a store.

    fingerprint  of the corpus, as in the identity
    identity     everything that determines the content of the store; its hash is the store's key
    launcher     makes a launcher for a number of shards; None means to encode them one after the other, by threads
    order        how documents are split; by default by their keys
    """

    corpus: Corpus
    fingerprint: str
    train_tokenizer: Callable[[Iterable[str]], Tokenizer]
    held_out: float
    overlap: float
    tokenizer_characters: float
    identity: dict[str, Any]
    launcher: Callable[[int], Launcher | None]
    order: Order | None = None


def build(folder: Path, recipe: Recipe, announce: Callable[[str], None], progress: Progress) -> None:
    """Build a store in `folder`, which may hold the files of an interrupted build. Raises DataError."""
    if not _is_whole(folder):
        _fill(folder, recipe, announce, progress)
    _tidy(folder)


def _is_whole(folder: Path) -> bool:
    """Return whether an earlier build wrote all files of the store, and none is damaged."""
    try:
        manifest = read_as(Manifest, folder / MANIFEST)
        manifest.compare(folder)
    except (CheckpointError, OSError, ValueError):
        return False
    return manifest.checksum == manifest.own_checksum()


def _fill(folder: Path, recipe: Recipe, announce: Callable[[str], None], progress: Progress) -> None:
    # The text, the tokenizer, the held-out shards.
    contents = _raw_documents(folder, recipe, announce, progress)
    tokenizer = _tokenizer(folder, recipe, contents, progress)
    held, hashes = _held_out(folder, recipe, contents, tokenizer)
    # The training shards.
    names = [f"train-{piece:05}" for piece in range(contents.pieces["train"])]
    _encode(folder, names, recipe, contents.characters["train"], progress)
    train = [read_as(Shard, folder / f"{name}.json") for name in names]
    if not sum(shard.tokens for shard in train):
        raise DataError(
            "the training split has no tokens: its documents are empty, or all overlap with held-out text "
            f"(data.overlap {recipe.overlap})."
        )
    # Counts and the manifest.
    shards: dict[Split, dict[str, Shard]] = {"train": dict(zip(names, train, strict=True)), **held}
    _finish(folder, recipe, contents, hashes, shards)


def _raw_documents(folder: Path, recipe: Recipe, announce: Callable[[str], None], progress: Progress) -> Contents:
    raw, mark = folder / RAW, folder / "identity.json"
    identity = json.dumps([UNFINISHED, recipe.identity], sort_keys=True, default=str)
    if mark.exists() and mark.read_bytes() == identity.encode() and (raw / SEAL).exists():
        damaged = damage(raw)
        if damaged is None:
            announce("continuing a build that was interrupted")
            return read_contents(raw)
        announce(f"a build that was interrupted cannot be continued: {damaged}")
    shutil.rmtree(folder, ignore_errors=True)
    raw.mkdir(parents=True)
    write_text(mark, identity)
    announce("reading the corpus (once; the result is kept)")
    contents = write_documents(recipe.corpus, recipe.fingerprint, recipe.held_out, raw, progress, recipe.order)
    seal(raw)
    return contents


def _tokenizer(folder: Path, recipe: Recipe, contents: Contents, progress: Progress) -> Tokenizer:
    if damage(folder, [TOKENIZER], TOKENIZER_SEAL) is not None:
        tokenizer = recipe.train_tokenizer(Sample(folder / RAW, contents, recipe.tokenizer_characters, progress))
        special_ids(tokenizer)  # refuses one without them
        write_text(folder / TOKENIZER, tokenizer.to_str())
        seal(folder, [TOKENIZER], TOKENIZER_SEAL)
    return load_tokenizer(folder / TOKENIZER)


def _held_out(
    folder: Path, recipe: Recipe, contents: Contents, tokenizer: Tokenizer
) -> tuple[dict[Split, dict[str, Shard]], Hashes]:
    """Encode validation and test, which fit into memory. Also return the hashes of their runs."""
    ids = special_ids(tokenizer)
    kind = "uint16" if tokenizer.get_vocab_size() <= 1 << 16 else "uint32"
    plan = Plan(dtype=kind, separator=ids["sep"], overlap=recipe.overlap)
    write_text(folder / PLAN, plan.model_dump_json())
    shards: dict[Split, dict[str, Shard]] = {}
    validation: HeldOutRuns | None = None
    hashes: list[Hashes] = []  # runs of the documents that stay
    others = np.zeros(0, np.uint64)  # runs of those left out
    for split in HELD_OUT:
        documents: list[str] = []
        for piece in range(contents.pieces[split]):
            documents += read_piece(folder / RAW, split, piece)
        texts = encode_texts(tokenizer, documents, plan)
        # Leave out test documents that overlap with validation.
        keep, _, sufficient = texts.without_overlap(validation, recipe.overlap)
        if not keep.any():
            raise Unsplittable(
                f"the split {split} has no tokens: the tokenizer drops its text, or validation has the same."
            )
        hashes.append(_runs_of(texts, keep))
        others = _runs_of(texts, ~keep & (texts.lengths > 0))
        validation = validation or HeldOutRuns.of(hashes[0])  # of validation, which the test must not share
        name = f"{split}-00000"
        shards[split] = {name: write_shard(folder, name, texts, keep, plan, sufficient)}
    both = np.concatenate(hashes)
    HeldOutRuns.of(both, others).save(folder)
    return shards, both


def _runs_of(texts: Texts, chosen: NDArray[np.bool_]) -> Hashes:
    """Return the hashes of the runs of the chosen documents."""
    return runs(texts.tokens[np.repeat(chosen, texts.lengths)], texts.lengths[chosen])[0]


def _encode(folder: Path, names: Sequence[str], recipe: Recipe, characters: int, progress: Progress) -> None:
    missing = [name for name in names if not is_complete(folder, name)]
    launch = recipe.launcher(len(missing)) or _one_by_one
    done = len(names) - len(missing)
    encoder = [sys.executable, "-P", "-m", encode_shard.__module__, str(folder.resolve())]
    for name, outcome in launch({name: [*encoder, name] for name in missing}, folder):
        if outcome.code != 0:
            raise Unfinished(f"{name}: {outcome.error} Progress is saved; rerun the command to continue.")
        done += 1
        progress("tokenizing", characters * done // len(names), characters)


def _one_by_one(commands: Mapping[str, Command], folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Encode shards in this process."""
    for name in commands:
        encode_shard(folder, name)
        yield name, Outcome(0)


def _finish(
    folder: Path, recipe: Recipe, contents: Contents, hashes: Hashes, shards: dict[Split, dict[str, Shard]]
) -> None:
    """Write token counts and overlap, and the manifest last."""
    plan, run_hashes = read_as(Plan, folder / PLAN), HeldOutRuns.load(folder).hashes
    counts = np.zeros(load_tokenizer(folder / TOKENIZER).get_vocab_size(), np.int64)
    seen = np.zeros(len(run_hashes), np.bool_)
    for name, shard in shards["train"].items():
        seen[np.load(folder / f"{name}.seen.npy")] = True
        if shard.tokens:
            counts += np.bincount(np.memmap(folder / f"{name}.bin", plan.dtype, "r"), minlength=len(counts))
    with new_file(folder / COUNTS, "wb") as stream:
        np.save(stream, counts)
    manifest = Manifest(
        identity=recipe.identity,
        dtype=plan.dtype,
        shards=shards,
        read=contents,
        overlap=float(seen[np.searchsorted(run_hashes, hashes)].mean()),
        sha256={name: sha256(folder / name) for name in (TOKENIZER, COUNTS)},
        bytes={name: (folder / name).stat().st_size for name in (TOKENIZER, COUNTS)},
    )
    manifest.checksum = manifest.own_checksum()
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=1, exclude_unset=True))


def _tidy(folder: Path) -> None:
    """Remove files that only the build needed."""
    manifest = read_as(Manifest, folder / MANIFEST)
    shutil.rmtree(folder / RAW, ignore_errors=True)
    for path in folder.iterdir():
        if path.is_dir():  # a launcher's logs
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MANIFEST and path.name not in manifest.all_bytes:
            path.unlink(missing_ok=True)
    flush(folder)
