"""Items of commands, texts or records with named fields, and their answers."""

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from electra_lab.cli._inputs import Incoming, Line, ahead, inputs_of, lines_of, refuse_long
from electra_lab.cli._streams import is_utf8
from registry.errors import ConfigError, DataError

if TYPE_CHECKING:
    from electra_lab.sources.files import BadInput

OnError = Literal["stop", "skip"]
Record = dict[str, Any]
Entry = tuple[str, Record, Record]  # the place of an item, its record, and the item taken from it
WORDS = ("words", "tokens", "text")  # fields of sentences to tag, the first one that is there
Format = Literal["text", "jsonl", "csv", "tsv", "fasta"]
AsFormat = Annotated[
    Format | None, typer.Option(help="Format of the input. Default: by the file's ending, otherwise a text per line.")
]
ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv",
    ".fa": "fasta", ".fasta": "fasta", ".fna": "fasta", ".ffn": "fasta", ".faa": "fasta", ".frn": "fasta",
}  # fmt: skip
FIELDLESS = ("text", "fasta")
OF_DATASET: dict[str, Format] = {"table": "csv", "json_lines": "jsonl"}  # how its files are read again


@dataclass(frozen=True)
class Reading:
    """How the input of a command is read.

    fields   fields of a record that hold `names`, in the same order; by default `usual`, otherwise `names`
    names    fields of an item: `text` and `pair`, `question` and `context`, `words`; if None, one text, which may join
             several fields by spaces
    needs    required fields of an item
    second   second text of all items
    begins   pattern of the first line of a text of several lines
    trained  type and options of the dataset that the model was trained on
    """

    on_error: OnError
    format: Format | None = None
    fields: Sequence[str] = ()
    names: Sequence[str] | None = None
    needs: Sequence[str] = ("text",)
    usual: Sequence[str] = ()
    second: str | None = None
    begins: re.Pattern[str] | None = None
    trained: Mapping[str, Any] = field(default_factory=dict)

    def format_of(self, file: Path | None) -> Format:
        """Return the format that is asked for, or that of the file's ending, as in training: text for all others."""
        from electra_lab.sources.files import uncompressed

        if self.format or file is None or str(file) == "-":
            return self.format or "text"
        ending = uncompressed(file).suffix.lower()
        trained = [Path(self.trained.get(split) or ".") for split in ("train", "validation", "test")]
        is_trained = ending in [uncompressed(path).suffix.lower() for path in trained if path.name]
        return ENDINGS.get(ending, OF_DATASET.get(self.trained["type"], "text") if is_trained else "text")


def read(texts: list[str] | None, files: list[Path] | None, reading: Reading) -> Incoming[Entry]:
    """Return the items of all inputs in order, with the columns of tables.

    Raises ConfigError, DataError; for the first input at once, for others when they are read.
    """
    first, *others = inputs_of(texts, files)
    begun = _items_of(first, texts, reading)

    def following() -> Iterator[Entry]:
        for file in others:
            incoming = _items_of(file, texts, reading)
            if incoming.columns != begun.columns:
                raise DataError(f"{file}: its columns are not those of {first}. Read it alone.")
            yield from incoming

    more = None if others else begun.more
    return replace(begun, items=chain(begun.items, following()), more=more, several=len(others) > 0)


@dataclass(frozen=True)
class Parts:
    """The parts of an item, and the fields of a record that hold them.

    fields  field of each part; None if it has the name of the part
    more    further fields of the text, which follow after a space
    needs   required parts
    """

    fields: Mapping[str, str | None]
    more: Sequence[str]
    needs: Sequence[str]

    @property
    def required(self) -> list[str]:
        """The fields that every record must have, without `more`."""
        return [source or name for name, source in self.fields.items() if source or name in self.needs]

    def item(self, record: Record, place: str) -> Record:
        """Return the item in a record. Raises BadInput."""
        item = {}
        for name, source in self.fields.items():
            if source or name in self.needs or name in record:
                item[name] = _value(record, place, name, source)
        for source in self.more:
            item["text"] += " " + _value(record, place, "text", source)
        return item


