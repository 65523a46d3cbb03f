"""The keys of a suite file: several models on several tasks."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from electra_lab.config.problems import problem
from electra_lab.config.schema import Name, Seeds
from registry.folder_or_name import FolderOrName
from registry.signature import Strict

LABEL = r"^[A-Za-z0-9][A-Za-z0-9._ +-]{0,39}$"


class Candidate(Strict):
    """A model of a suite."""

    model: FolderOrName = Field(
        description="A run directory, an export, or an ELECTRA or BERT in Hugging Face format, a folder relative to "
        "this file or a name on the hub."
    )
    network: Literal["discriminator", "generator"] = Field("discriminator", description="The network that is used.")
    init: Literal["pretrained", "random"] = Field(
        "pretrained", description="random: the same network with random weights."
    )


def _several(values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        raise problem((), "is empty; name a model and what it is: pretrained: {model: runs/...}.")
    return values


class SuiteConfig(Strict):
    """A suite file."""

    name: Name = Field(description="Name of the suite; its default folder is `runs/<name>/<time>`.")
    models: Annotated[dict[Annotated[str, Field(pattern=LABEL)], Candidate], AfterValidator(_several)] = Field(
        description="The models by name. The others are compared with the first."
    )
    tasks: Annotated[list[Path], Field(min_length=1)] = Field(
        description="Fine-tuning files, relative to this file; each is a column. Their `model`, `network` and `init` "
        "are replaced. A task whose data is not here is a gap in the table."
    )
    seeds: Seeds | None = Field(
        None, description="Seeds for every task; by default those of its file. The same for all models, in pairs."
    )
    set: dict[str, Any] = Field(default_factory=dict, description="Changes that hold for every task, by dotted keys.")
