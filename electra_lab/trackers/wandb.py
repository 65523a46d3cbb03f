"""Weights & Biases."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from electra_lab.trackers._library import require
from registry import Ended, Tracked, trackers

PATIENCE = 60  # seconds to finish uploads at the end; `wandb sync` uploads the rest


@trackers.register("wandb")
class WeightsAndBiases:
    """A run in Weights & Biases. Needs `electra-lab[wandb]`.

    project  the project of the run
    entity   the user or team that owns the project; by default yours
    mode     `offline` only writes files, which `wandb sync` uploads. Default: WANDB_MODE, or else online
    folder   folder of the files; by default wandb/ in the run directory
    """

    rewinds = False

    def __init__(
        self,
        /,
        *,
        project: str = "electra-lab",
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.project, self.entity, self.mode, self.folder = project, entity, mode, folder

    def check(self) -> None:
        require("wandb", "wandb")

    def start(self, run: Tracked, /) -> str:
        hooks = sys.exit, sys.excepthook
        try:
            self._run: Any = self._begun(run)
        finally:
            sys.exit, sys.excepthook = hooks  # wandb replaces both
        return str(self._run.id)

    def _begun(self, run: Tracked) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        folder = self.folder or run.folder
        folder.mkdir(parents=True, exist_ok=True)
        mode = self.mode or os.environ.get("WANDB_MODE") or "online"
        wandb.setup(wandb.Settings(silent=True, mode=mode))
        if mode == "online" and not wandb.login(prompt=False, verify=False):  # otherwise it would ask for a key
            raise RuntimeError("there is no API key: run `wandb login`, set WANDB_API_KEY, or write mode: offline")
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            finish_timeout=PATIENCE,
            finish_timeout_raises=True,
        )
        return wandb.init(
            project=self.project,
            entity=self.entity,
            mode=mode,
            dir=folder,
            id=run.id,
            resume="allow",
            name=run.name,
            group=run.group,
            config=dict(run.config),
            settings=settings,
        )

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        self._run.log(dict(values), step=step)

    def close(self, outcome: Ended, /) -> None:
        if outcome == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if outcome == "done" else 1)
