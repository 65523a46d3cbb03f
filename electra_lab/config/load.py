"""From an experiment file to the filled-in config, with all its errors at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from electra_lab.config.problems import sentences
from electra_lab.config.schema import Component, Experiment
from electra_lab.config.source import Loc, Mark, Node, mark_at, read_file, with_overrides
from registry import Plugin, load_plugin
from registry.errors import ConfigError
from registry.signature import validate


@dataclass(frozen=True)
class Loaded:
    """A validated config, where each of its values was written, and the plug-ins it brought."""

    config: Experiment
    marks: Mapping[Loc, Mark]
    plugins: tuple[Plugin, ...]

    def problem(self, loc: Loc, reason: str) -> ConfigError:
        """An error found later, while assembling, at the line that caused it."""
        return ConfigError(f"{mark_at(self.marks, loc)}: {'.'.join(map(str, loc))}: {reason}")


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read, merge, override, validate. Raises ConfigError listing every problem as file:line: key: reason."""
    root = with_overrides(read_file(path), overrides)
    plugins = tuple(_imports(root))
    values: Any = root.plain()
    marks = dict(root.marks())
    try:
        config = validate(Experiment, values)
        # Paths hold from the file that wrote them, which only the marks know; so they are completed and read again.
        for loc, written in list(_paths(config)):
            if loc in marks:
                _set(values, loc, str((marks[loc].folder / written.expanduser()).resolve()))
        return Loaded(validate(Experiment, values), marks, plugins)
    except ValidationError as error:
        raise sentences(error, marks) from None


def dump(config: Experiment) -> str:
    """The filled-in config as YAML that `load` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def _imports(root: Node) -> Iterator[Plugin]:
    """Load the plug-ins before validation: their names must be known to it."""
    node = root.value.get("imports") if isinstance(root.value, dict) else None
    for item in node.value if node and isinstance(node.value, list) else []:
        if isinstance(item, Node) and isinstance(item.value, str):
            path = item.mark.folder / item.value
            if not path.is_file():
                raise ConfigError(f"{item.mark}: imports: there is no file {path}.")
            yield load_plugin(path)


def _paths(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Path]]:
    """Every Path inside a validated config, with its place."""
    if isinstance(value, Path):
        yield loc, value
    elif isinstance(value, Component):
        yield from _paths(value.options, loc)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _paths(getattr(value, name), (*loc, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _paths(item, (*loc, index))


def _set(values: Any, loc: Loc, value: str) -> None:
    for key in loc[:-1]:
        values = values[key]
    values[loc[-1]] = value
