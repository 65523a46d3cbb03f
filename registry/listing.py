"""Components without importing them: from source text, and plug-ins by entry point from metadata."""

import ast
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from itertools import product
from pathlib import Path

PREFIX = "electra_lab."


@dataclass(frozen=True)
class Listing:
    """A component's name, the first line of its docstring, and the place of its definition."""

    name: str
    summary: str
    place: str
    package: str | None = None  # the installed package that offers it, with its version
    problem: str | None = None  # the reason why it cannot be used, as far as it shows without an import


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
        case ast.Call(ast.Attribute(ast.Name(owner) | ast.Attribute(_, owner), "register"), [ast.Constant(first), *_]):
            return owner == plural and first == name
    return False


def first_line(docstring: str | None) -> str:
    return docstring.strip().splitlines()[0] if docstring and docstring.strip() else ""


def short(file: Path) -> str:
    """Return `file` relative to the working directory if it lies below it, as compilers print it."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


@dataclass(frozen=True)
class Offer:
    """A component that an installed package declares in its pyproject.toml, by the module that registers its name:

        [project.entry-points."electra_lab.samplers"]
        exploring = "my_package.samplers"

    Nothing is imported until an experiment asks for the name, so a broken package affects nothing else.
    """

    group: str
    name: str
    module: str
    package: str

    def registers(self, module: str) -> bool:
        """Return True if `module` is the one that this offer names, or lies inside it."""
        return module == self.module or module.startswith(f"{self.module}.")

    def source(self) -> Path | None:
        """Return the file of the module without importing the packages around it."""
        top, *rest = self.module.split(".")
        try:
            spec = find_spec(top)  # of a top-level name, this imports nothing
        except (ImportError, ValueError):
            return None
        if spec is None or not rest:
            return Path(spec.origin) if spec and spec.origin else None
        folders = [Path(folder, *rest[:-1]) for folder in spec.submodule_search_locations or ()]
        candidates = [folder / (rest[-1] + end) for folder, end in product(folders, (".py", "/__init__.py"))]
        return next((path for path in candidates if path.is_file()), None)


def offers(plural: str) -> list[Offer]:
    """Return the offers of installed packages for the registry called `plural`."""
    return [offer for offer in _scan(tuple(sys.path)) if offer.group == PREFIX + plural]


@lru_cache(maxsize=1)
def _scan(path: tuple[str, ...]) -> tuple[Offer, ...]:
    offered: list[Offer] = []
    names: set[str] = set()
    installed = list(distributions(path=list(path)))
    if not any(map(_may_offer, installed)):  # the names of all packages take a tenth of a second
        return ()
    for distribution in installed:
        with suppress(Exception):  # a package with unreadable metadata offers nothing
            name = distribution.metadata["Name"]
            if name in names:  # Python imports the first of a name on the path
                continue
            package = f"{name} {distribution.version}"
            points = [point for point in distribution.entry_points if point.group.startswith(PREFIX)]
            valid = [point for point in points if point.pattern.match(point.value)]
            offered += [Offer(point.group, point.name, point.module, package) for point in valid]
            names.add(name)
    return tuple(offered)


def _may_offer(distribution: Distribution) -> bool:
    with suppress(Exception):
        return f"[{PREFIX}" in (distribution.read_text("entry_points.txt") or "")
    return False
