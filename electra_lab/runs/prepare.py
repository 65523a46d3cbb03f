"""Prepare: build the token store of an experiment without training, and show what is in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from electra_lab.assembly.experiment import check, open_data
from electra_lab.assembly.launcher import named_launcher
from electra_lab.config.load import load
from electra_lab.data.overlap import RUN
from electra_lab.data.store import Store
from electra_lab.data.vocabulary import token_id
from electra_lab.runs.console import Console
from electra_lab.runs.data_page import write_data_page
from electra_lab.runs.progress import Phases
from registry.contracts.tokenizer import UNKNOWN


@dataclass(frozen=True)
class Prepared:
    """What a token store holds. Numbers are by split where there are several."""

    store: str
    documents: dict[str, int]
    tokens: dict[str, int]
    vocabulary: int
    unknown: float  # share of the training tokens
    characters_per_token: float
    overlap: float  # the share of the runs of 13 tokens in held-out text that training text has too
    left_out: dict[str, int]  # documents, by reason
    skipped: list[str]  # the first pieces that could not be read
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
    launch = named_launcher(launcher or "local", workers) if launcher or workers else None
    with Phases(console) as progress:
        store = open_data(loaded, console.say, progress, launcher=launch, rebuild=rebuild)
    made = _account(store)
    if inspect:
        made = replace(made, page=str(write_data_page(loaded, store, facts(made))))
    return made


def _account(store: Store) -> Prepared:
    train = store.manifest.shards["train"].values()
    held_out = [shard for split in ("validation", "test") for shard in store.manifest.shards[split].values()]
    read = store.manifest.read
    words = sum(shard.tokens - shard.documents for shard in train)
    unknown = token_id(store.tokenizer, UNKNOWN)
    left_out = {
        "they share too much with held-out text": sum(shard.overlapping for shard in train),
        "the test shares them with validation": sum(shard.overlapping for shard in held_out),
        "they have no token": sum(shard.empty for shard in (*train, *held_out)),
        "held-out text has its limit": read.beyond_limit,
        "they could not be read": read.skipped,
    }
    return Prepared(
        store=str(store.folder),
        documents=store.documents,
        tokens=store.tokens,
        vocabulary=len(store.counts),
        unknown=float(store.counts[unknown]) / words if unknown is not None else 0.0,
        characters_per_token=sum(shard.characters for shard in train) / words,
        overlap=store.overlap,
        left_out={reason: number for reason, number in left_out.items() if number},
        skipped=read.examples,
        page=None,
    )


def facts(made: Prepared) -> list[tuple[str, str]]:
    """Return what a token store holds, each with a title."""
    found = [(s, f"{made.documents[s]:,} documents, {made.tokens[s]:,} tokens") for s in made.documents]
    found += [
        ("vocabulary", f"{made.vocabulary:,}; {made.unknown:.2%} of the training tokens are unknown"),
        ("token length", f"{made.characters_per_token:.2f} characters"),
        ("overlap", f"{made.overlap:.2%} of the {RUN}-token runs of validation and test are in training text too"),
    ]
    return found + [("left out", f"{number:,} documents: {reason}") for reason, number in made.left_out.items()]


def described(made: Prepared) -> str:
    """Describe a token store for the terminal."""
    lines = [f"token store {made.store}", *(f"  {title:<14}{fact}" for title, fact in facts(made))]
    lines += [f"    {example}" for example in made.skipped]
    return "\n".join(lines + [f"  {'page':<14}{made.page}"] * bool(made.page))
