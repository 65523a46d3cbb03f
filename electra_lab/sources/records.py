"""Records: the JSON objects in a file, one on each line or in an array, and the values in their fields.

`place` is file:line, `cure` what the user can do about a record that is wrong.
"""

import codecs
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from electra_lab.sources.files import BYTE_ORDER_MARK, LONGEST_LINE, BadInput, Files
from registry.errors import did_you_mean

EXTENSIONS = (".jsonl", ".ndjson", ".json")
BETWEEN = re.compile(r"[\s,\[\]]*")  # the values of an array


def records(files: Files, file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the places of the records in a file, and their JSON. Raises like `Files.lines`.

    Records are lines that are not blank. Where the file begins with an array of objects, or with a brace alone on its
    line, they are these objects, or objects one after the other, over any number of lines.
    """
    blocks = files.blocks(file)
    first = next(blocks, b"").removeprefix(BYTE_ORDER_MARK)
    if begin := re.match(rb"\s*(\[\s*[]{\r\n]|\{\s*[\r\n])", first):
        yield from _values(chain([first], blocks), file, end="]" if begin[1].startswith(b"[") else "")
    else:
        for number, line in enumerate(files.lines(file, "Write one object on each line."), start=1):
            if line.strip():
                yield f"{file}:{number}", line


def _values(blocks: Iterator[bytes], file: Path, end: str) -> Iterator[tuple[str, bytes]]:
    """Yield the places and the JSON of the values in a file. Raises BadInput where one does not end."""
    utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # what is not UTF-8 spoils its record only
    newlines = io.IncrementalNewlineDecoder(utf8, translate=True)
    decode = json.JSONDecoder().raw_decode
    text, line = "", 1
    for block in blocks:
        text, at = text + newlines.decode(block), 0
        with suppress(ValueError, RecursionError):  # of a value that goes on in the next block
            while True:
                begin = BETWEEN.match(text, at).end()  # type: ignore[union-attr]
                _, after = decode(text, begin)
                line += text.count("\n", at, begin)
                yield f"{file}:{line}", text[begin:after].encode("utf-8", "surrogateescape")
                line += text.count("\n", begin, after)
                at = after
        text = text[at:]
        if len(text) > LONGEST_LINE:
            break
    if not BETWEEN.fullmatch(text) or not text.rstrip().endswith(end):
        line += text.count("\n", 0, BETWEEN.match(text).end())  # type: ignore[union-attr]
        reason = "the JSON from here on is damaged or cut short"
        raise BadInput(f"{file}:{line}", reason, "Correct it, or copy it again.", unit="ends of files")


def decoded(line: bytes, place: str, cure: str) -> str:
    """Return a line as text. Raises BadInput if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadInput(place, f"byte {error.start} of the line is not UTF-8", cure) from None


def record_in(line: bytes, place: str, cure: str) -> Any:
    """Return the JSON value on a line. Raises BadInput."""
    try:
        return json.loads(decoded(line, place, cure))
    except json.JSONDecodeError as error:
        raise BadInput(place, f"is not JSON ({error.msg} at column {error.colno})", cure) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of brackets
        raise BadInput(place, "is JSON that Python cannot read", cure) from None


def value_of(record: Any, place: str, field: str, cure: str) -> Any:
    """Return the value of a field; `a.b` is the field b of the object in field a. Raises BadInput."""
    if not isinstance(record, Mapping):
        raise BadInput(place, f"is {kind_of(record)}, not an object with fields", cure)
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            known = did_you_mean(name, map(str, value if isinstance(value, Mapping) else ()))
            raise BadInput(place, f"has no field '{field}'", f"{known.strip()} {cure}")
        value = value[name]
    return value


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, with its article."""
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else words.get(type(value), f"of type {type(value).__name__}")
