"""Components in a config: `{type: name, option: value, ...}`, validated against the signature of the component."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from electra_lab.config.generator import DEFAULT_SCALE, scaled_generator, without_scale
from electra_lab.config.problems import problem
from registry.core import Entry, Registry
from registry.errors import LabError
from registry.signature import Strict, validate


class Sizes(Strict):
    """The sizes of a backbone, next to its own options."""

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


def default(registry: Registry[Any], name: str) -> Component:
    """Return a component with its default options."""
    return Component(name, validate(registry.get(name).schema, {}))


@dataclass(frozen=True)
class Of:
    """Marks a field of a schema as a component of a registry."""

    registry: Registry[Any]
    sized: bool = False  # it has Sizes next to its options
    scaled: bool = False  # the generator: sizes and options may come from the discriminator
    optional: bool = False  # the field may be null
    also: Registry[Any] | None = None  # a second registry whose names may stand there, without sizes
    default: str | None = None  # the type if none is written

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda c: c and c.dump())
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return a permissive schema, for editors: `type` is one of the names, and its options have their types.

        An option whose type is written elsewhere, by a parent or the discriminator, is not checked.
        """
        entries = [entry for registry in (self.registry, self.also) if registry for entry in loadable(registry)]
        names = {entry.name: entry.summary for entry in entries}
        chosen = [
            {
                "if": {"type": "object", "properties": {"type": {"const": entry.name}}, "required": ["type"]},
                "then": handler.resolve_ref_schema(handler(self._model(entry).__pydantic_core_schema__)),
            }
            for entry in entries
        ]
        return {
            "type": ["object", "null"] if self.optional else "object",
            "properties": {"type": {"enum": list(names), "enumDescriptions": list(names.values())}},
            "allOf": chosen,
        }

    def _model(self, entry: Entry[Any]) -> type[Strict]:
        """Return the model of everything that may stand in the mapping of a component."""
        own = entry.kind == self.registry.singular
        bases: tuple[type, ...] = (entry.schema, *[Sizes] * (self.sized and own), *[_Scaled] * (self.scaled and own))
        return type(entry.name, bases, {"__annotations__": {"type": str}, "__module__": __name__})

    def _validate(self, values: Any, info: ValidationInfo) -> Component | None:
        if values is None and self.optional:
            return None
        if not isinstance(values, dict):
            raise problem((), f"must be a mapping such as {{type: {self.registry.names()[0]}}}.", values)
        if self.also and values.get("type") in self.also.names():
            return self._named(self.also, values)
        if self.scaled and "discriminator" in info.data:
            values = scaled_generator(values, info.data["discriminator"].dump())
        elif self.scaled:  # the discriminator's own errors are reported; what would follow from them is not
            values = without_scale(values)
            if "type" not in values:
                return Component("", Strict())
        return self._named(self.registry, values)

    def _named(self, registry: Registry[Any], values: dict[str, Any]) -> Component:
        values = {"type": self.default, **values}
        name = values.pop("type")
        if name is None:
            raise problem(("type",), f"is required: it names the {registry.singular}.", values)
        if not isinstance(name, str):
            raise problem(("type",), f"must be a word: it names the {registry.singular}.", name)
        try:
            schema = registry.get(name).schema
        except LabError as error:
            raise problem(("type",), str(error), name) from None
        if not self.sized or registry is self.also:
            return Component(name, validate(schema, values))
        # One model of sizes and options, so that all errors and suggestions come at once.
        both: Strict = validate(type(schema.__name__, (schema, Sizes), {"__module__": __name__}), values)
        sizes, options = (
            model.model_construct(**{key: getattr(both, key) for key in model.model_fields})
            for model in (Sizes, schema)
        )
        assert isinstance(sizes, Sizes)
        if sizes.dim % sizes.heads:
            raise problem(("heads",), f"{sizes.heads} heads do not divide dim {sizes.dim}.", sizes.heads)
        return Component(name, options, sizes)


class _Scaled(Strict):
    """The key that only a generator has; scaled_generator removes it before validation."""

    scale: Annotated[float, Field(gt=0, le=8)] | None = Field(
        None,
        description=f"Width and heads relative to the discriminator's; {DEFAULT_SCALE} if none of the three is given.",
    )


def loadable(registry: Registry[Any]) -> list[Entry[Any]]:
    """Return the components that can be loaded: one broken package must not take the schema from all others."""
    found = []
    for name in registry.names():
        try:
            found.append(registry.get(name))
        except LabError:
            continue
    return found
