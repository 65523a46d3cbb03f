"""electra-lab clean [FOLDER]"""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer


def clean(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder to search, at any depth.")] = Path("runs"),
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is listed.")] = False,
) -> None:
    """List unneeded files, with their sizes: token stores that no run in the folder uses, checkpoints that are
    neither the newest, the best nor milestones, and leftovers of killed processes.

    Jobs in progress are left alone, and so are stores and leftovers that have changed within the last hour.
    """
    from electra_lab.jobs.cleaning import clean as cleaned
    from electra_lab.presentation.text import Table
    from registry.errors import command

    removable = cleaned(folder, remove=remove)
    rows = [(str(item.path.relative_to(folder)), f"{item.bytes / 1e6:,.1f} MB", item.kind) for item in removable]
    rows.append(("removed" if remove else "in all", f"{sum(item.bytes for item in removable) / 1e6:,.1f} MB", ""))
    answer(Table("Removable", ("path", "size", "kind"), rows, {"kind"}).text(indent=""))
    if removable and not remove:
        print(f"To remove this: {command('clean', folder, '--remove')}")  # a message, so not an answer
