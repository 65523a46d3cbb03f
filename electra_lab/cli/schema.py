"""electra-lab schema"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

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
    suite: Annotated[bool, typer.Option("--suite", help="Print the schema of suite files.")] = False,
) -> None:
    """Print the JSON schema of experiment files, for editors.

    With it an editor completes and checks while you write. It knows every registered component.

    \b
    electra-lab schema > experiment.schema.json
    # yaml-language-server: $schema=experiment.schema.json   (the first line of an experiment)
    electra-lab schema --ablation > ablation.schema.json
    """
    from electra_lab.config.finetune import FinetuningConfig
    from electra_lab.config.json_schema import file_schema, left_out
    from electra_lab.config.load import load_plugins
    from electra_lab.config.schema import ExperimentConfig
    from electra_lab.config.suite import SuiteConfig
    from electra_lab.jobs.sweeps.file import AblationConfig

    kinds: list[tuple[bool, tuple[Any, str]]] = [
        (ablation, (AblationConfig, "ablation")),
        (finetuning, (FinetuningConfig, "fine-tuning")),
        (suite, (SuiteConfig, "suite")),
    ]
    chosen = [kind for wanted, kind in kinds if wanted] or [(ExperimentConfig, "experiment")]
    if len(chosen) > 1:
        raise ConfigError("--ablation, --finetuning and --suite exclude each other.")
    for path in from_ or []:
        load_plugins(path)
    found = file_schema(*chosen[0])
    for problem in left_out():
        print(shown(problem), file=sys.stderr)
    answer(json.dumps(found, indent=1))
