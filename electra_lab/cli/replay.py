"""electra-lab replay RUN_DIR"""

import json
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from electra_lab.cli.run import OnDevice


def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run that diverged.")],
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    store: Annotated[Path | None, typer.Option(metavar="DIR", help="The token store, if it has moved.")] = None,
    device: OnDevice = "auto",
) -> None:
    """Find out why a run diverged: repeat its steps from the newest checkpoint and name the module that fails.

    Writes nothing into the run directory. Exit code 0 if the cause was found, 1 if no step was rejected.
    """
    from electra_lab.jobs.pretraining.replay import replay as repeat

    finding = repeat(run_dir, device, store)
    answer(json.dumps(finding.json(), indent=1) if json_ else finding.text)
    if not finding.found:
        raise typer.Exit(1)
