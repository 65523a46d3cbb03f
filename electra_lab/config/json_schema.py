"""The experiment file as a JSON schema (draft 2020-12), for editors that complete and check while one writes.

Two schemas in one. `complete` says what the validator says. `partial` is for a file with `extends`: what it leaves out
the parent has, so nothing is required and no default is named, but what it writes is held to the same types.

Not said, as JSON schema has no arithmetic: that heads divide dim, that `scale` gives sizes that divide and fit,
sequence_length <= max_length, replace_prob + random_prob <= 1, that micro_batch_size divides batch_size, and that an
integer may not be written 1.0, and that a first stage leaves steps for the second. Nor what only code can tell: a
component's constructor, a validator of a plug-in's, which numbers a schedule can change and whether it stays in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from electra_lab.config.generator import DEFAULT_SCALE
from electra_lab.config.schema import OF_SCHEDULE, Experiment, Of, Sizes
from registry import Entry, LabError, Needs, Registry, generators
from registry.signature import Strict

Schema = dict[str, Any]
Entries = Mapping[str, list[Entry[Any]]]

DESCRIPTION = (
    "An experiment of electra_lab. `electra-lab check FILE` tells more than this schema can: that heads divide dim, "
    "that generator.scale gives sizes that divide and fit, data.sequence_length <= embedding.max_length, "
    "replace_prob + random_prob <= 1, that micro_batch_size divides batch_size, that an integer is not written 1.0, "
    "that the first stage of an objective leaves steps for the second, which numbers a schedule can change, how far."
)
COMPONENTS = {key: of for key, field in Experiment.model_fields.items() for of in field.metadata if isinstance(of, Of)}


class Scaled(Strict):
    """What only a generator has; scaled_generator takes it out before validation."""

    scale: Annotated[float, Field(gt=0, le=8)] | None = Field(
        description=f"Width and heads as a share of the discriminator's; {DEFAULT_SCALE} if none of the three is given."
    )


class _Complete(GenerateJsonSchema):
    """pydantic's, without titles that repeat the names; what JSON schema cannot say is left to the validator."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}


