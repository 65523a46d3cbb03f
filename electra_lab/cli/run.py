"""electra-lab run FILE"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


File = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment, a YAML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated. C is read as YAML."),
]
OnDevice = Annotated[Device, typer.Option("--device", help="Where to compute; auto takes CUDA if there is one.")]


def run(
    file: File,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory; absent or empty. Default: runs/<name>/<time>."),
    ] = None,
    device: OnDevice = Device.auto,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell parameters, memory, FLOPs, steps and tokens; reads no corpus.")
    ] = False,
) -> None:
    """Train an experiment and report what it learned."""
    from electra_lab.runs import execute

    with redirect_stdout(sys.stderr):  # what a plug-in prints is no answer of ours
        answer = (execute.dry_run if dry_run else execute.run)(file, set_ or [], out, device.value)
    print(answer)
