"""Parquet files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.corpora._records import documents_in
from electra_lab.sources.files import BLOCK, BadInput, Files, needed
from registry import Document, Skipped, corpora
from registry.errors import DataError, did_you_mean

BATCH = 1 << 23  # bytes of text that are in memory at a time, about


@corpora.register("parquet")
class Parquet:
    """A column of Parquet files; each row is one document. Needs `electra-lab[data]`.

    Empty texts are no documents. One above 1,000,000 characters becomes several, cut at white space.

    paths     files, patterns such as `data/*.parquet`, or folders, of which all .parquet files are read; relative to
              the experiment file
    column    the column with the text
    key       the column that decides the split, such as a book's name: documents of one value stay together; without
              it the text decides
    on_error  at a row whose text or key is null: `stop`, or `skip` it; of a damaged file the rest is skipped
    """

    def __init__(
        self,
        /,
        *,
        paths: Annotated[list[Path], Field(min_length=1)],
        column: Annotated[str, Field(min_length=1)] = "text",
        key: Annotated[str, Field(min_length=1)] | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.column, self.key, self.skips = column, key, on_error == "skip"
        self._files = Files(paths, [".parquet"], {"column": column, "key": key, "on_error": on_error})
        self._arrow = needed("pyarrow", "to read Parquet files")
        self._parquet = needed("pyarrow.parquet", "to read Parquet files")

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for file in self._files.files:
            try:
                for number, record in enumerate(self._records(file), start=1):
                    try:
                        yield from documents_in(record, f"{file}: row {number}", self.column, self.key)
                    except BadInput as error:
                        if not self.skips:
                            raise
                        yield error.skipped
            except BadInput as error:
                if not self.skips:
                    raise
                self._files.check(file)
                yield error.skipped
            self._files.check(file)

    def _records(self, file: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file. Raises BadInput, or DataError for a missing column."""
        columns = [self.column, self.key] if self.key else [self.column]
        try:
            with self._parquet.ParquetFile(file, buffer_size=BLOCK, pre_buffer=False) as opened:
                self._check(file, opened.schema_arrow)
                for group in range(opened.num_row_groups):
                    rows = _rows(opened.metadata.row_group(group), columns)
                    for batch in opened.iter_batches(rows, [group], columns, use_threads=False):
                        yield from batch.to_pylist()
        except MemoryError:  # one of Arrow's is an ArrowException, too
            raise
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            self._files.check(file)
            reason = f"is damaged or not a Parquet file ({str(error).splitlines()[0].rstrip('.')})"
            raise BadInput(str(file), reason, "Copy or download it again.") from None

    def _check(self, file: Path, schema: Any) -> None:
        """Raise DataError unless the columns are there and the text is text."""
        for column in filter(None, (self.column, self.key)):
            if column not in schema.names:
                raise DataError(f"{file}: has no column '{column}'.{did_you_mean(column, schema.names)}")
        kind, types = schema.field(self.column).type, self._arrow.types
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise DataError(f"{file}: the column '{self.column}' is of type {kind}, not text. Choose another one.")

    def fingerprint(self) -> str:
        """A hash of the content, so that a moved file is the same corpus and a changed one is not."""
        return self._files.fingerprint()


def _rows(group: Any, columns: list[str]) -> int:
    """Return how many rows of a group have about BATCH bytes."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    size = sum(each.total_uncompressed_size for each in chunks if each.path_in_schema in columns)
    return int(min(10_000, max(1, BATCH * group.num_rows // max(size, 1))))
