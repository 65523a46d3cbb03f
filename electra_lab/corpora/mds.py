"""Shards in the MDS format of MosaicML's streaming library."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from electra_lab.corpora._common import FieldName, FileCorpus, Paths, documents_in
from electra_lab.sources.files import LONGEST_LINE, BadInput, Files, exists, opened, uncompressed
from electra_lab.sources.remote import matched
from registry import Document, Skipped, corpora
from registry.component import Url
from registry.errors import DataError, did_you_mean

TEXT = ("str", "str_int")
NUMBERS = ("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
CURE = "Copy or download it again."
UNLIKE = (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError)  # of JSON that is something else
Column = tuple[str, str, int | None]  # name, type, and size in bytes if all values have the same


@corpora.register("mds")
class Mds(FileCorpus):
    """A column of shards in the MDS format of MosaicML's streaming library; each sample is one document.

    The library is not needed. Shards may be compressed by gz, bz2 or zstd; the last needs `electra-lab[data]`. Empty
    texts are ignored. A text above 1,000,000 characters becomes several documents, cut at white space.

    paths     index.json files, or folders, of which all index.json files are read; relative to the experiment file. The
              shards are read in the order of the index
    column    the column with the text, of type `str`
    key       the column that determines the split, such as a book's name: documents with the same value stay together;
              by default the text
    on_error  treatment of a sample whose text is not UTF-8: `stop`, or `skip`; of a damaged shard all samples before
              the damage are kept
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
        self._samples: dict[Path, int] = {}  # of each shard, as its index says
        for index in Files(paths, ["/index.json"], {}).files:
            self._samples.update(_shards(index))
        super().__init__([*self._samples], [], {"column": column, "key": key, "on_error": on_error})

    def _in_file(self, file: Path) -> Iterator[str | Document | Skipped]:
        content = _Content(self._files, file)
        # The number of samples, where each of them begins and the last one ends, and the columns as JSON.
        number = content.integers(1, "its header")[0]
        if number != self._samples[file]:
            raise _damaged(file, f"has {number:,} samples, and index.json says {self._samples[file]:,}")
        begin, *ends = content.integers(number + 1, "its header")
        columns = self._columns(file, content.take(begin - content.at, "its header"))
        # The samples.
        for sample, end in enumerate(ends, start=1):
            data = content.take(end - content.at, f"sample {sample:,}")
            place = f"{file}: sample {sample}"
            try:
                record = self._record(columns, data, place)
                yield from documents_in(record, place, self.column, self.key)
            except BadInput as error:
                yield self.left_out(error)
        content.end()

    def _columns(self, file: Path, header: bytes) -> list[Column]:
        """Return the columns of a shard. Raises BadInput, or DataError if there is no such column or it is not text."""
        try:
            shard = json.loads(header)
            parts = zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True)
            columns = [(str(name), str(kind), int(size) if size else None) for name, kind, size in parts]
        except UNLIKE:
            raise _damaged(file, "is damaged or not a shard of MDS") from None
        kinds = {name: kind for name, kind, _ in columns}
        if len(kinds) < len(columns):
            raise _damaged(file, "has two columns of the same name")
        for column, use, possible in ((self.column, "text", TEXT), (self.key, "a key", (*TEXT, *NUMBERS))):
            if column is not None and column not in kinds:
                raise DataError(f"{file}: has no column '{column}'.{did_you_mean(column, kinds)}")
            if column is not None and kinds[column] not in possible:
                kind = f"of type {kinds[column]}, not {use}"
                raise DataError(f"{file}: the column '{column}' is {kind}. Choose another one.")
        return columns

    def _record(self, columns: list[Column], data: bytes, place: str) -> dict[str, str | int]:
        """Return the text and the key of a sample, by column. Raises BadInput.

        A sample is the sizes of the values without a fixed one, as 32-bit integers, and the values of all columns.
        """
        varying = [name for name, _, size in columns if size is None]
        begin = 4 * len(varying)
        sizes = dict(zip(varying, _integers(data[:begin]), strict=False))
        record: dict[str, str | int] = {}
        for name, kind, size in columns:
            end = begin + (sizes.get(name, 0) if size is None else size)
            if name in (self.column, self.key):
                record[name] = _value(name, kind, data[begin:end], place)
            begin = end
        if begin != len(data):
            raise BadInput(place, f"has {len(data):,} bytes, and its values have {begin:,}", CURE)
        return record


