"""electra-lab report DIR..."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli._texts import file_of
from registry.errors import ConfigError


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Ablations, fine-tunings or runs.")],
    open_: Annotated[bool, typer.Option("--open", help="Also open each page in the browser.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Also write each chart of the page as PDF and SVG, as wide as a column or page."
        ),
    ] = None,
    table: Annotated[
        Literal["tex", "csv", "md"] | None,
        typer.Option("--table", help="Instead, print the results: n, means, differences, intervals, p values."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --table: a metric. Default: the primary one, or all.")
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="Instead, print a text on the set-up for a paper, and what to cite.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --table or --methods: write it here; --methods to a .tex as LaTeX."),
    ] = None,
) -> None:
    """Rewrite report.html of each folder from its files, and print its path."""
    import webbrowser

    from electra_lab.jobs.kinds import of_folder
    from electra_lab.presentation.console import Console
    from electra_lab.presentation.figures import printing

    kinds = [of_folder(folder) for folder in folders]  # of all of them before the first one is written
    if len(folders) > 1 and (figures or table or methods):
        raise ConfigError("--figures, --table and --methods work with one folder.")
    if (table and methods) or ((table or methods) and (figures or open_)):
        raise ConfigError("--table and --methods print a text instead of writing a page, so use each alone.")
    if ((out or metric) and not (table or methods)) or (metric and not table):
        raise ConfigError("--metric works with --table, and --out with --table or --methods.")
    if table or methods:
        from electra_lab.presentation.methods import methods as text_of
        from electra_lab.presentation.paper import table as table_of

        job = folders[0], kinds[0].name
        latex = out is not None and out.suffix == ".tex"
        text = table_of(*job, table, metric) if table else text_of(*job, latex)
        if out:
            with file_of("--out", out) as stream:
                stream.write(text)
        answer(out or text.rstrip())
        return
    for kind, folder in zip(kinds, folders, strict=True):
        with printing(figures) if figures else nullcontext() as printed:
            page = kind.do("report", folder)
        answer(page)
        for name, caption in printed.captions.items() if printed else ():
            answer(f"{figures}/{name}-column.pdf  {caption}")
        if open_ and not webbrowser.open(page.resolve().as_uri()):
            Console().say("note: there is no browser here that can be opened; open the page yourself")
