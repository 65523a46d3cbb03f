"""electra-lab registry list | describe"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

import registry
from electra_lab.cli.schema import From
from registry import Plugin
from registry.core import Registry
from registry.errors import LabError, UnknownName, did_you_mean

app = typer.Typer(help="What there is to put into an experiment.", no_args_is_help=True)

Kind = Annotated[str, typer.Argument(metavar="KIND", help="A registry: samplers, backbones, ...; singular or plural.")]


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this registry.")] = None,
    from_: From = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With all options, for programs; imports the components.")
    ] = False,
) -> None:
    """All components: name, summary, file:line, and those of installed packages. Imports none of them.

    With --from, the components of that file alone, which is loaded for it.
    """
    chosen = [_registry(kind)] if kind else list(registry.ALL)
    with redirect_stdout(sys.stderr):  # what a plug-in prints is no answer of ours
        files = {plugin.file for plugin in _load(from_)}
    names = {r.plural: [e.name for e in r.plugged_in() if e.file in files] if from_ else r.names() for r in chosen}
    chosen = [r for r in chosen if names[r.plural] or not from_]
    if as_json:
        with redirect_stdout(sys.stderr):
            described = {r.plural: [_described_or_problem(r, name) for name in names[r.plural]] for r in chosen}
        print(json.dumps(described, indent=1, default=str))
        return
    for number, r in enumerate(chosen):
        listings = [listing for listing in r.listings() if listing.name in names[r.plural]]
        print(f"{chr(10) if number else ''}{r.plural} ({len(listings)})  registry/contracts.py: {r.contract}")
        for listing in listings:
            package = f"  ({listing.package})" if listing.package else ""
            print(f"  {listing.name + '  ':<18}{listing.place:<44}  {listing.summary}{package}".rstrip())
            if listing.problem:
                print(f"    ! {listing.problem}")
    if from_ and not chosen:
        print("none: it registers no component of this kind." if kind else "none: it registers nothing.")


@app.command("describe")
def describe(
    kind: Kind,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A component's name.")],
    from_: From = None,
) -> None:
    """One component: what it does, its options with type, default and bounds, and YAML to paste."""
    import inspect

    r = _registry(kind)
    with redirect_stdout(sys.stderr):
        _load(from_)
        entry = r.get(name)
    package = f"  ({entry.package})" if entry.package else ""
    print(f"{r.singular} {name}  {entry.place}{package}\n\n{inspect.getdoc(entry.component)}\n")
    options = _described(r, name)["options"]
    for option in options:
        default = "required" if "default" not in option else f"default {json.dumps(option['default'], default=str)}"
        bounds = f"  {option['bounds']}" if option["bounds"] else ""
        print(f"  {option['name'] + '  ':<18}{option['type']:<28}{default}{bounds}")
    if not options:
        print("  (no options)")
    required = "".join(f", {o['name']}: ..." for o in options if "default" not in o)
    print(f"\n  {{type: {name}{required}}}")


def _load(files: list[Path] | None) -> list[Plugin]:
    if not files:
        return []
    from electra_lab.config.load import load_plugins

    return [plugin for file in files for plugin in load_plugins(file)]


def _described_or_problem(r: Registry[Any], name: str) -> dict[str, Any]:
    """An installed package's component that cannot be loaded spoils no listing."""
    try:
        return _described(r, name)
    except LabError as error:
        return {"name": name, "problem": str(error)}


def _described(r: Registry[Any], name: str) -> dict[str, Any]:
    entry = r.get(name)
    options: list[dict[str, Any]] = []
    for option, field in entry.schema.model_fields.items():
        described: dict[str, Any] = {
            "name": option,
            "type": _type(field.annotation),
            "bounds": ", ".join(_bound(item) for item in field.metadata if _bound(item)),
        }
        if not field.is_required():
            described["default"] = field.default
        options.append(described)
    described = {"name": name, "summary": entry.summary, "place": entry.place, "options": options}
    return described | ({"package": entry.package} if entry.package else {})


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "multiple of", "min_length": "at least"}


def _bound(item: Any) -> str:
    return ", ".join(f"{sign} {getattr(item, key)}" for key, sign in _SIGNS.items() if hasattr(item, key))


def _type(annotation: Any) -> str:
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return text or str(annotation).replace("typing.", "").replace("pathlib.", "")


def _registry(kind: str) -> Registry[Any]:
    word = kind.replace("-", "_").replace(" ", "_")
    for r in registry.ALL:
        if word in (r.plural, r.singular.replace(" ", "_")):
            return r
    raise UnknownName(f"there is no registry '{kind}'.{did_you_mean(word, [r.plural for r in registry.ALL])}")
