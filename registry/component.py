"""Components as values: `{type: name, option: value, ...}`, validated against the signature of the component.

An option of a component may itself be a component, or hold components:

    def __init__(self, /, *, corpus: Annotated[Component, Of(corpora)])
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from registry.errors import ConfigError, LabError, UnknownName, guide
from registry.signature import Strict, problem, validate

if TYPE_CHECKING:
    from registry.core import Entry, Registry


class Sizes(Strict):
    """The sizes of a backbone, next to its options."""

    dim: Annotated[int, Field(gt=0, le=65_536)]
    depth: Annotated[int, Field(gt=0, le=1_000)]
    heads: Annotated[int, Field(gt=0, le=65_536)]


@dataclass(frozen=True)
class Component:
    """A registered name with its validated options: still data, which the assembly turns into an object."""

    type: str
    options: Strict
    sizes: Sizes | None = None

    def dump(self) -> dict[str, Any]:
        sizes = self.sizes.model_dump(mode="json") if self.sizes else {}
        return {"type": self.type, **sizes, **self.options.model_dump(mode="json")}

    def keywords(self) -> dict[str, Any]:
        """Return the options as Python values, ready to be passed on."""
        return dict(self.options)

    def declared(self, registry: Registry[Any], name: str) -> Any:
        """Return a declaration of the component in `registry`, evaluated for these options if it depends on them."""
        fact = registry.get(self.type).declared[name]
        return fact(**self.keywords()) if callable(fact) and not isinstance(fact, type) else fact


@dataclass(frozen=True)
class Of:
    """Marks a field of a schema, or an option of a component, as a component of a registry."""

    registry: Registry[Any]
    optional: bool = False  # the field may be null
    default: str | None = None  # the type if none is written

    _describing: ClassVar[list[Registry[Any]]] = []  # registries whose JSON schemas are begun, from the outside in

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda c: c and c.dump())
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return a permissive schema for editors: `type` is one of the names, and its options have their types.

        Options are not checked where their `type` is written elsewhere, by a parent or the discriminator, nor in a
        component inside a component inside one of the same kind.
        """
        entries = [*chain.from_iterable(map(loadable, self._registries()))]
        names = {entry.name: entry.summary for entry in entries}
        described: dict[str, Any] = {
            "type": ["object", "null"] if self.optional else "object",
            "properties": {"type": {"enum": list(names), "enumDescriptions": list(names.values())}},
        }
        if self._describing.count(self.registry) > 1:
            return described
        self._describing.append(self.registry)
        try:
            chosen = []
            for entry in entries:
                named = {"type": "object", "properties": {"type": {"const": entry.name}}, "required": ["type"]}
                options = handler.resolve_ref_schema(handler(self._model(entry).__pydantic_core_schema__))
                chosen.append({"if": named, "then": options})
        finally:
            self._describing.pop()
        return {**described, "allOf": chosen}

    def _registries(self) -> tuple[Registry[Any], ...]:
        return (self.registry,)

    def _model(self, entry: Entry[Any]) -> type[Strict]:
        """Return the model of everything that may stand in the mapping of a component."""
        return type(entry.name, (entry.schema,), {"__annotations__": {"type": str}, "__module__": __name__})

    def _validate(self, values: Any, info: ValidationInfo) -> Component | None:
        if values is None and self.optional:
            return None
        if not isinstance(values, dict):
            written = values if isinstance(values, str) and values in self.registry.names() else None
            raise problem((), f"must be a mapping such as {{type: {written or self.registry.names()[0]}}}.", values)
        return self._chosen(values, info)

    def _chosen(self, values: dict[str, Any], info: ValidationInfo) -> Component:
        return self._named(self.registry, values)

    def _named(self, registry: Registry[Any], values: dict[str, Any]) -> Component:
        values = {"type": self.default, **values}
        name = values.pop("type")
        if name is None:
            if meant := get_close_matches("type", values, n=1):
                raise problem((meant[0],), "unknown parameter. Did you mean 'type'?", values)
            raise problem(("type",), f"is required: it names the {registry.singular}.", values)
        if not isinstance(name, str):
            raise problem(("type",), f"must be a word: it names the {registry.singular}.", name)
        try:
            schema = registry.get(name).schema
        except UnknownName as error:
            raise problem(("type",), f"{error} If it is your own, list its file under `imports`.", name) from None
        except LabError as error:
            raise problem(("type",), str(error), name) from None
        return self._with_options(registry, name, schema, values)

    def _with_options(
        self, registry: Registry[Any], name: str, schema: type[Strict], values: dict[str, Any]
    ) -> Component:
        return Component(name, validate(schema, values))


