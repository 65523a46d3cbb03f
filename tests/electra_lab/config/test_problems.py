"""Errors at a place of the config, in line order."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from electra_lab.config.problems import problem, problems, sentences
from electra_lab.config.source import Mark, parse, with_overrides
from tests.electra_lab.config.test_load import problems as refused
from tests.helpers import EXPERIMENT, write_experiment


def test_errors_come_in_line_order_whatever_the_order_of_the_keys(tmp_path: Path) -> None:
    """Twelve lines, so that line 9 must come before line 10; what has no line of its own stands at the first."""
    wrong = {"name": "Tiny", "data": "{held_out: 2}", "sampler": "{type: gumbl}", "train": "{steps: 0}", "corpus": "3"}
    lines = write_experiment(tmp_path, **wrong).read_text().splitlines()
    path = tmp_path / "turned.yaml"
    path.write_text("\n".join(line for line in reversed(lines) if not line.startswith("masking")))
    found = refused(path)
    places = [int(line.split(":")[1]) for line in found]
    assert places == sorted(places)
    keys = [line.split(": ")[1].split(".")[0] for line in found]
    assert keys == ["masking", "train", "sampler", "data", "corpus", "name"]


def test_the_errors_of_one_file_stand_together(tmp_path: Path) -> None:
    write_experiment(tmp_path, "base.yaml", sampler="{type: gumbl}", masking="{type: replace_prob, mask_prob: 2}")
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\n\nname: Child\ntrain: {steps: 0}\n")
    keys = [line.split(": ")[1] for line in refused(child, "seed=-1")]
    assert keys == ["name", "train.steps", "seed", "masking.mask_prob", "sampler.type"]


@pytest.mark.parametrize(
    ("place", "file", "line"),
    [
        ("a.yaml:12", "a.yaml", 12), ("C:/a: b.yaml:3", "C:/a: b.yaml", 3), ("--set a.b=3", "--set a.b=3", 0),
        ("--set a=x:4", "--set a=x:4", 0), ("plan", "plan", 0),
    ],
)  # fmt: skip
def test_a_mark_knows_its_file_and_line(place: str, file: str, line: int) -> None:
    mark = Mark(place, Path())
    assert (mark.file, mark.line) == (file, line)


def test_a_sentence_appears_once_and_braces_stay() -> None:
    root = with_overrides(parse(EXPERIMENT, "f.yaml", Path()), ["train.steps={}"])
    marks = dict(root.marks())
    error = problems([(("train", "steps"), "is {odd}.", {}), (("train", "steps"), "is {odd}.", {}), ((), "is bad.", 3)])
    assert isinstance(error, ValidationError)
    assert str(sentences(error, marks)) == "--set train.steps={}: train.steps: is {odd}.\nf.yaml:1: is bad."
    assert str(sentences(problem(("nowhere", "at", 3), "is bad."), marks)) == "f.yaml:1: nowhere.at.3: is bad."
