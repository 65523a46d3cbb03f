"""The page of a token store: statistics, lengths, and rows as the model reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from electra_lab.presentation.pages import SERIES, Chart, drawing, finish, render, svg
from electra_lab.storage.files import write_text
from registry.errors import DataError

BINS = 40


@dataclass(frozen=True)
class Token:
    """A token of a row. `kind` is padding, special or word; `segment` the second one; `first` starts a document."""

    token: str
    kind: str
    segment: bool
    first: bool


def write_data_page(
    path: Path,
    facts: Sequence[tuple[str, str]],
    lengths: NDArray[np.integer],
    packing: str,
    separated: bool,
    rows: Sequence[Sequence[Token]],
) -> Path:
    """Write the page of a store. Raises DataError.

    lengths    number of tokens of each training document
    separated  True if attention stays within each document
    rows       rows to show
    """
    values = {"facts": facts, "packing": packing, "separated": separated, "rows": rows}
    page = render("data.html.j2", title=f"Token store {path.stem}", histogram=_histogram(lengths), **values)
    try:
        write_text(path, page)
    except OSError as error:
        raise DataError(f"{path}: the page cannot be written ({error.strerror}).") from None
    return path


def _histogram(lengths: NDArray[np.integer]) -> Chart:
    """Draw the number of documents of each length, on a logarithmic axis of lengths."""
    top = max(int(lengths.max()), 2)
    edges = np.unique(np.round(np.geomspace(1, top + 1, BINS)))
    counts, edges = np.histogram(lengths, bins=edges)
    with drawing() as figure:
        axes = figure.add_subplot()
        axes.stairs(counts, edges, fill=True, color=SERIES[0])
        axes.set_xscale("log")
        finish(axes, "tokens", "documents", large=True)
        middle = int(np.median(lengths))
        summary = f"Half of the documents have at most {middle:,} tokens, the longest {top:,}."
        return Chart("Documents by their number of tokens", svg(figure, "lengths", summary))
