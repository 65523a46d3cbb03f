"""What was measured is measured once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from electra_lab.storage import machine
from electra_lab.storage.machine import measured_folder, remembered


class Found(BaseModel):
    number: int


def never() -> Found:
    raise AssertionError("it is known")


def test_it_is_measured_once_for_each_question(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert remembered(Found, folder, {"length": 1}, lambda: Found(number=3)).number == 3
    assert remembered(Found, folder, {"length": 1}, never).number == 3
    assert remembered(Found, folder, {"length": 2}, lambda: Found(number=4)).number == 4
    assert sorted(json.loads(file.read_text())["about"]["length"] for file in folder.iterdir()) == [1, 2]


def test_of_several_at_once_the_first_counts(tmp_path: Path) -> None:
    def slower() -> Found:
        remembered(Found, tmp_path, "it", lambda: Found(number=1))
        return Found(number=2)

    assert remembered(Found, tmp_path, "it", slower).number == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"found": {"number": "x"}}', "\x00"])
def test_a_damaged_file_is_written_anew(tmp_path: Path, damage: str) -> None:
    remembered(Found, tmp_path, "it", lambda: Found(number=1))
    (file,) = tmp_path.iterdir()
    file.write_text(damage)
    assert remembered(Found, tmp_path, "it", lambda: Found(number=5)).number == 5
    assert remembered(Found, tmp_path, "it", never).number == 5
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for number in (1, 2):
        assert remembered(Found, tmp_path / "file" / "in", "it", lambda n=number: Found(number=n)).number == number


def test_machines_that_share_the_folder_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one that is finished counts, though processes of two machines have the same number."""
    link = machine.os.link

    def later(mine: Path, file: Path) -> None:  # before this one is finished, another is
        monkeypatch.setattr(machine.os, "link", link)
        remembered(Found, tmp_path, "it", lambda: Found(number=1))
        link(mine, file)

    monkeypatch.setattr(machine.os, "getpid", lambda: 7)
    monkeypatch.setattr(machine.os, "link", later)
    assert remembered(Found, tmp_path, "it", lambda: Found(number=2)).number == 1
    assert remembered(Found, tmp_path, "it", never).number == 1


def test_without_a_home_the_folder_is_a_temporary_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    assert measured_folder() == tmp_path / "electra_lab" / "measured"


def test_the_folder_is_the_user_s_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured_folder() == tmp_path / "electra_lab" / "measured"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert measured_folder() == tmp_path / ".cache" / "electra_lab" / "measured"