def _parts_of(reading: Reading, format: Format) -> Parts:
    """Return the parts of the items of an input. Raises ConfigError."""
    names, fields = reading.names or ("text",), reading.fields
    if format not in FIELDLESS:
        fields = fields or reading.usual
    elif fields:
        raise ConfigError("--field: the input is text without fields. Give its --format: jsonl, csv or tsv.")
    if reading.names and len(fields) > len(names):
        raise ConfigError(f"--field: the model takes {' and '.join(names)}, so {len(names)} at most.")
    if reading.second is not None and len(names) < 2:
        raise ConfigError("--pair: the model takes single texts.")
    of_parts: dict[str, str | None] = dict.fromkeys(reading.needs if fields else names)
    of_parts.update(zip(names, fields, strict=False))
    if reading.second is not None:
        of_parts.pop(names[1], None)
    return Parts(of_parts, fields[len(names) :], reading.needs)


def _items_of(file: Path | None, texts: list[str] | None, reading: Reading) -> Incoming[Entry]:
    format = reading.format_of(file)
    parts, source = _parts_of(reading, format), lines_of(texts, file)
    lines = (line for line in source if line[0])  # without pauses
    columns: list[str] = []
    records: Iterator[tuple[str, Record | BadInput]]
    if format in ("csv", "tsv"):
        columns, place, records = _rows(lines, format, [*parts.required, *parts.more], reading.trained)
        parts.item(dict.fromkeys(columns, ""), place or str(file))  # refuses a header that lacks a column
    elif format == "fasta":
        columns, records = ["name", "text"], _sequences(lines)
    else:
        grouped = _grouped(source, reading.begins) if reading.begins and format == "text" else lines
        records = _lines(grouped, format, parts.required)
    items = _entries(records, parts, reading, is_guessed=format == "text" and reading.format is None)
    incoming = ahead(items, source.signal) if source.signal else Incoming(items)
    return replace(incoming, columns=columns, format=format)


def _entries(
    records: "Iterator[tuple[str, Record | BadInput]]", parts: Parts, reading: Reading, *, is_guessed: bool
) -> Iterator[Entry]:
    """Yield the items of records with their places. Raises DataError."""
    from electra_lab.sources.files import BadInput

    for place, record in records:
        try:
            if isinstance(record, BadInput):
                raise record
            item = parts.item(record, place)
        except BadInput as error:
            stop_or_skip(error, reading.on_error)
            continue
        if is_guessed and place.endswith(":1") and next(iter(record.values())).startswith(">"):
            raise DataError(f"{place}: begins with >, as FASTA does. Give the --format: fasta or text.")
        if isinstance(item.get("words"), str):
            item = {"text": item["words"]}
        if reading.second is not None and reading.names:
            item[reading.names[1]] = reading.second
            record.setdefault(reading.names[1], reading.second)
        yield place, record, item


def stop_or_skip(error: "BadInput", on_error: OnError) -> None:
    """Raise DataError for a bad line, or note that it is left out."""
    from electra_lab.presentation.console import Console

    if on_error == "stop":
        raise DataError(f"{error} To leave it out, use --on-error skip.") from None
    Console().say(f"note: {error.skipped.place}: {error.skipped.reason}. It is left out.")


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


def _lines(lines: Iterator[Line], format: Format, names: Sequence[str]) -> Iterator[tuple[str, "Record | BadInput"]]:
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


def _grouped(lines: Iterator[Line], begins: re.Pattern[str]) -> Iterator[Line]:
    """Yield texts of several lines, at the place of the first one, which a pattern matches.

    A text is complete when the next one begins, or at a pause.
    """
    place, group, size = "", list[bytes](), 0
    for at, line in lines:
        if group and (not at or begins.search(line.decode("utf-8", "replace"))):
            yield place, b"\n".join(group)
            group = []
        if at:
            place, size = (place, size + len(line)) if group else (at, len(line))
            group.append(line)
            refuse_long(size, place)
    if group:
        yield place, b"\n".join(group)


