"""The rules of the code base: which room may import which, names of files, sizes of files.

Row 11 of the scorecard has: no pickle, no eval.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import registry
from tests.helpers import ROOT, python

SOURCES = sorted(p for package in ("registry", "electra_lab") for p in (ROOT / package).rglob("*.py"))

COMPONENTS = {components.home.removeprefix("electra_lab.") for components in registry.ALL}
BELOW_CHECKS = {"registry", "metrics", "model", "data", "parallel", "training"}
BELOW_ASSEMBLY = BELOW_CHECKS | {"checks", "planning", "pretrained", "config", "sources", "storage"} | COMPONENTS
BELOW_JOBS = BELOW_ASSEMBLY | {"assembly", "analysis", "presentation", "version"}
BELOW_CLI = BELOW_JOBS | {"jobs", "inference", "export", "interop"}
# Each room and the rooms that it may import; a room may always import itself. A new room must be added here.
MAY_IMPORT = {
    "registry": set(),
    "version": set(),
    "metrics": {"registry"},
    "model": {"registry"},
    "storage": {"registry"},
    "config": {"registry"},
    "parallel": {"registry"},
    "sources": {"registry", "storage"},
    "data": {"registry", "storage"},
    "training": {"registry", "model", "data", "parallel"},
    **{room: {"registry", "model", "metrics", "sources", "storage"} for room in COMPONENTS},
    "checks": BELOW_CHECKS,
    "planning": BELOW_CHECKS | {"checks"},
    "pretrained": {"registry", "model", "data", "storage", "config"},
    "assembly": BELOW_ASSEMBLY,
    "analysis": {"registry", "storage", "metrics"},
    "presentation": {"registry", "storage", "metrics", "analysis", "version"},
    "jobs": BELOW_JOBS,
    "inference": BELOW_ASSEMBLY | {"assembly"},
    "export": BELOW_ASSEMBLY | {"assembly", "analysis", "version"},
    "interop": BELOW_ASSEMBLY | {"assembly"},
    "testing": BELOW_CLI,
    "api": BELOW_CLI,
    "cli": BELOW_CLI | {"api"},
    "__main__": {"cli"},
    "__init__": {"registry", "version", "api"},
}
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
# The rest is imported inside functions.
AT_IMPORT_TIME = {"cli": {"registry", "config", "version"}, "__init__": {"registry", "version"}}
QUICK = ("registry", "config", "cli", "__init__", "__main__", "version")
HEAVY = {"torch", "transformers", "numpy", "tokenizers", "sklearn", "scipy", "matplotlib", "x_transformers", "jinja2"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def room(module: str) -> str:
    package, *parts = module.split(".")
    return "registry" if package == "registry" else (parts or ["__init__"])[0]


def imports(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """Yield (module, only for types, inside a function) for each import of a file.

    `from electra_lab import jobs` is an import of electra_lab.jobs.
    """

    def walk(node: ast.AST, typing_only: bool, inside: bool) -> Iterator[tuple[str, bool, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, typing_only, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                names = [alias.name for alias in child.names]
                for name in names if child.module == "electra_lab" else [""]:
                    yield f"{child.module}.{name}".rstrip("."), typing_only, inside
            elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                yield from walk(child, True, inside)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, typing_only, inside or function)

    yield from walk(parsed(path), False, False)


def wrong_imports(path: Path, own: str) -> list[str]:
    """Return the imports of a file in the room `own` that the table does not allow."""
    wrong = []
    for module, typing_only, inside in imports(path):
        package = module.split(".")[0]
        allowed = MAY_IMPORT[own] | {own}
        if not (inside or typing_only):
            allowed &= AT_IMPORT_TIME.get(own, allowed) | {own}
        ours = package in ("registry", "electra_lab")
        if package in ("tests", "experiments", "benchmarks") or (ours and room(module) not in allowed):
            wrong.append(module)
        if own in QUICK and package in HEAVY and not typing_only and not (inside and own == "cli"):
            wrong.append(module)
    return wrong


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def offenders(found: Callable[[Path], list[Any]]) -> dict[str, list[Any]]:
    """Call `found` with each file of the two packages; returns the files for which it finds something."""
    by_name = {name_of(path): found(path) for path in SOURCES}
    return {name: wrong for name, wrong in by_name.items() if wrong}


def test_rooms_import_only_what_they_may() -> None:
    assert offenders(lambda path: wrong_imports(path, room(name_of(path)))) == {}


def test_the_table_has_every_room_and_no_cycle() -> None:
    folders = {path.parent.name for path in (ROOT / "electra_lab").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "electra_lab").glob("*.py")}
    assert {"registry"} | folders | modules == MAY_IMPORT.keys()
    TopologicalSorter(MAY_IMPORT).prepare()  # raises CycleError
    assert not {"testing", "__main__", "__init__"} & set().union(*MAY_IMPORT.values())


@pytest.mark.parametrize(
    ("own", "line", "wrong"),
    [
        ("cli", "def run():\n    from electra_lab.jobs import execute\n    import torch", 0),
        ("registry", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor", 0),
        ("jobs", "from electra_lab.version import __version__", 0),
        ("samplers", "from electra_lab.masking.span import span", 1),
        ("samplers", "import electra_lab.training.step", 1),
        ("training", "from electra_lab import jobs", 1),
        ("storage", "from electra_lab.config.load import load", 1),
        ("model", "def f():\n    from electra_lab.data.rows import Rows", 1),
        ("registry", "import electra_lab.model", 1),
        ("config", "import torch", 1),
        ("registry", "def f():\n    import numpy as np", 1),
        ("cli", "from electra_lab.jobs import execute", 1),
        ("analysis", "from electra_lab.presentation.run_page import closing", 1),
        ("jobs", "from electra_lab.testing import probes", 1),
        ("jobs", "from electra_lab.cli import main", 1),
        ("jobs", "from tests.helpers import ROOT", 1),
        ("jobs", "import electra_lab", 1),
        ("inference", "from electra_lab import load", 1),
        ("version", "import registry", 1),
        ("__init__", "from electra_lab.api import load", 1),
    ],
)
def test_the_rule_bites(own: str, line: str, wrong: int, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(line)
    assert len(wrong_imports(tmp_path / "file.py", own)) == wrong


OUTSIDE = [path for path in (ROOT / "experiments").rglob("*.py") if not path.name.startswith("test_")]


@pytest.mark.parametrize("path", sorted(OUTSIDE), ids=lambda p: p.name)
def test_plug_ins_import_the_registry_alone(path: Path) -> None:
    assert not [module for module, *_ in imports(path) if module.split(".")[0] == "electra_lab"]


LOAD_QUICK_ROOMS = """
import contextlib, importlib, io, json, pkgutil, sys
import electra_lab, electra_lab.cli, electra_lab.config, registry, registry.contracts
for package in (registry, registry.contracts, electra_lab.config, electra_lab.cli):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for words in (["--help"], ["--version"], ["run", "-h"], ["ablate", "-h"], ["registry", "list"], ["--show-completion"]):
    sys.argv = ["electra-lab", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        electra_lab.cli.main()
    assert out.getvalue() or "completion" in words[0], words
files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
installed = {name.split(".")[0] for name, file in files.items() if "site-packages" in file}
print(json.dumps([sorted(installed), sorted(name for name in files if name.startswith(("electra_lab", "registry")))]))
"""


def test_quick_rooms_load_nothing_heavy(tmp_path: Path) -> None:
    """registry, config and cli are what --help, listings and completion load; measured in a fresh process."""
    done = python("-c", LOAD_QUICK_ROOMS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    installed, ours = json.loads(done.stdout)
    light = {"pydantic", "pydantic_core", "typer", "click", "yaml", "shellingham", "rich", "pygments", "markdown_it",
             "mdurl", "annotated_doc", "annotated_types", "typing_extensions", "typing_inspection"}  # fmt: skip
    assert {name for name in installed if not name.startswith("_")} <= light
    # The module endings handles every error, and the end of every command.
    ours = set(ours) - {"electra_lab.jobs", "electra_lab.jobs.endings"}
    assert {room(name) for name in ours} == {"registry", "config", "cli", "__init__", "version"}
    assert not list(tmp_path.iterdir())


CHECK = """
import sys
from electra_lab.cli import main
for file in sys.argv[1:]:
    sys.argv = ["electra-lab", "check", file]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
    print("after", file, sorted(name for name in sys.modules if name.count(".") < 2), file=sys.stderr)
"""


def test_a_check_does_not_load_torchs_compiler(tmp_path: Path) -> None:
    """Loading it would take longest: checking a small file takes less than twice as long as `import torch`."""
    names = ("transformer_tiny", "reformer_small", "performer_small", "electra_small")
    done = python("-c", CHECK, *(str(ROOT / "experiments" / f"{name}.yaml") for name in names), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if line.startswith("after ")]
    assert len(found) == len(names)
    for loaded in found:
        assert "'electra_lab.assembly'" in loaded
        for module in ("torch._dynamo", "torch._inductor", "sympy", "scipy", "matplotlib", "transformers", "datasets"):
            assert f"'{module}'" not in loaded, (module, loaded.split()[1])


def test_a_file_is_short_enough_to_hold_in_the_head() -> None:
    assert offenders(lambda path: path.read_text(encoding="utf-8").splitlines()[399:]) == {}


def nested(tree: ast.AST) -> list[int]:
    """Return the lines of comprehensions with two loops, or with another comprehension inside."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            inside = [child for child in ast.walk(node) if isinstance(child, COMPREHENSIONS)]
            if len(node.generators) > 1 or len(inside) > 1:
                lines.append(node.lineno)
    return lines


def test_comprehensions_do_not_nest() -> None:
    assert offenders(lambda path: nested(parsed(path))) == {}


@pytest.mark.parametrize(
    ("code", "lines"),
    [("[a for b in c for a in b]", [1]), ("x = 1\n{a: [b for b in a] for a in c}", [2]), ("[f(a) for a in b]", [])],
)
def test_a_nested_comprehension_is_found(code: str, lines: list[int]) -> None:
    assert nested(ast.parse(code)) == lines


@pytest.mark.parametrize("components", registry.ALL, ids=lambda r: r.plural)
def test_a_component_is_called_like_its_file(components: registry.Registry) -> None:
    for name in components.names():
        assert components.get(name).file.stem == name


def test_commands_to_be_copied_are_quoted() -> None:
    unquoted = re.compile(r"electra-lab [a-z]+[^\n`]*\{(?!command)")
    assert offenders(lambda path: unquoted.findall(path.read_text(encoding="utf-8"))) == {}


def test_every_path_of_the_contributing_guide_exists() -> None:
    words = re.findall(
        r"`((?:electra_lab|registry|tests|docs|benchmarks)/[^` ]*)`", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert len(words) > 20
    missing = [word for word in words if not (ROOT / re.sub(r"NAME\.py$", "", word)).exists()]
    assert not missing


def pages_in_messages(path: Path) -> list[str]:
    """Return the pages of docs that are named without their address, or do not exist."""
    wrong = []
    docstrings = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Expr)}
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Constant(str(text)) if "docs/" in text and "/blob/main/docs/" not in text:
                wrong += [text] if node not in docstrings else []
            case ast.Call(ast.Name("guide"), [ast.Constant(str(name))]) if not (ROOT / f"docs/{name}.md").is_file():
                wrong.append(name)
    return wrong


def test_without_the_packages_that_only_the_makefile_installs_tests_are_skipped() -> None:
    """They are read through `peer`. Its tests would not even be collected if a file imported one."""
    installed = re.findall(r"--no-deps (?!--)(.+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    packages = {name.replace("-", "_") for names in installed for name in names.split()}
    assert {"electra_pytorch", "txtai"} < packages
    for path in (ROOT / "tests").rglob("*.py"):
        names = {module.split(".")[0] for module, _, _ in imports(path)}
        assert not names & packages, path


def test_messages_name_pages_by_their_address() -> None:
    """An installed package has no docs folder."""
    assert offenders(pages_in_messages) == {}
    templates = (ROOT / "electra_lab").rglob("*.j2")
    assert not [path.name for path in templates if "docs/" in path.read_text(encoding="utf-8")]
