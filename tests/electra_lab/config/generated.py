"""Hypothesis strategies for config values that users may write, as JSON, from the types and bounds of options."""

import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from electra_lab.config.sections import Of
from registry import Registry
from registry import component as component_
from registry.component import Sizes
from registry.signature import FolderOrName

WORDS = st.sampled_from(["a", "b c.txt", "../x/*.y", "ä"])
KINDS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(), str: WORDS, Path: WORDS, FolderOrName: WORDS, types.NoneType: st.none(),
    Any: st.none() | st.integers() | WORDS,
}  # fmt: skip


def value(annotation: Any, bounds: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Generate the values that a YAML file may contain for a type with pydantic's bounds."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if marks := [bound for bound in bounds if isinstance(bound, component_.Of)]:
        return st.deferred(lambda: inside(marks[0]))
    if origin is Annotated:
        inner = []
        for argument in arguments[1:]:
            inner += argument.metadata if isinstance(argument, FieldInfo) else [argument]
        return value(arguments[0], (*bounds, *inner))
    if origin in (types.UnionType, typing.Union):
        return st.one_of(value(argument) for argument in arguments)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        least = max([0, *(b.min_length for b in bounds if isinstance(b, annotated_types.MinLen))])
        return st.lists(value(arguments[0]), min_size=least, max_size=least + 2)
    if origin is tuple:
        return st.tuples(*map(value, arguments)).map(list)
    if origin is dict:
        return st.dictionaries(WORDS, value(arguments[1]), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return section(annotation)
    if annotation in (int, float):
        return number(annotation, bounds)
    if patterns := [bound.pattern for bound in bounds if getattr(bound, "pattern", None)]:
        return st.from_regex(patterns[0], fullmatch=True, alphabet=st.characters(codec="ascii"))
    return KINDS[annotation]


def number(kind: type, bounds: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    above: list[Any] = [getattr(b, "gt", None) if hasattr(b, "gt") else getattr(b, "ge", None) for b in bounds]
    below: list[Any] = [getattr(b, "lt", None) if hasattr(b, "lt") else getattr(b, "le", None) for b in bounds]
    least = max([b for b in above if b is not None], default=None)
    most = min([b for b in below if b is not None], default=None)
    strict_least = any(getattr(b, "gt", None) is not None for b in bounds)
    strict_most = any(getattr(b, "lt", None) is not None for b in bounds)
    if kind is float:
        return st.floats(
            least, most, exclude_min=strict_least, exclude_max=strict_most, allow_nan=False, allow_infinity=False
        )
    first = None if least is None else int(least) + strict_least
    last = None if most is None else int(most) - strict_most
    whole = st.integers(first, last)
    return whole | whole.filter(lambda n: abs(n) < 2**53).map(float)  # 1e3 is an integer too


def section(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: value(field.annotation, tuple(field.metadata)) for name, field in model.model_fields.items()}
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    return st.fixed_dictionaries(
        {name: strategy for name, strategy in fields.items() if name in required},
        optional={name: strategy for name, strategy in fields.items() if name not in required},
    )


def component(of: Of) -> st.SearchStrategy[Any]:
    """Generate components of a registry, or of a second one that is allowed there, by name with options."""
    choices = [named(of.registry, name, sized=of.sized) for name in of.registry.names()]
    choices += [named(of.also, name) for name in of.also.names()] if of.also else []
    if of.scaled:
        scaled = st.fixed_dictionaries({}, optional={"scale": st.floats(0.01, 8), "depth": st.integers(1, 3)})
        choices.append(scaled)
    return st.one_of(*choices, *([st.none()] if of.optional else []))


def inside(of: component_.Of) -> st.SearchStrategy[Any]:
    """Generate components that are options of a component and contain no components themselves."""
    schemas = {name: of.registry.get(name).schema for name in of.registry.names()}
    return st.one_of(named(of.registry, name) for name, schema in schemas.items() if not holds_components(schema))


def holds_components(model: type[BaseModel]) -> bool:
    """Return True if a mapping of this model may contain a component at any depth."""
    for field in model.model_fields.values():
        models = [model for model in (field.annotation, *typing.get_args(field.annotation)) if isinstance(model, type)]
        if any(isinstance(mark, component_.Of) for mark in field.metadata):
            return True
        if any(issubclass(model, BaseModel) and holds_components(model) for model in models):
            return True
    return False


def named(registry: Registry[Any], name: str, *, sized: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    sizes = section(Sizes) if sized else st.just({})
    return st.tuples(sizes, section(registry.get(name).schema)).map(lambda both: {**both[1], "type": name, **both[0]})


def file(model: type[BaseModel], **others: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate files of a kind in which every value is valid by itself, though perhaps not in combination."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in model.model_fields.items():
        marks = [mark for mark in field.metadata if isinstance(mark, Of)]
        if marks:
            fields[name] = component(marks[0])
        elif name not in others:
            fields[name] = value(field.annotation, tuple(field.metadata))
    return st.fixed_dictionaries({**fields, **others})
