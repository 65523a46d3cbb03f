"""Missing libraries are named before anything starts, with the extra that installs them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from electra_lab.trackers import _library
from registry import trackers
from registry.errors import ConfigError
from tests.helpers import ROOT

NAMES = ("mlflow", "tensorboard", "trackio", "wandb")


def test_every_tracker_has_tests() -> None:
    tested = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert tested - {"library"} == {*trackers.names()} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(_library, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        trackers.get(name).component().check()
    (extra,) = re.findall(rf"^needs {name}\..*electra-lab\[(\w+)\]", str(caught.value))
    assert any(re.match(rf"{name}\b", package) for package in extras[extra])


def test_a_folder_that_is_called_like_a_library_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B itself creates a folder wandb/ in the working directory."""
    (tmp_path / "no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"needs no_library\."):
        _library.require("extra", "json", "no_library")


def test_listing_and_looking_up_import_no_library() -> None:
    code = (
        "import sys; from registry import trackers; "
        "print(*(trackers.get(name).name for name in trackers.names())); "
        f"print(*({{'torch', *{NAMES}}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == [" ".join(NAMES), ""]
