"""electra-lab schema"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE", help="Include the components of a plug-in file, or those that an experiment imports."
    ),
]


def schema(
    from_: From = None,
    ablation: Annotated[bool, typer.Option("--ablation", help="Print the schema of ablation files.")] = False,
) -> None:
    """Print the JSON schema of experiment files, for editors.

    With it an editor completes and checks while you write. It knows every registered component.

    \b
    electra-lab schema > experiment.schema.json
    # yaml-language-server: $schema=experiment.schema.json   (the first line of an experiment)
    electra-lab schema --ablation > ablation.schema.json
    """
    from electra_lab.ablation.file import AblationConfig
    from electra_lab.config.json_schema import file_schema, left_out
    from electra_lab.config.load import load_plugins
    from electra_lab.config.schema import ExperimentConfig

    with redirect_stdout(sys.stderr):  # output of a component's module is not JSON
        for path in from_ or []:
            load_plugins(path)
        found = file_schema(AblationConfig, "ablation") if ablation else file_schema(ExperimentConfig, "experiment")
        problems = left_out()
    for problem in problems:
        print(problem, file=sys.stderr)
    print(json.dumps(found, indent=1))
