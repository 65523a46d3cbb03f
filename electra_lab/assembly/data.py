"""The text of an experiment: its corpus, its token store and its rows, or random text in their place."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from electra_lab.assembly.budget import largest_mask_prob, with_steps
from electra_lab.assembly.build import untrained_tokenizer
from electra_lab.config.load import Loaded
from electra_lab.data.build import MANIFEST, Recipe
from electra_lab.data.raw_documents import Progress
from electra_lab.data.rows import Rows
from electra_lab.data.splits import Unsplittable
from electra_lab.data.store import FORMAT, Store, is_store, key_of, load_store, open_store, read_manifest
from electra_lab.data.vocabulary import ArrayTokens, make_vocabulary, with_changes
from electra_lab.storage.files import tokenizer_failures
from registry import (
    Corpus,
    Launcher,
    Objective,
    Tokens,
    Vocabulary,
    corpora,
    count,
    launchers,
    packings,
    tokenizers,
    using,
)
from registry.component import entries_of
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REMARKABLE = 0.01  # share of unknown text that is pointed out


def open_data(
    loaded: Loaded,
    announce: Callable[[str], None],
    progress: Progress = lambda *_: None,
    *,
    recipe: Recipe | None = None,
    launcher: Launcher | None = None,
    rebuild: bool = False,
) -> Store:
    """Open the tokenized corpus of an experiment, and build its store if needed. Raises DataError, ConfigError.

    recipe    recipe of the store, if the caller has it
    launcher  launcher of the processes that encode shards; by default on this machine, if threads are slower
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    folder = loaded.config.data.store
    if is_store(folder):
        if rebuild:
            reason = f"{folder} is itself a token store, which cannot be rebuilt. Name the folder around it."
            raise loaded.problem(("data", "store"), reason)
        store = _given_store(loaded, folder, announce)
    else:
        try:
            with using(tokenizers.get(loaded.config.tokenizer.type), corpora.get(loaded.config.corpus.type)):
                recipe = recipe or recipe_of(loaded, open_corpus(loaded), launcher)
                store = open_store(folder, recipe, announce, progress, rebuild=rebuild)
        except Unsplittable as error:
            raise loaded.problem(error.key, str(error), DataError) from None
    # Unknown text is pointed out; too much of it is an error.
    most, facts = max(store.unknown), store.unknown_text
    if most > loaded.config.data.unknown:
        options = {"alphabet", "vocab_size", "min_frequency", "pattern"} & {*loaded.config.tokenizer.dump()}
        keys = ", ".join(f"tokenizer.{name}" for name in sorted(options)) or "tokenizer"
        cure = f"Let {keys} fit the text; or, to train on it, set data.unknown to {math.ceil(100 * most) / 100:g}"
        raise loaded.problem(("tokenizer",), f"{facts}. {cure}.", DataError)
    if most > REMARKABLE:
        announce(f"note: {facts}")
    return store


def recipe_of(loaded: Loaded, corpus: Corpus | None, launcher: Launcher | None = None) -> Recipe:
    """Return the recipe of an experiment's store. Raises DataError, ConfigError."""
    config, data = loaded.config, loaded.config.data
    entry = tokenizers.get(config.tokenizer.type)
    # Only the plug-ins that produce data: a changed sampler must not cause tokenizing again.
    sources = {entry.file, *(source.file for source in entries_of(corpora, config.corpus))}
    untrained = untrained_tokenizer(loaded)
    fingerprint = corpus.fingerprint() if corpus else ""
    changes = getattr(corpus, "changes", dict[str, str])()  # of text in use, which the tokenizer makes

    def train_tokenizer(documents: Iterable[str]) -> "Tokenizer":
        with tokenizer_failures():
            return with_changes(entry.component(documents, **config.tokenizer.keywords()), changes)

    if not isinstance(fingerprint, str):
        raise TypeError(f"fingerprint() returned {fingerprint!r:.80}, must be a string.")
    identity = {
        "format": FORMAT,
        "corpus": {"fingerprint": fingerprint, **({"changes": changes} if changes else {})},
        "tokenizer": hashlib.sha256(untrained.to_str().encode()).hexdigest() if untrained else None,
        "settings": settings_of_store(config.model_dump(mode="json")),
        "plugins": sorted(plugin.sha256 for plugin in loaded.plugins if plugin.file in sources),
        "tokenizers": version("tokenizers"),
    }
    return Recipe(
        corpus=cast("Corpus", corpus),
        fingerprint=fingerprint,
        train_tokenizer=train_tokenizer,
        held_out=data.held_out,
        overlap=data.overlap,
        tokenizer_characters=data.tokenizer_characters,
        identity=identity,
        launcher=(lambda _: launcher) if launcher else _processes,
        order=data.split,
    )


