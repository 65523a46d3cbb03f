"""Errors at a place of the config, as printed."""

from collections.abc import Mapping

from pydantic import ValidationError

from electra_lab.config.source import Loc, Mark, mark_at
from registry.errors import ConfigError
from registry.signature import problem as problem
from registry.signature import problems as problems

# Keys of earlier versions, and where they are now.
MOVED: dict[Loc, str] = {
    ("train", "warmup_steps"): "schedules.learning_rate.warmup_steps",
    ("train", "weight_decay"): "optimizer.weight_decay",
    ("train", "betas"): "optimizer.betas",
    ("train", "epsilon"): "optimizer.epsilon",
    ("quality",): "metric",
}


def sentences(error: ValidationError, marks: Mapping[Loc, Mark]) -> ConfigError:
    """List the errors in line order: `a.yaml:9: sampler.temprature: unknown parameter. Did you mean 'temperature'?`"""
    lines: list[tuple[Mark, str]] = []
    for detail in error.errors(include_url=False):
        loc, reason, mark = detail["loc"], detail["msg"], mark_at(marks, detail["loc"])
        if loc in MOVED and detail.get("ctx", {}).get("kind") == "extra_forbidden":
            reason = f"has moved: write it as {MOVED[loc]}."
        key = ".".join(map(str, loc))
        lines.append((mark, f"{mark}: {key + ': ' if key else ''}{reason}"))
    files = list(dict.fromkeys(mark.file for mark, _ in lines))
    lines.sort(key=lambda line: (files.index(line[0].file), line[0].line))
    return ConfigError("\n".join(dict.fromkeys(sentence for _, sentence in lines)))
