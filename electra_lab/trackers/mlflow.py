"""MLflow."""

import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from filelock import FileLock

from electra_lab.storage.provenance import flat
from electra_lab.trackers._library import require
from registry import Ended, Tracked, trackers

ENDS: dict[Ended, str] = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
# Defaults. With MLflow's own 7 retries, a missing server would cost minutes of training.
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3"}
LONGEST = 500  # characters of a parameter that every server accepts
MOST = 100  # parameters per request


@trackers.register("mlflow")
class MLflow:
    """A run in MLflow, in a file or on a server. Needs `electra-lab[mlflow]`.

    uri         address of MLflow's runs. Default: MLFLOW_TRACKING_URI, or else mlflow.db next to the run directory
    experiment  the MLflow experiment of the run
    """

    rewinds = False

    def __init__(self, /, *, uri: str | None = None, experiment: str = "electra-lab") -> None:
        self.uri, self.experiment = uri, experiment

    def check(self) -> None:
        require("mlflow", "mlflow", "sqlalchemy", "alembic")

    def start(self, run: Tracked, /) -> str:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        parent = run.folder.absolute().parent
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        # Cells that create the file at the same time would fail.
        with nullcontext() if uri else FileLock(parent / ".mlflow.lock"):
            self._client: Any = MlflowClient(uri or f"sqlite:///{parent / 'mlflow.db'}")
            self._id = self._begun(run, None if uri else (parent / "mlflow").as_uri())
        return self._id

    def _begun(self, run: Tracked, place: str | None) -> str:
        """Return the id of the run.

        place  folder of artifacts; without one MLflow creates a folder in the working directory
        """
        from mlflow.entities import Param

        if run.id:
            self._client.update_run(run.id, status="RUNNING")
            return run.id
        experiment = self._client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self.experiment, place)
        id: str = self._client.create_run(number, run_name=run.name, tags={"group": run.group}).info.run_id
        parameters = []
        for key, value in flat(run.config).items():
            text = json.dumps(value) if isinstance(value, list) else str(value)
            parameters.append(Param(key, text[:LONGEST]))
        for first in range(0, len(parameters), MOST):
            self._client.log_batch(id, params=parameters[first : first + MOST])
        return id

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self, outcome: Ended, /) -> None:
        self._client.set_terminated(self._id, ENDS[outcome])
