"""A launcher."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from registry import Command, Outcome, launchers


@launchers.register("my_launcher")
@dataclass(kw_only=True)
class MyLauncher(launchers.get("local").component):  # type: ignore[misc]  # known at run time only
    """As `local`, the commands in the order of their names."""

    def __call__(self, commands: Mapping[str, Command], folder: Path, /) -> Iterator[tuple[str, Outcome]]:
        yield from super().__call__(dict(sorted(commands.items())), folder)
