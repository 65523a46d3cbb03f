"""Registry[T]: names for the components of one kind, and where each of them is defined.

Built-ins live in a home folder, one component a file, and the file's name is the component's name; installed packages
tell the names of theirs in their metadata. So a listing reads folders, metadata and source text and imports nothing,
and a lookup imports exactly one module.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

from registry.errors import BadSignature, DuplicateName, LabError, PluginError, UnknownName, did_you_mean
from registry.installed import Offer, offers
from registry.listing import Listing, first_line, read, short
from registry.signature import Strict, schema_of

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered component: the object, its options' schema, and where it is written.

    package  the installed package that it came with, with its version; None for built-ins and plug-in files
    """

    kind: str
    name: str
    component: T
    file: Path
    line: int
    lead: tuple[str, ...]
    required: Mapping[str, type]
    package: str | None

    @property
    def place(self) -> str:
        return f"{short(self.file)}:{self.line}"

    @property
    def summary(self) -> str:
        return first_line(inspect.getdoc(self.component))

    @cached_property
    def schema(self) -> type[Strict]:
        return schema_of(self.component, self.lead, self.place, self.required)


class Registry(Generic[T]):
    """The components of one kind.

    singular, plural  how people call them (`sampler`, `samplers`)
    home              the package whose files are the built-ins, as a string: it is imported only when looked up
    lead              the names of the positional parameters that the lab hands to a component
    required          the options that every component must have, and their types
    contract          the name of the Protocol in registry.contracts
    """

    _all: ClassVar[WeakSet[Registry[Any]]] = WeakSet()
    _importing: ClassVar[Offer | None] = None  # the entry point whose module is being imported

    def __init__(
        self,
        singular: str,
        plural: str,
        *,
        home: str,
        lead: tuple[str, ...],
        contract: str,
        required: Mapping[str, type] | None = None,
    ) -> None:
        self.singular, self.plural, self.home, self.contract = singular, plural, home, contract
        self.lead, self.required = lead, required or {}
        self._entries: dict[str, Entry[T]] = {}
        self._all.add(self)

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: give `name` to a function or class. Refuses a taken name and a signature off the contract."""
        if not isinstance(name, str):
            raise BadSignature(f'{place(name)}: {self.plural}.register needs a name: @{self.plural}.register("name").')

        def decorate(component: T) -> T:
            if not _is_definition(component):
                raise BadSignature(f"{self.singular} '{name}': only a function or a class can be registered.")
            file, line = _source(component)
            offer = next((o for o in offers(self.plural) if o.registers(component.__module__)), self._importing)
            package = offer.package if offer else None
            entry = Entry(self.singular, name, component, file, line, self.lead, self.required, package)
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
        place = taken.place if (taken := self._entries.get(entry.name)) else None
        home = self._home_file(entry.name)
        if taken is None and home and home != entry.file:
            place = self._built_in(home).place
        offered = self._offers(entry.name) if place is None and home is None else []
        if offered and not any(o.registers(entry.component.__module__) or o == self._importing for o in offered):
            place = f"{offered[0].module} (installed package {offered[0].package})"
        if place:
            raise DuplicateName(
                f"{entry.place}: {self.singular} '{entry.name}' is already defined at {place}. Choose another name."
            )

    def get(self, name: str) -> Entry[T]:
        """The component called `name`; imports at most the one module that defines it.

        Raises UnknownName; PluginError or DuplicateName for what an installed package offers and cannot give.
        """
        if not self._home_file(name) and (offered := self._offers(name)) and (problem := self._conflict(offered)):
            raise DuplicateName(problem)
        if name not in self._entries:
            if self._home_file(name):
                importlib.import_module(f"{self.home}.{name}")
                if name not in self._entries:
                    raise UnknownName(f"{self.home}.{name} does not register a {self.singular} called '{name}'.")
            elif offered := self._offers(name):
                self._import(offered[0])
            else:
                raise UnknownName(f"no {self.singular} is called '{name}'.{did_you_mean(name, self.names())}")
        return self._entries[name]

    def _import(self, offer: Offer) -> None:
        """Import the module behind an entry point, which registers the name."""
        which = f"{self.singular} '{offer.name}' of the installed package {offer.package}"
        before, Registry._importing = Registry._importing, offer
        try:
            importlib.import_module(offer.module)
        except (Exception, SystemExit) as error:
            self.forget_failed()
            said = str(error) if isinstance(error, LabError) else f"{_raised(error)}{type(error).__name__}: {error}"
            raise PluginError(f"{which} cannot be loaded: {said}") from error
        finally:
            Registry._importing = before
        if offer.name not in self._entries:
            raise PluginError(f"{which} cannot be loaded: {offer.module} does not register that name.")

    def names(self) -> list[str]:
        """All names: built-in, plugged in, offered by installed packages; imports nothing."""
        offered = {offer.name for offer in offers(self.plural)}
        return sorted({path.stem for path in self._home_files()} | set(self._entries) | offered)

    def listings(self) -> list[Listing]:
        """What there is, read from source text and metadata; imports nothing."""
        return [self._listing(name) for name in self.names()]

    def _listing(self, name: str) -> Listing:
        offered = self._offers(name)
        if home := self._home_file(name):
            listing = self._built_in(home)
        elif entry := self._entries.get(name):
            listing = Listing(name, entry.summary, entry.place, entry.package)
        else:
            source = offered[0].source()
            found = read(source, self.plural, name) if source else None
            listing = Listing(name, found.summary if found else "", offered[0].module, offered[0].package)
        return replace(listing, problem=self._conflict(offered)) if offered else listing

    def _offers(self, name: str) -> list[Offer]:
        return [offer for offer in offers(self.plural) if offer.name == name]

    def _conflict(self, offered: list[Offer]) -> str | None:
        """Why what is offered under one name cannot be had under it."""
        name, packages = offered[0].name, " and ".join(offer.package for offer in offered)
        if home := self._home_file(name):
            place = self._built_in(home).place
            return f"{self.singular} '{name}' of the installed package {packages} is hidden by the built-in at {place}."
        if len(offered) > 1:
            return f"{self.singular} '{name}' is offered by {packages}. Uninstall all but one of them."
        return None

    def _home_files(self) -> list[Path]:
        spec = importlib.util.find_spec(self.home)
        folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
        files = [path for folder in folders for path in Path(folder).glob("*.py")]
        return sorted(path for path in files if not path.stem.startswith("_"))

    def _home_file(self, name: str) -> Path | None:
        return next((path for path in self._home_files() if path.stem == name), None)

    def _built_in(self, path: Path) -> Listing:
        unread = Listing(path.stem, "(registers nothing)", f"{short(path)}:1")
        return read(path, self.plural, path.stem) or unread

    def plugged_in(self) -> list[Entry[T]]:
        """What was registered by plug-in files and installed packages."""
        return [e for e in self._entries.values() if not e.component.__module__.startswith(f"{self.home}.")]

    @classmethod
    def forget_failed(cls) -> None:
        """Drop what modules registered, in any registry, whose import failed half-way: Python has dropped these."""
        for registry in cls._all:
            entries = registry._entries.items()
            registry._entries = {name: e for name, e in entries if e.component.__module__ in sys.modules}

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


def place(component: Callable[..., Any]) -> str:
    """file:line of a function or class."""
    file, line = _source(component)
    return f"{short(file)}:{line}"


def _raised(error: BaseException) -> str:
    """`file:line: ` of the line that raised, the import machinery left out."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames and frames[-1].filename != __file__ else ""
