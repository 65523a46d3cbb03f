"""What the corpora of records share: the text and the key in the fields of a record."""

from typing import Any

from electra_lab.sources.files import BadInput
from electra_lab.sources.records import kind_of, value_of
from registry import Document
from registry.documents import pieces

CURE = "Correct it, or set on_error: skip."


def documents_in(record: Any, place: str, field: str, key: str | None) -> list[str | Document]:
    """Return the text in a field of a record as documents: one, several if it is too long, none if it is empty.

    field  a field's name; `a.b` is the field b of the object in field a
    key    the field whose value is the documents' key

    Raises BadInput.
    """
    text = value_of(record, place, field, CURE)
    if not isinstance(text, str):
        raise BadInput(place, f"the field '{field}' is {kind_of(text)}, not text", CURE)
    found = pieces(text)
    if key is None:
        return [*found]
    value = value_of(record, place, key, CURE)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(place, f"the field '{key}' is {kind_of(value)}, so it cannot be a key", CURE)
    return [Document(each, str(value)) for each in found]
