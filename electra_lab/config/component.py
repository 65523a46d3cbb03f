"""Components in a config: those with sizes, and the generator."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationInfo

from electra_lab.config.generator import DEFAULT_SCALE, scaled_generator, without_scale
from registry import component
from registry.component import Component, Sizes, loadable
from registry.core import Entry, Registry
from registry.signature import Strict, problem, validate

__all__ = ["Component", "Of", "Sizes", "default", "loadable"]

M = TypeVar("M", bound=Strict)


def default(registry: Registry[Any], name: str) -> Component:
    """Return a component with its default options."""
    return Component(name, validate(registry.get(name).schema, {}))


@dataclass(frozen=True)
class Of(component.Of):
    """Marks a field of a schema as a component of a registry."""

    sized: bool = False  # it has Sizes next to its options
    scaled: bool = False  # the generator: sizes and options may come from the discriminator
    also: Registry[Any] | None = None  # a second registry whose names are allowed there, without sizes

    def _registries(self) -> tuple[Registry[Any], ...]:
        return (self.registry, self.also) if self.also else (self.registry,)

    def _model(self, entry: Entry[Any]) -> type[Strict]:
        own = entry.kind == self.registry.singular
        bases: tuple[type, ...] = (entry.schema, *[Sizes] * (self.sized and own), *[_Scaled] * (self.scaled and own))
        return type(entry.name, bases, {"__annotations__": {"type": str}, "__module__": __name__})

    def _chosen(self, values: dict[str, Any], info: ValidationInfo) -> Component:
        if self.also and values.get("type") in self.also.names():
            return self._named(self.also, values)
        if self.scaled and "discriminator" in info.data:
            values = scaled_generator(values, info.data["discriminator"].dump())
        elif self.scaled:  # the discriminator's own errors are reported; what would follow from them is not
            values = without_scale(values)
            if "type" not in values:
                return Component("", Strict())
        return self._named(self.registry, values)

    def _with_options(
        self, registry: Registry[Any], name: str, schema: type[Strict], values: dict[str, Any]
    ) -> Component:
        if not self.sized or registry is self.also:
            return super()._with_options(registry, name, schema, values)
        both = validate(_sizes_and_options(schema, self.scaled), values)
        sizes, options = _part(both, Sizes), _part(both, schema)
        if sizes.dim % sizes.heads:
            raise problem(("heads",), f"{sizes.heads} heads do not divide dim {sizes.dim}.", sizes.heads)
        return Component(name, options, sizes)


@lru_cache(maxsize=64)  # making a model takes as long as checking a hundred
def _sizes_and_options(schema: type[Strict], scaled: bool) -> type[Strict]:
    """Return one model of both, so that all errors and suggestions come at once."""
    bases: tuple[type, ...] = (schema, Sizes, *[_Scaled] * scaled)
    return type(schema.__name__, bases, {"__module__": __name__})


def _part(values: Strict, model: type[M]) -> M:
    return model.model_construct(**{key: getattr(values, key) for key in model.model_fields})


class _Scaled(Strict):
    """The key that only a generator has; scaled_generator removes it before validation."""

    scale: Annotated[float, Field(gt=0, le=8)] | None = Field(
        None,
        description=f"Width and heads relative to the discriminator's; {DEFAULT_SCALE} if none of the three is given.",
    )
