"""Checkpoints: exact, complete or absent, verified before use, without pickle; and their models."""

import json
import pickle
import random
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.storage import checkpoint
from electra_lab.storage.checkpoint import (
    checkpoint_path,
    checkpoints,
    damage,
    load_newest,
    read_model,
    save,
    tensors_of,
)
from electra_lab.testing.optimizers import STATE
from registry import optimizers
from registry.errors import CheckpointError


class Shared(nn.Module):
    """Two modules with one table, like generator and discriminator, a frozen parameter, and two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


class Counting(torch.optim.Optimizer):
    """Keeps numbers of every type in its state."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                state["calls"] = torch.zeros((), dtype=torch.int64)
                state["signs"] = torch.zeros_like(parameter, dtype=torch.bool)
                state["exact"] = torch.zeros_like(parameter, dtype=torch.float64)
                state["step"] = torch.zeros(())
            state["calls"] += 1
            state["step"] += 1
            state["exact"] += parameter.grad.double() / 3
            state["signs"].copy_(parameter.grad > 0)
            parameter.data -= 0.1 * parameter.grad


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {  # optimizers of the lab: electra_lab/testing/optimizers.py
    "adamw": lambda module: optimizers.get("adamw").component(list(learning(module).items()), 1e-2),
    "momentum": lambda module: torch.optim.SGD(learning(module).values(), lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda module: torch.optim.Adagrad(learning(module).values(), lr=0.1),
    "counting": lambda module: Counting(learning(module).values()),
}


def learning(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def trained(seed: int, steps: int = 2, name: str = "adamw") -> tuple[Shared, Any]:
    torch.manual_seed(seed)
    module = Shared()
    optimizer = OPTIMIZERS[name](module)
    for _ in range(steps):
        further(module, optimizer)
    return module, optimizer


def further(module: Shared, optimizer: Any) -> None:
    (module.one(torch.randn(5, 4)) + module.two(torch.randn(5, 4))).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    module.seen += 1


def kept(
    folder: Path, step: int, built: tuple[nn.Module, Any], state: dict[str, Any] | None = None, keep: int = 9,
    milestones: Collection[int] = (),
) -> Path:  # fmt: skip
    """Save a checkpoint as a run does, with an additional key in its state."""
    return save(folder, step, tensors_of(*built), STATE | (state or {}), keep, milestones)


def written(folder: Path, *steps: int, keep: int = 9) -> Path:
    for step in steps:
        kept(folder, step, trained(step), {"skipped": step}, keep)
    return folder


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_was_saved_comes_back_bit_for_bit(tmp_path: Path, name: str, steps: int) -> None:
    module, optimizer = trained(1, steps, name)
    kept(tmp_path, steps, (module, optimizer), {"more": [1.1, 2.2]}, 3)
    other, other_optimizer = trained(2, 1, name)
    state = load_newest(tmp_path, other, other_optimizer, pytest.fail)
    assert state == {"step": steps, **STATE, "more": [1.1, 2.2]}
    assert other.two.weight is other.one.weight
    for further_step in (False, True):
        if further_step:
            for pair in ((module, optimizer), (other, other_optimizer)):
                torch.manual_seed(9)
                further(*pair)
        for key, value in module.state_dict().items():
            assert torch.equal(value, other.state_dict()[key]), key
        for parameter, continued in zip(module.parameters(), other.parameters(), strict=True):
            here, there = optimizer.state.get(parameter, {}), other_optimizer.state.get(continued, {})
            assert here.keys() == there.keys()
            for key, value in here.items():
                assert value.dtype == there[key].dtype, key
                assert torch.equal(value, there[key]), key


def test_a_shared_table_is_stored_once_a_scratch_buffer_never_and_nothing_is_a_pickle(tmp_path: Path) -> None:
    path = kept(tmp_path, 1, trained(1), keep=3)
    header = (path / "state.safetensors").read_bytes()
    stored = {name for name in (b"one.weight", b"two.weight", b"seen", b"scratch") if b"model." + name in header}
    assert stored == {b"one.weight", b"seen"}
    assert {p.name for p in path.iterdir()} == {"state.safetensors", "state.json", "MANIFEST.json"}
    for file in path.iterdir():
        with pytest.raises(Exception):  # noqa: B017, PT011  # any error: it does not unpickle
            pickle.loads(file.read_bytes())


def test_the_newest_are_kept_and_foreign_files_left_alone(tmp_path: Path) -> None:
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-00000001").mkdir()  # no manifest: not the lab's to delete
    target = tmp_path.parent / "elsewhere"
    written(target, 5)
    (tmp_path / "step-00000002").symlink_to(target / "step-00000005")
    written(tmp_path, 10, 20, 30, keep=2)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"step-notes", "step-00000001", "step-00000002", "step-00000020", "step-00000030"}
    assert damage(target / "step-00000005") is None


def test_steps_are_numbers_however_many_digits_they_have(tmp_path: Path) -> None:
    written(tmp_path, 99_999_999, 100_000_000)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]
    assert checkpoint_path(tmp_path, 7) == tmp_path / "step-00000007"
    assert load_newest(tmp_path, *trained(0), pytest.fail)["step"] == 100_000_000  # type: ignore[index]


def corrupt(path: Path, how: str, chance: random.Random) -> None:
    file = path / chance.choice(["state.safetensors", "state.json", "MANIFEST.json"])
    data = bytearray(file.read_bytes())
    match how:
        case "truncated":
            file.write_bytes(data[: chance.randrange(len(data))])
        case "bit flipped":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
        case "emptied":
            file.write_bytes(b"")
        case "deleted":
            file.unlink()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("two"), 10, 20)


