"""What can no longer be used is set aside, and nothing else is."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_lab.analysis.results import cell_result
from electra_lab.jobs.sweeps.cells import quarantine_damaged
from electra_lab.storage.ablation_folder import AblationFolder
from tests.electra_lab.jobs.sweeps.small import first

Damage = Callable[[Path], object]


def spoil(file: str, text: str) -> Damage:
    return lambda run: [each.write_text(text) for each in run.glob(file)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (spoil("checkpoints/*/state.safetensors", "damaged"), "none of its checkpoints is usable"),
        (spoil("provenance.json", "[]"), "cannot be read ("),
        (spoil("provenance.json", "{"), "cannot be read ("),
        (spoil("metrics.jsonl", "{}\n{}\n"), "cannot be read ("),
        (spoil("config.yaml", "name: other\n"), "config.yaml was changed since it began"),
        (lambda run: (run / "config.yaml").unlink(), "cannot be read ("),
        (lambda run: (run / "provenance.json").write_text(
            (run / "provenance.json").read_text().replace('"format": 3', '"format": 9')), "cannot be read ("),
    ],
)  # fmt: skip
def test_a_run_that_is_still_needed_and_cannot_be_used_is_set_aside(out: Path, damage: Damage, reason: str) -> None:
    where, said = AblationFolder(out), list[str]()
    run = where.run(first(out)).path
    damage(run)
    quarantine_damaged(where, where.plan, said.append)
    assert said == []  # it is measured: nothing of it is needed
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
    state = where.run(reference).path / "checkpoints" / "step-00000004" / "state.safetensors"
    state.write_bytes(b"damaged")
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
    shared.mkdir()  # a second time it needs another name
    quarantine_damaged(where, where.plan, said.append)
    assert "MANIFEST.json is missing" in said[1]
    assert {each.name for each in (out / "damaged").iterdir()} == {f"{shared.name}-0", f"{shared.name}-1"}