def settings_of_store(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an experiment that determine its token store, by key. Paths do not: contents are compared.

    config  experiment as plain data, complete with defaults
    """
    keys = ["corpus.type", "tokenizer.type", "data.held_out", "data.overlap", "data.split"]
    if tokenizers.get(config["tokenizer"]["type"]).declared["trained"]:
        keys += ["data.tokenizer_characters", *(f"tokenizer.{option}" for option in config["tokenizer"])]
    sections = {key: key.split(".", 1) for key in keys}
    return {key: config[section].get(option) for key, (section, option) in sections.items()}


def prepared(loaded: Loaded) -> Store | None:
    """Open the token store of an experiment, if it exists, without verifying it or writing anything.

    The corpus is hashed only if there is a store that could be of this corpus. Raises DataError, ConfigError.
    """
    root = loaded.config.data.store
    if is_store(root):
        return _given_store(loaded, root, verify=False)
    identity, exists = _without_fingerprint(recipe_of(loaded, None).identity), False
    for file in root.glob(f"*/{MANIFEST}"):
        with suppress(DataError):  # a damaged store of others
            exists = exists or _without_fingerprint(read_manifest(file.parent).identity) == identity
    folder = root / key_of(recipe_of(loaded, open_corpus(loaded)).identity) if exists else root
    return load_store(folder, verify=False) if is_store(folder) else None


def _processes(shards: int) -> Launcher | None:
    """Return a launcher with one process per core, None if threads of this process are as fast."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if min(shards, cores) < 2 or not hasattr(os, "fork"):  # the local launcher needs POSIX
        return None
    launcher: Launcher = launchers.get("local").component(workers=min(shards, cores), threads=1, gpus=0)
    return launcher


def _given_store(
    loaded: Loaded, folder: Path, announce: Callable[[str], None] = lambda _: None, *, verify: bool = True
) -> Store:
    """Open the store that `data.store` names, without its corpus. Raises ConfigError if its settings differ."""
    store = load_store(folder, "Copy it again, or name another folder.", verify=verify)
    expected = _without_fingerprint(recipe_of(loaded, None).identity)
    stored = _without_fingerprint(store.manifest.identity)
    here, there = expected["settings"], stored.get("settings", {})
    differing = [key for key, value in here.items() if there.get(key) != value]
    others = [key for key in ("format", "tokenizer") if stored.get(key) != expected[key]]  # numbers that say nothing
    if differing or others:
        facts = [f"{key} ({there[key]}, here {here[key]})" for key in differing if key in there]
        reason = f"the token store {folder} was made with another {', '.join(facts or differing or others)}"
        raise loaded.problem(("data", "store"), f"{reason}. Use the same, or name another folder.")
    announce(f"using the token store {folder} of a corpus {loaded.config.corpus.type}, which is not read")
    return store


def _without_fingerprint(identity: dict[str, Any]) -> dict[str, Any]:
    return identity | {"corpus": None}


def open_corpus(loaded: Loaded) -> Corpus:
    """Raises DataError if the text is not there, ConfigError if the component refuses its options."""
    component = loaded.config.corpus
    try:
        return corpora.get(component.type).component(**component.keywords())
    except DataError as error:
        raise loaded.problem(("corpus",), f"{component.type}: {error}", DataError) from None
    except ValueError as error:
        raise loaded.problem(("corpus",), f"{component.type} refuses this: {error}") from error


def pack(loaded: Loaded, tokens: Tokens, vocabulary: Vocabulary) -> Rows:
    """Pack the tokens of a split. Raises ConfigError."""
    chosen, length = loaded.config.packing, loaded.config.data.sequence_length
    entry = packings.get(chosen.type)
    try:
        packing = entry.component(tokens, length, vocabulary, **chosen.keywords())
    except ValueError as error:
        raise loaded.problem(("packing",), f"{chosen.type} refuses this: {error}") from error
    with using(entry):
        rows, first = Rows(packing, group_by_length=loaded.config.data.group_by_length), np.zeros(1, dtype=np.int64)
        arrays = list(vars(packing.rows(first)).values())
        if hasattr(packing, "source_document_ids"):
            arrays.append(packing.source_document_ids(first))
        if (shapes := {array.shape for array in arrays if array is not None}) != {(1, length)}:
            raise TypeError(f"one row has arrays of the shapes {sorted(shapes)}, must be {(1, length)}.")
        return rows


def allocate_memory(loaded: Loaded, objective: Objective, rows: int, device: torch.device) -> int:
    """Let an objective that remembers training rows allocate its memory; returns the bytes per row, 0 without one."""
    length = loaded.config.data.sequence_length
    objective.allocate(rows, length, count(largest_mask_prob(loaded.config), length), device)
    return sum(memory[:1].nbytes for memory in objective.row_memory.values())


def number_of_rows(loaded: Loaded, store: Store) -> int:
    """Return the number of training rows: those of an epoch. Raises ConfigError."""
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), torch.device("cpu"))
    return len(pack(loaded, store.train, vocabulary))


def counted(loaded: Loaded, store: Store | None) -> Loaded:
    """Return the experiment with the steps of `train.epochs`, if its text is tokenized. Raises ConfigError."""
    if store is None or loaded.config.train.epochs is None:
        return loaded
    return with_steps(loaded, number_of_rows(loaded, store))


def random_rows(loaded: Loaded, words: Vocabulary, sizes: Sequence[int]) -> Rows:
    """Pack documents of ordinary tokens, drawn at random, of the given sizes. Raises ConfigError."""
    random = torch.Generator().manual_seed(0)
    places = [torch.randint(len(words.ordinary_ids), (size,), generator=random) for size in sizes]
    text = ArrayTokens([words.ordinary_ids[chosen].tolist() for chosen in places], words.sep_id)
    return pack(loaded, text, words)
