"""The signature is the schema: keyword-only parameters become a strict, frozen pydantic model.

    def nucleus(logits, rng, /, *, p: Annotated[float, Field(gt=0, le=1)] = 0.9)

gives a model with one field `p`. Positional parameters are passed in by the lab; they must have the contract's names,
so that a component that expects something else is refused where it is written and not deep inside a run.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import types
import typing
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from registry.errors import BadSignature, did_you_mean, shortened

M = TypeVar("M", bound=BaseModel)
Loc = tuple[str | int, ...]
_WORDS = {
    "Input should be": "must be",
    "String should match": "must match",
    "List should have": "must have",
    "Tuple should have": "must have",
    " after validation": "",
    "a valid array": "a list",
    "an object": "a mapping of keys to values",
    "a valid boolean": "true or false",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "text",
}
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


class Strict(BaseModel):
    """Base of every schema in the lab: nothing unknown, nothing coerced, nothing mutable, nothing non-finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())


def problem(loc: Loc, reason: str, value: Any = None) -> ValidationError:
    """Return a validation error below the field whose validator raises it."""
    return problems([(loc, reason, value)])


def problems(failures: Iterable[tuple[Loc, str, Any]]) -> ValidationError:
    """Return one validation error of several failures, each with its key, the reason and its value."""
    details = []
    for loc, reason, value in failures:
        kind = PydanticCustomError("lab", "{reason}", {"reason": reason})
        details.append(InitErrorDetails(type=kind, loc=loc, input=value))
    return ValidationError.from_exception_data("experiment", details)


def validate(schema: type[M], values: Mapping[str, Any]) -> M:
    """Return `values` as an instance of `schema`. Every reason of the ValidationError is a sentence that helps.

    Validated as JSON: strict there means what a YAML author expects (a list may become a tuple, a string a path, an
    integer a float; nothing else is converted). An integer may also be written as 1e3. Where the schema allows any
    number, 1e3 remains a float.
    """
    try:
        return schema.model_validate_json(json.dumps(values))
    except ValidationError as error:
        refused = {_without_tags(detail["loc"], values) for detail in error.errors(include_url=False)}
    try:
        return schema.model_validate_json(json.dumps(_whole(values, refused)))
    except ValidationError as error:
        details = [cast("dict[str, Any]", detail) for detail in error.errors(include_url=False)]
        explained = [_explained(detail, schema) for detail in _one_for_each_union(details, values)]
        raise ValidationError.from_exception_data(error.title, explained) from None


def _one_for_each_union(details: Iterable[dict[str, Any]], values: Any) -> list[dict[str, Any]]:
    """Return the errors without the members of unions: pydantic has an error for each, below a tag that no file has."""
    merged = list[dict[str, Any]]()
    unions: dict[Loc, dict[str, Any]] = {}  # by key, the error of the first member
    for detail in details:
        loc = detail["loc"] if detail["type"] in ("lab", "missing") else _without_tags(detail["loc"], values)
        if loc in unions:
            unions[loc]["msg"] += " or " + detail["msg"].removeprefix("Input should be ")
            continue
        merged.append(detail | {"loc": loc})
        if loc != detail["loc"]:
            unions[loc] = merged[-1]
    return merged


def _without_tags(loc: Loc, values: Any) -> Loc:
    """Return a place without the tags of unions, which are no keys of `values`."""
    keys = list[str | int]()
    for key in loc:
        if isinstance(values, Mapping):
            is_key = key in values
        else:
            is_key = isinstance(values, list | tuple) and isinstance(key, int) and key < len(values)
        if is_key:
            keys.append(key)
            values = values[key]
    return tuple(keys)


