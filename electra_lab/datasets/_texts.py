"""Texts with labels, from records with named fields."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.sources.files import BadInput
from electra_lab.sources.records import kind_of, whole_text
from registry import TextExample

Name = Annotated[str, Field(min_length=1)]  # of a field
LabelType = Literal["word", "number"]


@dataclass(kw_only=True, eq=False)
class TextFields:
    """The names of the fields that make an example, as options of a dataset."""

    text: Name = "text"
    pair: Name | None = None
    label: Name = "label"
    label_type: LabelType = "word"
    id: Name | None = None

    def _options(self) -> dict[str, Any]:
        return {"fields": [self.text, self.pair, self.label, self.label_type, self.id]}

    @staticmethod
    def fields(options: Mapping[str, Any]) -> list[str]:
        """Return the names of the field with the text and, for pairs, of that with the second one."""
        return [options[key] for key in ("text", "pair") if options.get(key)]

    def names(self) -> list[str]:
        """Return the names of the fields, the label's last, as it may be missing in the test."""
        return [name for name in (self.text, self.pair, self.id, self.label) if name]

    def example(self, value: Callable[[str], Any], place: str) -> tuple[str, TextExample]:
        """Return an example with its key.

        value  function that returns the value of a field, or raises BadInput

        Raises BadInput.
        """
        text = whole_text(value(self.text), self.text, place).strip()
        pair = None if self.pair is None else whole_text(value(self.pair), self.pair, place).strip()
        name = "" if self.id is None else id_of(value(self.id), self.id, place)
        label = label_of(value(self.label), self.label, self.label_type, place)
        if label is not None and "" in (text, pair):  # labelled examples must all have a prediction
            raise BadInput(place, f"the field '{self.pair if text else self.text}' is empty", "Add text, or remove it.")
        return key_of(text, pair), TextExample(text, pair, label, name, place)


def key_of(text: str, pair: str | None) -> str:
    """Return the key that determines whether a text is held out: the text, so that it cannot be in train as well."""
    return text if pair is None else f"{text}\0{pair}"


def label_of(value: Any, field: str, label_type: LabelType, place: str) -> str | float | None:
    """Return a label, or None if it is null or blank. Raises BadInput."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "":
        return None
    if label_type == "number":
        return _number(value, field, place)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # as pandas writes classes of a column with gaps
        value = int(value)
    if isinstance(value, str | int):
        return str(value)
    cure = "Write label_type: number." if isinstance(value, float) else "Correct it."
    raise BadInput(place, f"the field '{field}' is {kind_of(value)}, not a word", cure)


def _number(value: Any, field: str, place: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        written = kind_of(value)
        if isinstance(value, str | float):
            written = f"'{value}'" if isinstance(value, str) else str(value)
        raise BadInput(place, f"the field '{field}' is {written}, not a finite number")
    return number


def id_of(value: Any, field: str, place: str) -> str:
    """Return an id. Raises BadInput."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInput(place, f"the field '{field}' is {kind_of(value)}, so it cannot be an id")
    return str(value)
