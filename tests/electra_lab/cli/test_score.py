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
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

CPU = ("--device", "cpu")
TEXTS = ["the cat sat on the mat", "", "7 dogs saw dogs", "cat cat 12345 mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with for_a_module():
        return run(experiment(folder), folder / "run")


@pytest.fixture(scope="module")
def scores(model: Path) -> list[float | None]:
    return [found.score for found in electra_lab.load(model, device="cpu").score(TEXTS)]


def test_lines_and_records_keep_their_order_and_fields(
    lab: Any, model: Path, scores: list[float | None], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"n": n, "line": text}) + "\n" for n, text in enumerate(TEXTS))
    )
    (tmp_path / "a.csv").write_text("n,line\n" + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS)))
    for name in ("a.jsonl", "a.csv"):
        code, out, _ = lab("score", model, "--file", tmp_path / name, "--field", "line", "--json", *CPU)
        rows = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        assert [(str(row["n"]), row["line"]) for row in rows] == [(str(n), text) for n, text in enumerate(TEXTS)]
        assert [row["score"] for row in rows] == pytest.approx(scores, abs=1e-5)
    code, out, _ = lab("score", model, "--file", tmp_path / "a.csv", "--field", "line", "--csv", *CPU)
    assert [row["score"] == "" for row in csv.DictReader(io.StringIO(out))] == [score is None for score in scores]


def test_top_prints_the_highest_first(lab: Any, model: Path, scores: list[float | None]) -> None:
    known = {text: score for text, score in zip(TEXTS, scores, strict=True) if score is not None}
    rising = sorted(known, key=known.__getitem__)
    expected = rising[:0:-1]
    code, out, _ = lab("score", model, *rising, "", "--top", 2, *CPU)
    assert code == 0
    assert [line.split("  ")[1] for line in out.splitlines()] == expected
    assert float(out.split()[0]) == pytest.approx(known[expected[0]], abs=1e-3)


def test_percentiles_are_among_normal_texts(lab: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "normal.txt").write_text("\n".join(TEXTS) + "\n")  # one without tokens does not count
    code, out, _ = lab("score", model, *TEXTS, "--normal", tmp_path / "normal.txt", "--json", *CPU)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sorted(row["percentile"] for row in rows if row["score"] is not None) == pytest.approx(
        [100 / 6, 50, 500 / 6]
    )
    (tmp_path / "empty_first.txt").write_text("\n7 dogs\n")
    files = "--file", tmp_path / "empty_first.txt", "--normal", tmp_path / "normal.txt"
    _, out, _ = lab("score", model, *files, "--csv", *CPU)
    assert [row["percentile"] == "" for row in csv.DictReader(io.StringIO(out))] == [True, False]
    # Of the text that the run kept from training, the lowest score.
    pair = electra_lab.load(model, device="cpu")
    lowest = min(pair.score(held_out(model)), key=lambda found: found.score)
    code, out, _ = lab("score", model, lowest.text, "--normal", "validation", "--json", *CPU)
    assert code == 0
    assert 0 <= json.loads(out)["percentile"] < 100


def test_a_column_of_the_answer_is_refused_and_named(lab: Any, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("score,text\n1,the cat\n")
    assert f"{path}:2: has the field 'score'" in lab.fails(3, "score", model, "--file", path, "--csv", *CPU)
    assert lab("score", model, "--file", path, *CPU)[0] == 0  # nothing is overwritten
    path.write_text("percentile,text\n1,the cat\n")
    assert lab("score", model, "--file", path, "--json", *CPU)[0] == 0
    options = ("--json", "--normal", "validation")
    assert "'percentile'" in lab.fails(3, "score", model, "--file", path, *options, *CPU)


def test_a_table_without_rows_has_a_header(lab: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n")
    (tmp_path / "a.txt").write_text("")
    assert lab("score", model, "--file", tmp_path / "a.csv", "--csv", *CPU)[1] == "n,text,score\n"
    options = ("--csv", "--normal", "validation")
    assert lab("score", model, "--file", tmp_path / "a.txt", *options, *CPU)[1] == "text,score,percentile\n"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_files_are_read(lab: Any, model: Path, tmp_path: Path, pack: Any) -> None:
    """Every ending of a line and a text without one are as in the same file without compression."""
    ending = {gzip.compress: "gz", lzma.compress: "xz"}[pack]
    table = b"n\ttext\r\n1\tthe cat\n\n2\tsat\r on the mat"
    (tmp_path / "a.tsv").write_bytes(table)
    (tmp_path / f"a.tsv.{ending}").write_bytes(pack(table))
    plain, packed = (
        lab("score", model, "--file", tmp_path / name, "--csv", *CPU) for name in ("a.tsv", f"a.tsv.{ending}")
    )
    assert (plain[0], packed) == (0, plain)
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
    [
        (("--json", "--csv"), 2),
        (("--mask-prob", "0"), 2),
        (("--top", "0"), 2),
        (("--normal", "absent.txt"), 3),
        (("--format", "jsonl"), 3),
    ],
)
def test_what_cannot_be_meant_is_refused(lab: Any, model: Path, options: tuple[str, ...], code: int) -> None:
    found, out, err = lab("score", model, "no record", *options, *CPU)
    assert (found, out) == (code, "")
    assert err
