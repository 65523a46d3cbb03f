"""Prepare: build the token store of an experiment without training, and show its content."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from electra_lab.assembly.data import open_corpus, open_data, pack
from electra_lab.assembly.experiment import check
from electra_lab.assembly.launcher import component_of_flag, make_launcher
from electra_lab.config.load import Loaded, load
from electra_lab.data.overlap import RUN
from electra_lab.data.raw_documents import files_of
from electra_lab.data.store import Store, is_store
from electra_lab.data.vocabulary import make_vocabulary, readable_token
from electra_lab.presentation.console import Console, Phases
from electra_lab.presentation.data_page import Token, write_data_page
from electra_lab.presentation.text import Facts, fact_lines
from registry import Batch, Launcher, corpora, launchers, using
from registry.component import entries_of
from registry.errors import guide

SHOWN = 5  # files and endings that are named
ROWS = 8  # that the page shows
CPU = torch.device("cpu")
SHARED = "they share too much with held-out text"
IN_VALIDATION = "the test shares them with validation"
MANY = 0.1  # share of the training documents from which leaving them out is remarkable


@dataclass(frozen=True)
class Prepared:
    """The content of a token store, by split where there are several."""

    store: str
    documents: dict[str, int]
    tokens: dict[str, int]
    vocabulary: int
    unknown: float  # share of the training tokens
    unknown_characters: float  # share of the characters of training text, without white space
    characters_per_token: float
    overlap: float  # the share of the runs of 13 tokens in held-out text that training text has too
    left_out: dict[str, int]  # documents, by reason
    keeping_overlap: float | None  # the smallest data.overlap, in hundredths, that leaves out none for their overlap
    lost: dict[str, int]  # what could not be read, in lines, records, bytes, and ends of files, whose size is not known
    skipped: list[str]  # the first places of it
    removed: int  # documents in which corpus.remove matched
    keyed: int  # documents with a key, such as a match of corpus.group
    keys: int  # that differ
    records: int  # of which documents are parts, such as sequences
    read: list[str]  # the files of the corpus; none if the store was given
    ignored: list[str]  # the other files in its folders
    page: str | None


def prepare(
    file: Path,
    overrides: list[str],
    launcher: str | None = None,
    workers: int | None = None,
    *,
    rebuild: bool = False,
    inspect: bool = False,
) -> Prepared:
    """Build the token store of an experiment, unless it is there. Raises LabError."""
    loaded, console = load(file, overrides), Console()
    if absent := check(loaded):
        raise absent
    launch: Launcher | None = None
    if launcher or workers:
        options = {"workers": workers} if workers else {}
        launch = make_launcher(component_of_flag(launcher or "local", "--launcher", launchers, **options))
        launch.check()
    with Phases(console) as progress:
        store = open_data(loaded, console.say, progress, launcher=launch, rebuild=rebuild)
    content = _account(store, *_files_of(loaded))
    if inspect:
        content = replace(content, page=str(_write_page(loaded, store, facts(content))))
    return content


def _write_page(loaded: Loaded, store: Store, facts: Facts) -> Path:
    """Write the page of the store, with a few rows as the model reads them. Raises DataError."""
    packing, length = loaded.config.packing.type, loaded.config.data.sequence_length
    batches = pack(loaded, store.train, make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), CPU))
    real = [float(batch.attention_mask.float().mean()) for batch in batches.sample(1 << 18).in_order(256, CPU)]
    rows = f"{len(batches):,} of {length} tokens, packed by {packing}; {1 - np.mean(real):.1%} of them padding"
    batch = next(batches.sample(ROWS * length).in_order(ROWS, CPU))
    path, shown = store.folder.with_name(f"{store.key}.html"), [_row(store, batch, row) for row in range(len(batch))]
    separated = batch.attention_document_ids is not None
    return write_data_page(path, [*facts, ("rows", rows)], store.train.lengths, packing, separated, shown)


def _row(store: Store, batch: Batch, row: int) -> list[Token]:
    tokens, real, segments = (column[row].tolist() for column in (batch.tokens, batch.attention_mask, batch.segments))
    attended = batch.attention_document_ids
    documents = [0] * len(tokens) if attended is None else attended[row].tolist()
    special, shown = set(store.special.values()), []
    for i, token in enumerate(tokens):
        kind = "padding" if not real[i] else "special" if token in special else "word"
        first = i > 0 and real[i] and documents[i] != documents[i - 1]
        shown.append(Token(readable_token(store.tokenizer, token), kind, bool(segments[i] and real[i]), first))
    return shown


def _files_of(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Return the files that the corpus reads and those that it ignores, if it reports them."""
    if is_store(loaded.config.data.store):
        return [], []
    with using(*entries_of(corpora, loaded.config.corpus)):
        read, ignored = files_of(open_corpus(loaded))
        return [str(file) for file in read], [str(file) for file in ignored]


