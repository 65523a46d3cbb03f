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
    columns: list[str] | None = None,
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
    wanted: dict[str, str | None] = dict.fromkeys(needs if fields else names)
    wanted.update(zip(names, fields, strict=False))
    if second is not None:
        wanted.pop(names[1], None)
    there = [field or name for name, field in wanted.items() if field or name in needs]
    table = format in (Format.csv, Format.tsv)
    read = _rows(lines, format, there, [] if columns is None else columns) if table else _lines(lines, format, there)
    for place, record in read:
        try:
            if isinstance(record, BadInput):
                raise record
            found = {name: field for name, field in wanted.items() if field or name in needs or name in record}
            item = {name: _value(record, place, name, field) for name, field in found.items()}
        except BadInput as error:
            stop_or_skip(error, on_error)
            continue
        if isinstance(item.get("words"), str):
            item = {"text": item["words"]}
        known = {} if second is None else {names[1]: second}
        yield place, record | {key: value for key, value in known.items() if key not in record}, item | known


def refuse_overwriting(place: str, record: Record, added: Collection[str]) -> None:
    """Raise DataError if a record has a field that its answer adds."""
    if both := [name for name in record if name in added]:
        raise DataError(f"{place}: has the field '{both[0]}', which the answer adds. Rename it.")


def _value(record: Record, place: str, name: str, field: str | None) -> Any:
    """Return the text of a field, or the words. Raises BadInput."""
    from electra_lab.sources.files import BadInput
    from electra_lab.sources.records import SURROGATE, text_of, value_of

    candidates = WORDS if name == "words" else (name,)
    chosen = field or next((each for each in candidates if each in record), name)
    value = value_of(record, place, chosen)
    if name != "words" or isinstance(value, str):
        if SURROGATE.search(text := text_of(value, chosen, place)):
            raise BadInput(place, f"the field '{chosen}' has half of a character (\\ud800 to \\udfff)")
        return text
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
    place, first = next(texts, ("", ""))
    semicolons = format == Format.csv and first.count(";") > first.count(",")
    delimiter = "\t" if format == Format.tsv else ";" if semicolons else ","
    rows = cells(chain([(place, first)], texts), delimiter)
    place, header = next(rows, (place, []))
    if isinstance(header, BadInput):
        raise DataError(str(header))
    header = [name.strip() for name in header]
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f"{place}: several columns are called '{twice}'. Rename all but one of them.")
    known = {*header} | ({"words"} if {*header} & {*WORDS} else set())
    if absent := next((name for name in names if header and name not in known), None):
        cure = "Name another with --field."
        raise DataError(f"{place}: there is no column '{absent}'.{did_you_mean(absent, header)} {cure}")
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
    return line if line.isascii() or not re.search("[\ud800-\udfff]", line) else json.dumps(value)


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

    def header(self, columns: Iterable[str]) -> str:
        """Return the header alone, of a table without rows."""
        return self.line(dict.fromkeys(columns)).split("\n")[0]

    def line(self, record: Record) -> str:
        """Return a row, the first time below the header."""
        cells = {name: self._cell(value) for name, value in record.items()}
        first, self._columns = not self._columns, self._columns or [*cells]
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", extrasaction="ignore", lineterminator="\n")
        if first:
            writer.writeheader()
        writer.writerow(cells)
        return text.getvalue().removesuffix("\n").encode("utf-8", "replace").decode()

    @staticmethod
    def _cell(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
