"""electra-lab registry list | describe"""

import json
import types
import typing
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

import registry
from electra_lab.cli._streams import answer, answering
from electra_lab.cli.schema import From
from registry import Plugin
from registry.component import Sizes
from registry.core import Registry
from registry.errors import LabError, UnknownName, did_you_mean

app = typer.Typer(help="List and describe the components of experiments.", no_args_is_help=True)

Kind = Annotated[
    str, typer.Argument(metavar="KIND", help="A kind: samplers, backbones, ...; singular, plural, or the key in YAML.")
]


@app.command("list")
@answering()
def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind.")] = None,
    from_: From = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Include all options, for programs; imports the components.")
    ] = False,
) -> None:
    """List all components: name, file:line, summary, installed package. Imports none of them.

    With --from, load that file and list only its components.
    """
    files = {plugin.file for plugin in _load(from_)}
    names: dict[Registry[Any], list[str]] = {}
    for components in [registry_of(kind)] if kind else registry.ALL:
        names_of_kind = components.names()
        if from_:
            names_of_kind = [entry.name for entry in components.plugged_in() if entry.file in files]
        if names_of_kind or not from_:
            names[components] = names_of_kind
    if as_json:
        described: dict[str, list[Any]] = {}
        for components, names_of_kind in names.items():
            described[components.plural] = [_described_or_problem(components, name) for name in names_of_kind]
        answer(json.dumps(described, indent=1, default=str))
        return
    for number, (components, names_of_kind) in enumerate(names.items()):
        if number:
            answer("")
        answer(f"{components.plural} ({len(names_of_kind)})  registry/contracts: {components.contract}")
        for listing in components.listings():
            if listing.name in names_of_kind:
                package = f"  ({listing.package})" if listing.package else ""
                answer(f"  {listing.name + '  ':<18}{listing.place:<44}  {listing.summary}{package}".rstrip())
                if listing.problem:
                    answer(f"    ! {listing.problem}")
    if from_ and not names:
        answer("none: it registers no component of this kind" if kind else "none: it registers nothing")


@app.command("describe")
@answering()
def describe(
    kind: Kind, name: Annotated[str, typer.Argument(metavar="NAME", help="A component's name.")], from_: From = None
) -> None:
    """Describe a component: its purpose, its options with type, default and bounds, and YAML to paste."""
    import inspect

    components = registry_of(kind)
    _load(from_)
    entry = components.get(name)
    package = f"  ({entry.package})" if entry.package else ""
    answer(f"{components.singular} {name}  {entry.place}{package}\n\n{inspect.getdoc(entry.component)}\n")
    options = _described(components, name)["options"]
    for option in options:
        default = "required" if "default" not in option else f"default {json.dumps(option['default'], default=str)}"
        bounds = f"  {option['bounds']}" if option["bounds"] else ""
        answer(f"  {option['name'] + '  ':<18}{option['type'] + '  ':<28}{default}{bounds}")
    if not options:
        answer("  (no options)")
    if components is registry.heads:
        answer(f'\n  needs = Needs(heads=("{name}",))  # in an objective')
        return
    sizes = list(Sizes.model_fields) if components is registry.backbones else []
    needed = [option["name"] for option in options if "default" not in option]
    required = "".join(f", {key}: ..." for key in [*sizes, *needed])
    answer(f"\n  {{type: {name}{required}}}")


def _load(files: list[Path] | None) -> list[Plugin]:
    if not files:
        return []
    from electra_lab.config.load import load_plugins

    return [*chain.from_iterable(map(load_plugins, files))]


def _described_or_problem(components: Registry[Any], name: str) -> dict[str, Any]:
    """Describe a component, or the reason why it cannot be loaded: a broken package must not end a listing."""
    try:
        return _described(components, name)
    except LabError as error:
        return {"name": name, "problem": str(error)}


def _described(components: Registry[Any], name: str) -> dict[str, Any]:
    entry = components.get(name)
    options = []
    for name_, field in entry.schema.model_fields.items():
        bounds = _bounds(field.annotation, field.metadata)
        option = {"name": name_, "type": _type(field.annotation), "bounds": bounds}
        options.append(option if field.is_required() else {**option, "default": field.default})
    described = {"name": name, "summary": entry.summary, "place": entry.place, "options": options}
    return described | ({"package": entry.package} if entry.package else {})


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "multiple of", "min_length": "at least"}


def _bounds(annotation: Any, marks: Iterable[Any] = ()) -> str:
    """Return the bounds of a type, and of the types inside it."""
    bounds = []
    for mark in marks:
        for key, sign in _SIGNS.items():
            if hasattr(mark, key):
                bounds.append(f"{sign} {getattr(mark, key)}")
    inner_types = () if typing.get_origin(annotation) is typing.Literal else typing.get_args(annotation)
    for inner in inner_types:
        inner_marks = [getattr(mark, "metadata", [mark]) for mark in getattr(inner, "__metadata__", ())]
        bounds.append(_bounds(inner, chain(*inner_marks)))
    return ", ".join(dict.fromkeys(filter(None, bounds)))


def _type(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None:
        return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin is typing.Literal:
        return " | ".join(map(json.dumps, inner))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, inner))
    return f"{origin.__name__}[{', '.join('...' if part is ... else _type(part) for part in inner)}]"


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind, given in the singular, the plural or by its key. Raises UnknownName."""
    word = kind.replace("-", "_").replace(" ", "_")
    for components in registry.ALL:
        if word in (components.plural, components.singular.replace(" ", "_"), components.key):
            return components
    kinds = [components.plural for components in registry.ALL]
    raise UnknownName(f"there is no kind '{kind}'.{did_you_mean(word, kinds)}")
