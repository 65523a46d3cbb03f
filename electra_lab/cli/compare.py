"""electra-lab compare A B ..."""

import json
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer, is_utf8
from electra_lab.cli._texts import file_of
from electra_lab.cli.run import OnDevice


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="A B ...", help="Run directories, or seeds of fine-tunings (DIR/seed-0).")
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="MEASURE",
            help="Measure all runs on one task: fixed_corruption or detection_probe; with options, "
            "'{type: fixed_corruption, steps: 200}'. The numbers are kept in the run directories.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page to this file.")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write each chart of the page as PDF and SVG, for a paper.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of tables.")] = False,
    device: OnDevice = "auto",
) -> None:
    """Compare runs: differences between configs, curves, results, costs, and the same test rows.

    Metrics on a run's own task are marked, because they cannot compare runs. Nothing is tested, because one run of each
    setting does not show how much the seed changes. `electra-lab ablate` repeats each setting with several seeds.
    """
    from electra_lab.analysis.run_comparison import subjects
    from electra_lab.presentation.compare_page import Comparison, page, text
    from electra_lab.presentation.figures import printing

    with file_of("--html", html) if html else nullcontext() as stream:
        compared = subjects(runs)
        measured = None
        if on is not None:
            from electra_lab.jobs.measuring import measure

            measured = measure(compared, on, device)
        comparison = Comparison(compared, measured)
        if stream or figures:
            with printing(figures) if figures else nullcontext():
                written = page(comparison)
            (stream or StringIO()).write(written)
    if json_:
        answer(json.dumps(comparison.as_dict() | {"page": html and str(html)}, indent=1, ensure_ascii=not is_utf8()))
        return
    answer(text(comparison))
    if html:
        answer(f"\n{html}")
