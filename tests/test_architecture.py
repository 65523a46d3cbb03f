"""The rules of the house: who may import whom, names of files, sizes of files, no pickle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry
from tests.helpers import ROOT

SOURCES = sorted(p for package in ("registry", "electra_lab") for p in (ROOT / package).rglob("*.py"))

COMPONENTS = {
    "backbones", "masking", "samplers", "objectives", "generators", "schedules", "corpora", "tokenizers", "measures",
    "launchers",
}  # fmt: skip
# Each room and the rooms of the project that it may import; a room may always import itself.
MAY_IMPORT = {
    "registry": set(),
    **{room: {"registry", "model"} for room in COMPONENTS},
    "model": {"registry"},
    "data": {"registry"},
    "training": {"registry", "model", "data"},
    "config": {"registry"},
    "budget": {"registry", "model", "training", "config"},
    "assemble": {"registry", "model", "data", "training", "config", "budget"},
    "forecast": {"registry", "model", "data", "training", "config", "assemble", "budget"},
    "charts": set(),
    "runs": {"forecast", "registry", "config", "assemble", "training", "data", "model", "charts"},
    "ablation": {"forecast", "registry", "config", "assemble", "budget", "training", "data", "model", "charts", "runs"},
    # Objectives, masking and samplers reach it by name, so that a user's networks meet the very ones of the lab.
    "interop": {"registry", "training"},
    "cli": {"registry", "config", "assemble", "runs", "ablation"},
    "__init__": {"registry"},
    "__main__": {"cli"},
}


def room(module: str) -> str:
    parts = module.split(".")
    return "registry" if parts[0] == "registry" else (parts[1] if len(parts) > 1 else "__init__")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """(module, only for types, inside a function) for each import of a file."""

    def walk(node: ast.AST, typing_only: bool, inside: bool) -> Iterator[tuple[str, bool, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, typing_only, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                yield child.module or "", typing_only, inside
            elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                yield from walk(child, True, inside)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, typing_only, inside or function)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False, False)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_rooms_import_only_what_they_may(path: Path) -> None:
    if path.parent.name == "testing":
        return  # the contract suites may use anything
    own = room(name_of(path))
    for module, _, _ in imports(path):
        if module.split(".")[0] in ("registry", "electra_lab") and module != "electra_lab":
            assert room(module) in MAY_IMPORT[own] | {own}, f"{own} may not import {module}"
        assert module.split(".")[0] not in ("tests", "experiments")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_quick_rooms_do_not_load_torch(path: Path) -> None:
    """registry, config and cli are what --help and listings load."""
    if (
        room(name_of(path)) not in ("registry", "config", "cli", "__init__", "__main__")
        or path.parent.name == "testing"
    ):
        return
    heavy = {"torch", "transformers", "numpy", "tokenizers", "sklearn", "scipy", "matplotlib", "x_transformers"}
    for module, typing_only, inside in imports(path):
        assert typing_only or inside or module.split(".")[0] not in heavy
        if room(name_of(path)) == "cli":
            assert inside or not module.startswith(("electra_lab.assemble", "electra_lab.runs", "electra_lab.ablation"))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_is_short_enough_to_hold_in_the_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("each", registry.ALL, ids=lambda r: r.plural)
def test_a_component_is_called_like_its_file(each: registry.Registry) -> None:
    for name in each.names():
        assert each.get(name).file.stem == name


def test_nothing_unpickles_evaluates_or_loads_unsafely() -> None:
    words = re.compile(r"\bpickle\b(?!=False)|torch\.load|yaml\.load\(|\beval\(|weights_only|allow_pickle=True")
    for path in SOURCES:
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(encoding="utf-8"), flags=re.S)
        found = [m for m in words.findall(code) if m != "eval(" or re.search(r"(?<!\.)\beval\(", code)]
        assert not found, f"{path}: {found}"


def test_exec_stands_in_one_place() -> None:
    """Code comes from registered names and from the plug-in files that a user lists, nowhere else."""
    users = [p.name for p in SOURCES if re.search(r"(?<![\w.])exec\(", p.read_text(encoding="utf-8"))]
    assert users == ["discovery.py"]
