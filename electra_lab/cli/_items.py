"""The items that a command reads, texts or records with named fields, and what it prints for each."""

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_lab.cli._streams import is_utf8
from electra_lab.cli._texts import OnError, stop_or_skip
from registry.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from electra_lab.sources.files import BadInput

Record = dict[str, Any]
WORDS = ("words", "tokens", "text")  # fields of sentences to tag, the first one that is there


class Format(StrEnum):
    text = "text"
    jsonl = "jsonl"
    csv = "csv"
    tsv = "tsv"


ENDINGS = {
    ".jsonl": Format.jsonl,
    ".ndjson": Format.jsonl,
    ".json": Format.jsonl,
    ".csv": Format.csv,
    ".tsv": Format.tsv,
}


def format_of(asked: Format | None, texts: list[str] | None, file: Path | None) -> Format:
    """Return the format that is asked for, otherwise that of the file's ending: text for everything else."""
    from electra_lab.sources.files import uncompressed

    if asked or texts or file is None:
        return asked or Format.text
    return ENDINGS.get(uncompressed(file).suffix.lower(), Format.text)


def items_of(
    lines: Iterator[tuple[str, bytes]],
    format: Format,
    names: Sequence[str],
    needs: Collection[str],
    fields: Sequence[str],
    second: str | None,
    on_error: OnError,
    columns: list[str],
) -> Iterator[tuple[str, Record, Record]]:
    """Yield the place of each item, the record that it comes from, and the item.

    names   the fields of an item: `text` and `pair`, `question` and `context`, `words`
    needs   those that every item must have
    fields  those of the records that hold them, in the same order; by default they have these names
    second  the second text of all items
    columns receives the names of the columns of a table, once its header is read

    Raises ConfigError, DataError.
    """
    from electra_lab.sources.files import BadInput

    if len(fields) > len(names):
        raise ConfigError(f"--field: the model takes {' and '.join(names)}, so {len(names)} at most.")
    if second is not None and len(names) < 2:
        raise ConfigError("--pair: the model takes single texts.")
    # The field of a record that holds each part of an item; None if it is called like the part.
    field_of: dict[str, str | None] = dict.fromkeys(needs if fields else names)
    field_of.update(zip(names, fields, strict=False))
    if second is not None:
        field_of.pop(names[1], None)
    required = [field or name for name, field in field_of.items() if field or name in needs]
    # Read records, and take an item from each.
    if format in (Format.csv, Format.tsv):
        records = _rows(lines, format, required, columns)
    else:
        records = _lines(lines, format, required)
    for place, record in records:
        try:
            if isinstance(record, BadInput):
                raise record
            item = {}
            for name, field in field_of.items():
                if field or name in needs or name in record:
                    item[name] = _value(record, place, name, field)
        except BadInput as error:
            stop_or_skip(error, on_error)
            continue
        if isinstance(item.get("words"), str):
            item = {"text": item["words"]}
        if second is not None:
            item[names[1]] = second
            record.setdefault(names[1], second)
        yield place, record, item


def refuse_overwriting(place: str, record: Record, added: Collection[str]) -> None:
    """Raise DataError if a record has a field that its answer adds."""
    for name in record:
        if name in added:
            raise DataError(f"{place}: has the field '{name}', which the answer adds. Rename it.")


def _value(record: Record, place: str, name: str, field: str | None) -> Any:
    """Return the text of a field, or the words. Raises BadInput."""
    from electra_lab.sources.files import BadInput
    from electra_lab.sources.records import value_of, whole_text

    chosen = field or name
    if name == "words" and not field:
        chosen = next((candidate for candidate in WORDS if candidate in record), name)
    value = value_of(record, place, chosen)
    if name != "words" or isinstance(value, str):
        return whole_text(value, chosen, place)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise BadInput(place, f"the field '{chosen}' is neither text nor a list of words")
    return value


