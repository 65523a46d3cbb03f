"""Untrusted run directories: nothing in them blocks, is written through, or is trusted."""

import errno
import json
import math
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from electra_lab.storage import checkpoint, files
from electra_lab.storage.checkpoint import load_newest, not_finite, tensors_of
from electra_lab.storage.files import MANIFEST, Unreadable, damage, lock, read_json, read_text, reading, seal, sha256
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import CheckpointError, ConfigError, LabError
from tests.electra_lab.storage.test_checkpoint import kept, trained

PRECIOUS = "precious"


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "2 GB": lambda path: (path.touch(), os.truncate(path, 1 << 31)),  # sparse
    "nested": lambda path: path.write_text("[" * 100_000),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.fixture(params=HOSTILE, ids=lambda name: name.replace(" ", "-"))
def hostile(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return HOSTILE[request.param]


def test_json_and_manifests(tmp_path: Path, hostile: Callable[[Path], object]) -> None:
    hostile(tmp_path / MANIFEST)
    with pytest.raises(CheckpointError, match=f"^{tmp_path / MANIFEST}: cannot be read"):
        read_json(tmp_path / MANIFEST)
    assert (damage(tmp_path) or "").startswith(MANIFEST)


def test_a_sealed_file(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    seal(tmp_path)
    (tmp_path / "state.json").unlink()
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(OSError, match="is not a regular file"):
        sha256(tmp_path / "state.json")
    manifest = {"state.json": {"sha256": "", "bytes": 0}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert damage(tmp_path) == "state.json cannot be read (it is not a regular file)"


@pytest.mark.parametrize(
    "read",
    [RunDirectory.provenance, RunDirectory.records, RunDirectory.tokens, lambda run: run.read_json("examples.json")],
    ids=["provenance", "records", "tokens", "examples"],
)
def test_a_run_directory(tmp_path: Path, hostile: Callable[[Path], object], read: Any) -> None:
    for name in ("provenance.json", "metrics.jsonl", "tokenizer.json", "vocabulary.safetensors", "examples.json"):
        hostile(tmp_path / name)
    # An incomplete last line may stem from a kill, and there may be no records yet.
    none = [HOSTILE[name] for name in ("nested", "not UTF-8", "a dangling link")]
    if read is RunDirectory.records and hostile in none:
        assert read(RunDirectory(tmp_path)) == []
    else:
        with pytest.raises(CheckpointError, match=f"^{tmp_path}"):
            read(RunDirectory(tmp_path))


@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "FIFO"])
def test_a_lock_that_is_something_else_is_refused(tmp_path: Path, kind: str) -> None:
    """Writing the holder into it would overwrite the target of a link."""
    victim, file = tmp_path / "victim", tmp_path / "run" / ".lock"
    victim.write_text(PRECIOUS)
    file.parent.mkdir()
    make = {"link": lambda: file.symlink_to(victim), "hard link": lambda: file.hardlink_to(victim),
            "folder": file.mkdir, "FIFO": lambda: os.mkfifo(file)}  # fmt: skip
    make[kind]()
    for holding in (RunDirectory(file.parent).locked(), lock(file), reading(file)):
        with pytest.raises(ConfigError, match=rf"{file}: is not a lock file"), holding:
            pytest.fail("it is not held")
    assert victim.read_text() == PRECIOUS


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", RunDirectory(tmp_path / "run")
    victim.write_text(PRECIOUS)
    run.path.mkdir()
    for name in ("metrics.jsonl", "report.html", "metrics.damaged.jsonl"):
        (run.path / name).symlink_to(victim)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: cannot be written \(it is a link\)"):
        run.append({"step": 1, "split": "train"})
    run.metrics.unlink()
    os.mkfifo(run.metrics)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: cannot be written"):  # it does not wait for a reader
        run.append({"step": 1, "split": "train"})
    run.write("report.html", "a page")
    assert (run.path / "report.html").read_text() == "a page"
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").write_text("damaged\n{}\n")
    run.mend(lambda _: None)
    assert (run.path / "metrics.damaged.jsonl").read_text() == "damaged\n{}\n"
    assert victim.read_text() == PRECIOUS


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every file unreadable for this process; root could read them all."""
    monkeypatch.setattr(files.os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))


@pytest.mark.usefixtures("forbidden")
@pytest.mark.parametrize(
    "read",
    [RunDirectory.provenance, RunDirectory.records, RunDirectory.tokens, lambda run: damage(run.path)],
    ids=["provenance", "records", "tokens", "manifest"],
)
def test_what_may_not_be_read_is_not_called_damaged(tmp_path: Path, read: Any) -> None:
    with pytest.raises(LabError, match=r"cannot be read \(Permission denied\)") as refused:
        read(RunDirectory(tmp_path))
    assert "damaged" not in str(refused.value)
    with pytest.raises(Unreadable):
        damage(tmp_path)
    with pytest.raises(PermissionError):
        read_text(tmp_path / "file")


@pytest.mark.parametrize("name", ["optimizer.", "optimizer.exp_avg", "optimizer..", "optimizer.exp_avg.nobody"])
def test_state_of_no_parameter_is_of_another_optimizer(tmp_path: Path, name: str) -> None:
    module, optimizer = trained(1)
    kept(tmp_path, 1, (module, optimizer), keep=1)
    file = tmp_path / "step-00000001" / "state.safetensors"
    save_file({**load_file(file), name: torch.zeros(2)}, file)
    seal(file.parent)
    with pytest.raises(CheckpointError, match=re.escape(f"belongs to another optimizer; it has {name}.")):
        load_newest(tmp_path, *trained(2), pytest.fail)


def masked(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.full((2, 2), value))
    return module, torch.optim.AdamW(module.parameters())


@pytest.mark.parametrize(("value", "wrong"), [(-math.inf, []), (math.nan, ["model.mask"])])
def test_infinite_buffers_are_saved_and_loaded(tmp_path: Path, value: float, wrong: list[str]) -> None:
    """For example a causal mask; infinite weights and NaN buffers count as damage."""
    (module, optimizer), (other, loaded) = masked(value), masked(0.0)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not_finite(tensors_of(module, optimizer), module) == wrong
    kept(tmp_path, 1, (module, optimizer), keep=1)
    if wrong:
        with pytest.raises(CheckpointError, match="none of the 1 checkpoints is usable"):
            load_newest(tmp_path, other, loaded, lambda _: None)
    else:
        assert load_newest(tmp_path, other, loaded, pytest.fail) is not None
        assert torch.equal(other.mask, module.mask)
    with torch.no_grad():
        module.weight[0, 0] = math.inf
    assert not_finite(tensors_of(module, optimizer), module) == ["model.weight", *wrong]


@pytest.mark.parametrize(
    "state",
    [
        {"loss_scale": {"foo": 1}}, {"loss_scale": {"scale": 0.0, "calm": 0, "overflows": 0}},
        {"loss_scale": {"scale": 2.0, "calm": 2**40, "overflows": 0}}, {"loss_scale": 7},
    ],
)  # fmt: skip
def test_a_state_that_nothing_can_hold_is_damage(tmp_path: Path, state: dict[str, Any]) -> None:
    path = kept(tmp_path, 1, trained(1), state, keep=1)
    assert "state.json is damaged" in str(checkpoint.damage(path))


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EIO])
def test_temporary_errors_are_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A temporary failure of a network file system must not make a run continue from an older checkpoint."""
    path = kept(tmp_path, 1, trained(1), keep=1)
    monkeypatch.setattr(files, "open_regular", Mock(side_effect=OSError(number, os.strerror(number))))
    with nullcontext() if number == errno.EIO else pytest.raises(Unreadable):
        assert "cannot be read" in str(checkpoint.damage(path))


def test_only_what_the_lab_was_writing_is_removed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (tmp_path / ".export.part").mkdir()
    (tmp_path / ".mine.part").write_text("mine")
    (tmp_path / ".report.html.0123abcd.part").write_text("half")
    with directory.locked():
        assert sorted(path.name for path in tmp_path.iterdir()) == [".export.part", ".lock", ".mine.part"]
