"""One piece of work: its outcomes, steps that are never repeated, and unusable runs that are set aside."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr
from pathlib import Path

import pytest
import torch

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.sweeps import cells
from electra_lab.jobs.sweeps.cells import quarantine_damaged
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.jobs.sweeps.plan import checked, write_plan
from electra_lab.storage.ablation_folder import AblationFolder
from registry import Outcome, errors
from tests.electra_lab.jobs.sweeps.small import first, lines, state_of, weights, worked, write

SMALLER = "Use a smaller corpus, batch or network."


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.Preempted("saved."), 75, ""),
        (errors.Interrupted("stopped."), 130, ""),
        (errors.DivergedError("not finite."), 5, "not finite."),
        (errors.CheckpointError("cannot be read."), 4, "cannot be read."),
        (errors.OutOfMemoryError("too large."), 6, "too large."),
        (MemoryError("3 TiB"), 6, f"there is not enough memory (3 TiB). {SMALLER}"),
        (RuntimeError("std::bad_alloc"), 6, f"there is not enough memory (std::bad_alloc). {SMALLER}"),
        (OSError(28, "No space left"), 3, "a file or standard output: cannot be written (No space left)."),
        (errors.DataError("gone."), 3, "gone."),
        (errors.InUse("by hand."), 75, ""),
        (RuntimeError("one\ntwo"), 1, "RuntimeError: one"),
        (SystemExit(3), 1, "SystemExit: 3"),
    ],
)
def test_an_error_decides_the_exit_code_and_is_noted(out, monkeypatch, error, code, said) -> None:
    (out / "cells" / first(out) / "measures.json").unlink()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cells, "_train", fail)
    assert worked(out, first(out)).code == code
    note = AblationFolder(out).failure(first(out))
    assert (note.error if note else "") == said


def test_a_cell_that_is_done_is_not_touched_and_its_old_failure_forgotten(out: Path, monkeypatch) -> None:
    for name in ("_train", "_measure"):
        monkeypatch.setattr(cells, name, lambda *_: pytest.fail("nothing is left to do"))
    AblationFolder(out).note_failure(first(out), "an earlier one", 1)
    assert worked(out, first(out)) == Outcome(0)
    assert not (out / "failed" / f"{first(out)}.json").exists()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_cell_that_another_process_has_is_left_alone(out: Path, monkeypatch, by_hand: bool) -> None:
    run = out / "cells" / first(out)
    (run / "measures.json").unlink()
    with ExitStack() as held:
        if by_hand:
            shutil.rmtree(run / "checkpoints")
            fcntl.flock(held.enter_context((run / ".lock").open("a")), fcntl.LOCK_EX)
        else:
            monkeypatch.setattr(cells, "_train", lambda *_: pytest.fail("it is claimed"))
            held.enter_context(AblationFolder(out).claimed(first(out)))
        assert worked(out, first(out)).code == 75


def test_a_cell_goes_on_where_it_stopped(out: Path) -> None:
    ids = [cell.id for cell in AblationFolder(out).plan.cells]
    before = {id: (weights(out / "cells" / id), lines(out / "cells" / id)) for id in ids}
    for id in ids:
        (out / "cells" / id / "measures.json").unlink()
    runs = [out / "cells" / id for id in ids]
    shutil.rmtree(state_of(runs[0]).parent)
    state_of(runs[1]).write_bytes(b"damaged")
    shutil.rmtree(runs[2] / "checkpoints")
    (runs[3] / "provenance.json").unlink()
    (runs[3] / "report.html").unlink()
    for id in ids:
        with (out / "logs" / f"{id}.txt").open("w") as log, redirect_stderr(log):
            assert worked(out, id) == Outcome(0)
    assert {id: (weights(out / "cells" / id), lines(out / "cells" / id)) for id in ids} == before
    said = [(out / "logs" / f"{id}.txt").read_text() for id in ids]
    assert "resuming after step 6" in said[0]
    assert "trying the checkpoint before it" in said[1]
    assert "resuming after step 6" in said[1]
    assert "starting again from the beginning" in said[2]
    assert "resum" not in said[3]


@pytest.mark.parametrize("left", [("measures.json",), ("measures.json", "report.html", "checkpoints"), ()])
def test_a_cell_is_begun_resumed_and_measured_on_the_device_of_its_ablation(out: Path, monkeypatch, left) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = out / "cells" / first(out)
    run.rename(out / "moved")
    if left:
        (out / "moved").rename(run)
    for name in left:
        shutil.rmtree(run / name) if name == "checkpoints" else (run / name).unlink()
    outcome = worked(out, first(out), "cuda")
    assert (outcome.code, "torch finds no CUDA device" in outcome.error) == (2, True)
    assert (run / "checkpoints").exists() == (left == ("measures.json",)), "it was trained on another device"


def test_a_plug_in_that_changes_on_the_way_trains_nothing(tmp_path: Path) -> None:
    """The plug-in is already loaded in this process, so the plan is changed instead."""
    file = write(tmp_path, seeds="[0]")
    where = AblationFolder.create(tmp_path / "out")
    write_plan(checked(load_ablation(file)), where)
    plan = json.loads((where.path / "plan.json").read_text())
    where.experiment(plan["cells"][0]["id"]).rename(where.experiment("other-s0-0123456789"))
    plan["cells"][0]["id"] = "other-s0-0123456789"
    (where.path / "plan.json").write_text(json.dumps(plan))
    outcome = worked(where.path, "other-s0-0123456789")
    assert outcome.code == 2
    assert outcome.error.endswith("a plug-in changed since the plan was made. Start the ablation again.")


Damage = Callable[[Path], object]


def spoil(file: str, text: str) -> Damage:
    return lambda run: [path.write_text(text) for path in run.glob(file)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (spoil("checkpoints/*/state.safetensors", "damaged"), "none of its checkpoints is usable"),
        (spoil("provenance.json", "[]"), "cannot be read ("),
        (spoil("metrics.jsonl", "{}\n{}\n"), "cannot be read ("),
        (spoil("config.yaml", "name: other\n"), "config.yaml was changed since it began"),
        (lambda run: (run / "config.yaml").unlink(), "cannot be read ("),
        (lambda run: (run / "provenance.json").write_text(
            (run / "provenance.json").read_text().replace('"format": 1', '"format": 9')), "cannot be read ("),
    ],
)  # fmt: skip
def test_a_run_that_is_still_needed_and_cannot_be_used_is_set_aside(out: Path, damage: Damage, reason: str) -> None:
    where, said = AblationFolder(out), list[str]()
    run = where.run(first(out)).path
    damage(run)
    quarantine_damaged(where, where.plan, said.append)
    assert said == []  # it is measured, so nothing of it is needed
    (run / "measures.json").unlink()
    quarantine_damaged(where, where.plan, said.append)
    [sentence] = said
    assert sentence.startswith(f"{run}: {reason}")
    assert sentence.endswith(f". It was moved to {out}/damaged/{run.name}-0 and will be recreated.")
    assert not run.exists()
    assert (out / "damaged" / f"{run.name}-0").is_dir()
    assert cell_result(where, where.plan, first(out)).missing == ("training",)
    run.mkdir()  # a second time
    quarantine_damaged(where, where.plan, said.append)
    assert run.exists()  # it has not begun: nothing is lost by starting it
    assert len(said) == 1


def test_sound_runs_and_those_of_others_are_left_alone(out: Path) -> None:
    where, said = AblationFolder(out), list[str]()
    ids = [cell.id for cell in where.plan.cells]
    for id in ids:
        (out / "cells" / id / "measures.json").unlink()
    # One of its checkpoints is sound.
    (where.run(ids[0]).last_checkpoint() / "state.safetensors").write_bytes(b"x")
    (where.run(ids[1]).path / "provenance.json").write_text("[]")
    (where.run(ids[2]).path / "provenance.json").write_text("[]")
    with where.claimed(ids[1]), (where.run(ids[2]).path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        quarantine_damaged(where, where.plan, said.append)
    assert said == []
    assert not (out / "damaged").exists()
    quarantine_damaged(where, where.plan, said.append)
    assert len(said) == 2


def test_a_reference_is_set_aside_only_if_a_measure_still_needs_it(out: Path) -> None:
    where, said = AblationFolder(out), list[str]()
    reference, _ = where.plan.references
    state_of(where.run(reference).path, 4).write_bytes(b"damaged")
    quarantine_damaged(where, where.plan, said.append)
    assert said == []
    shutil.rmtree(out / "shared" / where.plan.measures[0].key)
    quarantine_damaged(where, where.plan, said.append)
    assert len(said) == 1
    assert "state.safetensors is damaged" in said[0]
    assert cell_result(where, where.plan, reference).missing == ("training",)


def test_what_measures_share_is_set_aside_if_it_is_damaged(out: Path) -> None:
    where, said = AblationFolder(out), list[str]()
    shared = where.shared(where.plan.measures[0])
    [largest] = shared.glob("*.safetensors")
    size = largest.stat().st_size
    largest.write_bytes(largest.read_bytes()[:-1])
    quarantine_damaged(where, where.plan, said.append)
    reason = f"{largest.name} is damaged: it has {size - 1} bytes, not {size}"
    assert said == [f"{shared}: {reason}. It was moved to {out}/damaged/{shared.name}-0 and will be recreated."]
    shared.mkdir()  # the second time it needs another name
    quarantine_damaged(where, where.plan, said.append)
    assert "MANIFEST.json is missing" in said[1]
    assert {folder.name for folder in (out / "damaged").iterdir()} == {f"{shared.name}-0", f"{shared.name}-1"}
