"""A launcher."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from registry import Outcome, Work, launchers


@launchers.register("my_launcher")
@dataclass(kw_only=True)
class MyLauncher(launchers.get("local").component):  # type: ignore[misc]  # known at run time only
    """As `local`, the pieces in the order of their names."""

    def __call__(self, work: Work, folder: str, ids: Sequence[str], /) -> Iterator[tuple[str, Outcome]]:
        yield from super().__call__(work, folder, sorted(ids))
