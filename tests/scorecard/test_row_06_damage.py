"""Row 6: the newest checkpoint is cut, flipped, emptied, deleted, exchanged; then all of them are."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import saved
from tests.scorecard.project import EVERY, STEPS, Project

FILES = ("state.safetensors", "state.json", "MANIFEST.json")


def cut(path: Path, dice: random.Random) -> str:
    size = dice.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} cut to {size} bytes"


def flip(path: Path, dice: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place, bit = dice.randrange(len(content)), dice.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name} flipped"


def overwrite(path: Path, dice: random.Random) -> str:
    """Overwrite a block, as a failing disk does."""
    content = bytearray(path.read_bytes())
    place = dice.randrange(len(content))
    content[place : place + 512] = bytes(len(content[place : place + 512]))
    path.write_bytes(content)
    return f"512 bytes of {path.name} from {place} are zero"


def delete(path: Path, _: random.Random) -> str:
    path.unlink()
    return f"{path.name} deleted"


def empty(path: Path, _: random.Random) -> str:
    path.write_bytes(b"")
    return f"{path.name} empty"


def folder(path: Path, _: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return f"{path.name} is a folder"


def pipe(path: Path, _: random.Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return f"{path.name} is a pipe, which nobody writes to"


def older(path: Path, _: random.Random) -> str:
    shutil.copy(saved(path.parents[2])[0] / path.name, path)
    return f"{path.name} is that of the checkpoint before"


Damage = Callable[[Path, random.Random], str]
NAMED: list[tuple[Damage, str]] = [
    (do, name) for do in (delete, empty, folder, pipe, older) for name in FILES if (do, name) != (older, FILES[2])
]


def is_passed_over(project: Project, out: Path) -> None:
    ended = project.resume(out, timeout=30).must(0)
    assert f"step-{STEPS:08d}" in ended.err, f"the damaged checkpoint is not named: {ended}"
    assert f"resuming after step {STEPS - EVERY}" in ended.err, f"the one before it was not used: {ended}"
    project.is_alike(out)


@pytest.mark.scorecard
def test_anywhere(score: Score, project: Project) -> None:
    for trial in score.numbers():
        for do in (cut, flip):
            dice, out = score.dice((trial, do.__name__)), project.copy()
            name = FILES[dice.randrange(3)]
            with project.trial(score, f"trial {trial}: {do(saved(out)[-1] / name, dice)}", out):
                is_passed_over(project, out)


@pytest.mark.scorecard
def test_whole_files(score: Score, project: Project) -> None:
    for do, name in score.chosen(NAMED, lambda case: case[1]):
        out = project.copy()
        with project.trial(score, do(saved(out)[-1] / name, score.dice(name)), out):
            is_passed_over(project, out)


def test_all_checkpoints(score: Score, project: Project) -> None:
    """No checkpoint is left to resume from: exit 4, and the files stay unchanged."""
    every = [(do, name) for do in (cut, flip, overwrite, delete, empty) for name in FILES]
    for do, name in score.chosen(every, lambda case: case[1]):
        dice, out = score.dice(name), project.copy()
        did = [do(path / name, dice) for path in saved(out)]
        with project.trial(score, f"all checkpoints: {did[0]}", out):
            kept = (out / "metrics.jsonl").read_bytes()
            ended = project.resume(out).must(4)
            assert all(f"step-{step:08d}" in ended.err for step in (STEPS, STEPS - EVERY)), f"not named: {ended}"
            assert (out / "metrics.jsonl").read_bytes() == kept, "the records have changed"
