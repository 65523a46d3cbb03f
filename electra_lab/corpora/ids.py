"""Sequences of numbers: items of a shop, codes, tokens of another tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from electra_lab.corpora._common import FieldName, FileCorpus, Paths, key_of, refuse_ambiguous
from electra_lab.sources.files import BadInput, needed, opened
from electra_lab.sources.records import EXTENSIONS, kind_of, record_in, records, value_of
from registry import Document, Skipped, corpora
from registry.contracts.data import cut

ROWS = 4096  # of an array that are read at a time
MOST = 1 << 20  # ids of a table that are in memory at a time, about
PART = 1 << 17  # ids of a sequence that become text at a time


@corpora.register("ids")
class Ids(FileCorpus):
    """Sequences of ids: lists in JSON lines or Parquet files, or the rows of numpy arrays; each is one document.

    Write the tokenizer as `{type: ids, vocab_size: N, special: {...}}` with the same number. A document is its ids with
    spaces between them.

    paths       files, patterns, or folders (all their .jsonl, .ndjson, .json, .parquet and .npy files, also compressed
                JSON lines); relative to the experiment file
    vocab_size  ids are from 0 to one below it
    field       the field or the column with the list, or `a.b`; null: each line of JSON is the list itself
    key         the field that determines the split, such as a user: sequences with the same value stay together; by
                default the sequence
    padding     an id that is left out, such as the one that fills the rows of an array
    on_error    treatment of a record that is not such a list: `stop`, or `skip`
    """

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        vocab_size: Annotated[int, Field(ge=5, le=1 << 24)],
        field: FieldName | None = "ids",
        key: FieldName | None = None,
        padding: Annotated[int, Field(ge=0, le=1 << 24)] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        if key is not None and field is None:
            raise ValueError("key needs a field: without one, the lines have no fields.")
        self.field, self.key, self.vocab_size, self.padding = field, key, vocab_size, padding
        options = {"vocab_size": vocab_size, "field": field, "key": key, "padding": padding, "on_error": on_error}
        super().__init__(paths, (*EXTENSIONS, ".parquet", ".npy"), options)

    def _in_file(self, file: Path) -> Iterator[Document | Skipped]:
        read = {".npy": self._array, ".parquet": self._parquet}.get(file.suffix.lower(), self._json)
        for place, record in read(file):
            try:
                if isinstance(record, BadInput):
                    raise record
                yield from self._documents(place, record)
            except BadInput as error:
                yield self.left_out(error)

    def _documents(self, place: str, record: Any) -> Iterator[Document]:
        """Yield the document of a record, several if it is too long, none if it is empty. Raises BadInput."""
        ids = record if self.field is None else value_of(record, place, self.field)
        if isinstance(ids, list):
            for id in ids:
                if isinstance(id, bool) or not isinstance(id, int):
                    raise BadInput(place, f"has {id!r:.40} among its ids")
            # An id that is too large for the array is also too large for every vocabulary.
            ids = np.array(ids, np.int64) if all(abs(id) < 1 << 62 for id in ids) else np.array([1 << 62])
        if not isinstance(ids, np.ndarray):
            raise BadInput(place, f"has {kind_of(ids)} instead of a list of ids")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            worst = ids.min() if ids.min() < 0 else ids.max()
            raise BadInput(place, f"has the id {worst}, but vocab_size is {self.vocab_size}", "Correct one of them.")
        if self.padding is not None:
            ids = ids[ids != self.padding]
        key = None if self.key is None else key_of(record, place, self.key)
        # Only a part of a long sequence is text at a time.
        text = ""
        for start in range(0, len(ids), PART):
            numbers = " ".join(map(str, ids[start : start + PART].tolist()))
            begun, text = cut(f"{text} {numbers}")
            yield from (Document(piece, key) for piece in begun)
        if text:
            yield Document(text, key)

    def _json(self, file: Path) -> Iterator[tuple[str, Any]]:
        for place, line in records(self._files, file):
            try:
                yield place, record_in(line, place)
            except BadInput as error:
                yield place, error

    def _array(self, file: Path) -> Iterator[tuple[str, Any]]:
        """Yield the rows of an array; one without rows is a single sequence. Raises DataError."""
        opened(file).close()
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # also those of Python's parser, for the header
            reason = " ".join(str(error).split())[:80]
            raise BadInput(str(file), f"is not an array of numpy ({reason})") from None
        if not isinstance(array, np.ndarray):
            raise BadInput(str(file), "is an archive of arrays", "Save each array with numpy.save.")
        if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
            kind = f"an array of {array.dtype} with {array.ndim} dimensions"
            raise BadInput(str(file), f"is {kind}, not of whole numbers with one or two")
        array = array.reshape(1, -1) if array.ndim == 1 else array
        for start in range(0, len(array), ROWS):
            for number, row in enumerate(np.asarray(array[start : start + ROWS]), start=start + 1):
                fits = row.dtype.kind == "i" or not len(row) or row.max() < 1 << 62
                ids = row.astype(np.int64) if fits else np.array([1 << 62])
                yield f"{file}: row {number}", ids if self.field is None else {self.field: ids}
        self._files.check(file)

    def _parquet(self, file: Path) -> Iterator[tuple[str, Any]]:
        """Yield the rows of a table. Raises BadInput, or DataError for a missing column."""
        arrow, parquet = (needed(name, "to read Parquet files") for name in ("pyarrow", "pyarrow.parquet"))
        columns = [name.split(".")[0] for name in (self.field, self.key) if name is not None]
        number = 0
        with opened(file) as raw:
            try:
                table = parquet.ParquetFile(raw)
                for name in columns:
                    refuse_ambiguous(file, name, table.schema_arrow.names)
                for index in range(table.num_row_groups):
                    group = table.metadata.row_group(index)
                    values = max(group.column(place).num_values for place in range(group.num_columns))
                    rows = max(1, min(ROWS, MOST * group.num_rows // max(values, 1)))
                    for batch in table.iter_batches(rows, [index], columns, use_threads=False):
                        for record in batch.to_pylist():
                            number += 1
                            yield f"{file}: row {number}", record
            except (arrow.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
                reason = f"is damaged or not a Parquet file ({str(error).splitlines()[0].rstrip('.')})"
                raise BadInput(f"{file}: row {number + 1}", reason, "Copy or download it again.") from None
        self._files.check(file)
