"""electra-lab report DIR..."""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of ablations, fine-tunings or runs.")
    ],
) -> None:
    """Rewrite report.html of each folder from its files, and print its path."""
    from electra_lab.jobs.kinds import of_folder

    kinds = [of_folder(folder) for folder in folders]  # of all of them before the first one is written
    for kind, folder in zip(kinds, folders, strict=True):
        answer(kind.do("report", folder))
