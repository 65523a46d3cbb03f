"""predict: texts and records in, the same with predictions out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.inference.pair import CHUNK
from electra_lab.jobs.finetuning.facts import what_is_left
from electra_lab.pretrained.opening import finetuned_config
from electra_lab.storage.finetuning_folder import FinetuningFolder

CPU = ("--device", "cpu")
TABLE = 'n,review,kept\n1,"the cat, sat",old\n2,3 dogs,old\n'


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a command bytes as its standard input."""
    return lambda data: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_texts_are_labelled_from_every_source(lab: Any, tuned: dict[str, Path], given: Any, tmp_path: Path) -> None:
    texts = ["the cat sat", "", "3 dogs"]
    expected = [found.as_dict() for found in electra_lab.load(tuned["labels"], device="cpu").predict(texts)]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    for words in (texts, ("--file", tmp_path / "a.txt"), ("-",)):
        given("\n".join(texts).encode() + b"\n")
        code, out, _ = lab("predict", tuned["labels"], *words, "--json", *CPU)
        assert (code, [row["text"] for row in rows(out)]) == (0, texts)
        for row, wanted in zip(rows(out), expected, strict=True):
            assert row["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)
    code, out, err = lab("predict", tuned["labels"], "the cat sat", "3 dogs", *CPU)
    assert (code, err) == (0, "")
    assert [line.split("  ")[1] for line in out.splitlines()] == ["the cat sat", "3 dogs"]
    assert out.split(" ")[0] == expected[0]["prediction"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "semicolons", "jsonl"])
def test_columns_are_kept_and_the_field_is_that_of_training(
    lab, tuned, tmp_path: Path, given: Any, ending: str
) -> None:
    read = list(csv.DictReader(io.StringIO(TABLE)))
    tabs, semicolons = (TABLE.replace('"the cat, sat"', "the cat. sat").replace(",", mark) for mark in "\t;")
    texts = {"csv": TABLE, "tsv": tabs.replace(". ", ", "), "semicolons": semicolons.replace(". ", ", ")}
    text = texts.get(ending, "\n".join(map(json.dumps, read)) + "\n\n")
    name = f"a.{'csv' if ending == 'semicolons' else ending}"
    (tmp_path / name).write_text("\ufeff" + text, encoding="utf-8")
    found = [
        found.as_dict() for found in electra_lab.load(tuned["labels"], device="cpu").predict(["the cat, sat", "3 dogs"])
    ]
    code, out, _ = lab("predict", tuned["labels"], "--file", tmp_path / name, "--csv", *CPU)
    table = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    columns = ["n", "review", "kept", "prediction", "probability", "probability_cat", "probability_dogs"]
    assert [*table[0]] == columns
    assert [[row[name] for name in columns[:3]] for row in table] == [
        ["1", "the cat, sat", "old"],
        ["2", "3 dogs", "old"],
    ]
    for row, wanted in zip(table, found, strict=True):
        assert row["prediction"] == wanted["prediction"]
        assert float(row["probability_cat"]) == pytest.approx(wanted["probabilities"]["cat"], abs=1e-5)
    given(text.encode())
    format = "csv" if ending == "semicolons" else ending
    code, again, _ = lab("predict", tuned["labels"], "-", "--format", format, "--json", *CPU)
    for row, old, wanted in zip(rows(again), read, found, strict=True):
        assert row.items() >= old.items()
        assert row["prediction"] == wanted["prediction"]