def _account(store: Store, files: list[str], ignored: list[str]) -> Prepared:
    shards = store.manifest.shards
    train, held_out = shards["train"].values(), [*shards["validation"].values(), *shards["test"].values()]
    read = store.manifest.read
    words = sum(shard.tokens - shard.documents for shard in train)
    unknown = store.unknown
    left_out = {
        SHARED: sum(shard.overlapping for shard in train),
        IN_VALIDATION: sum(shard.overlapping for shard in held_out),
        "they have no token": sum(shard.empty for shard in (*train, *held_out)),
        "held-out text has its limit": read.beyond_limit,
    }
    sufficient = [shard.sufficient for shard in (*train, *held_out)]
    return Prepared(
        store=str(store.folder),
        documents=store.documents,
        tokens=store.tokens,
        vocabulary=len(store.counts),
        unknown=unknown[0],
        unknown_characters=unknown[1],
        characters_per_token=sum(shard.characters for shard in train) / words,
        overlap=store.overlap,
        left_out={reason: number for reason, number in left_out.items() if number},
        keeping_overlap=None if None in sufficient else max(filter(None, sufficient), default=0.0),
        lost={str(unit): number for unit, number in read.lost.items()},
        skipped=read.examples,
        removed=read.removed,
        keyed=read.keyed,
        keys=read.keys,
        records=read.records,
        read=files,
        ignored=ignored,
        page=None,
    )


def facts(content: Prepared) -> list[tuple[str, str]]:
    """Return the content of a token store as facts, each with a title."""
    lines = [(s, f"{content.documents[s]:,} documents, {content.tokens[s]:,} tokens") for s in content.documents]
    lines += [
        ("vocabulary", f"{content.vocabulary:,}"),
        (
            "unknown",
            f"{content.unknown:.2%} of the training tokens and {content.unknown_characters:.2%} of their characters",
        ),
        ("token length", f"{content.characters_per_token:.2f} characters"),
        ("overlap", f"{content.overlap:.2%} of the {RUN}-token runs of validation and test are in training text too"),
    ]
    lines += [("left out", f"{number:,} documents: {reason}") for reason, number in content.left_out.items()]
    total = sum(content.documents.values()) + sum(content.left_out.values())
    if content.removed:
        lines.append(("remove", f"corpus.remove matches in {content.removed:,} of {total:,} documents"))
    if content.keyed:
        origin = f"from {content.records:,} records" if content.records else "such as the match of corpus.group"
        lines.append(
            ("keys", f"{content.keyed:,} of {total:,} documents have a key, {origin}; {content.keys:,} keys differ")
        )
    shared = content.left_out.get(SHARED, 0)
    if (shared or IN_VALIDATION in content.left_out) and content.keeping_overlap is not None:
        lines.append(("", f"data.overlap: {content.keeping_overlap:g} would keep all that is left out for its overlap"))
    if shared > MANY * (shared + content.documents["train"]):
        part = shared / (shared + content.documents["train"])
        cure = f"Keep them if repetition is normal, as in logs; otherwise split by a key or by time: {guide('data')}"
        lines.append(("warning", f"{part:.0%} of the training documents are left out for their overlap. {cure}"))
    if content.skipped:
        lost = ", ".join(f"{unit}: {number:,}" for unit, number in content.lost.items())
        lines += [("not read", lost), *(("", place) for place in content.skipped)]
    listed = {"read": content.read, "ignored": content.ignored}
    return lines + [(title, _files(names)) for title, names in listed.items() if names]


def _files(names: list[str]) -> str:
    """Describe files: their number, that of each ending, and some names, those with rare endings first."""
    endings = Counter(Path(name).suffix for name in names)
    counts = ", ".join(f"{number:,} {ending or 'without an ending'}" for ending, number in endings.most_common(SHOWN))
    shown = [Path(name).name for name in sorted(names, key=lambda name: endings[Path(name).suffix])[:SHOWN]]
    return f"{len(names):,} files ({counts}): {', '.join(shown)}{', ...' * (len(names) > SHOWN)}"


def described(content: Prepared) -> str:
    """Describe a token store for the terminal."""
    page = [("page", content.page)] if content.page else []
    return fact_lines(f"token store {content.store}", [*facts(content), *page])
