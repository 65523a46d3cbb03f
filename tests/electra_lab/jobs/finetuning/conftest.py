from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

from electra_lab.jobs.finetuning.run import finetune
from tests.electra_lab.jobs.finetuning import small
from tests.electra_lab.jobs.pretraining.tiny import for_a_module


@pytest.fixture(scope="package")
def tuned(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """(file, folder, terminal output) of a fine-tuning with the seeds 3 and 5. Tests must not change it."""
    folder = tmp_path_factory.mktemp("tuned")
    file = small.write_finetuning(folder, model, seeds=[3, 5], evaluate={"every": 4, "metric": "matthews"})
    said = StringIO()
    with for_a_module(), redirect_stderr(said):
        return file, finetune(file, [], folder / "out", "cpu"), said.getvalue()