def test_fields_pairs_questions_and_words(lab: Any, tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"q": "who?", "c": {"d": "the cat sat"}}\n')
    options = ("--file", tmp_path / "a.jsonl", "--field", "q", "--field", "c.d", "--json")
    code, out, _ = lab("predict", tuned["answers"], *options, *CPU)
    [row] = rows(out)
    assert (code, row["q"], "the cat sat"[row["start"] : row["end"]]) == (0, "who?", row["prediction"])
    code, same, _ = lab("predict", tuned["answers"], "who?", "--context", "the cat sat", "--json", *CPU)
    assert rows(same) == [{"question": "who?", "context": "the cat sat", **{k: row[k] for k in row if k not in "qc"}}]
    (tmp_path / "a.txt").write_text("who?\tthe cat sat\n")
    code, same, _ = lab("predict", tuned["answers"], "--file", tmp_path / "a.txt", "--json", *CPU)
    assert rows(same)[0]["prediction"] == row["prediction"]
    (tmp_path / "tab.txt").write_text("the\tcat\n")  # one text, as far as an exported model knows
    code, out, _ = lab("predict", tuned["pairs"] / "seed-4" / "model", "--file", tmp_path / "tab.txt", "--json", *CPU)
    assert (code, rows(out)[0]["text"], "pair" in rows(out)[0]) == (0, "the\tcat", False)
    (tmp_path / "half.jsonl").write_text(
        '{"a": {"b": "\\ud800"}, "c": "x"}\n{"a": {"b": "x"}, "c": "x", "d": "\\ud800"}\n'
    )
    for form in ("--json", "--csv"):
        options = ("--file", tmp_path / "half.jsonl", form, "--on-error", "skip")
        code, out, err = lab("predict", tuned["pairs"], *options, *CPU)
        assert (code, out.count("\n"), err.count("half.jsonl:1")) == (0, 1 + (form == "--csv"), 1)
    # Words, and texts in which they are found.
    (tmp_path / "b.jsonl").write_text('{"tokens": ["the", "cat"]}\n{"text": "the  cat"}\n')
    code, out, _ = lab("predict", tuned["tags"], "--file", tmp_path / "b.jsonl", "--json", *CPU)
    one, other = rows(out)
    assert (one["prediction"], other["offsets"]) == (other["prediction"], [[0, 3], [5, 8]])
    assert "offsets" not in one


def test_bad_rows_stop_after_the_answers_before_them_or_are_left_out(lab, tuned, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'review,n\nthe cat,1\nthree,columns,here\n\xff,2\n"no end,3\nlast,4\n')
    code, out, err = lab("predict", tuned["labels"], "--file", path, "--json", *CPU)
    assert (code, [row["n"] for row in rows(out)]) == (3, ["1"])
    assert f"{path}:3: " in err
    code, out, err = lab("predict", tuned["labels"], "--file", path, "--json", "--on-error", "skip", *CPU)
    assert (code, [row["n"] for row in rows(out)]) == (0, ["1", "4"])
    assert [f"{path}:{line}: " in err for line in (2, 3, 4, 5, 6)] == [False, True, True, True, False]
    (tmp_path / "b.jsonl").write_text('{"review": 3}\n[]\n{"a": 1}\nno\n{"review": "the cat"}\n')
    code, out, err = lab(
        "predict", tuned["labels"], "--file", tmp_path / "b.jsonl", "--json", "--on-error", "skip", *CPU
    )
    assert (code, len(rows(out)), err.count("b.jsonl:")) == (0, 1, 4)


@pytest.mark.parametrize("name", ["labels", "pairs", "tags", "answers"])
def test_a_table_without_rows_has_the_header_of_others(
    lab: Any, tuned: dict[str, Path], tmp_path: Path, name: str
) -> None:
    fields = {"labels": "review", "tags": "words", "answers": "question,context"}.get(name, "text,pair")
    row = {"answers": "who?,the cat", "pairs": "a,b"}.get(name, "the cat")
    written = {"empty.csv": f"n,{fields}\n", "one.csv": f"n,{fields}\n1,{row}\n"}
    for file, text in written.items():
        (tmp_path / file).write_text(text)
    options = ("--csv", *(word for field in fields.split(",") for word in ("--field", field)), *CPU)
    empty, one = (lab("predict", tuned[name], "--file", tmp_path / file, *options) for file in written)
    assert (empty[0], one[0], empty[1]) == (0, 0, one[1].splitlines(keepends=True)[0])


