"""electra-lab schema"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE", help="Also a plug-in file's components, or those an experiment imports; repeatable."
    ),
]


def schema(
    from_: From = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="The ablation file's, not the experiment file's.")
    ] = False,
) -> None:
    """Print the experiment file's JSON schema, for editors.

    With it an editor completes and checks what one writes. It knows every registered component.

    \b
    electra-lab schema > experiment.schema.json
    # yaml-language-server: $schema=experiment.schema.json   (the first line of an experiment)
    electra-lab schema --ablation > ablation.schema.json
    """
    from electra_lab.config.json_schema import ablation_schema, experiment_schema
    from electra_lab.config.load import load_plugins

    with redirect_stdout(sys.stderr):  # what a component's module prints when imported is no JSON
        for path in from_ or []:
            load_plugins(path)
        found, problems = (ablation_schema if ablation else experiment_schema)()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(json.dumps(found, indent=1))