class _Content:
    """The decompressed content of a shard, read from its beginning. `at` is the number of bytes read."""

    def __init__(self, files: Files, file: Path) -> None:
        self._file, self._blocks = file, files.blocks(file, text=False)
        self._block, self._begin, self.at = b"", 0, 0

    def take(self, size: int, part: str) -> bytes:
        """Return the next bytes. Raises BadInput if they are not there, or too many."""
        if not 0 <= size <= LONGEST_LINE:
            raise _damaged(self._file, f"{part} has {size:,} bytes, not 0 to {LONGEST_LINE:,}")
        while len(self._block) - self._begin < size:
            block = next(self._blocks, b"")
            if not block:
                raise _damaged(self._file, f"is cut short in {part}")
            self._block, self._begin = self._block[self._begin :] + block, 0
        self._begin += size
        self.at += size
        return self._block[self._begin - size : self._begin]

    def integers(self, number: int, part: str) -> list[int]:
        """Return the next 32-bit integers. Raises BadInput."""
        return _integers(self.take(4 * number, part))

    def end(self) -> None:
        """Read to the end, where the file's hash is compared. Raises BadInput if there is more."""
        if self._begin < len(self._block) or any(self._blocks):
            raise _damaged(self._file, "continues after its last sample")


def _value(column: str, kind: str, data: bytes, place: str) -> str | int:
    if kind in NUMBERS:
        return int.from_bytes(data, "little", signed=not kind.startswith("u"))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} of the column '{column}' is not UTF-8"
        raise BadInput(place, reason, "Write the shards again, from text in UTF-8.") from None


def _integers(data: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(data[: len(data) // 4 * 4], "<u4").tolist()
    return numbers


def _damaged(file: Path, reason: str) -> BadInput:
    return BadInput(str(file), reason, CURE, unit="ends of files")


def _shards(index: Path) -> dict[Path, int]:
    """Return the shards that an index names, and how many samples each has. Raises DataError."""
    if uncompressed(index).suffix == ".mds":
        raise DataError(f"{index}: is a shard. Give its index.json, or their folder.")
    samples: dict[Path, int] = {}
    try:
        siblings = matched(index.parent, lambda file: True)[0] if isinstance(index, Url) else []
        listed = {str(file): file for file in siblings}
        with opened(index) as raw:
            shards = json.load(raw)["shards"]
        for shard in shards:
            if shard["format"] != "mds":
                raise DataError(f"{index}: its shards are in the format {shard['format']}, not mds.")
            names = [shard[data]["basename"] for data in ("raw_data", "zip_data") if shard[data]]
            files = [listed.get(str(index.parent / name), index.parent / name) for name in names]
            file = next(filter(exists, files), files[-1])
            if any(os.path.isabs(name) or ".." in Path(name).parts for name in names) or file in samples:
                raise DataError(f"{index}: lists {names[-1]!r:.200} twice, or outside its folder. Correct it.")
            samples[file] = int(shard["samples"])
    except UNLIKE:
        raise DataError(f"{index}: is not the index of a dataset of MDS shards. {CURE}") from None
    if not samples:
        raise DataError(f"{index}: has no shards. Give another folder.")
    for file in samples:
        if not exists(file):
            raise DataError(f"{file}: is missing, although {index.name} lists it. {CURE}")
        if uncompressed(file).suffix != ".mds":
            raise DataError(f"{file}: this compression is not supported. Compress by gz, bz2 or zstd.")
    return samples
