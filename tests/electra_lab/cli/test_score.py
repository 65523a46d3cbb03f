"""score: texts and records in, the same with a number out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import electra_lab
from electra_lab.api import held_out
from electra_lab.inference import opening
from tests.electra_lab.cli.conftest import CPU

TEXTS = ["the cat sat on the mat", "", "7 dogs saw dogs", "cat cat 12345 mat"]


@pytest.fixture(scope="module")
def scores(model: Path) -> list[float | None]:
    return [found.score for found in electra_lab.load(model, device="cpu").score(TEXTS)]


def scored(lab: Any, model: Path, *options: object) -> list[dict[str, Any]]:
    """Return the answers of a command as JSON, or of `--csv` as text."""
    form = "--csv" if "--csv" in options else "--json"
    code, out, err = lab("score", model, *options, *([] if form in options else [form]), *CPU)
    assert code == 0, err
    return (
        [json.loads(line) for line in out.splitlines()]
        if form == "--json"
        else [*csv.DictReader(io.StringIO(out, newline=""))]
    )


def test_lines_and_records_keep_their_order_and_fields(lab, model, scores, tmp_path: Path) -> None:
    rows = [{"n": str(n), "line": text} for n, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("n,line\n" + "".join(f"{row['n']},{row['line']}\n" for row in rows))
    for name in ("a.jsonl", "a.csv"):
        found = scored(lab, model, "--file", tmp_path / name, "--field", "line")
        assert [{"n": row["n"], "line": row["line"]} for row in found] == rows
        assert [row["score"] for row in found] == pytest.approx(scores, abs=1e-5)
    found = scored(lab, model, "--file", tmp_path / "a.csv", "--field", "line", "--csv")
    assert [row["score"] == "" for row in found] == [score is None for score in scores]


def test_top_prints_the_highest_first(lab: Any, model: Path, scores: list[float | None]) -> None:
    known = {text: score for text, score in zip(TEXTS, scores, strict=True) if score is not None}
    rising = sorted(known, key=known.__getitem__)
    code, out, _ = lab("score", model, *rising, "", "--top", 2, *CPU)
    assert (code, [line.split("  ")[1] for line in out.splitlines()]) == (0, rising[:0:-1])
    assert float(out.split()[0]) == pytest.approx(known[rising[-1]], abs=1e-3)


def test_percentiles_are_among_normal_texts(lab: Any, model: Path, tmp_path: Path) -> None:
    normal = tmp_path / "normal.txt"
    normal.write_text("\n".join(TEXTS) + "\n")  # one without tokens does not count
    found = [row["percentile"] for row in scored(lab, model, *TEXTS, "--normal", normal) if row["score"] is not None]
    assert sorted(found) == pytest.approx([100 / 6, 50, 500 / 6])
    (tmp_path / "empty_first.txt").write_text("\n7 dogs\n")
    table = scored(lab, model, "--file", tmp_path / "empty_first.txt", "--normal", normal, "--csv")
    assert [row["percentile"] == "" for row in table] == [True, False]
    # Of the text that the run kept from training, the lowest score.
    lowest = min(electra_lab.load(model, device="cpu").score(held_out(model)), key=lambda found: found.score)
    [row] = scored(lab, model, lowest.text, "--normal", "validation")
    assert 0 <= row["percentile"] < 100


def test_columns_of_the_answer(lab: Any, model: Path, tmp_path: Path) -> None:
    """A field of the same name is refused where it would be overwritten; a table without rows has a header."""
    path, both = tmp_path / "a.csv", ("--normal", "validation")
    path.write_text("score,text\n1,the cat\n")
    assert f"{path}:2: has the field 'score'" in lab.fails(3, "score", model, "--file", path, "--csv", *CPU)
    assert lab("score", model, "--file", path, *CPU)[0] == 0
    path.write_text("percentile,text\n1,the cat\n")
    assert scored(lab, model, "--file", path)
    assert "'percentile'" in lab.fails(3, "score", model, "--file", path, "--json", *both, *CPU)
    path.write_text("n,text\n")
    (tmp_path / "a.txt").write_text("")
    assert lab("score", model, "--file", path, "--csv", *CPU)[1] == "n,text,score\n"
    assert lab("score", model, "--file", tmp_path / "a.txt", "--csv", *both, *CPU)[1] == "text,score,percentile\n"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_files_are_read(lab: Any, model: Path, tmp_path: Path, pack: Any) -> None:
    """Every ending of a line and a text without one are as in the same file without compression."""
    ending = {gzip.compress: "gz", lzma.compress: "xz"}[pack]
    table = b"n\ttext\r\n1\tthe cat\n\n2\tsat\r on the mat"
    (tmp_path / "a.tsv").write_bytes(table)
    (tmp_path / f"a.tsv.{ending}").write_bytes(pack(table))
    plain, packed = (scored(lab, model, "--file", tmp_path / name, "--csv") for name in ("a.tsv", f"a.tsv.{ending}"))
    assert packed == plain
    assert "no file matches" in lab.fails(3, "score", "no model", "--file", f"absent.{ending}", *CPU)
    (tmp_path / f"cut.txt.{ending}").write_bytes(pack(b"the cat\n" * 9)[:-30])
    code, _, err = lab("detect", model, "--file", tmp_path / f"cut.txt.{ending}", *CPU)
    assert (code, "cut short" in err) == (3, True)


def test_a_score_that_is_not_finite_is_an_error(lab: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = electra_lab.load(model, device="cpu")
    with torch.no_grad():
        for parameter in (*pair.detector.parameters(), *pair.writer.parameters()):
            parameter.fill_(math.nan)
    monkeypatch.setattr(opening, "load", lambda *_, **__: pair)
    for options in ((), ("--reduce", "max"), ("--by", "likelihood")):
        assert "finite" in lab.fails(4, "score", model, "the cat", *options, *CPU)


@pytest.mark.parametrize(
    ("options", "code"),
    [("--json --csv", 2), ("--mask-prob 0", 2), ("--top 0", 2), ("--normal absent.txt", 3), ("--format jsonl", 3)],
)
def test_what_cannot_be_meant_is_refused(lab: Any, model: Path, options: str, code: int) -> None:
    assert lab.fails(code, "score", model, "no record", *options.split(), *CPU)