def _whole(value: Any, refused: Container[Loc], loc: Loc = ()) -> Any:
    """Return `value` with integers in place of whole floats that were refused."""
    if isinstance(value, Mapping):
        return {key: _whole(inner, refused, (*loc, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner, refused, (*loc, index)) for index, inner in enumerate(value)]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole and loc in refused else value


def _explained(error: dict[str, Any], schema: type[BaseModel]) -> InitErrorDetails:
    """Return `error` as a line error that can be raised again, with a reason that names the cure."""
    loc, kind = error["loc"], error["type"]
    if kind == "extra_forbidden":
        reason = f"unknown parameter.{_meant(schema, loc)}"
    elif kind == "missing":
        reason = "is required."
    elif kind == "lab":  # a sentence already, from a schema inside this one
        reason = error["msg"]
    else:
        reason = _worded(error["msg"], error["input"])
    # The reason travels in the context: a message template would trip over braces in the user's key.
    return InitErrorDetails(
        type=PydanticCustomError("lab", "{reason}", {"reason": reason, "kind": kind}), loc=loc, input=error["input"]
    )


def _worded(message: str, value: Any) -> str:
    """Put pydantic's message in the words of a YAML author, with the value that was written."""
    for phrase, replacement in _WORDS.items():
        message = message.replace(phrase, replacement)
    is_said = not isinstance(value, list | dict) and not re.search(r":[/\\]", str(value))  # addresses have secrets
    return f"{message}{f', is {json.dumps(value, ensure_ascii=False):.60}' if is_said else ''}."


def _meant(schema: type[BaseModel], loc: Loc) -> str:
    """Return a hint for an unknown key: the places that have it, otherwise the nearest key of its section."""
    key, top = str(loc[-1]), schema.model_fields
    fields = _fields_at(schema, loc[:-1])
    elsewhere = (
        [key] if key in top else [f"{section}.{key}" for section in top if key in _fields_at(schema, (section,))]
    )
    if not elsewhere:
        return did_you_mean(key, fields)
    places = " or ".join(f"'{place}'" for place in elsewhere)
    return f" Did you mean {places}? Known here: {shortened(sorted(fields))}."


def _fields_at(schema: type[BaseModel], loc: Loc) -> list[str]:
    """Return the fields of the model at `loc` below `schema`; none where there is no model."""
    for key in loc:
        if isinstance(key, int):  # an item of a list, whose model is that of the list
            continue
        field = schema.model_fields.get(key)
        annotations = (field.annotation, *typing.get_args(field.annotation)) if field else ()
        models = [model for model in annotations if inspect.isclass(model) and issubclass(model, BaseModel)]
        if not models:
            return []
        schema = models[-1]
    return list(schema.model_fields)


def schema_of(
    component: Callable[..., Any],
    leads: tuple[tuple[str, ...], ...],
    place: str,
    required: Mapping[str, type] | None = None,
) -> tuple[tuple[str, ...], type[Strict]]:
    """Return the positional parameters of `component` and the schema of its options. Raises BadSignature.

    leads     names that the contract allows for the positional parameters
    required  options that the contract demands, with their types
    place     file:line for errors
    """
    required = required or {}
    function = component.__init__ if inspect.isclass(component) else component
    parameters = list(inspect.signature(function).parameters.values())
    if inspect.isclass(component):
        parameters = parameters[1:] if function is not object.__init__ else []  # without self

    def refuse(reason: str) -> BadSignature:
        return BadSignature(f"{place}: {component.__qualname__}: {reason}")

    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise refuse(f"{parameter} hides options; name each one after a bare `*`.")
    options = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    positional = tuple(parameter.name for parameter in parameters if parameter not in options)
    if positional not in leads:
        allowed = " or ".join(f"({', '.join(lead)})" for lead in leads)
        raise refuse(f"must take {allowed} before its options, takes ({', '.join(positional)}).")

    names = {parameter.name for parameter in options}
    if missing := [name for name in required if name not in names]:
        raise refuse(f"must have the option {' and '.join(missing)}, which its contract demands.")
    for parameter in options:
        if reason := _unusable(parameter):
            raise refuse(reason)

    # Only the options' annotations are resolved: the positional ones may name types imported under TYPE_CHECKING.
    holder = types.SimpleNamespace(__annotations__={option.name: option.annotation for option in options})
    try:
        hints = typing.get_type_hints(holder, globalns=getattr(function, "__globals__", {}), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise refuse(f"an option's type cannot be resolved ({error}); import it at run time.") from None
    for name, demanded in required.items():
        hint = hints[name]
        plain = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if plain is not demanded:
            reason = f"must be of type {demanded.__name__}, is {getattr(plain, '__name__', plain)}."
            raise refuse(f"option '{name}' {reason}")

    # Defaults must fit their types.
    defaults = {option.name: option.default for option in options if option.default not in (option.empty, ...)}
    fields: dict[str, Any] = {option.name: (hints[option.name], defaults.get(option.name, ...)) for option in options}
    try:
        schema = create_model(component.__name__, __base__=Strict, **fields)
    except Exception as error:  # pydantic raises several types, all about one annotation or name
        raise refuse(f"an option cannot be turned into a schema ({error}).") from None
    try:
        schema.model_validate(defaults)
    except ValidationError as error:
        for detail in error.errors():
            if detail["loc"][0] in defaults:  # otherwise a required option, which is missing by design here
                reason = f"the default of '{detail['loc'][0]}' does not fit its type: {detail['msg']}"
                raise refuse(reason) from None
    return positional, schema


def _unusable(option: inspect.Parameter) -> str | None:
    """Return the reason why a parameter cannot be an option, if there is one."""
    name = option.name
    if option.annotation is option.empty:
        return f"option '{name}' has no type; write for example `{name}: float = 1.0`."
    if name == "type":
        return "an option may not be called 'type': that word selects the component in YAML."
    if name.startswith("_"):
        return f"option '{name}' starts with an underscore; options are public."
    if hasattr(Strict, name):
        return f"an option may not be called '{name}': pydantic's models use that name."
    return None


class FolderOrName(str):
    """A folder, relative to the file that wrote it, or a name on the Hugging Face hub: `name`, `organisation/name`."""

    def is_name(self, folder: Path) -> bool:
        """Return True if it can only be meant as a name: neither it nor its first part exists in `folder`."""
        return bool(_NAME.fullmatch(self)) and not os.path.exists(folder / self.partition("/")[0])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text, plain = core_schema.str_schema(), core_schema.to_string_ser_schema()
        return core_schema.no_info_after_validator_function(cls, text, serialization=plain)
