"""electra-lab predict: texts and records with their predictions."""

import csv
import gzip
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.datasets.conll import Conll
from electra_lab.inference import opening
from electra_lab.inference.finetuned import FineTuned
from electra_lab.jobs.finetuning.facts import what_is_left
from electra_lab.pretrained.opening import finetuned_config
from electra_lab.storage.finetuning_folder import FinetuningFolder
from tests.electra_lab.cli.conftest import CPU

Tuned = dict[str, Path]


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def fields(*names: str) -> list[str]:
    return [word for name in names for word in ("--field", name)]


def test_texts_are_labelled_from_every_source(lab: Any, tuned: Tuned, given: Any, tmp_path: Path) -> None:
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
    assert (code, err, out.split(" ")[0]) == (0, "", expected[0]["prediction"])
    assert [line.split("  ")[1] for line in out.splitlines()] == ["the cat sat", "3 dogs"]


def test_seeds_and_batches_are_chosen(lab: Any, tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, stream = list[int](), FineTuned.stream
    monkeypatch.setattr(
        FineTuned, "stream", lambda *words, **options: sizes.append(options["batch_size"]) or stream(*words, **options)
    )
    shown = []
    for words, seed in (
        ((), "best"),
        (("--seed", 4), 4),
        (("--seed", 7), 7),
        (("--ensemble", "--batch-size", 3), "all"),
    ):
        wanted = electra_lab.load(tuned["labels"], device="cpu", seed=seed).predict("the cat sat")
        [row] = rows(lab("predict", tuned["labels"], "the cat sat", *words, "--json", *CPU)[1])
        assert row["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-6)
        shown.append(round(row["probability"], 5))
    assert (len(set(shown)), sizes) == (3, [32, 32, 32, 3])


ROWS = [{"n": "1", "review": "the cat, sat", "kept": "old"}, {"n": "2", "review": "3 dogs", "kept": "old"}]
GIVEN = {
    "csv": ("csv", 'n,review,kept\n1,"the cat, sat",old\n2,3 dogs,old\n'),
    "tsv": ("tsv", "n\treview\tkept\n1\tthe cat, sat\told\n2\t3 dogs\told\n"),
    "semicolons": ("csv", "n;review;kept\n1;the cat, sat;old\n2;3 dogs;old\n"),
    "a semicolon in a name": ("csv", 'n,review,kept,a;b\n1,"the cat, sat",old,\n2,3 dogs,old,\n'),
    "spaces around names": ("csv", 'n, review ,kept\n1,"the cat, sat",old\n2,3 dogs,old\n'),
    "jsonl": ("jsonl", "\n".join(map(json.dumps, ROWS)) + "\n\n"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_columns_are_kept_and_the_field_is_that_of_training(lab, tuned, tmp_path: Path, given: Any, case: str) -> None:
    format, text = GIVEN[case]
    (tmp_path / f"a.{format}").write_text("\ufeff" + text, encoding="utf-8")
    found = electra_lab.load(tuned["labels"], device="cpu").predict([row["review"] for row in ROWS])
    code, out, _ = lab("predict", tuned["labels"], "--file", tmp_path / f"a.{format}", "--csv", *CPU)
    table = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    more = ["a;b"] if "name" in case and ";" in text else []
    assert [*table[0]] == [*ROWS[0], *more, "prediction", "probability", "probability_cat", "probability_dogs"]
    given(text.encode())
    code, again, _ = lab("predict", tuned["labels"], "-", "--format", format, "--json", *CPU)
    for before, row, other, wanted in zip(ROWS, table, rows(again), found, strict=True):
        assert row.items() >= before.items()
        assert other.items() >= before.items()
        assert row["prediction"] == other["prediction"] == wanted.prediction
        assert float(row["probability_cat"]) == pytest.approx(wanted.probabilities["cat"], abs=1e-5)


@pytest.mark.parametrize("name", ["a.txt", "a.data", "a.csv.txt", "A.TXT.gz", "a"])
def test_a_file_is_read_as_those_of_training(lab, tuned, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A table with such an ending, with or without a header; JSON lines; other endings are text."""
    opened = electra_lab.load(tuned["labels"], device="cpu")
    dataset = opened.job.dataset
    assert (dataset["type"], Path(dataset["train"]).name) == ("table", "labels-train.csv")
    ending = name.lower().removesuffix(".gz").removeprefix("a")
    pack = gzip.compress if name.endswith(".gz") else bytes

    def texts_of(content: str, **more: Any) -> list[str]:
        Path(name).write_bytes(pack(content.encode()))
        job = replace(opened.job, dataset={**dataset, "train": None, "test": Path(f"there/*{ending}"), **more})
        monkeypatch.setattr(opened, "job", job)
        monkeypatch.setattr(opening, "load", lambda *_, **__: opened)
        code, out, err = lab("predict", "it", "--file", name, "--json", *CPU)
        assert code == 0, err
        return [row["review"] if "review" in row else row["text"] for row in rows(out)]

    assert texts_of("n;review\n1;the, cat\n2;3 dogs\n") == ["the, cat", "3 dogs"]
    assert texts_of("1|the cat\n2|3 dogs\n", test=Path("there.other")) == ["1|the cat", "2|3 dogs"]
    columns = ["what", "review"]
    assert texts_of("cat\tthe cat\ndogs\t3 dogs\n", columns=columns) == ["the cat", "3 dogs"]
    assert texts_of("review\twhat\nthe cat\tcat\n", columns=columns) == ["the cat"]
    assert texts_of("cat;the, cat\n", columns=columns, delimiter="semicolon") == ["the, cat"]
    assert texts_of('{"review": "the cat"}\n', type="json_lines") == ["the cat"]
    assert texts_of("the cat\n", type="conll") == ["the cat"]


def test_fields_pairs_questions_and_words(lab: Any, tuned: Tuned, tmp_path: Path, monkeypatch: Any) -> None:
    def answered(model: Path, *words: object) -> list[dict[str, Any]]:
        code, out, err = lab("predict", model, *words, "--json", *CPU)
        assert code == 0, err
        return rows(out)

    def file(name: str, text: str) -> tuple[str, Path]:
        (tmp_path / name).write_text(text)
        return "--file", tmp_path / name

    answers, context = tuned["answers"], "the cat sat"
    [row] = answered(answers, *file("a.jsonl", f'{{"q": "who?", "c": {{"d": "{context}"}}}}\n'), *fields("q", "c.d"))
    assert (row["q"], context[row["start"] : row["end"]]) == ("who?", row["prediction"])
    [same] = answered(answers, "who?", "--context", context)
    assert same == {"question": "who?", "context": context, **{k: row[k] for k in row if k not in "qc"}}
    [same] = answered(answers, *file("a.txt", f"who?\t{context}\n"))
    assert same["prediction"] == row["prediction"]
    # An exported model knows whether a tab separates two texts, but not the fields of training.
    [row] = answered(tuned["pairs"] / "seed-4" / "model", *file("tab.txt", "the\tcat\n"))
    assert (row["text"], row["pair"]) == ("the", "cat")
    model, pair = tuned["pairs"] / "seed-4" / "model", {"text": "the cat", "pair": "dogs"}
    [row] = answered(model, *file("pair.jsonl", json.dumps(pair) + "\n"))
    expected = electra_lab.load(model, device="cpu").predict(("the cat", "dogs"))
    assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
    # The second text of all items, which is not that of the record.
    both = {"text": "the cat", "pair": "of the record"}
    [row] = answered(tuned["pairs"], *file("both.jsonl", json.dumps(both) + "\n"), *fields("text"), "--pair", "dogs")
    wanted = electra_lab.load(tuned["pairs"], device="cpu").predict(("the cat", "dogs"))
    assert row.items() >= both.items()
    assert row["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-6)
    # Words, and texts in which they are found.
    one, other = answered(tuned["tags"], *file("b.jsonl", '{"tokens": ["the", "cat"]}\n{"text": "the  cat"}\n'))
    assert (one["prediction"], other["offsets"], "offsets" in one) == (other["prediction"], [[0, 3], [5, 8]], False)
    opened = electra_lab.load(tuned["tags"], device="cpu")
    dataset = {**opened.job.dataset, "words": "forms"}  # a field of another name in training
    job = replace(opened.job, dataset=dataset, fields=Conll.fields(dataset))
    monkeypatch.setattr(opened, "job", job)
    with monkeypatch.context() as patch:
        patch.setattr(opening, "load", lambda *_, **__: opened)
        [same] = answered(tuned["tags"], *file("c.jsonl", '{"forms": ["the", "cat"]}\n'))
    assert same["prediction"] == one["prediction"]
    # Half a character is refused where it is read, and printed where it is kept.
    half = file("half.jsonl", '{"a": {"b": "\\ud800"}, "c": "x"}\n{"a": {"b": "x"}, "c": "x", "d": "\\ud800"}\n')
    for form in ("--json", "--csv"):
        code, out, err = lab("predict", tuned["pairs"], *half, form, "--on-error", "skip", *CPU)
        assert (code, out.count("\n"), err.count("half.jsonl:1")) == (0, 1 + (form == "--csv"), 1)


def test_bad_rows_stop_after_the_answers_before_them_or_are_left_out(lab, tuned, tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b.jsonl"
    path.write_bytes(b'review,n\nthe cat,1\nthree,columns,here\n\xff,2\n"no end,3\nlast,4\n')
    code, out, err = lab("predict", tuned["labels"], "--file", path, "--json", *CPU)
    assert (code, [row["n"] for row in rows(out)], f"{path}:3: " in err) == (3, ["1"], True)
    skip = ("--json", "--on-error", "skip", *CPU)
    code, out, err = lab("predict", tuned["labels"], "--file", path, *skip)
    assert (code, [row["n"] for row in rows(out)]) == (0, ["1", "4"])
    (tmp_path / "unnamed.csv").write_text("review,n,,\nthe cat,1,,\n")  # as spreadsheets write CSV
    assert len(rows(lab("predict", tuned["labels"], "--file", tmp_path / "unnamed.csv", "--json", *CPU)[1])) == 1
    assert [line for line in range(2, 7) if f"{path}:{line}: " in err] == [3, 4, 5]
    other.write_text('{"review": 3}\n[]\n{"a": 1}\nno\n{"review": "the cat"}\n')
    code, out, err = lab("predict", tuned["labels"], "--file", other, *skip)
    assert (code, len(rows(out)), err.count("b.jsonl:")) == (0, 1, 4)


@pytest.mark.parametrize(
    ("name", "columns", "row", "more"),
    [("labels", "review", "the cat", ()), ("tags", "words", "the cat", ()), ("pairs", "text,pair", "a,b", ()),
     ("answers", "question,context", "who?,the cat", ()), ("pairs", "text", "a", ("--pair", "b"))],
)  # fmt: skip
def test_a_table_without_rows_has_the_header_of_others(
    lab: Any, tuned: Tuned, name: str, columns: str, row: str, more: tuple[str, ...]
) -> None:
    Path("empty.csv").write_text(f"n,{columns}\n")
    Path("one.csv").write_text(f"n,{columns}\n1,{row}\n")
    options = ("--csv", *more, *fields(*columns.split(",")), *CPU)
    empty, one = (lab("predict", tuned[name], "--file", file, *options) for file in ("empty.csv", "one.csv"))
    assert (empty[0], one[0], empty[1]) == (0, 0, one[1].splitlines(keepends=True)[0])


def test_a_file_without_records_has_the_header_of_others(lab: Any, tuned: Tuned) -> None:
    """The header has training's field name, as for records; without --csv nothing is printed."""
    Path("empty.jsonl").write_text("")
    Path("one.jsonl").write_text('{"review": "the cat"}\n')
    predict = ("predict", tuned["labels"], *CPU, "--file")
    empty, one = (lab(*predict, file, "--csv") for file in ("empty.jsonl", "one.jsonl"))
    assert (empty[0], empty[1]) == (0, one[1].splitlines(keepends=True)[0])
    assert lab(*predict, "empty.jsonl", "--json")[:2] == lab(*predict, "empty.jsonl")[:2] == (0, "")


@pytest.mark.parametrize(
    ("name", "words", "code", "part"),
    [
        ("labels", ("a", "--json", "--csv"), 2, "--csv"), ("labels", ("a", "--seed", "4", "--ensemble"), 2, "--seed"),
        ("labels", ("a", "--seed", "9"), 2, "seed 9"), ("labels", ("a", "--pair", "b"), 2, "--pair"),
        ("labels", (), 2, "--file"), ("labels", ("--file", "none.csv"), 3, "none.csv"),
        ("labels", ("--file", "a.csv", "--field", "x"), 3, "a.csv:1"), ("labels", ("--file", "twice.csv"), 3, "'x'"),
        ("pairs", ("--file", "a.csv", *("--field", "review") * 3), 2, "--field"),
        ("answers", ("who?",), 3, "--context"), ("pairs", ("a",), 3, "--pair"), ("nowhere", ("a",), 3, "nowhere"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(lab, tuned: Tuned, name: str, words: Any, code: int, part: str) -> None:
    Path("a.csv").write_text("review,n\nthe cat,1\n")
    Path("twice.csv").write_text("x,x\nthe cat,1\n")
    assert part in lab.fails(code, "predict", tuned.get(name, name), *words, *CPU)


@pytest.mark.parametrize(
    ("name", "form", "texts", "column", "taken"),
    [
        ("answers", "--csv", ("question", "context"), "start", True),
        ("answers", "--json", ("question", "context"), "end", True),
        ("tags", "--json", ("text",), "offsets", True), ("tags", "--csv", ("text",), "words", True),
        ("tags", "--csv", ("text",), "entities", True), ("labels", "--csv", ("review",), "probability_cat", True),
        ("labels", "--json", ("review",), "probabilities", True),
        ("labels", "--json", ("prediction",), "prediction", True),
        ("labels", "--csv", ("review",), "prediction", True),
        ("numbers", "--csv", ("review",), "probability", False),
        ("numbers", "--json", ("review",), "probabilities", False), ("labels", "--csv", ("review",), "start", False),
        ("labels", "--csv", ("review",), "probabilities", False),
        ("labels", "--json", ("review",), "probability_cat", False), ("tags", "--csv", ("words",), "words", False),
    ],
)  # fmt: skip
def test_no_column_is_overwritten_and_others_are_kept(lab, tuned: Tuned, name, form, texts, column, taken) -> None:
    columns = [*dict.fromkeys([*texts, column])]
    Path("own.csv").write_text(f"{','.join(columns)}\n{','.join(f'the cat {n}' for n in range(len(columns)))}\n")
    code, out, err = lab("predict", tuned[name], "--file", "own.csv", form, *fields(*texts), *CPU)
    if taken:
        assert (code, out, f"own.csv:2: has the field '{column}'" in err) == (3, "", True)
    else:
        [row] = csv.DictReader(io.StringIO(out)) if form == "--csv" else rows(out)
        assert (code, row[column]) == (0, '["the", "cat", "0"]' if column == "words" else "the cat 1")


def test_verbs_of_pairs_name_predict_and_predict_names_finetune(lab: Any, tuned: Tuned) -> None:
    folder = tuned["labels"]
    assert "electra-lab predict" in lab.fails(2, "fill", folder / "seed-4" / "model", "the [MASK]", *CPU)
    assert "electra-lab finetune" in lab.fails(2, "predict", folder.parents[1] / "elsewhere", "the cat", *CPU)


@pytest.mark.parametrize("name", ["labels", "pairs", "tags", "answers"])
def test_the_commands_that_are_named_work(lab: Any, tuned: Tuned, name: str) -> None:
    """Those at the end of a fine-tuning and in refusals, with a second text where the task needs one."""
    folder = FinetuningFolder(tuned[name])
    ends = what_is_left(folder, finetuned_config(folder.seed(folder.seeds()[0]).path).config)
    for said in (ends, lab.fails(2, "detect", tuned[name], "the cat", *CPU)):
        verb, *words = shlex.split(said.partition("electra-lab ")[2])
        assert (verb, lab(verb, *words, *CPU)[0]) == ("predict", 0)
