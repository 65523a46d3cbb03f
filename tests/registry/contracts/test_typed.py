"""The registries are typed: mypy, with the project's settings, rejects components that break their contract.

The components are generated from the contracts, which `MEMBERS` lists; `make check` checks those of the lab.
"""

import ast
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

import registry
from tests.helpers import ROOT

MEMBERS = {  # with a ? where any type is allowed, and the number of typed parameters
    "backbones": "length_multiple positions bare_embeddings input_dim own_heads separates_documents most_documents "
    "batch_mask full_mask inner_states reversible discontinuous layers? most_pieces2 at_step?2 flops1 "
    "shared_flops1 paper_flops1 before_export?1",
    "masking_strategies": "__call__4",
    "samplers": "__call__2",
    "objectives": "needs detection_term detection_labels trains_generator group metrics row_memory counts2 at_step?2 "
    "accumulator1 conflicts2 flops1 allocate?4 earlier_runs",
    "generators": "dim hidden4 token_logits2",
    "heads": "forward? flops2",
    "corpora": "__iter__ fingerprint",
    "tokenizers": "__call__1",
    "packings": "__len__ rows1",
    "optimizers": "param_groups step? state_bytes1",
    "schedules": "__call__",
    "measures": "same_rows metrics references1 prepare?3 __call__2",
    "datasets": "splits skipped labels fields1 submission2 read1 fingerprint",
    "tasks": "metrics exports_as exports_if layers average answers kept1 exported1 fit_labels1 set_labels?1 rows3 "
    "truncation2 head2 losses2 results3",
    "launchers": "here check? __call__2",
    "trackers": "rewinds check? start1 record?2 close?1",
}
CONTRACTS = sorted((ROOT / "registry/contracts").glob("*.py"))
FILES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in CONTRACTS}
FUNCTIONS = ("samplers", "masking_strategies", "tokenizers", "schedules")  # the other kinds are classes
# Their contract is a base class: mypy checks what overrides it like any other method.
BASES = ("objectives", "backbones", "datasets", "tasks")


def contract(kind: str) -> tuple[Path, ast.ClassDef]:
    """Return the file and the class of a kind's contract."""
    name = next(components.contract for components in registry.ALL if components.plural == kind).removeprefix("Any")
    for path, tree in FILES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return path, node
    raise LookupError(name)


def name_of(member: ast.stmt) -> str:
    """Return the name of a method or an annotated attribute; "" for a docstring and `__init__`."""
    found = str(getattr(member, "name", "") or getattr(getattr(member, "target", None), "id", ""))
    return "" if found == "__init__" else found


def typed(member: ast.stmt) -> str:
    """Return the field that holds the type of a member; "" if any type is allowed."""
    field = "returns" if isinstance(member, ast.FunctionDef) else "annotation"
    return field if ast.unparse(getattr(member, field, None) or ast.Name("None")) not in ("None", "Any") else ""


def parameters(member: ast.stmt) -> list[ast.arg]:
    """Return the parameters of a method whose type is not Any."""
    given = member.args if isinstance(member, ast.FunctionDef) else ast.arguments([], [], None, [], [], None, [])
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    return [parameter for parameter in every if parameter.annotation and ast.unparse(parameter.annotation) != "Any"]


def components(kind: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield a component that follows its contract, and some with a missing member or a wrong type."""
    _, right = contract(kind)
    if kind in BASES:
        yield f"{kind}: without the base class", right
        derived = copy.deepcopy(right)
        derived.bases = [ast.Name(right.name)]
        yield kind, derived
        return
    yield kind, right
    for place, member in enumerate(right.body):
        if name_of(member) and kind not in FUNCTIONS:
            without = copy.deepcopy(right)
            del without.body[place]
            yield f"{kind}: without {name_of(member)}", without
        if name_of(member) and typed(member):
            other = copy.deepcopy(right)
            setattr(other.body[place], typed(member), ast.Name("Wrong"))
            yield f"{kind}: another type of {name_of(member)}", other
        for number, parameter in enumerate(parameters(member) if name_of(member) else ()):
            other = copy.deepcopy(right)
            parameters(other.body[place])[number].annotation = ast.Name("Wrong")
            yield f"{kind}: another type of {parameter.arg} in {name_of(member)}", other


def source(kind: str, component: ast.ClassDef, name: str) -> str:
    """Return a plain class, or a function, in place of the protocol."""
    made = copy.deepcopy(component)
    made.name, made.bases = name, [base for base in made.bases if ast.unparse(base) == component.name]
    if kind not in FUNCTIONS:
        return ast.unparse(made)
    (call,) = [member for member in made.body if isinstance(member, ast.FunctionDef)]
    arguments = call.args.posonlyargs or call.args.args
    del arguments[0]
    call.name = name
    return ast.unparse(call)


ALL = [pytest.param(kind, name, id=name) for kind in MEMBERS for name, _ in components(kind)]


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The components that mypy rejects where they are registered; those of a kind are in one file."""
    folder, places = tmp_path_factory.mktemp("typed"), {}
    for kind in MEMBERS:
        path, right = contract(kind)
        imported = [node for node in FILES[path].body if isinstance(node, ast.Import | ast.ImportFrom | ast.If)]
        imports = list(map(ast.unparse, imported))
        classes = [node for node in FILES[path].body if isinstance(node, ast.ClassDef)]
        own = [node.name for node in classes if node is not right or kind in BASES]
        imports += [f"from registry.contracts.{path.stem} import {name}" for name in own]
        text = "\n".join([*imports, "import registry", "class Wrong: ..."])
        for number, (name, component) in enumerate(components(kind)):
            text += f"\n{source(kind, component, f'Mine{number}')}\nregistry.{kind}.register('mine')(Mine{number})"
            places[f"typed_{kind}.py:{text.count(chr(10)) + 1}"] = name
        (folder / f"typed_{kind}.py").write_text(text + "\n", encoding="utf-8")
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, _ = api.run([*settings, "--no-error-summary", "--hide-error-context", str(folder)])
    assert not err, err
    found = set()
    for place, expected in re.findall(
        r'(\w+\.py:\d+): error: Argument 1 has incompatible type .*; expected "(.*)"', out
    ):
        name = places[place]
        assert re.search(rf"\b{contract(name.partition(':')[0])[1].name}\b", expected)
        found.add(name)
    return found


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_component_is_rejected_exactly_if_it_breaks_its_contract(kind: str, name: str, rejected: set[str]) -> None:
    assert (name in rejected) == (name != kind)


def test_the_contracts_have_these_members() -> None:
    for components in registry.ALL:
        members = [member for member in contract(components.plural)[1].body if name_of(member)]
        found = [f"{name_of(m)}{'?' * (not typed(m))}{len(parameters(m)) or ''}" for m in members]
        assert " ".join(found) == MEMBERS[components.plural]
