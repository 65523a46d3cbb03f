"""What commands print: it commands no terminal, and a reader that has gone ends nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, experiment_text, write_experiment

TITLE = "\x1b]0;owned\x07"
SHOWN = r"\x1b]0;owned\x07"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", f"{TITLE}.yaml"),
        ("run", f"{TITLE}.yaml"),
        (f"{TITLE}",),
        ("check", "tiny.yaml", "--set", f"train.{TITLE}=3"),
        ("check", "tiny.yaml", "--set", f"train.steps={TITLE}"),
        ("check", "keys.yaml"),
        ("check", f"{TITLE}/tiny.yaml"),
        ("report", f"{TITLE}"),
        ("registry", "list", "--from", f"{TITLE}.py"),
        ("registry", "describe", "samplers", f"{TITLE}"),
        ("detect", f"{TITLE}", "text"),
    ],
)
def test_control_characters_of_names_and_keys_are_shown(lab: Any, arguments: tuple[str, ...]) -> None:
    write_experiment(Path())
    write_experiment(Path(TITLE), sampler="{type: gumbl}")
    (Path() / "keys.yaml").write_text(experiment_text(train=r'{"\e]0;owned\a": 3}'), encoding="utf-8")
    code, out, err = lab(*arguments)
    assert code == 2 or (code, arguments[0]) == (3, "detect")
    assert SHOWN in out + err
    assert not {"\x1b", "\x07"} & set(out + err)


COMPONENT = '''
from registry import samplers


@samplers.register("own", unbiased=False)
def own(logits, rng, /):
    """Draw \x1b[31mred\x1b]0;owned\x07."""
    return logits.argmax(-1)
'''


def test_control_characters_of_components_and_folders_are_shown(lab: Any) -> None:
    folder = Path(TITLE)
    folder.mkdir()
    (folder / "own.py").write_text(COMPONENT)
    code, out, err = lab("registry", "list", "--from", folder / "own.py")
    assert (code, err) == (0, "")
    assert SHOWN in out
    assert "\x1b" not in out


@pytest.mark.parametrize("command", ["registry list", "nonsense"])
@pytest.mark.parametrize("redirection", [">/dev/full 2>&1", "2>&1 | true"])
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path: Path, command: str, redirection: str) -> None:
    subprocess.run(
        ["bash", "-c", f'{{ "$0" -m electra_lab {command}; echo $? > code; }} {redirection}', sys.executable],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=False,
    )  # fmt: skip
    assert (tmp_path / "code").read_text() == ("2\n" if command == "nonsense" else "0\n")
