"""What is known of a component without importing it: read from source text."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Listing:
    """A component's name, the first line of its docstring, and where it is written.

    package  the installed package that offers it, with its version; None for built-ins and plug-in files
    problem  why it cannot be used, as far as that can be seen from outside
    """

    name: str
    summary: str
    place: str
    package: str | None = None
    problem: str | None = None


def read(path: Path, plural: str, name: str) -> Listing | None:
    """The definition in `path` that is decorated with @<plural>.register("<name>"), if there is one."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if _registers(decorator, plural, name):
                    line = node.decorator_list[0].lineno
                    return Listing(name, first_line(ast.get_docstring(node)), f"{short(path)}:{line}")
    return None


def _registers(decorator: ast.expr, plural: str, name: str) -> bool:
    """Whether it reads `samplers.register("name")` or `registry.samplers.register("name")`."""
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.args):
        return False
    owner, argument = decorator.func.value, decorator.args[0]
    called = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)
    given = argument.value if isinstance(argument, ast.Constant) else None
    return decorator.func.attr == "register" and called == plural and given == name


def first_line(docstring: str | None) -> str:
    return docstring.strip().splitlines()[0] if docstring and docstring.strip() else ""


def short(file: Path) -> str:
    """`file` relative to the working directory where it lies below it, as compilers print it."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