def test_compressed_tables_are_read(lab: Any, tuned: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    plain, packed = (
        lab("predict", tuned["labels"], "--file", tmp_path / name, "--csv", *CPU) for name in ("a.csv", "a.csv.gz")
    )
    assert (plain[0], packed) == (0, plain)


@pytest.mark.parametrize(
    ("name", "words", "code", "part"),
    [
        ("labels", ("a", "--json", "--csv"), 2, "--csv"), ("labels", ("a", "--seed", "4", "--ensemble"), 2, "--seed"),
        ("labels", ("a", "--seed", "9"), 2, "seed 9"), ("labels", ("a", "--pair", "b"), 2, "--pair"),
        ("labels", (), 2, "--file"), ("labels", ("--file", "none.csv"), 3, "none.csv"),
        ("labels", ("--file", "a.csv", "--field", "x"), 3, "a.csv:1"), ("labels", ("--file", "twice.csv"), 3, "'x'"),
        ("labels", ("--file", "own.csv", "--csv"), 3, "own.csv:2: has the field 'prediction'"),
        ("pairs", ("--file", "a.csv", *("--field", "review") * 3), 2, "--field"),
        ("answers", ("who?",), 3, "--context"), ("pairs", ("a",), 3, "--pair"), ("nowhere", ("a",), 3, "nowhere"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(lab, tuned: dict[str, Path], name: str, words: Any, code: int, part: str) -> None:
    Path("a.csv").write_text("review,n\nthe cat,1\n")
    Path("own.csv").write_text("review,prediction\nthe cat,good\n")
    Path("twice.csv").write_text("x,x\nthe cat,1\n")
    assert part in lab.fails(code, "predict", tuned.get(name, name), *words, *CPU)


@pytest.mark.parametrize(
    ("name", "form", "fields", "taken"),
    [
        ("answers", "--csv", ("question", "context"), "start"), ("answers", "--json", ("question", "context"), "end"),
        ("tags", "--json", ("text",), "offsets"), ("tags", "--csv", ("text",), "words"),
        ("tags", "--csv", ("text",), "entities"), ("labels", "--csv", ("review",), "probability_cat"),
        ("labels", "--json", ("review",), "probabilities"), ("labels", "--json", ("prediction",), "prediction"),
    ],
)  # fmt: skip
def test_no_column_is_overwritten(lab, tuned, name: str, form: str, fields: tuple[str, ...], taken: str) -> None:
    columns = [*dict.fromkeys([*fields, taken])]
    Path("own.csv").write_text(f"{','.join(columns)}\n{','.join(f'the cat {n}' for n in range(len(columns)))}\n")
    options = (form, *(word for field in fields for word in ("--field", field)))
    assert f"own.csv:2: has the field '{taken}'" in lab.fails(
        3, "predict", tuned[name], "--file", "own.csv", *options, *CPU
    )


@pytest.mark.parametrize(
    ("name", "form", "fields", "free"),
    [
        ("numbers", "--csv", ("review",), "probability"), ("numbers", "--json", ("review",), "probabilities"),
        ("labels", "--csv", ("review",), "start"), ("labels", "--csv", ("review",), "probabilities"),
        ("labels", "--json", ("review",), "probability_cat"), ("tags", "--csv", ("words",), "words"),
    ],
)  # fmt: skip
def test_columns_that_no_answer_has_are_kept(lab, tuned, name: str, form: str, fields: Any, free: str) -> None:
    columns = [*dict.fromkeys([*fields, free])]
    Path("own.csv").write_text(f"{','.join(columns)}\n{','.join(f'the cat {n}' for n in range(len(columns)))}\n")
    options = (form, *(word for field in fields for word in ("--field", field)))
    code, out, _ = lab("predict", tuned[name], "--file", "own.csv", *options, *CPU)
    [row] = csv.DictReader(io.StringIO(out)) if form == "--csv" else rows(out)
    assert (code, row[free]) == (0, '["the", "cat", "0"]' if free == "words" else "the cat 1")


def test_verbs_of_pairs_name_predict_and_predict_names_finetune(lab: Any, tuned: dict[str, Path]) -> None:
    folder = tuned["labels"]
    assert "electra-lab predict" in lab.fails(2, "detect", folder, "the cat", *CPU)
    assert "electra-lab predict" in lab.fails(2, "fill", folder / "seed-4" / "model", "the [MASK]", *CPU)
    assert "electra-lab finetune" in lab.fails(2, "predict", folder.parents[1] / "elsewhere", "the cat", *CPU)


@pytest.mark.parametrize("name", ["labels", "pairs", "tags", "answers"])
def test_the_commands_that_are_named_work(lab: Any, tuned: dict[str, Path], name: str) -> None:
    """At the end of a fine-tuning, and in refusals: with a second text where the task needs one."""
    folder = FinetuningFolder(tuned[name])
    ends = what_is_left(folder, finetuned_config(folder.seed(folder.seeds()[0]).path).config)
    for said in (ends, lab.fails(2, "detect", tuned[name], "the cat", *CPU)):
        verb, *words = shlex.split(said.partition("electra-lab ")[2])
        assert (verb, lab(verb, *words, *CPU)[0]) == ("predict", 0)


def test_answers_come_while_texts_are_read(tuned: dict[str, Path]) -> None:
    """Memory does not grow with their number: no more than a chunk is read ahead."""
    read = list[int]()
    model = electra_lab.load(tuned["labels"], device="cpu")
    results = model.stream("predict", (read.append(n) or f"the cat {n}" for n in range(1000)), batch_size=2)
    assert [next(results).text for _ in range(3)] == ["the cat 0", "the cat 1", "the cat 2"]
    assert len(read) == CHUNK * 2