def _lines(
    lines: Iterator[tuple[str, bytes]], format: Format, names: Sequence[str]
) -> Iterator[tuple[str, "Record | BadInput"]]:
    """Yield the places and the records of lines of text or JSON; for bad ones their errors."""
    from electra_lab.sources.files import BadInput
    from electra_lab.sources.records import decoded, record_in

    for place, line in lines:
        try:
            if format == Format.text:
                yield place, _columns(decoded(line, place), place, names)
            elif line.strip():
                record = record_in(line, place)
                bad = BadInput(place, "is not an object with fields")
                yield place, record if isinstance(record, dict) else bad
        except BadInput as error:
            yield place, error


def _columns(line: str, place: str, names: Sequence[str]) -> Record:
    """Return the texts of a line, which a tab separates if there are two. Raises BadInput."""
    from electra_lab.sources.files import BadInput

    parts = line.split("\t", 1) if len(names) > 1 else [line]
    if len(parts) < len(names):
        raise BadInput(place, f"has no tab between {names[0]} and {names[1]}", f"Add it, or give --{names[1]} TEXT.")
    return {"text" if name == "words" else name: part for name, part in zip(names, parts, strict=False)}


def _rows(
    lines: Iterator[tuple[str, bytes]], format: Format, names: Sequence[str], columns: list[str]
) -> Iterator[tuple[str, "Record | BadInput"]]:
    """Yield the places and the rows of a table, whose header `columns` receives.

    Raises DataError for a header that is bad or lacks a name.
    """
    from itertools import chain

    from electra_lab.sources.delimited import cells
    from electra_lab.sources.files import BadInput

    texts = ((place, line.decode("utf-8", "surrogateescape")) for place, line in lines)
    # The first line shows the delimiter of a CSV file.
    place, first = next(texts, ("", ""))
    delimiter = "\t" if format == Format.tsv else ","
    if format == Format.csv and first.count(";") > first.count(","):
        delimiter = ";"
    rows = cells(chain([(place, first)], texts), delimiter)
    # The header must have each of the names once; any of WORDS stands for the words.
    place, header = next(rows, (place, []))
    if isinstance(header, BadInput):
        raise DataError(str(header))
    header = [name.strip() for name in header]
    for name in header:
        if name and header.count(name) > 1:
            raise DataError(f"{place}: several columns are called '{name}'. Rename all but one of them.")
    known = {*header}
    if known.intersection(WORDS):
        known.add("words")
    for name in names if header else ():
        if name not in known:
            cure = "Name another with --field."
            raise DataError(f"{place}: there is no column '{name}'.{did_you_mean(name, header)} {cure}")
    columns += header
    for place, row in rows:
        if isinstance(row, BadInput):
            yield place, row
        elif len(row) != len(header):
            yield place, BadInput(place, f"has {len(row)} instead of {len(header)} columns")
        else:
            yield place, dict(zip(header, row, strict=True))


def json_line(value: Record) -> str:
    """Return a line of JSON; halves of characters, which only other fields may have, are escaped."""
    line = json.dumps(value, ensure_ascii=not is_utf8())
    return json.dumps(value) if re.search("[\ud800-\udfff]", line) else line


def cells_of(answer: Record) -> Record:
    """Return an answer as cells of a table: the probability of each label has its own."""
    cells: Record = {}
    for name, value in answer.items():
        if name == "probabilities" and isinstance(value, dict):
            cells |= {f"probability_{label}": chance for label, chance in value.items()}
        else:
            cells[name] = value
    return cells


class Table:
    """Rows of a CSV file whose columns are those of the first one."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    @property
    def is_empty(self) -> bool:
        """True as long as nothing was returned."""
        return not self._columns

    def line(self, record: Record) -> str:
        """Return a row, the first time below the header."""
        if not self.is_empty:
            return csv_line(record.get(name, "") for name in self._columns)
        self._columns = [*record]
        return f"{csv_line(record)}\n{csv_line(record.values())}"


def csv_line(cells: Iterable[Any]) -> str:
    """Return a row of a CSV file, without its end."""
    written = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell for cell in cells]
    text = io.StringIO()
    csv.writer(text).writerow(written)  # as its lines end with \r\n, cells with either character are quoted
    return text.getvalue().removesuffix("\r\n").encode("utf-8", "replace").decode()
