"""Registry[T]: names for the components of one kind, and where each of them is defined.

Built-ins live in a home folder, one component per file, under the component's name; installed packages list theirs in
their metadata. So a listing reads folders, metadata and source text and imports nothing, and a lookup imports exactly
one module.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args
from weakref import WeakSet

from registry.errors import (
    BadSignature,
    DuplicateName,
    LabError,
    PluginError,
    Signalled,
    UnknownName,
    did_you_mean,
    said,
)
from registry.listing import Listing, Offer, first_line, offers, read, short
from registry.signature import Strict, schema_of

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered component: the object, the schema of its options, and where it is written."""

    kind: str
    name: str
    component: T
    file: Path
    line: int
    lead: tuple[str, ...]  # the names of its positional parameters
    schema: type[Strict]
    declared: Mapping[str, Any]  # its declarations, from `register`
    package: str | None  # the installed package that it came with, with its version; None for built-ins and files

    @property
    def place(self) -> str:
        return f"{short(self.file)}:{self.line}"

    @property
    def built_in(self) -> bool:
        return self.component.__module__.startswith("electra_lab.")

    @property
    def summary(self) -> str:
        return first_line(inspect.getdoc(self.component))


@dataclass(eq=False)
class Registry(Generic[T]):
    """The components of one kind."""

    singular: str
    plural: str
    contract: str  # the name of its Protocol in registry.contracts
    lead: tuple[str, ...] = ()  # the names of the positional parameters that the lab passes to a component
    or_lead: tuple[str, ...] | None = None  # an alternative to them
    required: Mapping[str, type] = field(default_factory=dict)  # the options that every component has, and their types
    declares: Mapping[str, Any] = field(default_factory=dict)  # other arguments of `register`, with their defaults
    complete: bool = False  # a class without a method of the contract is refused at once; others are tried in checks
    key: str | None = None  # of an experiment that holds such a component, where it is neither singular nor plural
    home: str = ""  # the package whose files are the built-ins; electra_lab.<plural> by default

    instances: ClassVar[WeakSet[Registry[Any]]] = WeakSet()
    _importing: ClassVar[Offer | None] = None  # the entry point whose module is being imported

    def __post_init__(self) -> None:
        self.home = self.home or f"electra_lab.{self.plural}"
        self.leads = (self.lead,) if self.or_lead is None else (self.lead, self.or_lead)
        self._entries: dict[str, Entry[T]] = {}
        self.instances.add(self)

    def register(self, name: str, **declared: Any) -> Callable[[T], T]:
        """Register a function or class under `name`, as a decorator.

        Raises DuplicateName, or BadSignature for a signature that does not follow the contract.
        """
        if not isinstance(name, str):
            raise BadSignature(f'{place(name)}: {self.plural}.register needs a name: @{self.plural}.register("name").')
        caller = sys._getframe(1)
        here = caller.f_lineno

        def decorate(component: T) -> T:
            if not (inspect.isfunction(component) or inspect.isclass(component)):
                raise BadSignature(f"{self.singular} '{name}': only a function or a class can be registered.")
            # As of Python 3.13 a class knows its line; before, `inspect` finds the first class of its name in the file.
            is_decorator = linecache.getline(caller.f_code.co_filename, here).lstrip().startswith("@")
            if inspect.isclass(component) and is_decorator:
                component.__firstlineno__ = vars(component).get("__firstlineno__", here)  # type: ignore[attr-defined]
            file, line = _source(component)
            at, which = f"{short(file)}:{line}", f"{self.singular} '{name}'"
            if unknown := declared.keys() - self.declares.keys():
                hint = did_you_mean(min(unknown), self.declares)
                raise BadSignature(f"{at}: {self.plural}.register has no argument '{min(unknown)}'.{hint}")
            if other := self._taken(name, component.__module__, file):
                raise DuplicateName(f"{at}: {which} is already defined at {other}. Choose another name.")
            if not name.isidentifier():
                raise BadSignature(f"{at}: '{name}' is not a valid name: use letters, digits and _ only.")
            if not inspect.getdoc(component):
                raise BadSignature(f"{at}: {which} has no docstring. Add one: listings show its first line.")
            if reason := self._unlike_its_contract(component):
                raise BadSignature(f"{at}: {which} has {reason}")
            lead, schema = schema_of(component, self.leads, at, self.required)
            offered = (offer for offer in offers(self.plural) if offer.registers(component.__module__))
            offer = next(offered, self._importing)
            facts, package = {**self.declares, **declared}, offer.package if offer else None
            self._entries[name] = Entry(self.singular, name, component, file, line, lead, schema, facts, package)
            return component

        return decorate

    def _unlike_its_contract(self, component: T) -> str | None:
        """Return the base class or method that a class lacks; __init__ may set other members."""
        if not inspect.isclass(component):
            return None
        contract = getattr(sys.modules["registry"], self.contract)
        is_base = not getattr(contract, "_is_protocol", False)
        if is_base and not issubclass(component, contract):
            bases = " or ".join(f"registry.{base.__name__}" for base in get_args(contract) or (contract,))
            return f"another base class. Derive it from {bases}, too."
        for name in dir(component) if is_base else vars(contract) if self.complete else ():
            member = getattr(component if is_base else contract, name, None)
            if is_base:
                demanded = getattr(member, "__isabstractmethod__", False)
            else:
                demanded = inspect.isfunction(member) and (not name.startswith("_") or name in ("__iter__", "__len__"))
            if demanded and getattr(component, name, None) in (None, member):
                return f"no {name}; see registry/contracts ({self.contract})."
        return None

    def _taken(self, name: str, module: str, file: Path) -> str | None:
        """Return the place of another component called `name`, None if `module` may use the name."""
        if entry := self._entries.get(name):
            return entry.place
        if home := self._home_files().get(name):
            return self._built_in(home).place if home != file else None
        offered = self._offers(name)
        if not offered or any(offer.registers(module) or offer == self._importing for offer in offered):
            return None
        return f"{offered[0].module} (installed package {offered[0].package})"

    def get(self, name: str) -> Entry[T]:
        """Return the component called `name`. Imports at most the one module that defines it.

        Raises UnknownName; PluginError or DuplicateName if an installed package offers the name and cannot provide it.
        """
        offered = self._offers(name)
        if name in self._entries and not offered:
            return self._entries[name]  # without a look at the files: checking an experiment asks a hundred times
        built_in = name in self._home_files()
        if not built_in and offered and (problem := self._conflict(offered)):
            raise DuplicateName(problem)
        if name not in self._entries:
            if built_in:
                importlib.import_module(f"{self.home}.{name}")
                if name not in self._entries:
                    raise UnknownName(f"{self.home}.{name} does not register a {self.singular} called '{name}'.")
            elif offered:
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
        except BaseException as error:
            self.forget_failed()
            if isinstance(error, KeyboardInterrupt | Signalled):
                raise
            where = "" if isinstance(error, LabError) else f"{_raised(error)}{type(error).__name__}: "
            raise PluginError(f"{which} cannot be loaded: {where}{said(error)}") from error
        finally:
            Registry._importing = before
        if offer.name not in self._entries:
            raise PluginError(f"{which} cannot be loaded: {offer.module} does not register that name.")

    def names(self) -> list[str]:
        """Return all names: built-in, plugged in, offered by installed packages. Imports nothing."""
        offered = {offer.name for offer in offers(self.plural)}
        return sorted(set(self._home_files()) | set(self._entries) | offered)

    def listings(self) -> list[Listing]:
        """Return the listing of each component, read from source text and metadata. Imports nothing."""
        return [self._listing(name) for name in self.names()]

    def _listing(self, name: str) -> Listing:
        offered = self._offers(name)
        if home := self._home_files().get(name):
            listing = self._built_in(home)
        elif entry := self._entries.get(name):
            listing = Listing(name, entry.summary, entry.place, entry.package)
        else:
            source = offered[0].source()
            definition = read(source, self.plural, name) if source else None
            listing = Listing(name, definition.summary if definition else "", offered[0].module, offered[0].package)
        return replace(listing, problem=self._conflict(offered)) if offered else listing

    def _offers(self, name: str) -> list[Offer]:
        return [offer for offer in offers(self.plural) if offer.name == name]

    def _conflict(self, offered: list[Offer]) -> str | None:
        """Return the reason why the components offered under a name cannot be used, if there is one."""
        name, packages = offered[0].name, " and ".join(offer.package for offer in offered)
        if home := self._home_files().get(name):
            place = self._built_in(home).place
            return f"{self.singular} '{name}' of the installed package {packages} is hidden by the built-in at {place}."
        if len(offered) > 1:
            return f"{self.singular} '{name}' is offered by {packages}. Uninstall all but one of them."
        return None

    def _home_files(self) -> dict[str, Path]:
        """Return the files of the built-ins, by name."""
        spec = importlib.util.find_spec(self.home)
        folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
        files = chain.from_iterable(Path(folder).glob("*.py") for folder in folders)
        return {path.stem: path for path in files if not path.stem.startswith("_")}

    def _built_in(self, path: Path) -> Listing:
        definition = read(path, self.plural, path.stem)
        return definition or Listing(path.stem, "(registers nothing)", f"{short(path)}:1")

    def plugged_in(self) -> list[Entry[T]]:
        """Return the components of plug-in files and installed packages."""
        home = f"{self.home}."
        return [entry for entry in self._entries.values() if not entry.component.__module__.startswith(home)]

    @classmethod
    def all_plugged_in(cls) -> list[Entry[Any]]:
        """Return the components of plug-in files and installed packages in all registries."""
        return [*chain.from_iterable(registry.plugged_in() for registry in cls.instances)]

    @classmethod
    def forget_failed(cls) -> None:
        """Drop the components of modules whose import failed, in every registry; Python has dropped the modules."""
        for registry in cls.instances:
            for name, entry in list(registry._entries.items()):
                if entry.component.__module__ not in sys.modules:
                    del registry._entries[name]

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Drop registrations made inside, for tests. Built-ins stay: their modules are imported only once."""
        before = dict(self._entries)
        try:
            yield
        finally:
            for name, entry in self._entries.items():
                if entry.component.__module__ == f"{self.home}.{name}":
                    before[name] = entry
            self._entries = before


def _source(component: Callable[..., Any]) -> tuple[Path, int]:
    try:
        line = vars(component).get("__firstlineno__") or inspect.getsourcelines(component)[1]
        return Path(inspect.getsourcefile(component) or "<unknown>"), line
    except (OSError, TypeError):
        return Path(f"<{component.__module__}>"), 1


def place(component: Callable[..., Any]) -> str:
    """Return file:line of a function or class."""
    file, line = _source(component)
    return f"{short(file)}:{line}"


def _raised(error: BaseException) -> str:
    """Return `file:line: ` of the line that raised, without the import machinery."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames and frames[-1].filename != __file__ else ""
