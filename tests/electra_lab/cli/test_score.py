"""score: its fields, its limits and percentiles, and what it leaves out of the scores."""

import json
import math
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import electra_lab
from electra_lab.api import held_out
from electra_lab.cli.score import _in_whole, _without
from electra_lab.inference import opening
from electra_lab.inference.results import Scored
from tests.electra_lab.cli.conftest import CPU, scored

SCORED = ["the cat sat on the mat", "", "7 dogs saw dogs", "cat cat 12345 mat"]


@pytest.fixture(scope="module")
def scores(model: Path) -> list[float | None]:
    return [found.score for found in electra_lab.load(model, device="cpu").score(SCORED)]


def test_lines_and_records_keep_their_order_and_fields(lab, model, scores, tmp_path: Path) -> None:
    rows = [{"n": str(n), "line": text} for n, text in enumerate(SCORED)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("n,line\n" + "".join(f"{row['n']},{row['line']}\n" for row in rows))
    for name in ("a.jsonl", "a.csv"):
        found = scored(lab, model, "--file", tmp_path / name, "--field", "line")
        assert [{"n": row["n"], "line": row["line"]} for row in found] == rows
        assert [row["score"] for row in found] == pytest.approx(scores, abs=1e-5)
    found = scored(lab, model, "--file", tmp_path / "a.csv", "--field", "line", "--csv")
    assert [row["score"] == "" for row in found] == [score is None for score in scores]


def test_top_prints_the_highest_first(lab: Any, model: Path, scores: list[float | None]) -> None:
    known = {text: score for text, score in zip(SCORED, scores, strict=True) if score is not None}
    rising = sorted(known, key=known.__getitem__)
    code, out, _ = lab("score", model, *rising, "", "--top", 2, *CPU)
    assert (code, [line.split("  ")[1] for line in out.splitlines()]) == (0, rising[:0:-1])
    assert float(out.split()[0]) == pytest.approx(known[rising[-1]], abs=1e-3)


def test_above_prints_what_is_above_the_limit_in_order(lab: Any, model: Path, scores: list[float | None]) -> None:
    """With the numbers of the lines, also in plain output; a score that equals the limit is not above it."""
    known = {n: score for n, score in enumerate(scores, start=1) if score is not None}
    rows = scored(lab, model, *SCORED, "--above", -1e9)
    assert [row["line"] for row in rows] == [*known]
    limit = sorted(row["score"] for row in rows)[0]
    expected = [row["line"] for row in rows if row["score"] > limit]
    assert len(expected) == len(known) - 1
    out = lab("score", model, *SCORED, "--above", limit, *CPU)[1]
    assert [line.split(maxsplit=2)[::2] for line in out.splitlines()] == [[str(n), SCORED[n - 1]] for n in expected]
    [row] = scored(lab, model, *SCORED, "--above", limit, "--top", 1)
    assert row["line"] == max(known, key=known.__getitem__)
    assert lab("score", model, *SCORED, "--above", 1e9, "--quiet", *CPU) == (0, "", "")
    assert "line" not in scored(lab, model, *SCORED)[0]


def test_records_keep_their_fields(lab: Any, model: Path) -> None:
    """Also one called line; plain output has the number."""
    Path("a.jsonl").write_text('{"text": "3 dogs", "line": "its"}\n')
    [row] = scored(lab, model, "--file", "a.jsonl", "--above", -99)
    assert (row["line"], lab("score", model, "--file", "a.jsonl", "--above", -99, *CPU)[1].split()[0]) == ("its", "1")


def test_a_removed_pattern_is_printed_but_not_scored(lab: Any, model: Path, tmp_path: Path) -> None:
    stamped = [f"10:0{n}   {text} ".replace(" ", "  10:99 ", 2) for n, text in enumerate(SCORED)]
    (tmp_path / "a.log").write_text("\n".join(stamped) + "\n")
    pattern = ("--remove", r"\d\d:\d\d | 10:99(?= )")
    whole = scored(lab, model, "--file", tmp_path / "a.log", *pattern)
    short = [re.sub(pattern[1], "", text).strip() for text in stamped]
    expected = electra_lab.load(model, device="cpu").score(short)
    assert [(row["line"], row["text"]) for row in whole] == [*enumerate(stamped, start=1)]
    assert [row["score"] for row in whole] == pytest.approx([found.score for found in expected], abs=1e-5)
    out = lab("score", model, "--file", tmp_path / "a.log", *pattern, *CPU)[1]
    assert [line.partition("  ")[2] for line in out.splitlines()] == stamped
    assert [line.split()[0] for line in out.splitlines()] == [str(n) for n in range(1, len(stamped) + 1)]
    # Normal texts lose it, too, so that each of them is as usual as itself.
    (tmp_path / "normal.log").write_text(stamped[0] + "\n")
    [row] = scored(lab, model, stamped[0], *pattern, "--normal", tmp_path / "normal.log")
    assert row["percentile"] == 50
    for option in ("--remove", "--first-line"):
        assert lab.fails(2, "score", model, "a", option, "(", *CPU).startswith(f"{option}: ")


def test_scores_are_at_their_places_in_the_whole_text(model: Path) -> None:
    """What the tokens cover is what they cover in the text without the pattern."""
    pair, removed = electra_lab.load(model, device="cpu"), re.compile(r"\d+ ?")
    for whole in ("12  the 3cat12 sat 45", "the 1 2 cat", "12", "", " the mat 1 "):
        short = _without(removed, {"text": whole})
        before = pair.score(short)
        after = _in_whole(before, whole, removed)
        assert (after.text, after.score) == (whole, before.score)
        for (start, end), (first, last) in zip(before.offsets, after.offsets, strict=True):
            token = short[start:end]
            assert (removed.sub("", whole[first:last]), whole[first], whole[last - 1]) == (token, token[0], token[-1])
    whole, begin = " " * 400_000 + "cat", time.process_time()
    assert _in_whole(pair.score("cat"), whole, removed).offsets == [(400_000, 400_003)]
    assert time.process_time() - begin < 5  # half a second; minutes where it grows with the square of their number


def test_texts_of_several_lines_begin_where_a_pattern_matches(lab: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("  at the end\n1 the cat\n  at the mat\n\n2 dogs\n3 a cat\n  sat")
    found = scored(lab, model, "--file", tmp_path / "a.log", "--first-line", r"^\d")
    texts = ["  at the end", "1 the cat\n  at the mat\n", "2 dogs", "3 a cat\n  sat"]
    assert [(row["line"], row["text"]) for row in found] == [*zip((1, 2, 5, 6), texts, strict=True)]


def test_of_equal_scores_the_first_texts_are_printed_in_order(lab: Any, model: Path, monkeypatch: Any) -> None:
    known = {"low": 0.5, "equal": 1.0, "high": 2.0, "nothing": None}
    pair = SimpleNamespace(
        stream=lambda _, texts, **__: (Scored(text, known[text], [], [], [], False) for text in texts)
    )
    monkeypatch.setattr(opening, "load", lambda *_, **__: pair)
    texts = ["equal", "nothing", "equal", "high", "equal", "low", "equal", "high"]
    Path("a.jsonl").write_text("".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(texts)))
    for top, expected in ((1, [3]), (4, [3, 7, 0, 2]), (5, [3, 7, 0, 2, 4]), (99, [3, 7, 0, 2, 4, 6, 5])):
        assert [row["n"] for row in scored(lab, model, "--file", "a.jsonl", "--top", top)] == expected


def test_percentiles_are_among_normal_texts(lab: Any, model: Path, tmp_path: Path) -> None:
    normal = tmp_path / "normal.txt"
    normal.write_text("\n".join(SCORED) + "\n")  # one without tokens does not count
    likely = ("--by", "likelihood")
    for options in (
        (),
        ("--reduce", "sum"),
        ("--reduce", "max"),
        likely,
        (*likely, "--mask-prob", 1),
        ("--exact", *likely),
    ):
        rows = scored(lab, model, *SCORED, "--normal", normal, *options)
        found = [row["percentile"] for row in rows if row["score"] is not None]
        assert sorted(found) == pytest.approx([100 / 6, 50, 500 / 6]), options  # scored as the texts themselves
    (tmp_path / "empty_first.txt").write_text("\n7 dogs\n")
    table = scored(lab, model, "--file", tmp_path / "empty_first.txt", "--normal", normal, "--csv")
    assert [row["percentile"] == "" for row in table] == [True, False]
    # A table of normal texts has the same field; lines of text have none.
    (tmp_path / "lines.csv").write_text("n,line\n" + "".join(f"{n},{text}\n" for n, text in enumerate(SCORED)))
    for other in (tmp_path / "lines.csv", normal):
        words = ("--file", tmp_path / "lines.csv", "--field", "line", "--normal", other)
        found = [row["percentile"] for row in scored(lab, model, *words) if row["score"] is not None]
        assert sorted(found) == pytest.approx([100 / 6, 50, 500 / 6])
    # Their number is told, and that a hundredth of it cannot be told.
    for number in (1, 99, 100):
        normal.write_text("the cat sat\n" * number)
        code, out, err = lab("score", model, "the cat sat", "--normal", normal, *CPU)
        assert (code, float(out.split()[1])) == (0, 50)
        assert (f" {number} " in err, "too few" in err) == (True, number < 100)
    # The lowest score of the run's held-out text.
    lowest = min(electra_lab.load(model, device="cpu").score(held_out(model)), key=lambda found: found.score)
    [row] = scored(lab, model, lowest.text, "--normal", "validation")
    assert 0 <= row["percentile"] < 100


def test_alarms_are_a_share_of_normal_texts(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 11 texts, each compared with the others, `--alarms 200` prints 2; of texts with equal scores, no more."""
    known = dict(enumerate(random.Random(0).sample(range(99), 11)))
    pair = SimpleNamespace(
        stream=lambda _, texts, **__: (Scored(text, known[int(text)], [], [], [], False) for text in texts)
    )
    monkeypatch.setattr(opening, "load", lambda *_, **__: pair)

    def printed(alarms: float) -> list[int]:
        found = list[int]()
        for number in known:
            Path("normal").write_text("".join(f"{other}\n" for other in known if other != number))
            options = ("--normal", "normal", "--alarms", alarms)
            found += [int(row["text"]) for row in scored(lab, Path("it"), number, *options)]
        return found

    ordered = sorted(known, key=lambda number: -known[number])
    assert [set(printed(100 * share)) for share in (0.91, 2, 2.5, 9)] == [{*ordered[: int(n)]} for n in (1, 2, 2, 9)]
    known |= {ordered[1]: known[ordered[2]], ordered[3]: known[ordered[2]]}
    assert {*printed(200)} <= {*ordered[:4]}
    assert len(printed(200)) <= 2
    assert " 11 " in lab.fails(3, "score", "it", "1", "--normal", "normal", "--alarms", 90, *CPU)
    lab.fails(2, "score", "it", "1", "--alarms", 99, *CPU)


def test_columns_of_the_answer(lab: Any, model: Path, tmp_path: Path) -> None:
    """A field that would be overwritten is refused; a table without rows has a header."""
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
    (tmp_path / "a.fa").write_text("")
    assert lab("score", model, "--file", tmp_path / "a.fa", "--csv", *CPU)[1] == "name,text,score\n"
    assert lab("score", model, "--file", tmp_path / "a.txt", "--csv", *both, *CPU)[1] == "text,score,percentile\n"


def test_standard_input_is_read_once(lab: Any, model: Path) -> None:
    assert lab.fails(2, "score", model, "-", "--normal", "-", *CPU).startswith("--normal -: ")


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
