"""Records: the JSON objects on the lines of a file, and the values in their fields.

`place` is file:line, `cure` what the user can do about a record that is wrong.
"""

import json
from collections.abc import Mapping
from typing import Any

from electra_lab.sources.files import BadInput
from registry.errors import did_you_mean


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
