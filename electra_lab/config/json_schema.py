"""Experiment and ablation files as JSON schemas (draft 2020-12), for editors that complete and check while one writes.

Two schemas in one. `complete` says what the validator says. `partial` is for a file with `extends`: what it leaves out
the parent has, so nothing is required and no default is named, but what it writes is held to the same types.

Not said, as JSON schema has no arithmetic: that heads divide dim, that `scale` gives sizes that divide and fit,
sequence_length <= max_length, replace_prob + random_prob <= 1, that micro_batch_size divides batch_size, and that an
integer may not be written 1.0, and that a first stage leaves steps for the second. Nor what only code can tell: a
component's constructor, a validator of a plug-in's, which numbers a schedule can change and whether it stays in bounds.
Of an ablation: whether its base has the options that are changed, and all that follows from base and changes together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from electra_lab.config.ablation import BUDGETS, LONGEST_NAME, Ablation
from electra_lab.config.generator import DEFAULT_SCALE
from electra_lab.config.schema import OF_SCHEDULE, Experiment, Of, Sizes
from registry import Entry, LabError, Needs, Registry, generators, launchers, measures
from registry.signature import Strict

Schema = dict[str, Any]
Entries = Mapping[str, list[Entry[Any]]]

DESCRIPTION = (
    "An experiment of electra_lab. `electra-lab check FILE` tells more than this schema can: that heads divide dim, "
    "that generator.scale gives sizes that divide and fit, data.sequence_length <= embedding.max_length, "
    "replace_prob + random_prob <= 1, that micro_batch_size divides batch_size, that an integer is not written 1.0, "
    "that the first stage of an objective leaves steps for the second, which numbers a schedule can change, how far."
)
OF_ABLATIONS = (
    "An ablation of electra_lab. `electra-lab check FILE` tells more than this schema can: whether the base has the "
    "keys that are changed, and whether each of its variants is an experiment that can be run."
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
    for mood, schema in (("complete", complete), ("partial", partial)):
        schema["properties"]["train"] |= _one_budget(mood)
    return _file("Experiment", DESCRIPTION, definitions | others), list(problems)


def ablation_schema() -> tuple[Schema, list[str]]:
    """The same of ablation files. What is laid over the base is held to the types that hold in experiments."""
    experiment, sentences = experiment_schema()
    problems = dict.fromkeys(sentences)
    entries = {"measure": list(_loadable(measures, problems)), "launcher": list(_loadable(launchers, problems))}
    definitions = experiment["$defs"] | _changes(experiment["$defs"])
    for mood, how in (("partial", _Partial), ("complete", _Complete)):
        written, options = _written(Ablation, mood, how, entries)
        definitions |= written
        # A list replaces its parent's, so that its components are always whole.
        whole = [{"$ref": f"#/$defs/complete.measure_{entry.name}"} for entry in entries["measure"]]
        ablation, properties = definitions[f"{mood}.Ablation"], definitions[f"{mood}.Ablation"]["properties"]
        properties["extends"] = {"type": "string", "description": "The ablation file that this one changes."}
        properties["measure"]["items"] = _choice(entries["measure"], whole) | {"required": ["type"]}
        properties["launcher"] = _choice(
            entries["launcher"], [options["launcher", e.name] for e in entries["launcher"]]
        )
        properties["launcher"] |= {"required": ["type"]} if mood == "complete" else {}
        quantities = [name for entry in entries["measure"] for name in entry.component.quantities]
        properties["quality"] = {"enum": [*dict.fromkeys(quantities), None]}
        properties["seeds"]["uniqueItems"] = True
        properties["budget"] |= {"if": {"type": "object"}, "then": _one_budget(mood)}
        properties["set"] = {"$ref": "#/$defs/changes.set"}
        properties["vary"] = {
            "type": "object",
            "minProperties": 1 if mood == "complete" else 0,
            "if": {"additionalProperties": {"type": "object"}},
            "then": {
                "propertyNames": {"pattern": r"^\S(.*\S)?$", "maxLength": LONGEST_NAME},
                "additionalProperties": {"$ref": "#/$defs/changes.varied"},
            },
            "else": {"$ref": "#/$defs/changes.values"},
        }
        ablation["allOf"] = [_budgeted()]
    return _file("Ablation", OF_ABLATIONS, definitions), list(problems)


def _changes(definitions: Schema) -> Schema:
    """What may be laid over an experiment: whole sections, and single keys of them by their dotted names."""
    sections = {
        key: schema
        for key, schema in definitions["partial.Experiment"]["properties"].items()
        if key not in ("name", "seed", "extends")
    }
    keys: Schema = dict(sections)
    for key in sections:
        model = Experiment.model_fields[key].annotation
        found = f"partial.{getattr(model, '__name__', '')}"
        names = [found] if key not in COMPONENTS else [n for n in definitions if n.startswith(f"partial.{key}_")]
        options: dict[str, list[Schema]] = {}
        for name in names if key in COMPONENTS or found in definitions else ():
            for option, schema in definitions[name]["properties"].items():
                if schema not in options.setdefault(option, []):
                    options[option].append(schema)
        keys |= {f"{key}.{option}": {"anyOf": schemas} for option, schemas in options.items()}
        if "type" in options:
            keys[f"{key}.type"] = sections[key]["properties"]["type"]
    schedule = {
        name: rule for name, rule in sections["schedules"]["additionalProperties"].items() if name != "required"
    }
    patterns: Schema = {  # options of options, and schedules by the names of what they change
        rf"^({'|'.join(COMPONENTS)})(\.[^.]+){{2,}}$": {},
        r"^schedules\.[^.]+\.[^.]+$": schedule,
        r"^schedules(\.[^.]+){3,}$": {},
    }
    varied = {key: schema for key, schema in keys.items() if key not in ("imports", "data.store")}
    varied["data"] = {"allOf": [varied["data"], {"properties": {"store": False}}]}
    lists: list[Schema] = [
        {key: {"type": "array", "minItems": 1, "uniqueItems": True, "items": schema} for key, schema in each.items()}
        for each in (varied, patterns)
    ]
    return {
        f"changes.{name}": {
            "type": "object", "properties": some, "patternProperties": others, "additionalProperties": False
        }
        for name, some, others in (("set", keys, patterns), ("varied", varied, patterns), ("values", *lists))
    }  # fmt: skip


def _budgeted() -> Schema:
    """What `budget` sets, nothing else may."""
    free: Schema = {f"train.{name}": False for name in BUDGETS}
    free["train"] = {"properties": dict.fromkeys(BUDGETS, False)}
    values = free | {"train": {"items": free["train"]}}
    named = {"if": {"type": "object"}, "then": {"properties": free}}
    return {
        "if": {"properties": {"budget": {"type": "object"}}, "required": ["budget"]},
        "then": {
            "properties": {
                "set": {"properties": free},
                "vary": {"properties": values, "additionalProperties": named},
            }
        },
    }


def _one_budget(mood: str) -> Schema:
    budgets = [_given(name) for name in BUDGETS]
    return {"oneOf": budgets if mood == "complete" else [*budgets, {"not": {"anyOf": budgets}}]}


def _file(kind: str, description: str, definitions: Schema) -> Schema:
    """The schema of a file, with the definitions that it leads to."""
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"electra_lab {kind.lower()}",
        "description": description,
        "type": "object",
        "if": {"required": ["extends"]},
        "then": {"$ref": f"#/$defs/partial.{kind}"},
        "else": {"$ref": f"#/$defs/complete.{kind}"},
    }
    used: Schema = {}
    found = _references(schema)
    while found:
        used |= {name: definitions[name] for name in found}
        found = {name for each in found for name in _references(definitions[each])} - used.keys()
    return schema | {"$defs": {name: definitions[name] for name in definitions if name in used}}


def _references(schema: Any) -> set[str]:
    return set(re.findall(r"'#/\$defs/([^']+)'", str(schema)))


def _loadable(registry: Registry[Any], problems: dict[str, None]) -> Iterator[Entry[Any]]:
    for name in registry.names():
        try:
            yield registry.get(name)
        except LabError as error:  # one broken package must not take the schema from all others
            problems[f"{registry.singular} '{name}' is left out: {error}"] = None


def _generate(mood: str, how: type[GenerateJsonSchema], entries: Entries) -> tuple[Schema, Schema]:
    """The schema of an experiment file, and all definitions, itself among them."""
    definitions, refs = _written(Experiment, mood, how, entries)
    experiment: Schema = definitions[f"{mood}.Experiment"]
    properties = experiment["properties"]
    properties["extends"] = {"type": "string", "description": "The experiment file that this one changes."}
    for key, found in entries.items():
        options = [refs[key, entry.name] for entry in found]
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


def _written(
    file: type[BaseModel], mood: str, how: type[GenerateJsonSchema], entries: Entries
) -> tuple[Schema, dict[tuple[str, str], Schema]]:
    """The definitions of a kind of file and of all components; and the references to the latter, by key and name."""
    models = {(key, entry.name): _model(key, entry) for key, found in entries.items() for entry in found}
    every: list[type[BaseModel]] = [file, *models.values()]
    refs, generated = models_json_schema(
        [(model, "validation") for model in every],
        schema_generator=how,
        ref_template=f"#/$defs/{mood}.{{model}}",
    )
    definitions: Schema = {f"{mood}.{name}": schema for name, schema in generated["$defs"].items()}
    return definitions, {at: refs[model, "validation"] for at, model in models.items()}


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
