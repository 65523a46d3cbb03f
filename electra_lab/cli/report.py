"""electra-lab report DIR..."""

from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Ablations, fine-tunings or runs.")],
    open_: Annotated[bool, typer.Option("--open", help="Also open each page in the browser.")] = False,
) -> None:
    """Rewrite report.html of each folder from its files, and print its path."""
    import webbrowser

    from electra_lab.jobs.kinds import of_folder
    from electra_lab.presentation.console import Console

    kinds = [of_folder(folder) for folder in folders]  # of all of them before the first one is written
    for kind, folder in zip(kinds, folders, strict=True):
        page = kind.do("report", folder)
        answer(page)
        if open_ and not webbrowser.open(page.resolve().as_uri()):
            Console().say("note: there is no browser here that can be opened; open the page yourself")
