"""From an experiment file to its complete config, with all its errors at once."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypeVar

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.sections import Of
from electra_lab.config.source import (
    Loc,
    Mark,
    Node,
    keys_of,
    mark_at,
    parse,
    read_file,
    to_yaml,
    with_change,
    with_overrides,
)
from registry import ALL, Entry, Plugin, heads, launchers, load_plugin, measures, schedules
from registry.component import Component, Url, entries_of, without_secrets
from registry.discovery import packaged
from registry.errors import ConfigError, LabError, command, listed, not_utf8
from registry.signature import FolderOrName, Strict, validate

# A file of a kind has at least one of its keys; an experiment has none.
KINDS = {"ablation": ("base", "vary"), "fine-tuning": ("task", "dataset")}
VERBS = {"ablation": "ablate", "fine-tuning": "finetune", "experiment": "run"}
# Paths to files that the lab itself writes: they move together with the jobs that name them.
WRITTEN_HERE = {
    ("data", "store"), ("model",), ("init", "discriminator"), ("init", "generator"), ("objective", "run"),
}  # fmt: skip
C = TypeVar("C", bound=Strict, default=ExperimentConfig)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A validated config, the place where each of its values was written, and its plug-ins.

    relative  relative paths by key, with links unresolved
    """

    config: C
    marks: Mapping[Loc, Mark]
    plugins: tuple[Plugin, ...]
    relative: Mapping[Loc, str] = field(default_factory=dict)

    @property
    def portable(self) -> C:
        """The config with such paths relative to its file: it does not change if both are moved together."""

        def place(path: Any, loc: Loc) -> Any:
            lexical = self.relative.get(loc)
            return path if lexical is None else type(path)(os.path.relpath(lexical, self.marks[()].folder))

        return cast("C", _with_paths(self.config, (), place))

    def within(self, folder: Path) -> C:
        """Return the config for a file in `folder`: such paths to files that the lab writes are relative to it.

        Those that only have the root of the file system in common stay absolute.
        """
        real, written_here = folder.resolve(), WRITTEN_HERE & self.relative.keys()

        def place(path: Any, loc: Loc) -> Any:
            is_near = Path(path).parts[:2] == real.parts[:2]
            return type(path)(os.path.relpath(path, real)) if loc in written_here and is_near else path

        return cast("C", _with_paths(self.config, (), place))

    def problem(self, loc: Loc, reason: str, kind: type[LabError] = ConfigError) -> LabError:
        """Return an error found during assembly, at the line that caused it."""
        mark = mark_at(self.marks, loc)
        return kind(f"{mark}: {'.'.join(map(str, loc))}: {reason}{mark.reached}")

    def caused(self, loc: Loc, error: LabError) -> LabError:
        """Return an error of the same documented kind, at the line of the config that led to it."""
        kind = next(base for base in type(error).__mro__ if base.__module__ == LabError.__module__)
        return self.problem(loc, str(error), kind)


Source = Path | Mapping[str, Any]  # an experiment file or its content; then paths begin in the working directory


def load(source: Source, overrides: Sequence[str] = ()) -> Loaded:
    """Read, merge, override, validate. Raises ConfigError listing every problem as file:line: key: reason."""
    root = _root(source)
    refuse_other_kind(root, "experiment")
    return validated(with_overrides(root, overrides))


def load_finetuning(source: Source, overrides: Sequence[str] = ()) -> Loaded[FinetuningConfig]:
    """Read a fine-tuning file. Raises ConfigError listing every problem."""
    root = _root(source)
    refuse_other_kind(root, "fine-tuning")
    return validated_as(FinetuningConfig, with_overrides(root, overrides))


def _root(source: Source) -> Node:
    if isinstance(source, Path):
        return read_file(source)
    return parse(text_of(source), "config", Path.cwd(), one_line=True)


def text_of(source: Source) -> str:
    """Return the text of an experiment."""
    if isinstance(source, Path):
        return source.read_text(encoding="utf-8-sig")
    plain = TypeAdapter(dict[str, Any]).dump_python(dict(source), mode="json")  # paths become text
    return to_yaml(plain)


def kind_of(root: Node) -> str:
    """Return the kind of file that a mapping describes: "ablation", "fine-tuning" or "experiment"."""
    keys = root.value.keys() if isinstance(root.value, dict) else set[str]()
    return next((kind for kind, names in KINDS.items() if not keys.isdisjoint(names)), "experiment")


