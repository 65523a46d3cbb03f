"""The items that a command reads, texts or records with named fields, and what it prints for each."""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli._streams import is_utf8
from electra_lab.cli._texts import OnError, stop_or_skip
from registry.errors import ConfigError, DataError

if TYPE_CHECKING:
    from electra_lab.sources.files import BadInput

Record = dict[str, Any]
WORDS = ("words", "tokens", "text")  # fields of sentences to tag, the first one that is there


Format = Literal["text", "jsonl", "csv", "tsv"]
AsFormat = Annotated[
    Format | None, typer.Option(help="Format of the input. Default: by the file's ending, otherwise a text per line.")
]
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv"}


def format_of(asked: Format | None, texts: list[str] | None, file: Path | None) -> Format:
    """Return the format that is asked for, otherwise that of the file's ending: text for everything else."""
    from electra_lab.sources.files import uncompressed

    if asked or texts or file is None:
        return asked or "text"
    return ENDINGS.get(uncompressed(file).suffix.lower(), "text")


def items_of(
    lines: Iterator[tuple[str, bytes]],
    format: Format,
    names: Sequence[str],
    needs: Collection[str],
    fields: Sequence[str],
    second: str | None,
    on_error: OnError,
) -> tuple[list[str], Iterator[tuple[str, Record, Record]]]:
    """Return the columns of a table, and an iterator over (place, record, item taken from the record).

    names   the fields of an item: `text` and `pair`, `question` and `context`, `words`
    needs   those that every item must have
    fields  those of the records that hold them, in the same order; by default they have these names
    second  the second text of all items

    Raises ConfigError, DataError.
    """
    if len(fields) > len(names):
        raise ConfigError(f"--field: the model takes {' and '.join(names)}, so {len(names)} at most.")
    if second is not None and len(names) < 2:
        raise ConfigError("--pair: the model takes single texts.")
    # The field of a record that holds each part of an item; None if it is called like the part.
    field_of: dict[str, str | None] = dict.fromkeys(needs if fields else names)
    field_of.update(zip(names, fields, strict=False))
    if second is not None:
        field_of.pop(names[1], None)

    def item_of(record: Record, place: str) -> Record:
        item = {}
        for name, field in field_of.items():
            if field or name in needs or name in record:
                item[name] = _value(record, place, name, field)
        return item

    columns: list[str] = []
    if format in ("csv", "tsv"):
        columns, place, records = _rows(lines, format)
        item_of(dict.fromkeys(columns, ""), place)  # refuses a header that lacks a column
    else:
        required = [field or name for name, field in field_of.items() if field or name in needs]
        records = _lines(lines, format, required)
    return columns, _items(records, item_of, {} if second is None else {names[1]: second}, on_error)


def _items(
    records: Iterator[tuple[str, "Record | BadInput"]],
    item_of: Callable[[Record, str], Record],
    second: Record,
    on_error: OnError,
) -> Iterator[tuple[str, Record, Record]]:
    from electra_lab.sources.files import BadInput

    for place, record in records:
        try:
            if isinstance(record, BadInput):
                raise record
            item = item_of(record, place)
        except BadInput as error:
            stop_or_skip(error, on_error)
            continue
        if isinstance(item.get("words"), str):
            item = {"text": item["words"]}
        for name, text in second.items():
            record.setdefault(name, text)
        yield place, record, item | second


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
            if format == "text":
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
    lines: Iterator[tuple[str, bytes]], format: Format
) -> tuple[list[str], str, Iterator[tuple[str, "Record | BadInput"]]]:
    """Return the columns of a table, the place of its header, and its rows. Raises DataError for a bad header."""
    from electra_lab.sources.delimited import cells
    from electra_lab.sources.files import BadInput

    texts = ((place, line.decode("utf-8", "surrogateescape")) for place, line in lines)
    # The first line shows the delimiter of a CSV file.
    place, first = next(texts, ("", ""))
    delimiter = "\t" if format == "tsv" else ","
    if format == "csv" and first.count(";") > first.count(","):
        delimiter = ";"
    rows = cells(chain([(place, first)], texts), delimiter)
    place, header = next(rows, (place, []))
    if isinstance(header, BadInput):
        raise DataError(str(header))
    columns = [name.strip() for name in header]
    for name in columns:
        if name and columns.count(name) > 1:
            raise DataError(f"{place}: several columns are called '{name}'. Rename all but one of them.")

    def records() -> Iterator[tuple[str, Record | BadInput]]:
        for place, row in rows:
            if isinstance(row, BadInput):
                yield place, row
            elif len(row) != len(columns):
                yield place, BadInput(place, f"has {len(row)} instead of {len(columns)} columns")
            else:
                yield place, dict(zip(columns, row, strict=True))

    return columns, place, records()


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
            return self.row(record.get(name, "") for name in self._columns)
        self._columns = [*record]
        return f"{self.row(record)}\n{self.row(record.values())}"

    @staticmethod
    def row(cells: Iterable[Any]) -> str:
        """Return cells as a row, without its end."""
        written = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell for cell in cells]
        text = io.StringIO()
        csv.writer(text).writerow(written)  # as its lines end with \r\n, cells with either character are quoted
        return text.getvalue().removesuffix("\r\n").encode("utf-8", "replace").decode()
