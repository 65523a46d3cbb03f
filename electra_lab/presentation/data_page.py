"""The page of a token store: statistics, lengths, and rows as the model reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra_lab.assembly.experiment import pack
from electra_lab.config.load import Loaded
from electra_lab.data.store import Store
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.presentation.charts import SERIES, drawing, render, svg
from electra_lab.storage.files import write_text
from registry.errors import DataError

ROWS = 8  # that are shown
BINS = 40
CPU = torch.device("cpu")


def write_data_page(loaded: Loaded, store: Store, facts: list[tuple[str, str]]) -> Path:
    """Write <key>.html beside the store, which must stay as it is. Raises DataError."""
    vocabulary = make_vocabulary(store.tokenizer, torch.from_numpy(store.counts), CPU)
    batches = pack(loaded, store.train, vocabulary)
    real = [float(batch.attention_mask.float().mean()) for batch in batches.sample(1 << 18).in_order(256, CPU)]
    shown = next(batches.sample(ROWS * loaded.config.data.sequence_length).in_order(ROWS, CPU))
    packing, length = loaded.config.packing.type, loaded.config.data.sequence_length
    rows = f"{len(batches):,} of {length} tokens, packed by {packing}; {1 - np.mean(real):.1%} of them padding"
    page = render(
        "data.html.j2",
        key=store.key,
        facts=[*facts, ("rows", rows)],
        histogram=_histogram(store.train.lengths),
        packing=packing,
        separated=shown.attention_document_ids is not None,
        rows=[_row(store, shown, row) for row in range(len(shown))],
    )
    path = store.folder.with_name(f"{store.key}.html")
    try:
        write_text(path, page)
    except OSError as error:
        raise DataError(f"{path}: the page cannot be written ({error.strerror}).") from None
    return path


def _row(store: Store, batch: Any, row: int) -> list[dict[str, Any]]:
    tokens, real, segments = (each[row].tolist() for each in (batch.tokens, batch.attention_mask, batch.segments))
    documents = (
        batch.attention_document_ids[row].tolist() if batch.attention_document_ids is not None else [0] * len(tokens)
    )
    special = set(store.special.values())
    return [
        {
            "token": store.tokenizer.id_to_token(token),
            "kind": "padding" if not real[i] else "special" if token in special else "word",
            "segment": segments[i] and real[i],
            "first": i > 0 and real[i] and documents[i] != documents[i - 1],
        }
        for i, token in enumerate(tokens)
    ]


def _histogram(lengths: np.ndarray[Any, Any]) -> str:
    """Draw how many documents have which length, on a logarithmic axis of lengths."""
    top = max(int(lengths.max()), 2)
    edges = np.unique(np.round(np.geomspace(1, top + 1, BINS)))
    counts, edges = np.histogram(lengths, bins=edges)
    with drawing(6.0, 3.0) as figure:
        axes = figure.add_subplot()
        axes.stairs(counts, edges, fill=True, color=SERIES[0])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("tokens")
        axes.set_ylabel("documents")
        middle = int(np.median(lengths))
        return svg(figure, "lengths", f"Half of the documents have at most {middle:,} tokens, the longest {top:,}.")
