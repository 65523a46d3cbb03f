"""electra-lab ablate FILE"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli.run import Device, OnDevice, Set


def ablate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ablation, a YAML file.")],
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Its folder; what is done there already is not done again. Default: runs/<name>."
        ),
    ] = None,
    device: OnDevice = Device.auto,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where cells run: local, slurm, ray. Default: as the file says.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many cells at a time.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only tell the cells with parameters, FLOPs, memory and time; reads no corpus."),
    ] = False,
) -> None:
    """Train the cells of an ablation that are missing, measure them, and report."""
    from electra_lab.ablation import run

    with redirect_stdout(sys.stderr):  # what a plug-in prints is no answer of ours
        answer = (run.dry_run if dry_run else run.ablate)(file, set_ or [], out, device.value, launcher, workers)
    print(answer)
