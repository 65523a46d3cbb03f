"""The files and commands of docs/extending.md run as written, and the lab answers as shown."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path

import pytest

import registry
from tests.helpers import ROOT, exit_code

pytest_plugins = "pytester"

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.M | re.S)
NAMED = re.compile(r"# (\S+\.(?:py|yaml|toml))\n")
FILES = {named[1]: text for _, text in BLOCK.findall(PAGE) if (named := NAMED.match(text))}


WRITTEN = "--set train.steps=50 --set schedules.learning_rate.warmup_steps=5"
SHORT = "--set train.steps=2 --set schedules.learning_rate.warmup_steps=0"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, and `experiments/` as shipped except for a corpus that takes seconds.

    Its vocabulary is as large as the real one: the page shows ids.
    """
    folder = tmp_path_factory.mktemp("bench")
    shipped = ROOT / "experiments"
    experiments = folder / "experiments"
    experiments.mkdir()
    (experiments / "plugins").symlink_to(shipped / "plugins")
    parts = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "we", "zi")
    words = ["".join(word) for word in product(parts, repeat=3)]
    (folder / "corpus.txt").write_text("\n\n".join(" ".join(words[i::90] * 2) for i in range(90)), encoding="utf-8")
    small = [f"extends: {shipped / 'reformer_small.yaml'}", "corpus: {type: text_files, paths: [../corpus.txt]}",
             "data: {store: ../store, held_out: 0.1}", "evaluate: {examples: 0}", ""]  # fmt: skip
    (experiments / "reformer_small.yaml").write_text("\n".join(small), encoding="utf-8")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def answer(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and the output of an `electra-lab` command; `> FILE` writes the output there."""
    words, target = shlex.split(command), None
    if ">" in words:
        *words, _, target = words
    assert words[0] == "electra-lab"
    capsys.readouterr()
    code = exit_code(*words[1:])
    said = capsys.readouterr()
    if target:
        Path(target).write_text(said.out, encoding="utf-8")
    return code, said.err + said.out


def commands() -> list[tuple[str, str]]:
    """Return every `$ ` line with the lines below it."""
    found: list[tuple[str, str]] = []
    for kind, text in BLOCK.findall(PAGE):
        for line in text.splitlines() if kind == "console" else ():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


def pattern(shown: str) -> str:
    """Return a pattern in which `...` matches any text, and on a separate line any number of lines."""
    lines = (re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " +") + "\n" for line in shown.splitlines())
    return "".join("(?:.*\n)*?" if line == ".*\n" else line for line in lines)


def test_a_sampler_of_ones_own_takes_fifteen_lines_and_four() -> None:
    first = PAGE.split("\n## ")[1]
    blocks = BLOCK.findall(first)
    (sampler,) = [text for kind, text in blocks if kind == "python"]
    (experiment,) = [text for kind, text in blocks if kind == "yaml"]
    assert first.startswith("A sampler in fifteen lines")
    assert len(sampler.splitlines()) <= 15
    assert len(experiment.splitlines()) <= 4
    assert commands()[0][0].startswith("electra-lab run mine.yaml "), "the next test runs it"


@pytest.mark.parametrize(("command", "shown"), [c for c in commands() if c[0].startswith("electra-lab")])
def test_a_command_answers_as_shown(command: str, shown: str, bench: Path, monkeypatch, capsys) -> None:
    """With fewer steps than written; a dry run takes none."""
    monkeypatch.chdir(bench)
    code, said = answer(command.replace(WRITTEN, SHORT).replace("--dry-run", "--dry-run --no-trial"), capsys)
    assert code == 0, said
    assert said or ">" in command
    assert re.fullmatch(pattern(shown), said) or not shown, said


def test_the_files_obey_the_laws_by_the_command_that_is_shown(pytester: pytest.Pytester) -> None:
    """Run in this process, which has already imported torch."""
    assert {command.split()[0] for command, _ in commands()} == {"electra-lab", "pip", "python"}
    (command,) = [shlex.split(c) for c, _ in commands() if c.startswith("python")]
    assert command[:3] == ["python", "-m", "pytest"]
    for name, text in FILES.items():
        if name.endswith(".py"):
            (pytester.path / name).write_text(text, encoding="utf-8")
    done = pytester.runpytest_inprocess(*command[3:], "-p", "no:cacheprovider")
    outcomes = done.parseoutcomes()
    assert done.ret == 0, done.outlines
    assert outcomes["passed"] >= 15
    assert "failed" not in outcomes


def mistakes() -> list[tuple[str, str, str]]:
    """Return (file, line written into it, answer of the lab) for each mistake of that section."""
    section = PAGE.split("\n## When something is wrong")[1].split("\n## ")[0]
    found, file, line = [], "", ""
    for match in re.finditer(r"^In `(.+?)`:$|" + BLOCK.pattern, section, flags=re.M | re.S):
        if match[1]:
            file = match[1]
        elif match[2] == "text":
            found.append((file, line, match[3]))
        else:
            line = match[3]
    return found


@pytest.mark.parametrize(("file", "line", "shown"), mistakes())
def test_a_mistake_is_reported_as_shown(file: str, line: str, shown: str, bench: Path, monkeypatch, capsys) -> None:
    assert line.count("\n") == 1
    monkeypatch.chdir(bench)
    lines = FILES[file].splitlines(keepends=True)
    begins = re.match(r"\s*@?\w+", line)[0]
    (place,) = [number for number, old in enumerate(lines) if old.startswith(begins)]
    lines[place] = line
    (bench / file).write_text("".join(lines), encoding="utf-8")
    run = "electra-lab run mine.yaml --out nothing"
    if file == "averages.py":
        run += " --set 'imports=[exploring.py, averages.py]' --set generator.type=averages"
        run += " --set 'discriminator={type: averages, dim: 128, depth: 2, heads: 1}'"
    try:
        code, said = answer(run, capsys)
    finally:
        (bench / file).write_text(FILES[file], encoding="utf-8")
    said = re.sub(r"^reading the corpus .*\n", "", said).replace(f"{ROOT}/", "").replace(f"{bench}/", "")
    assert code == 2, said
    assert said == shown
    assert not (bench / "nothing").exists()


def test_the_mistakes_that_are_shown() -> None:
    assert len(mistakes()) >= 10
    assert {file for file, _, _ in mistakes()} == {"exploring.py", "averages.py", "mine.yaml"}


def test_every_kind_is_in_the_table_with_its_parameters() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.M))
    assert set(rows) == {components.plural for components in registry.ALL}
    for components in registry.ALL:
        shown = re.findall(r"`(\w+)`", rows[components.plural])
        assert shown == [name for lead in components.leads for name in lead], components.plural
    assert all(f"`{name}`" in PAGE for name in registry.masking_strategies.required)


def test_the_package_is_the_one_that_is_shipped() -> None:
    shipped = (ROOT / "experiments" / "plugins" / "package" / "pyproject.toml").read_text(encoding="utf-8")
    assert FILES["pyproject.toml"] == shipped


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "docs" / "extending.md", ROOT / "experiments" / "plugins" / "package" / "README.md"]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
