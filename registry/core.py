"""Registry[T]: names for the components of one kind, and where each of them is defined.

Built-ins live in a home folder, one component a file, and the file's name is the component's name. So a listing
reads folders and source text and imports nothing, and a lookup imports exactly one module.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from registry.errors import BadSignature, DuplicateName, UnknownName, did_you_mean
from registry.signature import Strict, schema_of

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Listing:
    """What is known of a component without importing it."""

    name: str
    summary: str
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{_short(self.file)}:{self.line}"


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered component: the object, its options' schema, and where it is written."""

    kind: str
    name: str
    component: T
    file: Path
    line: int
    lead: tuple[str, ...]
    required: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{_short(self.file)}:{self.line}"

    @property
    def summary(self) -> str:
        return _first_line(inspect.getdoc(self.component))

    @cached_property
    def schema(self) -> type[Strict]:
        return schema_of(self.component, self.lead, self.place, self.required)


class Registry(Generic[T]):
    """The components of one kind.

    singular, plural  how people call them (`sampler`, `samplers`)
    home              the package whose files are the built-ins, as a string: it is imported only when looked up
    lead              the names of the positional parameters that the lab hands to a component
    required          the options that every component must have
    contract          the name of the Protocol in registry.contracts
    """

    def __init__(
        self,
        singular: str,
        plural: str,
        *,
        home: str,
        lead: tuple[str, ...],
        contract: str,
        required: tuple[str, ...] = (),
    ) -> None:
        self.singular, self.plural, self.home, self.contract = singular, plural, home, contract
        self.lead, self.required = lead, required
        self._entries: dict[str, Entry[T]] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: give `name` to a function or class. Refuses a taken name and a signature off the contract."""
        if not isinstance(name, str):
            raise BadSignature(f'{_place(name)}: {self.plural}.register needs a name: @{self.plural}.register("name").')

        def decorate(component: T) -> T:
            if not _is_definition(component):
                raise BadSignature(f"{self.singular} '{name}': only a function or a class can be registered.")
            file, line = _source(component)
            entry = Entry(self.singular, name, component, file, line, self.lead, self.required)
            self._refuse_taken(entry)
            if not name.isidentifier():
                raise BadSignature(f"{entry.place}: '{name}' is no name for a component: letters, digits and _ only.")
            if not inspect.getdoc(component):
                raise BadSignature(
                    f"{entry.place}: {self.singular} '{name}' has no docstring; its first line is shown."
                )
            _ = entry.schema  # signature errors show at the component's own line, not at first use
            self._entries[name] = entry
            return component

        return decorate

    def _refuse_taken(self, entry: Entry[T]) -> None:
        taken = self._entries.get(entry.name)
        place = taken.place if taken else None
        if taken is None and (home := self._home_file(entry.name)) and home != entry.file:
            place = self._read(home).place
        if place:
            raise DuplicateName(
                f"{entry.place}: {self.singular} '{entry.name}' is already defined at {place}. Choose another name."
            )

    def get(self, name: str) -> Entry[T]:
        """The component called `name`; imports at most the one module that defines it. Raises UnknownName."""
        if name not in self._entries and self._home_file(name):
            importlib.import_module(f"{self.home}.{name}")
            if name not in self._entries:
                raise UnknownName(f"{self.home}.{name} does not register a {self.singular} called '{name}'.")
        if name not in self._entries:
            raise UnknownName(f"no {self.singular} is called '{name}'.{did_you_mean(name, self.names())}")
        return self._entries[name]

    def names(self) -> list[str]:
        """All names, built-in and plugged in; imports nothing."""
        return sorted({path.stem for path in self._home_files()} | set(self._entries))

    def listings(self) -> list[Listing]:
        """What there is, read from source text; imports nothing."""
        return [self._listing(name) for name in self.names()]

    def _listing(self, name: str) -> Listing:
        entry = self._entries.get(name)
        if entry:
            return Listing(name, entry.summary, entry.file, entry.line)
        return self._read(cast("Path", self._home_file(name)))

    def _home_files(self) -> list[Path]:
        spec = importlib.util.find_spec(self.home)
        folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
        files = [path for folder in folders for path in Path(folder).glob("*.py")]
        return sorted(path for path in files if not path.stem.startswith("_"))

    def _home_file(self, name: str) -> Path | None:
        return next((path for path in self._home_files() if path.stem == name), None)

    def _read(self, path: Path) -> Listing:
        """Summary and line of the decorated definition in a built-in's source text."""
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and any(map(_registers, node.decorator_list)):
                return Listing(path.stem, _first_line(ast.get_docstring(node)), path, node.decorator_list[0].lineno)
        return Listing(path.stem, "(registers nothing)", path, 1)

    def forget(self, file: Path) -> None:
        """Drop what a plug-in file registered: it failed half-way."""
        self._entries = {name: entry for name, entry in self._entries.items() if entry.file != file}

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """For tests: what is registered inside is gone afterwards. Built-ins stay: their modules are imported once."""
        before = dict(self._entries)
        try:
            yield
        finally:
            built_in = {n: e for n, e in self._entries.items() if e.component.__module__ == f"{self.home}.{n}"}
            self._entries = before | built_in


def _source(component: Callable[..., Any]) -> tuple[Path, int]:
    try:
        return Path(inspect.getsourcefile(component) or "<unknown>"), inspect.getsourcelines(component)[1]
    except (OSError, TypeError):
        return Path(f"<{component.__module__}>"), 1


def _is_definition(component: object) -> bool:
    return inspect.isfunction(component) or inspect.isclass(component)


def _place(component: Callable[..., Any]) -> str:
    file, line = _source(component)
    return f"{_short(file)}:{line}"


def _registers(decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == "register"
    )


def _first_line(docstring: str | None) -> str:
    return docstring.strip().splitlines()[0] if docstring and docstring.strip() else ""


def _short(file: Path) -> str:
    """`file` relative to the working directory where it lies below it, as compilers print it."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