class _Partial(_Complete):
    """Nothing is required and nothing has a default: what is left out comes from elsewhere."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])


def experiment_schema() -> tuple[Schema, list[str]]:
    """The schema with the components that are registered now, and for each that cannot be loaded a sentence why."""
    problems: dict[str, None] = {}
    entries = {
        key: [entry for registry in (of.registry, of.also) if registry for entry in _loadable(registry, problems)]
        for key, of in {**COMPONENTS, "schedules": OF_SCHEDULE}.items()
    }
    partial, definitions = _generate("partial", _Partial, entries)
    complete, others = _generate("complete", _Complete, entries)

    for key, of in COMPONENTS.items():
        if of.scaled:  # its type may come from the discriminator
            rules = zip(entries[key], complete["properties"][key]["allOf"], strict=True)
            sized = [(entry, rule["then"]) for entry, rule in rules if entry.kind == of.registry.singular]
            complete["allOf"] = [_inheriting(entry, options) for entry, options in sized]
        else:
            complete["properties"][key]["required"] = ["type"]
    complete["allOf"] += [_needing(entry, True) for entry in entries["objective"]]
    partial["allOf"] = [_needing(entry, False) for entry in entries["objective"]]
    budgets = [_given(name) for name in ("steps", "tokens", "flops")]
    complete["properties"]["train"]["oneOf"] = budgets
    partial["properties"]["train"]["oneOf"] = [*budgets, {"not": {"anyOf": budgets}}]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "electra_lab experiment",
        "description": DESCRIPTION,
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {"$ref": "#/$defs/partial.Experiment"},
        "else": {"$ref": "#/$defs/complete.Experiment"},
        "$defs": definitions | others,
    }
    return schema, list(problems)


def _loadable(registry: Registry[Any], problems: dict[str, None]) -> Iterator[Entry[Any]]:
    for name in registry.names():
        try:
            yield registry.get(name)
        except LabError as error:  # one broken package must not take the schema from all others
            problems[f"{registry.singular} '{name}' is left out: {error}"] = None


def _generate(mood: str, how: type[GenerateJsonSchema], entries: Entries) -> tuple[Schema, Schema]:
    """The schema of an experiment file, and all definitions, itself among them."""
    models = {(key, entry.name): _model(key, entry) for key, found in entries.items() for entry in found}
    written: list[type[BaseModel]] = [Experiment, *models.values()]
    refs, generated = models_json_schema(
        [(model, "validation") for model in written],
        schema_generator=how,
        ref_template=f"#/$defs/{mood}.{{model}}",
    )
    definitions: Schema = {f"{mood}.{name}": schema for name, schema in generated["$defs"].items()}
    experiment: Schema = definitions[f"{mood}.Experiment"]
    properties = experiment["properties"]
    properties["extends"] = {"type": "string", "description": "The experiment file that this one changes."}
    for key, found in entries.items():
        options = [refs[models[key, entry.name], "validation"] for entry in found]
        if key == "schedules":
            properties[key] |= {"additionalProperties": _choice(found, options) | {"required": ["type"]}}
            continue
        properties[key] = _choice(found, options)
        if COMPONENTS[key].optional:
            properties[key]["type"] = ["object", "null"]
        if COMPONENTS[key].scaled:
            properties[key] |= {"if": _given("scale"), "then": {"properties": {"dim": False, "heads": False}}}
            for entry, option in zip(found, options, strict=True):
                if entry.kind == COMPONENTS[key].registry.singular:
                    _taken_over(definitions[option["$ref"].removeprefix("#/$defs/")])
    return experiment, definitions


def _model(key: str, entry: Entry[Any]) -> type[BaseModel]:
    """All that may stand in the mapping of a component."""
    of = COMPONENTS.get(key, OF_SCHEDULE)
    own = entry.kind == of.registry.singular
    bases: list[type[Strict]] = [
        entry.schema, *([Sizes] if of.sized and own else []), *([Scaled] if of.scaled and own else [])
    ]  # fmt: skip
    kind: Any = Literal[entry.name]
    return create_model(f"{key}_{entry.name}", __base__=tuple(bases), __doc__=entry.summary, type=(kind, ...))


def _choice(entries: Iterable[Entry[Any]], refs: Iterable[Schema]) -> Schema:
    """One of several components, told by `type`; by if/then, so that errors are of the chosen one alone."""
    summaries = {entry.name: entry.summary for entry in entries}
    return {
        "type": "object",
        "properties": {"type": {"enum": list(summaries), "enumDescriptions": list(summaries.values())}},
        "allOf": [{"if": _is(name), "then": ref} for name, ref in zip(summaries, refs, strict=True)],
    }


def _taken_over(options: Schema) -> None:
    """Each may be left out, and what it is then depends on the discriminator; what one holds is written whole."""
    options.pop("required", None)
    for option in options["properties"].values():
        option.pop("default", None)


def _inheriting(entry: Entry[Any], options: Schema) -> Schema:
    """What follows for the generator from whether the discriminator is `entry`.

    If so, it has this type where it writes none; if not, it has nobody to take this type's options from.
    """
    required = [name for name, field in entry.schema.model_fields.items() if field.is_required()]
    same = {"if": {"required": ["type"]}, "else": options}
    other = {"if": _is(entry.name), "then": {"required": required}}
    return {
        "if": {"properties": {"discriminator": _is(entry.name)}, "required": ["discriminator"]},
        "then": {"properties": {"generator": same}},
        "else": {"properties": {"generator": other}},
    }


def _needing(objective: Entry[Any], complete: bool) -> Schema:
    """What an objective needs must be there, and what it does not need may not; a partial file may leave it out."""
    needs: Needs = getattr(objective.component, "needs", Needs())
    present = {key: bool(getattr(needs, key)) for key, of in COMPONENTS.items() if of.optional}
    rule: Schema = {
        "properties": {key: {"type": "object" if needed else "null"} for key, needed in present.items()},
    }
    if needs.learning:
        fixed = {"properties": {"type": {"enum": generators.names()}}, "required": ["type"]}
        rule["properties"]["generator"]["not"] = fixed
    if needs.untied:
        rule["properties"]["embedding"] = {"properties": {"tie": {"const": "none"}}}
    if complete:
        rule["required"] = [key for key, needed in present.items() if needed]
        if needs.untied:
            rule["required"].append("embedding")
            rule["properties"]["embedding"]["required"] = ["tie"]
    return {"if": {"properties": {"objective": _is(objective.name)}, "required": ["objective"]}, "then": rule}


def _is(name: str) -> Schema:
    return {"type": "object", "properties": {"type": {"const": name}}, "required": ["type"]}


def _given(name: str) -> Schema:
    return {"properties": {name: {"not": {"type": "null"}}}, "required": [name]}
