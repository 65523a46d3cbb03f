"""Errors at a place of the config, and how they are printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from electra_lab.config.source import Loc, Mark, mark_at
from registry.errors import ConfigError


def problem(loc: Loc, reason: str, value: Any = None) -> ValidationError:
    """A validation error below the field whose validator raises it."""
    kind = PydanticCustomError("lab", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data("experiment", [InitErrorDetails(type=kind, loc=loc, input=value)])


def sentences(error: ValidationError, marks: Mapping[Loc, Mark]) -> ConfigError:
    """All errors of a file: `file.yaml:9: sampler.temprature: unknown parameter. Did you mean 'temperature'?`"""
    lines: list[str] = []
    for e in error.errors(include_url=False):
        loc = e["loc"]
        key = ".".join(map(str, loc))
        lines.append(f"{mark_at(marks, loc)}: {key + ': ' if key else ''}{e['msg']}")
    return ConfigError("\n".join(dict.fromkeys(lines)))
