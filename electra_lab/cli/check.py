"""electra-lab check FILE"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from electra_lab.cli.run import Set

if TYPE_CHECKING:
    from electra_lab.config.ablation import Cell, LoadedAblation


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment or the ablation, a YAML file.")],
    set_: Set = None,
) -> None:
    """Find every error of an experiment without running it; print it filled in, with the origin of each value.

    Of an ablation every cell is checked, and they are listed.
    """
    from electra_lab.assemble import check
    from electra_lab.config.ablation import is_ablation, load_ablation
    from electra_lab.config.load import load
    from electra_lab.config.origins import dump_with_origins

    with redirect_stdout(sys.stderr):  # what a plug-in prints is no YAML
        if is_ablation(file):
            from electra_lab.ablation.plan import checked

            ablation = load_ablation(file, set_ or [])
            references, absent = checked(ablation)
            told = "\n".join(_summary(ablation, list(references.values()))) + "\n"
        else:
            loaded = load(file, set_ or [])
            absent = check(loaded)
            told = dump_with_origins(loaded)
    if absent:
        print(f"note: {absent} A run would stop there.", file=sys.stderr)
    print(told, end="")


def _summary(ablation: LoadedAblation, references: list[Cell]) -> Iterator[str]:
    """What is run and what it is compared by, a line each; then a line for each cell."""
    from registry import measures

    config, variants = ablation.config, ablation.variants
    kinds: list[tuple[str, Any]] = [(each.type, measures.get(each.type).component) for each in config.measure]
    quality = config.quality or next(iter(kinds[0][1].quantities))
    yield f"{config.name}: {len(variants)} variants x {len(config.seeds)} seeds = {len(ablation.cells)} cells"
    yield f"  base      {config.base}"
    yield f"  baseline  {ablation.baseline}"
    yield f"  quality   {quality}"
    for i, (name, kind) in enumerate(kinds):
        yield f"  {'' if i else 'measures':<8}  {name}: {', '.join(kind.quantities)}"
    yield f"  launcher  {config.launcher.type}"
    pieces = [*ablation.cells, *references]
    width = max(len(piece.variant) for piece in pieces)
    yield ""
    yield from (f"  {piece.variant:<{width}}  seed {piece.seed:<5}  {piece.id}" for piece in pieces)
