"""The YAML of the README is the shipped one, and its commands and snippets run as written."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from electra_lab.cli import app
from electra_lab.cli._streams import CLOSED_PIPE
from tests.helpers import ROOT, exit_code, write_experiment

README, FIRST_RUN, CONTRIBUTING, TROUBLE = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/first-run.md", "CONTRIBUTING.md", "docs/trouble.md")
)


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the content of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.M | re.S)


def snippet(name: str) -> str:
    """Return the block whose first line is `# name`."""
    return next(block for _, block in blocks(README) if block.startswith(f"# {name}\n"))


def test_the_experiment_is_the_one_that_is_shipped() -> None:
    shipped = (ROOT / "experiments" / "reformer_small.yaml").read_text(encoding="utf-8")
    assert shipped in [text for language, text in blocks(README) if language == "yaml"]


def test_places_of_components_are_where_they_are_registered() -> None:
    found = re.findall(r"^  \w+ +(\w+) +(electra_lab/\S+\.py):(\d+)", FIRST_RUN, flags=re.M)
    assert len(found) > 4
    for name, file, line in found:
        assert f'register("{name}"' in (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


CONSOLE = "".join(text for kind, text in blocks(README + FIRST_RUN) if kind == "console")
COMMANDS = [line[2:] for line in CONSOLE.splitlines() if line.startswith("$ ")]


def test_commands_are_all_known() -> None:
    assert {c.split()[0] for c in COMMANDS} == {"make", "electra-lab"}
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert {c.split()[1] for c in COMMANDS if c.startswith("make")} <= set(targets)


@pytest.mark.parametrize("command", [c for c in COMMANDS if re.search(" check | registry |--dry-run", c)])
def test_commands_answer(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    small = ["--no-trial", "--set", "discriminator.depth=1"] if "--dry-run" in command else []
    assert exit_code(*command.split()[1:], *small) == 0
    assert capsys.readouterr().out


def test_a_users_component_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the two files as written, on a corpus that takes seconds."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for name in ("my_samplers.py", "mine.yaml"):
        (tmp_path / name).write_text(snippet(name), encoding="utf-8")
    write_experiment(tmp_path)  # for its corpus
    small = ["corpus={type: text_files, paths: [corpus.txt]}", "tokenizer.vocab_size=200", "data.held_out=0.3",
             "data.store=store", "train.steps=2", "schedules.learning_rate.warmup_steps=0"]  # fmt: skip
    options = [word for setting in small for word in ("--set", setting)]
    monkeypatch.chdir(tmp_path)
    code, said = exit_code("run", "mine.yaml", *options, "--out", "run"), capsys.readouterr().err
    assert code == 0, said
    assert "my_samplers.py:8" in said
    assert [p.name[9:] for p in (tmp_path / "run" / "plugins").iterdir()] == ["my_samplers.py"]


def test_exit_codes_are_those_of_the_errors() -> None:
    import registry.errors as errors

    listed, help_text = TROUBLE.split("## Exit codes\n\n")[1].partition(" Commands")[0], str(app.info.epilog)
    assert " ".join(listed.split()) == help_text.removeprefix("Exit codes: ")
    stated = {int(code) for code in re.findall(r"(\d+) [a-z]", listed)}
    real = {e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.LabError)}
    assert stated == real | {0, CLOSED_PIPE, 128 + signal.SIGTERM}


def test_every_room_is_listed() -> None:
    (tree,) = [text for kind, text in blocks(CONTRIBUTING) if kind == "text" and text.startswith("registry/ ")]
    indented = "\n".join(line for line in tree.splitlines() if line.startswith("  "))
    listed = re.findall(r"(?<!\S)(\w+)(?:/|\.py)(?!\S)", indented)
    rooms = {p.stem for p in (ROOT / "electra_lab").iterdir() if p.stem[0] != "_" and p.name != "py.typed"}
    assert sorted(listed) == sorted(rooms)
