"""electra-lab schema"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from electra_lab.cli._streams import answer
from registry.errors import ConfigError, shown

From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from", metavar="FILE", help="Include the components of a plug-in file, or those that an experiment imports."
    ),
]


def schema(
    from_: From = None,
    ablation: Annotated[bool, typer.Option("--ablation", help="Print the schema of ablation files.")] = False,
    finetuning: Annotated[bool, typer.Option("--finetuning", help="Print the schema of fine-tuning files.")] = False,
) -> None:
    """Print the JSON schema of experiment files, for editors.

    Editors use it to complete and check files as you type. It includes every registered component.

    \b
    electra-lab schema > experiment.schema.json
    # yaml-language-server: $schema=experiment.schema.json   (the first line of an experiment)
    electra-lab schema --ablation > ablation.schema.json
    """
    from electra_lab.config.json_schema import file_schema, left_out
    from electra_lab.config.load import load_plugins
    from electra_lab.jobs.kinds import ABLATION, EXPERIMENT, FINETUNING

    if ablation and finetuning:
        raise ConfigError("--ablation and --finetuning exclude each other.")
    kind = FINETUNING if finetuning else EXPERIMENT
    if ablation:
        kind = ABLATION
    for path in from_ or []:
        load_plugins(path)
    written = json.dumps(file_schema(kind.schema, kind.name), indent=1)
    for problem in left_out():
        print(shown(problem), file=sys.stderr)
    answer(written)
