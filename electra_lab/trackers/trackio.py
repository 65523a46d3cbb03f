"""Trackio."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from uuid import uuid4

from electra_lab.trackers._library import require
from registry import Ended, Tracked, trackers


@trackers.register("trackio")
class Trackio:
    """A run in Trackio, on this machine or in a Space on the Hugging Face hub. Needs `electra-lab[trackio]`.

    project  the project of the run
    space    the Space; without it the files are in TRACKIO_DIR, and `trackio show` shows them
    """

    rewinds = False

    def __init__(self, /, *, project: str = "electra-lab", space: str | None = None) -> None:
        self.project, self.space = project, space

    def check(self) -> None:
        require("trackio", "trackio")

    def start(self, run: Tracked, /) -> str:
        import trackio

        name = run.id or f"{run.name}-{uuid4().hex[:4]}"  # Trackio finds runs by their names
        with redirect_stdout(StringIO()):
            self._run: Any = trackio.init(
                self.project,
                name=name,
                group=run.group,
                space_id=self.space,
                config=dict(run.config),
                resume="must" if run.id else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return name

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        self._run.log(dict(values), step=step)

    def close(self, outcome: Ended, /) -> None:
        import trackio

        with redirect_stdout(StringIO()):
            trackio.finish()
