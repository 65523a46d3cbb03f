"""One piece of work: what becomes of it, and what is never done twice."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import torch

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.sweeps import cells
from electra_lab.jobs.sweeps.cells import work
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import checked, write_plan
from electra_lab.storage.ablation_folder import AblationFolder
from registry import Outcome
from registry.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    Interrupted,
    InUse,
    OutOfMemoryError,
    Preempted,
)
from tests.electra_lab.jobs.sweeps.small import STEPS, first, lines, weights, write

SMALLER = "Use a smaller corpus, batch or network."


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Preempted("saved."), Outcome("preempted", "saved.")),
        (Interrupted("stopped."), Outcome("preempted", "stopped.")),
        (KeyboardInterrupt(), Outcome("preempted", "")),
        (CheckpointError("the disk is full."), Outcome("lost", "the disk is full.")),
        (OutOfMemoryError("too large."), Outcome("lost", "too large.")),
        (MemoryError("3 TiB"), Outcome("lost", f"there is not enough memory (3 TiB). {SMALLER}")),
        (RuntimeError("std::bad_alloc"), Outcome("lost", f"there is not enough memory (std::bad_alloc). {SMALLER}")),
        (OSError(28, "No space left"), Outcome("lost", "OSError: [Errno 28] No space left")),
        (DivergedError("not finite."), Outcome("failed", "not finite.")),
        (ConfigError("wrong."), Outcome("failed", "wrong.")),
        (DataError("gone."), Outcome("failed", "gone.")),
        (InUse("by hand."), Outcome("elsewhere")),
        (RuntimeError("one\ntwo"), Outcome("failed", "RuntimeError: one")),
        (SystemExit(3), Outcome("failed", "SystemExit: 3")),
    ],
)
def test_what_is_raised_decides_whether_another_attempt_may_succeed(
    out: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, outcome: Outcome
) -> None:
    (out / "cells" / first(out) / "measures.json").unlink()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cells, "_train", fail)
    assert work(str(out), first(out), device="cpu") == outcome
    log = (out / "logs" / f"{first(out)}.txt").read_text()
    assert (str(error) or type(error).__name__) in log
    assert cell_result(AblationFolder(out), AblationFolder(out).plan, first(out)).status == "unmeasured"


def test_a_cell_that_is_done_is_not_touched_and_its_old_failure_forgotten(out: Path, monkeypatch) -> None:
    for name in ("_train", "_measure"):
        monkeypatch.setattr(cells, name, lambda *_: pytest.fail("nothing is left to do"))
    AblationFolder(out).note_failure(first(out), "an earlier one", 1)
    assert work(str(out), first(out), device="cpu") == Outcome("done")
    assert not (out / "failed" / f"{first(out)}.json").exists()


def test_a_cell_that_another_process_has_is_left_alone(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "cells" / first(out) / "measures.json").unlink()
    monkeypatch.setattr(cells, "_train", lambda *_: pytest.fail("it is claimed"))
    with AblationFolder(out).claimed(first(out)):
        assert work(str(out), first(out), device="cpu") == Outcome("elsewhere")


def test_a_cell_that_is_resumed_by_hand_is_left_alone(out: Path) -> None:
    run = out / "cells" / first(out)
    shutil.rmtree(run / "checkpoints")
    (run / "measures.json").unlink()
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert work(str(out), first(out), device="cpu") == Outcome("elsewhere")


def test_a_cell_goes_on_where_it_stopped(out: Path) -> None:
    ids = [cell.id for cell in AblationFolder(out).plan.cells]
    before = {id: (weights(out / "cells" / id), lines(out / "cells" / id)) for id in ids}
    for id in ids:
        (out / "cells" / id / "measures.json").unlink()
    runs = [out / "cells" / id for id in ids]
    shutil.rmtree(runs[0] / "checkpoints" / f"step-{STEPS:08d}")
    (runs[1] / "checkpoints" / f"step-{STEPS:08d}" / "state.safetensors").write_bytes(b"damaged")
    shutil.rmtree(runs[2] / "checkpoints")
    (runs[3] / "provenance.json").unlink()
    (runs[3] / "report.html").unlink()
    for id in ids:
        assert work(str(out), id, device="cpu") == Outcome("done")
    assert {id: (weights(out / "cells" / id), lines(out / "cells" / id)) for id in ids} == before
    said = [(out / "logs" / f"{id}.txt").read_text().split("report ", 1)[1] for id in ids]
    assert "resuming after step 6" in said[0]
    assert "trying the checkpoint before it" in said[1]
    assert "resuming after step 6" in said[1]
    assert "starting again from the beginning" in said[2]
    assert "resum" not in said[3]


@pytest.mark.parametrize("left", [("measures.json",), ("measures.json", "report.html", "checkpoints"), ()])
def test_a_cell_is_begun_resumed_and_measured_on_the_device_of_its_ablation(
    out: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = out / "cells" / first(out)
    run.rename(out / "moved")
    if left:
        (out / "moved").rename(run)
    for name in left:
        shutil.rmtree(run / name) if name == "checkpoints" else (run / name).unlink()
    outcome = work(str(out), first(out), device="cuda")
    assert (outcome.status, "torch finds no CUDA device" in outcome.error) == ("failed", True)
    assert (run / "checkpoints").exists() == (left == ("measures.json",)), "it was trained on another one"


def test_a_plug_in_that_changes_on_the_way_trains_nothing(tmp_path: Path) -> None:
    """In this process the plug-in is loaded already, so the plan is made for another one."""
    file = write(tmp_path, seeds="[0]")
    where = AblationFolder.create(tmp_path / "out")
    write_plan(checked(load_ablation(file)), where)
    plan = json.loads((where.path / "plan.json").read_text())
    where.experiment(plan["cells"][0]["id"]).rename(where.experiment("other-s0-0123456789"))
    plan["cells"][0]["id"] = "other-s0-0123456789"
    (where.path / "plan.json").write_text(json.dumps(plan))
    outcome = work(str(where.path), "other-s0-0123456789", device="cpu")
    assert (outcome.status, outcome.error.split(": ", 1)[1]) == (
        "failed", "a plug-in changed since the plan was made. Start the ablation again."
    )  # fmt: skip
