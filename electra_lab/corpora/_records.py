"""What the corpora of records share: the text and the key in the fields of a record."""

from collections.abc import Mapping
from typing import Any

from electra_lab.sources import BadInput
from registry import Document
from registry.documents import pieces
from registry.errors import did_you_mean

CURE = "Correct it, or set on_error: skip."


def documents_in(record: Any, place: str, field: str, key: str | None) -> list[str | Document]:
    """Return the text in a field of a record as documents: one, several if it is too long, none if it is empty.

    field  a field's name; `a.b` is the field b of the object in field a
    key    the field whose value is the documents' key

    Raises BadInput.
    """
    if not isinstance(record, Mapping):
        raise BadInput(place, f"is {_kind(record)}, not an object with fields", CURE)
    text = _value(record, place, field)
    if not isinstance(text, str):
        raise BadInput(place, f"the field '{field}' is {_kind(text)}, not text", CURE)
    found = pieces(text)
    if key is None:
        return [*found]
    value = _value(record, place, key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(place, f"the field '{key}' is {_kind(value)}, so it cannot be a key", CURE)
    return [Document(each, str(value)) for each in found]


def _value(record: Mapping[str, Any], place: str, field: str) -> Any:
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            known = did_you_mean(name, map(str, value if isinstance(value, Mapping) else ()))
            raise BadInput(place, f"has no field '{field}'", f"{known.strip()} {CURE}")
        value = value[name]
    return value


def _kind(value: Any) -> str:
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else words.get(type(value), f"of type {type(value).__name__}")
