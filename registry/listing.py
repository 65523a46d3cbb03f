"""Listings of components without importing them, read from source text."""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Listing:
    """A component's name, the first line of its docstring, and the place of its definition."""

    name: str
    summary: str
    place: str
    package: str | None = None  # the installed package that offers it, with its version
    problem: str | None = None  # the reason why it cannot be used, as far as that is known without importing it


def read(path: Path, plural: str, name: str) -> Listing | None:
    """Return the definition in `path` that is decorated with @<plural>.register("<name>"), if there is one."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for node in [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]:
        if any(_registers(decorator, plural, name) for decorator in node.decorator_list):
            place = f"{short(path)}:{node.decorator_list[0].lineno}"
            return Listing(name, first_line(ast.get_docstring(node)), place)
    return None


def _registers(decorator: ast.expr, plural: str, name: str) -> bool:
    """Return True for `samplers.register("name", ...)` and `registry.samplers.register("name", ...)`."""
    match decorator:
        case ast.Call(ast.Attribute(ast.Name(owner) | ast.Attribute(_, owner), "register"), [ast.Constant(given), *_]):
            return owner == plural and given == name
    return False


def first_line(docstring: str | None) -> str:
    return docstring.strip().splitlines()[0] if docstring and docstring.strip() else ""


def short(file: Path) -> str:
    """Return `file` relative to the working directory if it lies below it, as compilers print it."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
