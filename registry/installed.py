"""Plug-ins by entry point: components that installed packages offer, known from their metadata alone.

A package says in its pyproject.toml which module registers which name:

    [project.entry-points."electra_lab.samplers"]
    exploring = "my_package.samplers"

Nothing of it is imported until an experiment asks for that name, so a broken package spoils nothing else.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

PREFIX = "electra_lab."


@dataclass(frozen=True)
class Offer:
    """A component that an installed package says it has."""

    group: str
    name: str
    module: str
    package: str

    def registers(self, module: str) -> bool:
        """Whether `module` is the one that this offer names, or lies inside it."""
        return module == self.module or module.startswith(f"{self.module}.")

    def source(self) -> Path | None:
        """The file of the module, found without importing the packages around it."""
        top, *rest = self.module.split(".")
        try:
            spec = find_spec(top)  # of a top-level name, this imports nothing
        except (ImportError, ValueError):
            return None
        if spec is None or not rest:
            return Path(spec.origin) if spec and spec.origin else None
        folders = [Path(folder, *rest[:-1]) for folder in spec.submodule_search_locations or ()]
        candidates = [folder / (rest[-1] + end) for folder in folders for end in (".py", "/__init__.py")]
        return next((path for path in candidates if path.is_file()), None)


def offers(plural: str) -> list[Offer]:
    """What installed packages offer to the registry called `plural`."""
    return [offer for offer in _scan(tuple(sys.path)) if offer.group == PREFIX + plural]


@lru_cache(maxsize=1)
def _scan(path: tuple[str, ...]) -> tuple[Offer, ...]:
    found: dict[str, list[Offer]] = {}
    for distribution in distributions(path=list(path)):
        try:
            package = f"{distribution.metadata['Name']} {distribution.version}"
            # The first of a name on the path is the one that Python imports.
            found.setdefault(distribution.metadata["Name"], _offers(distribution, package))
        except Exception:  # a package whose metadata cannot be read offers nothing; it is not ours to judge
            continue
    return tuple(offer for group in found.values() for offer in group)


def _offers(distribution: Distribution, package: str) -> list[Offer]:
    found = []
    for point in distribution.entry_points:
        if point.group.startswith(PREFIX):
            with suppress(AttributeError):  # a value that names no module
                found.append(Offer(point.group, point.name, point.module, package))
    return found
