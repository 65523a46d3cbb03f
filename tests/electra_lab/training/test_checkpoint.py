"""Checkpoints: exact, whole or not at all, checked before they are believed, and free of pickle."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from electra_lab.training.checkpoint import checkpoints, damage, load_newest, save
from electra_lab.training.optimizer import make_optimizer
from registry.errors import CheckpointError


class Shared(nn.Module):
    """Two users of one table, as generator and discriminator are, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(2))


def trained(seed: int, steps: int = 2) -> tuple[Shared, torch.optim.AdamW]:
    torch.manual_seed(seed)
    module = Shared()
    optimizer = make_optimizer(module, 1e-2, (0.9, 0.999), 1e-6, 0.01)
    for _ in range(steps):
        (module.one(torch.randn(5, 4)) + module.two(torch.randn(5, 4))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        module.seen += 1
    return module, optimizer


def written(folder: Path, *steps: int, keep: int = 9) -> Path:
    for step in steps:
        save(folder, step, *trained(step), {"skipped": step}, keep)
    return folder


def test_all_that_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    module, optimizer = trained(1)
    save(tmp_path, 7, module, optimizer, {"more": [1.1, 2.2]}, 3)
    other, other_optimizer = trained(2, steps=1)
    state = load_newest(tmp_path, other, other_optimizer, pytest.fail)
    assert state == {"step": 7, "more": [1.1, 2.2]}
    assert other.two.weight is other.one.weight
    for name, value in module.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        for moment, value in optimizer.state[one].items():
            assert torch.equal(value, other_optimizer.state[two][moment])


def test_a_shared_table_is_stored_once(tmp_path: Path) -> None:
    path = save(tmp_path, 1, *trained(1), {}, 3)
    header = (path / "state.safetensors").read_bytes()
    assert b"model.one.weight" in header
    assert b"model.two.weight" not in header


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    path = save(tmp_path, 1, *trained(1), {}, 3)
    assert {p.name for p in path.iterdir()} == {"state.safetensors", "state.json", "MANIFEST.json"}
    for file in path.iterdir():
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is, it does not unpickle
            pickle.loads(file.read_bytes())


def test_the_newest_are_kept_and_foreign_files_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-00000001").mkdir()  # no manifest: not ours to delete
    target = tmp_path.parent / "elsewhere"
    written(target, 5)
    (tmp_path / "step-00000002").symlink_to(target / "step-00000005")
    written(tmp_path, 10, 20, 30, keep=2)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"step-notes", "step-00000001", "step-00000002", "step-00000020", "step-00000030"}
    assert damage(target / "step-00000005") is None


def corrupt(path: Path, how: str, chance: random.Random) -> None:
    file = path / chance.choice(["state.safetensors", "state.json", "MANIFEST.json"])
    data = bytearray(file.read_bytes())
    match how:
        case "truncated":
            file.write_bytes(data[: chance.randrange(len(data))])
        case "bit flipped":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
        case "deleted":
            file.unlink()
        case "emptied":
            file.write_bytes(b"")


@pytest.mark.parametrize("how", ["truncated", "bit flipped", "deleted", "emptied"])
@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path: Path, how: str, seed: int) -> None:
    """A flipped bit in MANIFEST.json may be white space; then nothing is damaged and the newest is loaded."""
    written(tmp_path, 10, 20)
    newest = tmp_path / "step-00000020"
    before = json.loads((newest / "MANIFEST.json").read_text())
    corrupt(newest, how, random.Random(seed))
    warnings: list[str] = []
    state = load_newest(tmp_path, *trained(0), warnings.append)
    assert state is not None
    if state["step"] == 20:
        assert json.loads((newest / "MANIFEST.json").read_text()) == before
    else:
        assert state["step"] == state["skipped"] == 10
        assert len(warnings) == 1
        assert str(newest) in warnings[0]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_after_a_fallback_outlives_the_damaged_checkpoint(tmp_path: Path, keep: int) -> None:
    """The damaged one has the higher step; it must neither displace the new one nor be chosen again."""
    written(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "state.safetensors").write_bytes(b"")
    written(tmp_path, 15, keep=keep)
    state = load_newest(tmp_path, *trained(0), pytest.fail)
    assert state is not None
    assert state["step"] == 15
    assert len(checkpoints(tmp_path)) == keep


def test_none_is_usable(tmp_path: Path) -> None:
    written(tmp_path, 10, 20)
    for path in checkpoints(tmp_path):
        (path / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints is usable"):
        load_newest(tmp_path, *trained(0), lambda _: None)


def test_there_is_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "checkpoints", *trained(0), pytest.fail) is None


def test_one_of_other_networks_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 10)
    other = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="belongs to other networks"):
        load_newest(tmp_path, other, make_optimizer(other, 1e-3, (0.9, 0.999), 1e-6, 0.01), pytest.fail)


@pytest.mark.parametrize("call", range(8))
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """ENOSPC at each write in turn: a clear error, the old checkpoint whole, no litter."""
    written(tmp_path, 10)
    calls = iter(range(100))

    def full(original):
        def write(*arguments, **options):
            if next(calls) == call:
                raise OSError(28, "No space left on device")
            return original(*arguments, **options)

        return write

    import electra_lab.training.checkpoint as module

    monkeypatch.setattr(module, "save_file", full(module.save_file))
    monkeypatch.setattr(Path, "write_text", full(Path.write_text))
    monkeypatch.setattr(module, "flush", full(module.flush))
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(tmp_path, 20, *trained(20), {}, 1)
    monkeypatch.undo()
    assert damage(tmp_path / "step-00000010") is None
    assert not list(tmp_path.glob(".building-*"))


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".building-00000005").mkdir()
    written(tmp_path, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000010"]