def _sequences(lines: Iterator[Line]) -> "Iterator[tuple[str, Record | BadInput]]":
    """Yield the records of a FASTA file: the first word of the header, and the letters without white space."""
    from electra_lab.sources.files import BadInput
    from electra_lab.sources.records import decoded

    written = ((place, line) for place, line in lines if line.strip() and not line.startswith(b";"))
    for place, text in _grouped(written, re.compile("^>")):
        header, *parts = text.split(b"\n")
        if not header.startswith(b">"):
            raise DataError(f"{place}: there is text before the first header, which begins with >. Is it FASTA?")
        if b"\r" in header.rstrip(b"\r"):
            raise DataError(f"{place}: lines end with CR alone. Convert them: tr '\\r' '\\n'.")
        name = (header[1:].decode("utf-8", "replace").split() or [""])[0]
        try:
            yield place, {"name": name, "text": "".join(decoded(b"".join(parts), place).split())}
        except BadInput as error:
            yield place, error


def _rows(
    lines: Iterator[Line], format: Format, required: Sequence[str], trained: Mapping[str, Any]
) -> tuple[list[str], str, Iterator[tuple[str, "Record | BadInput"]]]:
    """Return the columns of a table, the place of its header, and its rows. Raises DataError for a bad header.

    A table without a header has the columns of training, or numbers if these are required.
    """
    from electra_lab.sources.delimited import DELIMITERS, named, rows
    from electra_lab.sources.files import BadInput

    def fits(row: list[str]) -> bool:
        return {*required} <= {name.strip() for name in row}

    texts = ((place, line.decode("utf-8", "surrogateescape")) for place, line in lines)
    delimiter = "\t" if format == "tsv" else DELIMITERS.get(trained.get("delimiter", ""))
    written = rows(texts, delimiter, ",", fits)
    place, header = next(written, ("", []))
    if isinstance(header, BadInput):
        raise DataError(str(header))
    columns = [name.strip() for name in header]
    numbers = [str(number) for number in range(1, len(header) + 1)]
    by_number = bool(required) and {*required} <= {*numbers}
    if by_number and fits(header) and {*columns} != {*numbers}:
        reason = f"'{required[0]}' may be the name of a column or its number, as the first row has it"
        raise DataError(f"{place}: {reason}. Write a header with other names.")
    names = numbers if by_number else trained.get("columns")
    if names and not fits(header):
        columns, written = names, chain([(place, header)], written)
    for name in columns:
        if name and columns.count(name) > 1:
            raise DataError(f"{place}: several columns are called '{name}'. Rename all but one of them.")

    return columns, place, named(written, columns)


def line_at(place: str, incoming: Incoming[Entry]) -> int | str:
    """Return the number of a text's line, or of an argument; the place if there are several files."""
    return place if incoming.several else int(place.rpartition(":")[2].removeprefix("TEXT "))


def json_line(value: Record) -> str:
    """Return a line of JSON; unpaired surrogates, which only other fields may have, are escaped."""
    line = json.dumps(value, ensure_ascii=not is_utf8())
    return json.dumps(value) if re.search("[\ud800-\udfff]", line) else line


def cells_of(answer: Record) -> Record:
    """Return an answer as cells of a table: the probability of each label has its own."""
    cells: Record = {}
    for name, value in answer.items():
        by_label = name == "probabilities" and isinstance(value, dict)
        cells |= {f"probability_{label}": p for label, p in value.items()} if by_label else {name: value}
    return cells


class Table:
    """Rows of a CSV file whose columns are those of the first one. A row that lacks some has empty cells."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    def line(self, record: Record, place: str) -> str:
        """Return a row, the first time below the header. Raises DataError for a field without a column."""
        if self.columns:
            for name in sorted(record.keys() - self.columns):
                raise DataError(f"{place}: has the field '{name}', which the first row of the table lacks. Use --json.")
            return self.row(record.get(name, "") for name in self.columns)
        self.columns = [*record]
        return f"{self.row(record)}\n{self.row(record.values())}"

    @staticmethod
    def row(cells: Iterable[Any]) -> str:
        """Return cells as a row, without its end."""
        written = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell for cell in cells]
        text = io.StringIO()
        csv.writer(text).writerow(written)  # as its lines end with \r\n, cells with either character are quoted
        return text.getvalue().removesuffix("\r\n").encode("utf-8", "replace").decode()
