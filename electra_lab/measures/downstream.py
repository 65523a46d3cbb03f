"""A downstream task, for which each run is fine-tuned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from registry import Metric, Trained, measures


@measures.register("downstream")
class Downstream:
    """The leading metric of a fine-tuning, or of a task without training, on the final weights of each run.

    It is the mean over the seeds of the file, on the first held-out split with labels. The file's `model` is replaced
    by the run; its results stay in the ablation's folder, in downstream/.

    file  the fine-tuning file, relative to the file of the ablation
    name  name of the metric in reports, such as sst2; it must differ between the measures of an ablation
    """

    same_rows = False

    def __init__(self, /, *, file: Path, name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]) -> None:
        self.file, self.name, self.finetunings = file, name, (file,)
        self.metrics: Mapping[str, Metric] = {name: Metric(f"mean over the seeds of {file.name}", name)}

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        return {self.name: run.finetune(self.file)}
