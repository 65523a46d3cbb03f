"""electra-lab ablate: its options reach the ablation, its answer is alone on stdout, its failures have a code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.sweeps import run
from electra_lab.storage.ablation_folder import AblationFolder
from registry import launchers
from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.jobs.sweeps.small import HERE, InProcess, write
from tests.electra_lab.presentation.synthetic import leave_out_pictures
from tests.pages import Page


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """The calls of `ablate` and `dry_run`, which do nothing."""
    found: list[tuple[str, tuple[Any, ...]]] = []

    def call(name: str, answer: object, *arguments: Any, **options: Any) -> object:
        print("the output of a plug-in")
        found.append((name, (*arguments, *options.values())))
        return answer

    monkeypatch.setattr(run, "ablate", partial(call, "ablate", Path("the/folder")))
    monkeypatch.setattr(run, "dry_run", partial(call, "dry_run", "the needs"))
    return found


def test_options_reach_the_ablation_and_the_answer_is_its_folder(lab: Lab, called: list[Any]) -> None:
    assert lab("ablate", "a.yaml") == (0, "the/folder\n", "the output of a plug-in\n")
    lab("ablate", "a.yaml", "--set", "train.steps=3", "--set", "seed=1", "--out", "there", "--device", "cpu",
        "--launcher", "slurm", "--workers", "5")  # fmt: skip
    assert called == [
        ("ablate", (Path("a.yaml"), [], None, "auto", None, None)),
        ("ablate", (Path("a.yaml"), ["train.steps=3", "seed=1"], Path("there"), "cpu", "slurm", 5)),
    ]
    called.clear()
    dry = ("ablate", "a.yaml", "--dry-run", "--out", "there", "--workers", "2", "--device", "cuda")
    assert lab(*dry) == lab(*dry, "--no-trial") == (0, "the needs\n", "the output of a plug-in\n")
    options = (Path("a.yaml"), [], Path("there"), "cuda", None, 2)
    assert called == [("dry_run", (*options, True)), ("dry_run", (*options, False))]
    called.clear()
    for number in ("0", "many"):
        assert "--workers" in lab.fails(2, "ablate", "a.yaml", "--workers", number)
    assert called == []


def test_a_dry_run_reads_no_corpus_and_writes_nothing(lab, tmp_path: Path, monkeypatch) -> None:
    file = write(tmp_path / "there", steps=2, launcher="{type: local, workers: 3}")
    monkeypatch.setattr(run, "open_data", lambda *_: pytest.fail("it reads the corpus"))
    before = sorted(tmp_path.rglob("*"))
    code, out, err = lab("ablate", file, "--dry-run", "--device", "cpu")
    assert (code, err) == (0, "")
    assert sorted(tmp_path.rglob("*")) == before
    assert out.startswith("sizes: 2 variants x 2 seeds = 4 cells, 2 reference runs, 0 already done, in runs/sizes\n")
    assert "left to do: 6 runs, " in out
    assert "of training, 3 at a time.\n" in out
    assert "\n  generator.scale=1.0:  generator.dim 8 -> 16; generator.heads 1 -> 2\n" in out


def test_cells_that_failed_are_exit_code_7_and_the_page_is_there(lab, tmp_path: Path, monkeypatch) -> None:
    launchers.register("in_process")(InProcess)
    leave_out_pictures(monkeypatch)
    file = write(tmp_path / "there", seeds="[0]", steps=2, more="retries: 0", launcher=HERE)
    changed = {"vary": {"train.learning_rate": [1.0e30]}, "measure": [{"type": "pretraining"}]}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changed))
    err = lab.fails(7, "ablate", file, "--out", "here")
    assert "\n1 of 1 runs failed. The reasons are in here/report.html, the logs in here/logs. " in err
    assert "Nothing can be said yet" in err
    folder = AblationFolder(Path("here"))
    state = cell_result(folder, folder.plan, folder.plan.cells[0].id)
    assert (state.status, state.attempts) == ("failed", 1)
    reason, _, _ = state.error.partition(" electra-lab replay ")  # its path is relative to the page there
    assert reason in Page(Path("here/report.html")).text
