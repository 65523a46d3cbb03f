"""electra-lab list [FOLDER]"""

import json
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer, is_utf8, width


def list_(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look, at any depth.")] = Path("runs"),
    sort: Annotated[
        str, typer.Option(metavar="newest|name|METRIC", help="The order; the best number of a metric comes first.")
    ] = "newest",
    filter_: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="WORD",
            help="Only these: a state (running, finished, stopped, diverged, failed, damaged), a kind (run, "
            "fine-tuning, ablation), a pattern of names or paths ('small*'), or KEY=VALUE of the config. Can be "
            "repeated; all must hold.",
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON array with an object per job.")] = False,
) -> None:
    """List runs, fine-tunings and ablations: state, progress, time, and the metrics that compare them.

    Cells of an ablation and seeds of a fine-tuning are part of it. Metrics on a run's own task, such as the AUC of
    detecting its own generator's replacements, are left out: they do not compare runs.
    """
    from electra_lab.analysis.catalog import jobs, ordered

    found = list(jobs(folder))
    for word in filter_ or []:
        found = [job for job in found if job.matches(word)]
    found = ordered(found, sort)
    if json_:
        answer(json.dumps([job.as_dict() for job in found], indent=1, ensure_ascii=not is_utf8()))
        return
    from electra_lab.presentation.listing import table

    if not found:
        print(f"{folder}: no job{' that fits' if filter_ else ''} is here.")  # a message, so not an answer
        return
    answer(table(found, folder, sort, width()).text(indent=""))
