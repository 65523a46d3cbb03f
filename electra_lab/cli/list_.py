"""electra-lab list [FOLDER]"""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer, is_utf8, stdout


def list_(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder to search, at any depth.")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(metavar="newest|name|METRIC", help="Sort order. With a metric, the best value comes first.")
    ] = "newest",
    filter_: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="WORD",
            help="List only jobs in this state (running, finished, stopped, diverged, failed, damaged), of this kind "
            "(run, fine-tuning, ablation), with a name or path that fits this pattern ('small*'), or with this "
            "KEY=VALUE in the config. If repeated, all must match.",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON array with an object per job.")] = False,
) -> None:
    """List runs, fine-tunings and ablations: state, progress, time, and the metrics that compare them.

    Cells of an ablation and seeds of a fine-tuning are not listed. Metrics on a run's own task, such as the AUC of
    detection, are left out, because they cannot compare runs.
    """
    from electra_lab.analysis.catalog import jobs, ordered

    selected = list(jobs(folder))
    for word in filter_ or []:
        selected = [job for job in selected if job.matches(word)]
    selected = ordered(selected, sort)
    if json_:
        answer(json.dumps([job.as_dict() for job in selected], indent=1, ensure_ascii=not is_utf8()))
        return
    from electra_lab.presentation.listing import table

    if not selected:
        fits = " that fits" if filter_ else ""
        print(f"{folder}: no run, fine-tuning or ablation{fits} is here.")  # a message, so not an answer
        return
    width = shutil.get_terminal_size().columns if stdout().isatty() else None
    answer(table(selected, folder, sort, width).text(indent=""))
