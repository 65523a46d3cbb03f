"""TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_lab.trackers._library import require
from registry import Ended, Tracked, trackers


@trackers.register("tensorboard")
class TensorBoard:
    """Event files for TensorBoard. Needs `electra-lab[tensorboard]`.

    folder  folder of the files; by default tensorboard/ in the run directory
    """

    rewinds = True

    def __init__(self, /, *, folder: Path | None = None) -> None:
        self.folder = folder

    def check(self) -> None:
        require("tensorboard", "tensorboard")

    def start(self, run: Tracked, /) -> str:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / run.name if self.folder else run.folder / "tensorboard"
        resumed = run.step + 1 if run.id else None  # TensorBoard then drops its records from this step on
        self._writer: Any = SummaryWriter(folder, purge_step=resumed)
        if not run.id:
            self._writer.add_text("config", f"```\n{json.dumps(run.config, indent=1)}\n```")
        return str(folder)

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, outcome: Ended, /) -> None:
        self._writer.close()
