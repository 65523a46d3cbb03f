"""Parquet files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from electra_lab.corpora._common import FieldName, FileCorpus, Paths, documents_in, refuse_ambiguous
from electra_lab.sources.files import BLOCK, BadInput, needed, size_of
from registry import Document, Skipped, corpora
from registry.contracts.data import Unit
from registry.errors import DataError

BATCH = 1 << 23  # bytes of text that are in memory at a time, about
MOST = 1 << 27  # bytes of text that are in memory at a time, even if each row repeats everything in its group


@corpora.register("parquet")
class Parquet(FileCorpus):
    """A column of Parquet files; each row is one document. Needs `electra-lab[data]`.

    Empty texts are ignored. A text above 1,000,000 characters becomes several documents, cut at white space.

    paths     files, patterns such as `data/*.parquet`, or folders (all their .parquet files); relative to the
              experiment file
    column    the column with the text
    key       the column that determines the split, such as a book's name: documents with the same value stay together;
              by default the text
    on_error  treatment of a row whose text or key is null or not UTF-8: `stop`, or `skip`; a damaged group of rows is
              left out from the damaged batch on
    """

    def __init__(
        self,
        /,
        *,
        paths: Paths,
        column: FieldName = "text",
        key: FieldName | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.column, self.key = column, key
        super().__init__(paths, [".parquet"], {"column": column, "key": key, "on_error": on_error})
        self._arrow = needed("pyarrow", "to read Parquet files")
        self._parquet = needed("pyarrow.parquet", "to read Parquet files")
        self._errors = (self._arrow.ArrowException, OSError)

    def _in_file(self, file: Path) -> Iterator[str | Document | Skipped]:
        """Yield the documents of a file and its skipped pieces. Raises BadInput, or DataError for a missing column."""
        columns = [self.column, self.key] if self.key else [self.column]
        number = end = 0  # of the current row, and of the last row of its group
        with self._files.opened(file) as raw:
            try:
                parquet = self._parquet.ParquetFile(raw, buffer_size=BLOCK, pre_buffer=False)
            except self._errors as error:
                raise _damage(error, str(file), size_of(file), "bytes") from None
            self._check(file, parquet.schema_arrow)
            # Groups of rows are read in batches; damage ends its group.
            for index in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(index)
                end += group.num_rows
                try:
                    for batch in parquet.iter_batches(_rows(group, columns), [index], columns, use_threads=False):
                        for cells in zip(*batch.columns, strict=True):
                            number += 1
                            yield from self._documents(f"{file}: row {number}", batch.schema.names, cells)
                except self._errors as error:
                    place = f"{file}: rows {number + 1} to {end}"
                    yield self.left_out(_damage(error, place, end - number, "records"))
                    number = end
        self._files.check(file)

    def _documents(self, place: str, names: list[str], cells: Iterable[Any]) -> Iterator[str | Document | Skipped]:
        """Yield the documents of a row, or that it is left out. Raises BadInput."""
        try:
            record = dict(zip(names, (cell.as_py() for cell in cells), strict=True))
            yield from documents_in(record, place, self.column, self.key)
        except UnicodeDecodeError:
            yield self.left_out(BadInput(place, "is not UTF-8"))
        except OverflowError:  # dates beyond Python's
            yield self.left_out(BadInput(place, "has a value that Python cannot read"))
        except BadInput as error:
            yield self.left_out(error)

    def _check(self, file: Path, schema: Any) -> None:
        """Raise DataError unless the columns are there and the text is text."""
        for column in filter(None, (self.column, self.key)):
            refuse_ambiguous(file, column, schema.names)
        kind, types = schema.field(self.column).type, self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise DataError(f"{file}: the column '{self.column}' is of type {kind}, not text. Choose another one.")


def _damage(error: Exception, place: str, number: int, unit: Unit) -> BadInput:
    if isinstance(error, MemoryError):  # one of Arrow's is an ArrowException, too
        raise error
    reason = f"is damaged or not a Parquet file ({str(error).splitlines()[0].rstrip('.')})"
    return BadInput(place, reason, "Copy or download it again.", number, unit)


def _rows(group: Any, columns: list[str]) -> int:
    """Return the number of rows of a group that have about BATCH bytes, and never more than MOST.

    A row takes a few bytes of a group, and may have its longest text, which occurs there once.
    """
    chunks = map(group.column, range(group.num_columns))
    size = max(1, sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns))
    return int(max(1, min(64, BATCH * group.num_rows // size, MOST // size)))