def loadable(registry: Registry[Any]) -> list[Entry[Any]]:
    """Return the components that can be loaded: one broken package must not take the schema from all others."""
    entries = []
    for name in registry.names():
        try:
            entries.append(registry.get(name))
        except LabError:
            continue
    return entries


def entries_of(registry: Registry[Any], component: Component) -> Iterator[Entry[Any]]:
    """Yield the entry of a component and those of all components in its options."""
    yield registry.get(component.type)
    yield from _entries_in(component.options)


def _entries_in(value: Any) -> Iterator[Entry[Any]]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            marks = [mark for mark in field.metadata if isinstance(mark, Of)]
            if marks and isinstance(inner, Component):
                yield from entries_of(marks[0].registry, inner)
            else:
                yield from _entries_in(inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _entries_in(item)


SECRET = ("signature", "sig", "token", "key", "credential")  # in names of parameters
PASSWORD = re.compile(r"://[^/@]*:(?!\d*/).*@")  # which may hold a slash; but not the number of a port
NO_SECRETS = f"It would be written into records: credentials come from the environment ({guide('data')})."


class FailedRequest(UserWarning):
    """A server did not answer, or only in part; the request is repeated."""


def without_secrets(text: str) -> str:
    """Return a text up to the first address in it that may have a password, key or signature."""
    return re.sub(r"(?s):[/\\].*[@?\\].*", ":…", text)


class Url(type(Path())):  # type: ignore[misc]
    """The address of a file in an object store or on a server, such as `s3://bucket/a.txt`, as a path.

    listed  hash of its ETag and size in a listing that has just been read
    """

    schemes: ClassVar = ("s3", "gs", "hf", "https", "http")
    listed: bytes | None = None

    def __str__(self) -> str:
        return str.replace(super().__str__(), ":/", "://", 1)  # paths merge slashes

    @property
    def scheme(self) -> str:
        return str.removesuffix(self.parts[0], ":")

    @classmethod
    def of(cls, path: Path, written: str | None = None) -> Path:
        """Return a path as an address if it is one. Raises ConfigError, which never repeats a secret.

        written  its text, as paths merge slashes
        """
        if not path.parts[:1] or path.parts[0] not in {f"{scheme}:" for scheme in cls.schemes}:
            if other := re.match("([A-Za-z][A-Za-z0-9+.-]*)://", written or ""):
                raise ConfigError(f"{other[0]} cannot be read. Schemes that can: {', '.join(cls.schemes)}.")
            return path
        url = cls(path)
        has_user = "@" in "".join(url.parts[1:2]) and url.scheme != "hf"
        names = " ".join(name.lower() for name, _ in parse_qsl(str(url).partition("?")[2].replace("#", "&")))
        if has_user or PASSWORD.search(str(url)) or any(word in names for word in SECRET):
            raise ConfigError(f"the {url.scheme}:// address has a user name, password, key or signature. {NO_SECRETS}")
        url.refuse_other_name(written or str(url))
        return url

    def refuse_other_name(self, name: str) -> None:
        """Raise ConfigError if the name of an object is not this address: as a path, it would be another object."""
        folder = "" if self.scheme.startswith("http") else "/"
        if len(self.parts) < 2:
            raise ConfigError(f"{self.scheme}:// names no file: an address is like s3://bucket/a.txt.")
        if not name.startswith(f"{self.scheme}://"):
            raise ConfigError(f"{name}: an address begins with {self.scheme}://, with two slashes.")
        if str(self) != name.removesuffix(folder) or ".." in self.parts:
            raise ConfigError(
                f"{name}: an address with //, /./, /../ or a last / cannot be read. Give the object another name."
            )
