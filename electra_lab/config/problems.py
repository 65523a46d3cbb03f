"""Errors at a place of the config, and how they are printed."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from electra_lab.config.source import Loc, Mark, mark_at
from registry.errors import ConfigError

# Keys of earlier versions, and where they are now.
MOVED: dict[Loc, str] = {
    ("train", "warmup_steps"): "schedules.learning_rate.warmup_steps",
    ("train", "weight_decay"): "optimizer.weight_decay",
    ("train", "betas"): "optimizer.betas",
    ("train", "epsilon"): "optimizer.epsilon",
    ("quality",): "metric",
}


def problem(loc: Loc, reason: str, value: Any = None) -> ValidationError:
    """Return a validation error below the field whose validator raises it."""
    return problems([(loc, reason, value)])


def problems(found: Iterable[tuple[Loc, str, Any]]) -> ValidationError:
    """The same for several, each with its key, the reason and its value."""
    details = [
        InitErrorDetails(type=PydanticCustomError("lab", "{reason}", {"reason": reason}), loc=loc, input=value)
        for loc, reason, value in found
    ]
    return ValidationError.from_exception_data("experiment", details)


def sentences(error: ValidationError, marks: Mapping[Loc, Mark]) -> ConfigError:
    """List the errors in line order: `a.yaml:9: sampler.temprature: unknown parameter. Did you mean 'temperature'?`"""
    lines: list[tuple[Mark, str]] = []
    for e in error.errors(include_url=False):
        loc, reason, mark = e["loc"], e["msg"], mark_at(marks, e["loc"])
        if loc in MOVED and e.get("ctx", {}).get("kind") == "extra_forbidden":
            reason = f"has moved: write it as {MOVED[loc]}."
        key = ".".join(map(str, loc))
        lines.append((mark, f"{mark}: {key + ': ' if key else ''}{reason}"))
    files = list(dict.fromkeys(mark.file for mark, _ in lines))
    lines.sort(key=lambda line: (files.index(line[0].file), line[0].line))
    return ConfigError("\n".join(dict.fromkeys(sentence for _, sentence in lines)))