@pytest.fixture
def folder(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


@pytest.mark.parametrize("how", ["truncated", "bit flipped", "deleted", "emptied"])
@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_checkpoint_is_named_and_passed_over(folder: Path, how: str, seed: int) -> None:
    """A flipped bit in MANIFEST.json may only change white space; then nothing is damaged and the newest is loaded."""
    newest = folder / "step-00000020"
    before = json.loads((newest / "MANIFEST.json").read_text())
    corrupt(newest, how, random.Random(seed))
    warnings: list[str] = []
    state = load_newest(folder, *trained(0), warnings.append)
    if state["step"] == 20:
        assert json.loads((newest / "MANIFEST.json").read_text()) == before
    else:
        assert state["step"] == state["skipped"] == 10
        assert len(warnings) == 1
        assert str(newest) in warnings[0]
        assert warnings[0].endswith("; trying the checkpoint before it")


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_after_a_fallback_outlives_the_damaged_checkpoint(folder: Path, keep: int) -> None:
    """The damaged one has the higher step; it must neither displace the new one nor be loaded again."""
    (folder / "step-00000020" / "state.safetensors").write_bytes(b"")
    written(folder, 15, keep=keep)
    assert load_newest(folder, *trained(0), pytest.fail)["step"] == 15  # type: ignore[index]
    assert len(checkpoints(folder)) == keep
    # A damaged step can be saved again.
    (folder / "step-00000015" / "state.safetensors").write_bytes(b"")
    written(folder, 15)
    assert damage(folder / "step-00000015") is None


def test_no_usable_checkpoint_or_none_at_all(folder: Path, tmp_path: Path) -> None:
    for path in checkpoints(folder):
        (path / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints is usable"):
        load_newest(folder, *trained(0), lambda _: None)
    assert load_newest(tmp_path / "none", *trained(0), pytest.fail) is None


def test_one_of_other_networks_or_another_optimizer_is_refused(folder: Path) -> None:
    other = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="belongs to other networks"):
        load_newest(folder, other, OPTIMIZERS["adamw"](other), pytest.fail)
    module, _ = trained(2)
    with pytest.raises(CheckpointError, match=r"belongs to another optimizer; it has optimizer\.\w+\.one\.weight"):
        load_newest(folder, module, torch.optim.AdamW([module.one.bias, module.two.bias]), pytest.fail)


WRITES = 8  # places at which the disk may be full: the tensors, two JSON files, five flushes


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], list[object]]:
    """`interrupted(n, error)` raises `error` at the n-th write; it returns a list that grows with every write."""

    def arrange(call: int, error: BaseException) -> list[object]:
        calls: list[object] = []

        def failing(original: Any) -> Any:
            def write(*arguments: Any, **options: Any) -> Any:
                calls.append(arguments)
                if len(calls) == call + 1:
                    raise error
                return original(*arguments, **options)

            return write

        monkeypatch.setattr(checkpoint, "save_file", failing(checkpoint.save_file))
        monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
        monkeypatch.setattr("os.fsync", failing(lambda _: None))
        return calls

    return arrange


@pytest.mark.parametrize("call", range(WRITES))
def test_a_full_disk_leaves_the_last_checkpoint(folder: Path, interrupted: Any, call: int) -> None:
    interrupted(call, OSError(28, "No space left on device"))
    with pytest.raises(CheckpointError, match="No space left on device"):
        kept(folder, 30, trained(30), keep=1)
    assert [damage(folder / name) for name in ("step-00000010", "step-00000020")] == [None, None]
    assert not list(folder.glob(".step-*"))


def test_every_write_has_been_tried(folder: Path, interrupted: Any) -> None:
    calls = interrupted(-1, OSError())
    kept(folder, 30, trained(30), keep=1)
    assert len(calls) == WRITES


@pytest.mark.parametrize("call", range(WRITES))
def test_an_interrupted_save_leaves_the_last_checkpoint(folder: Path, interrupted: Any, monkeypatch, call: int) -> None:
    interrupted(call, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        kept(folder, 30, trained(30), {"skipped": 30})
    monkeypatch.undo()
    complete = (folder / "step-00000030").exists()
    assert complete == (call == WRITES - 1)  # only the parent folder was not flushed
    state = load_newest(folder, *trained(0), pytest.fail)
    assert state["step"] == state["skipped"] == (30 if complete else 20)
    written(folder, 40)
    assert not list(folder.glob(".step-*"))


def test_milestones_stay_and_do_not_count(tmp_path: Path) -> None:
    module, there = nn.Linear(2, 2), {}
    built = module, torch.optim.SGD(module.parameters(), lr=0.1)
    for step in (0, 2, 3, 4, 6, 8):
        kept(tmp_path, step, built, keep=2, milestones=[0, 3])
        there[step] = [int(path.name.removeprefix("step-")) for path in checkpoints(tmp_path)]
    assert there == {0: [0], 2: [0, 2], 3: [0, 2, 3], 4: [0, 2, 3, 4], 6: [0, 3, 4, 6], 8: [0, 3, 6, 8]}
    kept(tmp_path, 2, built, keep=2, milestones=[0, 3])  # rolled back, past a damaged milestone
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000000", "step-00000002"]


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
    """Otherwise it would silently be another model."""
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
    """Before or after the comparison with its manifest. `again`: the run went back and has rewritten the same step."""
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
    """The message does not advise to resume a healthy run."""
    pair(tmp_path, 1), pair(tmp_path, 2)
    act, removed = checkpoint.damage, tmp_path / "step-00000001"
    monkeypatch.setattr(checkpoint, "damage", lambda path: (shutil.rmtree(removed, ignore_errors=True), act(path))[1])
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 1\. Kept: 2\.$"):
        checkpoint.read_model(tmp_path, 1)
