"""The rows of an experiment: of its text, or of random text in its place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from electra_lab.assembly.budget import largest_mask_prob, with_steps
from electra_lab.config.load import Loaded
from electra_lab.data.rows import Rows
from electra_lab.data.store import Store
from electra_lab.data.vocabulary import ArrayTokens, make_vocabulary
from registry import Tokens, Vocabulary, count, packings, using


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


def allocate_memory(loaded: Loaded, objective: Any, rows: int, device: torch.device) -> int:
    """Let an objective that remembers training rows allocate its memory; returns the bytes per row, 0 without one."""
    if not hasattr(objective, "allocate"):
        return 0
    length = loaded.config.data.sequence_length
    objective.allocate(rows, length, count(largest_mask_prob(loaded.config), length), device)
    return sum(held[:1].nbytes for held in objective.row_memory.values())


def number_of_rows(loaded: Loaded, store: Store) -> int:
    """Return the number of training rows: those of an epoch. Raises ConfigError."""
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), torch.device("cpu"))
    return len(pack(loaded, store.train, vocabulary))


def counted(loaded: Loaded, store: Store | None) -> Loaded:
    """Return the same with the steps of `train.epochs`, if its text has been tokenized. Raises ConfigError."""
    if store is None or loaded.config.train.epochs is None:
        return loaded
    return with_steps(loaded, number_of_rows(loaded, store))


def random_rows(loaded: Loaded, words: Vocabulary, sizes: Sequence[int]) -> Rows:
    """Pack documents of ordinary tokens, drawn at random, of the given sizes. Raises ConfigError."""
    random = torch.Generator().manual_seed(0)
    places = [torch.randint(len(words.ordinary_ids), (size,), generator=random) for size in sizes]
    text = ArrayTokens([words.ordinary_ids[chosen].tolist() for chosen in places], words.sep_id)
    return pack(loaded, text, words)
