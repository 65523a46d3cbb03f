"""Row 4: equal seeds, equal bits; and an explicit notice where other numbers are to be expected."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.scorecard.conftest import Score
from tests.scorecard.lab import likeness
from tests.scorecard.project import Project


@pytest.mark.scorecard
def test_the_same_seed_twice(score: Score, project: Project) -> None:
    out = project.new()
    with score.trial("the same seed in two processes"):
        assert project.run(out).code == 0
        project.is_alike(out)
    with score.trial("another seed"):
        out = project.new()
        assert project.run(out, "--set", "seed=1").code == 0
        assert likeness(out).tensors != project.expected.tensors, "another seed gives the same weights"


@pytest.mark.scorecard
def test_real_processes_with_another_order_of_hashes(score: Score, project: Project) -> None:
    for salt, workers in (("1", "true"), ("2", "false")):
        out = project.new()
        with score.trial(f"a fresh process, PYTHONHASHSEED={salt}, TOKENIZERS_PARALLELISM={workers}, its own store"):
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": salt, "TOKENIZERS_PARALLELISM": workers,
                "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            store = f"data.store={out.with_name(f'store-{salt}')}"
            command = [sys.executable, "-m", "electra_lab", "run", str(project.file), "--out", str(out), "--set", store]
            ended = subprocess.run(
                command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, ended.stderr[-500:]
            project.is_alike(out)


@pytest.mark.scorecard
def test_micro_batches_change_no_mask_and_no_draw(score: Score, project: Project) -> None:
    out = project.new()
    with score.trial("train.micro_batch_size=4"):
        assert project.run(out, "--set", "train.micro_batch_size=4").code == 0
        one, two = (likeness(path).records for path in (out, project.reference))
        assert [r["step"] for r in one] == [r["step"] for r in two]
        assert abs(one[0]["loss"] - two[0]["loss"]) < 0.05, "the first loss is another"


@pytest.mark.scorecard
def test_what_changes_numbers_is_said(score: Score, project: Project) -> None:
    begun = project.stopped(5)
    with score.trial("resumed with two threads"):
        ended = project.resume(project.copy(begun), hooks=[("threads", {"number": 2})])
        assert ended.code == 0, ended
        assert "not bit-exact" in ended.err, "no word of the number of threads"
        assert "threads" in ended.err.split("not bit-exact")[1], "no word of the number of threads"
    with score.trial("resumed unchanged"):
        ended = project.resume(project.copy(begun))
        assert "not bit-exact" not in ended.err, ended
    for key, value in (("train.precision", "bf16"), ("train.parallel", "ddp")):
        with score.trial(f"resumed with {key}={value}"):
            ended = project.resume(project.copy(begun), "--set", f"{key}={value}")
            assert ended.code == 2 or "not bit-exact" in ended.err, f"no word: {ended}"
