"""electra-lab ablate FILE"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.prepare import WHERE
from electra_lab.cli.run import OnDevice, Set, Trial


def ablate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ablation, a YAML file.")],
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder to write. Default: runs/<name>, or that of FILE if it is an ablation's."
        ),
    ] = None,
    device: OnDevice = "auto",
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Where cells run: {WHERE}. Default: as in the file.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of cells to run at the same time.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show cells, sizes and time without training.")] = False,
    trial: Trial = True,
) -> None:
    """Train the missing cells of an ablation, measure them, and report."""
    from electra_lab.jobs.sweeps import run

    arguments = file, set_ or [], out, device, launcher, workers
    result = run.dry_run(*arguments, tries=trial) if dry_run else run.ablate(*arguments)
    answer(result)
