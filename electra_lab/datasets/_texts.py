"""Texts with labels, from records with named fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from electra_lab.datasets._files import CURE, text_of
from electra_lab.sources.files import BadInput
from electra_lab.sources.records import kind_of
from registry import TextExample

Name = Annotated[str, Field(min_length=1)]  # of a field
LabelType = Literal["word", "number"]


@dataclass(frozen=True)
class Fields:
    """The names of the fields that make an example."""

    text: str
    pair: str | None
    label: str
    id: str | None
    label_type: LabelType

    def names(self) -> list[str]:
        """Return the names of the fields, the label's last: the test may be without it."""
        return [name for name in (self.text, self.pair, self.id, self.label) if name]

    def example(self, value: Callable[[str], Any], place: str) -> tuple[str, TextExample]:
        """Return an example with its key.

        value  returns the value of a field, or raises BadInput

        Raises BadInput.
        """
        text = text_of(value(self.text), self.text, place).strip()
        pair = None if self.pair is None else text_of(value(self.pair), self.pair, place).strip()
        name = "" if self.id is None else id_of(value(self.id), self.id, place)
        label = label_of(value(self.label), self.label, self.label_type, place)
        empty = [field for field, found in ((self.text, text), (self.pair, pair)) if found == ""]
        if empty and label is not None:  # examples whose labels are asked for must all be answered
            raise BadInput(place, f"the field '{empty[0]}' is empty", "Add the text, or remove the example.")
        return key_of(text, pair), TextExample(text, pair, label, name, place)


def key_of(text: str, pair: str | None) -> str:
    """Return what decides whether a text is held out: itself, so that it cannot be in train as well."""
    return text if pair is None else f"{text}\0{pair}"


def label_of(value: Any, field: str, label_type: LabelType, place: str) -> str | float | None:
    """Return a label, None for a null or a text without characters. Raises BadInput."""
    if isinstance(value, str):
        value = value.strip()
    if value is None or value == "":
        return None
    if label_type == "number":
        return _number(value, field, place)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    cure = "Write label_type: number." if isinstance(value, float) else CURE
    raise BadInput(place, f"the field '{field}' is {kind_of(value)}, not a word", cure)


def _number(value: Any, field: str, place: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    what = f"'{value}'" if isinstance(value, str) else kind_of(value) if not isinstance(value, float) else value
    raise BadInput(place, f"the field '{field}' is {what}, not a finite number", CURE)


def id_of(value: Any, field: str, place: str) -> str:
    """Return an id. Raises BadInput."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadInput(place, f"the field '{field}' is {kind_of(value)}, so it cannot be an id", CURE)
    return str(value)
