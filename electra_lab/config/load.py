"""From an experiment file to the filled-in config, with all its errors at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from electra_lab.config.problems import sentences
from electra_lab.config.schema import Component, Experiment, Of
from electra_lab.config.source import Loc, Mark, Node, mark_at, read_file, to_yaml, with_overrides
from registry import Plugin, load_plugin, schedules
from registry.discovery import packaged
from registry.errors import ConfigError, LabError
from registry.signature import validate


@dataclass(frozen=True)
class Loaded:
    """A validated config, where each of its values was written, and the plug-ins it brought."""

    config: Experiment
    marks: Mapping[Loc, Mark]
    plugins: tuple[Plugin, ...]

    def problem(self, loc: Loc, reason: str, kind: type[LabError] = ConfigError) -> LabError:
        """An error found later, while assembling, at the line that caused it."""
        return kind(f"{mark_at(self.marks, loc)}: {'.'.join(map(str, loc))}: {reason}")


def load(path: Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read, merge, override, validate. Raises ConfigError listing every problem as file:line: key: reason."""
    root = read_file(path)
    if describes_ablation(root):
        raise ConfigError(f"{path}: is an ablation. Its cells are trained by: electra-lab ablate {path}")
    return validated(with_overrides(root, overrides))


def describes_ablation(root: Node) -> bool:
    """Whether a file's mapping is an ablation and no experiment."""
    return isinstance(root.value, dict) and not root.value.keys().isdisjoint({"base", "vary"})


def validated(root: Node) -> Loaded:
    """The experiment that `root` describes. Raises ConfigError listing every problem."""
    plugins = tuple(imports(root))
    values: Any = root.plain()
    marks = dict(root.marks())
    try:
        config = validate(Experiment, values)
        # Paths hold from the file that wrote them, which only the marks know; so they are completed and read again.
        # Defaults hold from the working directory, so that the filled-in config means the same anywhere.
        for loc, found in list(_paths(config)):
            mark = marks.get(loc) or marks.get(("discriminator", *loc[1:]) if loc[0] == "generator" else loc)
            if mark or isinstance(loc[-1], str):
                _set(values, loc, str(absolute(found, loc, mark or Mark(str(root.mark), Path.cwd()))))
        config = validate(Experiment, values)
        return Loaded(config, marks, plugins + tuple(_packaged(config)))
    except ValidationError as error:
        raise sentences(error, marks) from None


def dump(config: Experiment) -> str:
    """The filled-in config as YAML that `load` reads back to an equal config."""
    return to_yaml(config.model_dump(mode="json", exclude_none=True))


def load_plugins(path: Path) -> tuple[Plugin, ...]:
    """Load a plug-in file (`.py`), or those that an experiment file imports. Raises ConfigError, PluginError."""
    return (load_plugin(path),) if path.suffix == ".py" else tuple(imports(read_file(path)))


def imports(root: Node) -> Iterator[Plugin]:
    """Load the plug-ins that it lists, before validation: their names must be known to it."""
    node = root.value.get("imports") if isinstance(root.value, dict) else None
    for index, item in enumerate(node.value if node and isinstance(node.value, list) else []):
        if isinstance(item, Node) and isinstance(item.value, str):
            path = absolute(Path(item.value), ("imports", index), item.mark)
            if not os.path.isfile(path):
                raise ConfigError(f"{item.mark}: imports.{index}: there is no file {path}.")
            yield load_plugin(path)


def _packaged(config: Experiment) -> Iterator[Plugin]:
    """The files of the components that came with installed packages."""
    entries = [
        (of.also if of.also and not component.sizes else of.registry).get(component.type)
        for name, field in Experiment.model_fields.items()
        for of in field.metadata
        if isinstance(of, Of) and (component := getattr(config, name)) is not None
    ]
    entries += [schedules.get(component.type) for component in config.schedules.values()]
    yield from {entry.file: packaged(entry) for entry in entries if entry.package}.values()


def absolute(path: Path, loc: Loc, mark: Mark) -> Path:
    """`path` as it was meant where it was written. Raises ConfigError."""
    try:
        return (mark.folder / path.expanduser()).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # an unknown ~user, a NUL, links in a circle
        raise ConfigError(f"{mark}: {'.'.join(map(str, loc))}: {str(path)!r} is no usable path ({error}).") from None


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
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*loc, key))


def _set(values: Any, loc: Loc, value: str) -> None:
    for key in loc[:-1]:
        values = values.setdefault(key, {}) if isinstance(values, dict) else values[key]
    values[loc[-1]] = value
