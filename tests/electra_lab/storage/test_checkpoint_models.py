"""The model of a checkpoint, read by others than the run, also while the run removes old ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.storage import checkpoint
from electra_lab.storage.checkpoint import read_model
from registry.errors import CheckpointError
from tests.electra_lab.storage.test_checkpoint import kept


class Pair(nn.Module):
    def __init__(self, width: int = 3, generator: bool = True) -> None:
        super().__init__()
        if generator:
            self.generator = nn.Linear(2, width)
        self.discriminator = nn.Linear(4, width)


def pair(folder: Path, step: int, **options: Any) -> Pair:
    torch.manual_seed(step)
    made = Pair(**options)
    kept(folder, step, (made, torch.optim.SGD(made.parameters(), lr=0.1)))
    return made


def test_the_model_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    _, newer = pair(tmp_path, 1), pair(tmp_path, 2)
    target = Pair()
    read_model(tmp_path).fill(target)
    assert all(torch.equal(value, newer.state_dict()[name]) for name, value in target.state_dict().items())


def test_an_older_one_does_not_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    """It would be another model, without a word."""
    pair(tmp_path, 1), pair(tmp_path, 2)
    (tmp_path / "step-00000002" / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-00000002: .* 0 bytes, .* Sound are those of the steps 1; resume"):
        read_model(tmp_path)
    shutil.rmtree(tmp_path / "step-00000002")
    (tmp_path / "step-00000001" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing\. No other is sound"):
        read_model(tmp_path)


@pytest.mark.parametrize("target", [Pair(5), Pair(generator=False), nn.Sequential(nn.Linear(2, 3))])
def test_another_module_is_refused_and_left_as_it_was(tmp_path: Path, target: nn.Module) -> None:
    pair(tmp_path, 1)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"step-00000001: belongs to other networks; \S+ \(and \d more\)"):
        read_model(tmp_path).fill(target)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    made = Pair()
    made.generator.weight.data[2, 1] = bad
    kept(tmp_path, 1, (made, torch.optim.SGD(made.parameters(), lr=0.1)))
    with pytest.raises(CheckpointError, match=r"step-00000001/state\.safetensors: .* in generator.weight \(and 0 more"):
        read_model(tmp_path).fill(Pair())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("moment", ["damage", "_read", "read_json"])
def test_a_reader_takes_the_next_one_if_the_run_removes_the_newest_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, again: bool
) -> None:
    """Before or after it was compared with its manifest. `again`: the run went back, and has written the same step."""
    pair(tmp_path, 1), pair(tmp_path, 2)
    act, newer = getattr(checkpoint, moment), []

    def late(*given: Any, **options: Any) -> Any:
        if not newer:
            newer.append(None)
            shutil.rmtree(tmp_path / "step-00000002")
            try:
                return act(*given, **options)
            finally:
                newer[0] = pair(tmp_path, 2 if again else 3)
        return act(*given, **options)

    monkeypatch.setattr(checkpoint, moment, late)
    saved = checkpoint.read_model(tmp_path)
    assert saved.step == (2 if again else 3)
    assert torch.equal(saved.tensors["generator.weight"], newer[0].generator.weight)
    manifest = json.loads((saved.path / "MANIFEST.json").read_text())
    assert saved.sums == {f"{saved.path.name}/state.safetensors": manifest["state.safetensors"]["sha256"]}


def test_a_step_that_the_run_has_removed_is_said_to_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing advises to resume a run that is well."""
    pair(tmp_path, 1), pair(tmp_path, 2)
    act, removed = checkpoint.damage, tmp_path / "step-00000001"
    monkeypatch.setattr(checkpoint, "damage", lambda path: (shutil.rmtree(removed, ignore_errors=True), act(path))[1])
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 1\. Kept: 2\.$"):
        checkpoint.read_model(tmp_path, 1)
