"""The tutorials: their files and commands as they stand there, one after the other, with trainings of a few steps."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

QUICK = (
    "train.steps=4",
    "train.batch_size=4",
    "schedules.learning_rate.warmup_steps=0",
    "evaluate.tokens=2000",
    "evaluate.test_tokens=2000",
)
SMALL = {
    "run": QUICK,
    "ablate": (*QUICK[1:], "budget.flops=null", "budget.steps=4", "seeds=[0,1]"),
    "finetune": ("train.epochs=1", "data.train_examples=20", "seeds=[0]"),
}
WORDS = ["the", "a", "cat", "dog", "house", "tree", "sat", "stood", "saw", "slowly", "under", "near", "green", "old"]


def logs(folder: Path) -> None:
    """Two days of logs, compressed, and today's."""
    (folder / "logs").mkdir()
    for day in (1, 2, 3):
        lines = [f"2026-11-0{day} 12:00:{n % 60:02} host={n % 7} web: GET /cart{n % 11} in {n} ms" for n in range(600)]
        text = "\n".join(lines).encode()
        (folder / "logs" / f"{day}.log.gz").write_bytes(gzip.compress(text))
    (folder / "today.log").write_bytes(text)


def sequences(folder: Path) -> None:
    """A genome, other sequences and visits."""
    rng = random.Random(0)
    (folder / "genome").mkdir()
    fasta = "".join(f">chromosome{n} of it\n" + "".join(rng.choices("ACGT", k=3000)) + "\n" for n in range(80))
    (folder / "genome" / "a.fa.gz").write_bytes(gzip.compress(fasta.encode()))
    (folder / "new.fa").write_text(">one first\nACGT\nacgt\n>two\nTTTT\n")
    (folder / "sequences.txt").write_text("ACGT\nTTTT\n")
    visits = [{"user": f"u{n % 200}", "ids": rng.choices(range(5, 2000), k=9)} for n in range(400)]
    (folder / "visits.jsonl").write_text("\n".join(map(json.dumps, visits)))


def sentences(folder: Path) -> None:
    """A book, and the script that damages it."""
    rng = random.Random(0)
    (folder / "books").mkdir()
    found = [" ".join(rng.choices(WORDS, k=9)).capitalize() + "." for _ in range(4000)]
    paragraphs = [" ".join(found[start : start + 5]) for start in range(0, len(found), 5)]
    (folder / "books" / "one.txt").write_text("\n\n".join(paragraphs))
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")


def labelled(folder: Path) -> None:
    """Texts with labels, to train and to validate."""
    rows = [
        f"a {word} near the house,{'animal' if word in ('cat', 'dog') else 'plant'}" for word in ("cat", "tree", "dog")
    ]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows * 8]))


def nothing(folder: Path) -> None:
    """These tutorials bring all they need."""


PAGES: dict[str, Callable[[Path], None]] = {
    "log-anomalies": logs,
    "sequences": sequences,
    "broken-sentences": sentences,
    "own-objective": nothing,
    "ablation-question": nothing,
    "finetune-predict": labelled,
}
# What the last commands write: a file, its last columns, the number of its rows.
WRITTEN = {
    "log-anomalies": ("scored.csv", "score,percentile", 1500),
    "sequences": ("scored.csv", "name,text,score", 2),
    "finetune-predict": ("labelled.csv", "probability_xml", 2),
}
NAMED = re.compile(r"# (\w+\.(?:yaml|py))\n")


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a page that mean something to do, console blocks by their commands."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.M | re.S):
        if kind == "console":
            yield from (("console", line[2:]) for line in block.splitlines() if line.startswith("$ "))
        elif kind != "text":
            yield kind, block


@pytest.fixture
def here(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """A shell in an empty folder that knows `python` and an `electra-lab` whose trainings are short."""
    options = {verb: " ".join(f"--set {option}" for option in changes) for verb, changes in SMALL.items()}
    cases = "".join(f'[ "$1" = {verb} ] && set -- "$@" {words}\n' for verb, words in options.items())
    lab = f'{cases}exec "{sys.executable}" -m electra_lab "$@"'
    for name, line in (("electra-lab", lab), ("python", f'exec "{sys.executable}" "$@"')):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/bash\n{line}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "work").mkdir()

    def call(command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        words = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.run(
            words, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, timeout=3600, check=False
        )

    return call


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_works_from_the_first_command_to_the_last(
    page: str, here: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    PAGES[page](folder)
    for kind, block in steps(page):
        if named := NAMED.match(block):
            (folder / named[1]).write_text(block, encoding="utf-8")
            continue
        if kind == "python":
            (folder / "snippet.py").write_text(block, encoding="utf-8")
        done = here("python snippet.py" if kind == "python" else block)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    # What the last commands wrote.
    if page in WRITTEN:
        file, columns, number = WRITTEN[page]
        header, *rows = (folder / file).read_text().splitlines()
        assert header.endswith(columns)
        assert len(rows) == number


@pytest.mark.parametrize("page", PAGES)
def test_files_of_a_tutorial_have_a_name_and_commands_are_known(page: str) -> None:
    found = list(steps(page))
    assert all(NAMED.match(block) for kind, block in found if kind == "yaml")
    verbs = {verb for kind, block in found if kind == "console" for verb in re.findall(r"electra-lab (\S+)", block)}
    assert verbs & SMALL.keys(), "nothing is trained"
    assert verbs <= SMALL.keys() | {"new", "check", "prepare", "score", "embed", "predict"}
