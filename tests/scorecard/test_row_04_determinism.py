"""Row 4: equal seeds, equal bits; and an explicit notice where numbers may differ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import likeness
from tests.scorecard.project import Project, sets


@pytest.mark.scorecard
def test_real_processes_with_another_order_of_hashes(score: Score, project: Project) -> None:
    for salt, workers in (("1", "true"), ("2", "false")):
        words = f"a fresh process, PYTHONHASHSEED={salt}, TOKENIZERS_PARALLELISM={workers}, its own store"
        with project.trial(score, words) as out:
            own = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": salt, "TOKENIZERS_PARALLELISM": workers}
            command = [sys.executable, "-m", "electra_lab", "run", str(project.file), "--out", str(out)]
            command += sets(f"data.store={out.with_name(f'store-{salt}')}")
            environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(command, cwd=project.folder, env=environment, capture_output=True, text=True)
            assert ended.returncode == 0, ended.stderr[-500:]
            project.is_alike(out)


@pytest.mark.scorecard
def test_the_seed_decides_the_numbers_and_micro_batches_do_not(score: Score, project: Project) -> None:
    with project.trial(score, "another seed") as out:
        project.run(out, *sets("seed=1")).must(0)
        assert likeness(out).tensors != project.expected.tensors, "another seed gives the same weights"
    with project.trial(score, "without dropout, train.micro_batch_size=4") as out:
        losses = []
        for rows in (2, 4):
            settings = ("embedding.dropout=0.0", "discriminator.dropout=0.0", f"train.micro_batch_size={rows}")
            path = out.with_name(f"{out.name}-{rows}")
            project.run(path, *sets(*settings)).must(0)
            losses.append(likeness(path).records[0]["loss"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), "masks or draws differ"


@pytest.mark.scorecard
def test_what_changes_numbers_is_said(score: Score, project: Project) -> None:
    begun = project.stopped(5)
    with project.trial(score, "resumed with two threads", project.copy(begun)) as out:
        ended = project.resume(out, hooks=[("threads", {"number": 2})]).must(0)
        assert "threads" in ended.err.partition("not bit-exact")[2], "the number of threads is not mentioned"
    with project.trial(score, "resumed unchanged", project.copy(begun)) as out:
        assert "not bit-exact" not in project.resume(out).must(0).err
    for setting in ("train.precision=bf16", "train.parallel=ddp"):
        with project.trial(score, f"resumed with {setting}", project.copy(begun)) as out:
            ended = project.resume(out, *sets(setting))
            assert ended.code == 2 or "not bit-exact" in ended.err, f"no warning: {ended}"