def kind_of_file(path: Path) -> str:
    """Return the kind of a file; "experiment" if it cannot be read: loading it reports the reason."""
    try:
        return kind_of(read_file(path))
    except ConfigError:
        return "experiment"


def refuse_other_kind(root: Node, wanted: str) -> None:
    """Raise ConfigError if a file is not of a kind, with the command that runs it."""
    kind, file = kind_of(root), Path(root.mark.file)
    if kind == wanted:
        return
    if kind == "experiment":
        lacking = " nor ".join(f"`{key}`" for key in KINDS[wanted])
        reason = f"is not {_with_article(wanted)}: it has neither {lacking}. To run an experiment"
    else:
        reason = f"is {_with_article(kind)}. To run it"
    raise ConfigError(f"{file}: {reason}: {command(VERBS[kind], file)}")


def _with_article(kind: str) -> str:
    return f"{'a' if kind == 'fine-tuning' else 'an'} {kind}"


def validated(root: Node) -> Loaded:
    """Validate the experiment that `root` describes. Raises ConfigError listing every problem."""
    return validated_as(ExperimentConfig, root)


def validated_as(schema: type[C], root: Node) -> Loaded[C]:
    """Validate a file of any kind. Raises ConfigError listing every problem."""
    plugins = tuple(imports(root))
    marks = dict(root.marks())
    relative = dict[Loc, str]()
    try:
        values = cast("dict[str, Any]", root.plain())
        config = located(validate(schema, values), (), marks, relative, values)
    except ValidationError as error:
        raise sentences(error, marks) from None
    return Loaded(config, marks, plugins + tuple(_packaged(config)), relative)


def dump(config: Strict) -> str:
    """Return the complete config as YAML that `load` reads back to an equal config."""
    return _yaml(config.model_dump_json(exclude_none=True))


@lru_cache(maxsize=16)  # a run asks for the text of its config more than once, and PyYAML is slow
def _yaml(values: str) -> str:
    return to_yaml(json.loads(values))


def load_plugins(path: Path) -> tuple[Plugin, ...]:
    """Load a plug-in file (`.py`), or the plug-ins that an experiment file imports. Raises ConfigError, PluginError."""
    return (load_plugin(path),) if path.suffix == ".py" else tuple(imports(read_file(path)))


def imports(root: Node) -> Iterator[Plugin]:
    """Load the plug-ins that a file lists, before validation, which must know their names."""
    node = root.value.get("imports") if isinstance(root.value, dict) else None
    for index, item in enumerate(node.value if node and isinstance(node.value, list) else []):
        if isinstance(item, Node) and isinstance(item.value, str):
            path = absolute(Path(item.value), ("imports", index), item.mark)
            if not os.path.isfile(path):
                raise ConfigError(
                    f"{item.mark}: imports.{index}: the file {without_secrets(str(path))} does not exist."
                )
            yield load_plugin(path)


def _packaged(config: Any) -> Iterator[Plugin]:
    """Return the files of the components that came with installed packages."""
    scheduled = getattr(config, "schedules", {}).values()
    entries: list[Entry[Any]] = [schedules.get(component.type) for component in scheduled]
    for name, key in type(config).model_fields.items():
        component = getattr(config, name)
        for of in key.metadata:
            if isinstance(of, Of) and component is not None:
                registry = of.also if of.also and not component.sizes else of.registry
                entries += entries_of(registry, component)
    if needs := getattr(config, "needs", None):
        entries += [heads.get(name) for name, _ in needs.all_heads]
    yield from {entry.file: packaged(entry) for entry in entries if entry.package}.values()


def with_plugins(base: Node, root: Node, plugins: Sequence[Plugin]) -> Node:
    """Add the plug-ins of `root` with parts of an experiment to the imports of `base`, so that it can be read alone.

    A plug-in with only measures or launchers is not added: changing it is no reason to train again.
    """
    files = set[Path]()
    for registry in ALL:
        if registry not in (measures, launchers):
            files |= {entry.file.resolve() for entry in registry.plugged_in()}
    added_list, base_list = keys_of(root).get("imports"), keys_of(base).get("imports")
    items = base_list.value if base_list else []
    if added_list is None or not isinstance(added_list.value, list) or not isinstance(items, list):
        return base
    present = {plugin.file for plugin in imports(base)}
    pairs = zip(added_list.value, plugins, strict=True)
    added = [node for node, plugin in pairs if plugin.file in files and plugin.file not in present]
    return with_change(base, "imports", Node([*items, *added], added_list.mark)) if added else base


