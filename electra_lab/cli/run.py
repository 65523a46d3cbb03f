"""electra-lab run FILE"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from electra_lab.cli._streams import answer

Device = Literal["auto", "cpu", "cuda"]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment, a YAML file.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a value of the file; can be repeated.")
]
Trial = Annotated[
    bool, typer.Option("--trial/--no-trial", help="With --dry-run: try a few steps to estimate the time.")
]
OnDevice = Annotated[Device, typer.Option("--device", help="Device to use; auto is CUDA if it is available.")]
OUT = "The folder to write, absent or empty. Default: runs/<name>/<time>."


def run(
    file: File,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT)] = None,
    device: OnDevice = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show sizes, FLOPs and time without training.")] = False,
    trial: Trial = True,
    profile: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Record N early steps: their time by parts of the model.")
    ] = None,
) -> None:
    """Train an experiment and report its results."""
    from electra_lab.jobs.pretraining import execute
    from electra_lab.parallel.session import is_first

    arguments = file, set_ or [], out, device
    result = execute.dry_run(*arguments, tries=trial) if dry_run else execute.run(*arguments, profile=profile)
    if is_first():
        answer(result)
