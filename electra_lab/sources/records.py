"""Records: lines of text, the JSON objects in a file, and the values of their fields. `place` is file:line."""

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from electra_lab.sources.files import BYTE_ORDER_MARK, LONGEST_LINE, BadInput, Files
from registry.errors import did_you_mean

EXTENSIONS = (".jsonl", ".ndjson", ".json")
BETWEEN = re.compile(r"[\s,\[\]]*")  # the values of an array
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character; JSON may have one alone


def text_lines(files: Files, file: Path) -> Iterator[tuple[str, str]]:
    """Yield the places and the lines of a text file, without their ends. Raises like `Files.lines`.

    Bytes that are not UTF-8 become surrogates: see `check_utf8`.
    """
    for number, line in enumerate(files.lines(file), start=1):
        yield f"{file}:{number}", line.removesuffix(b"\r").decode("utf-8", "surrogateescape")


def records(files: Files, file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the places of the records in a file, and their JSON. Raises like `Files.lines`.

    Records are lines that are not blank. In a file that begins with an array of objects, or with a brace alone on its
    line, they are objects over any number of lines.
    """
    blocks = files.blocks(file)
    first = next(blocks, b"").removeprefix(BYTE_ORDER_MARK)
    blocks = chain([first], blocks)  # each is fetched once
    if begin := re.match(rb"\s*(\[\s*[]{\r\n]|\{\s*[\r\n])", first):
        yield from _values(blocks, file, end="]" if begin[1].startswith(b"[") else "")
    else:
        for number, line in enumerate(files.lines(file, blocks), start=1):
            if line.strip():
                yield f"{file}:{number}", line


def _values(blocks: Iterator[bytes], file: Path, end: str) -> Iterator[tuple[str, bytes]]:
    """Yield the places and the JSON of the values in a file. Raises BadInput for a value that does not end."""
    utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # bytes that are not UTF-8 affect one record only
    newlines = io.IncrementalNewlineDecoder(utf8, translate=True)
    decode = json.JSONDecoder().raw_decode
    text, line = "", 1
    for block in blocks:
        text, at = text + newlines.decode(block), 0
        with suppress(ValueError, RecursionError):  # of a value that continues in the next block
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


def decoded(line: bytes, place: str) -> str:
    """Return a line as text. Raises BadInput if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        cure = "Convert it to UTF-8, for example with iconv."
        raise BadInput(place, f"byte {error.start} of the line is not UTF-8", cure) from None


def check_utf8(texts: Iterable[str], place: str) -> None:
    """Raise BadInput if a text from `text_lines` was not UTF-8."""
    for text in texts:
        if SURROGATE.search(text):
            decoded(text.encode("utf-8", "surrogateescape"), place)


def record_in(line: bytes, place: str) -> Any:
    """Return the JSON value on a line. Raises BadInput."""
    try:
        return json.loads(decoded(line, place))
    except json.JSONDecodeError as error:
        raise BadInput(place, f"is not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of brackets
        raise BadInput(place, "is JSON that Python cannot read") from None


def value_of(record: Any, place: str, field: str) -> Any:
    """Return the value of a field; `a.b` is the field b of the object in field a. Raises BadInput."""
    if not isinstance(record, Mapping):
        raise BadInput(place, f"is {kind_of(record)}, not an object with fields")
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            hint = did_you_mean(name, map(str, value if isinstance(value, Mapping) else ()))
            raise BadInput(place, f"has no field '{field}'", f"{hint.strip()} Correct it.")
        value = value[name]
    return value


def text_of(value: Any, field: str, place: str) -> str:
    """Return the value of a field if it is text. Raises BadInput."""
    if not isinstance(value, str):
        raise BadInput(place, f"the field '{field}' is {kind_of(value)}, not text")
    return value


def whole_text(value: Any, field: str, place: str) -> str:
    """Return the value of a field if it is text without half characters. Raises BadInput."""
    text = text_of(value, field, place)
    if SURROGATE.search(text):
        raise BadInput(place, f"the field '{field}' has half of a character (\\ud800 to \\udfff)")
    return text


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, with its article."""
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else words.get(type(value), f"of type {type(value).__name__}")