def absolute(path: Path, loc: Loc, mark: Mark) -> Path:
    """Complete a path relative to the file that wrote it. Raises ConfigError."""
    try:
        complete = (mark.folder / path.expanduser()).resolve()
        str(complete).encode()  # the complete config must be able to name it
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            complete.stat()  # a name may be too long
        return complete
    except UnicodeEncodeError:
        place = f"{mark}: {'.'.join(map(str, loc))}: the path {mark.folder / path}"
        raise ConfigError(f"{place} {not_utf8()}") from None
    except (OSError, ValueError, RuntimeError) as error:  # an unknown ~user, a NUL, links in a circle, a long name
        raise ConfigError(f"{mark}: {'.'.join(map(str, loc))}: {str(path)!r} is not a usable path ({error}).") from None


def located(
    value: Any, loc: Loc, marks: Mapping[Loc, Mark], relative: dict[Loc, str] | None = None, values: Any = None
) -> Any:
    """Return a validated config with every path completed.

    A path is relative to the file that wrote it, which only the marks know. A default is relative to the working
    directory, so that the complete config means the same anywhere.

    relative  mapping to which relative paths are added, with links unresolved
    values    what is validated, with the texts of the paths
    """

    def place(path: Any, loc: Loc) -> Any:
        mark = marks.get(loc) or marks.get(("discriminator", *loc[1:]) if loc[0] == "generator" else loc)
        mark = mark or Mark(str(marks[()]), Path.cwd())
        if isinstance(path, FolderOrName) and path.is_name(mark.folder):
            return path
        if isinstance(path, Path) and isinstance(url := _address(path, loc, mark, values), Url):
            return url
        if relative is not None and not os.path.isabs(os.path.expanduser(path)):
            relative[loc] = os.path.abspath(mark.folder / path)
        return type(path)(absolute(Path(path), loc, mark))

    return _with_paths(value, loc, place)


def _address(path: Path, loc: Loc, mark: Mark, values: Any) -> Path:
    """Return a path as an address if it is one. Raises ConfigError."""
    with suppress(KeyError, IndexError, TypeError):
        for key in loc:
            values = values[key]
    try:
        url = Url.of(path, values if isinstance(values, str) and Path(values) == path else None)
        if isinstance(url, Url) and not {"corpus", "dataset"} & {*loc}:
            raise ConfigError(f"{url}: is not a path of this machine. Only a corpus or dataset may be elsewhere.")
        return url
    except ConfigError as error:
        raise ConfigError(f"{mark}: {'.'.join(map(str, loc))}: {error}") from None


def _with_paths(value: Any, loc: Loc, place: Callable[[Any, Loc], Any]) -> Any:
    """Return a config in which every path is replaced by `place(path, key)`."""
    if isinstance(value, Path | FolderOrName):
        return place(value, loc)
    if isinstance(value, Component):
        return replace(value, options=_with_paths(value.options, loc, place))
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _with_paths(field, (*loc, name), place) for name, field in value})
    if isinstance(value, list | tuple):
        return type(value)(_with_paths(item, (*loc, index), place) for index, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _with_paths(item, (*loc, key), place) for key, item in value.items()}
    return value


def sentences(error: ValidationError, marks: Mapping[Loc, Mark]) -> ConfigError:
    """List the errors in line order: `a.yaml:9: sampler.temprature: unknown parameter. Did you mean 'temperature'?`"""
    lines: list[tuple[Mark, str]] = []
    for detail in error.errors(include_url=False):
        loc, reason, mark = detail["loc"], detail["msg"], mark_at(marks, detail["loc"])
        key = ".".join(map(str, loc))
        lines.append((mark, f"{mark}: {key + ': ' if key else ''}{reason}"[:3000] + mark.reached))
    files = list(dict.fromkeys(mark.file for mark, _ in lines))
    lines.sort(key=lambda line: (files.index(line[0].file), line[0].line))
    return ConfigError(listed([*dict.fromkeys(sentence for _, sentence in lines)]))
