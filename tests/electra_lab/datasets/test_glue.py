"""GLUE: the columns, labels and quirks of each task, and the files that it accepts."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.glue import Glue
from registry import TextExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import write

STS_HEADER = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
# For each task: rows of train, with a header if there is one, and the examples read from them; the same for test.
TASKS: dict[str, tuple[str, list[tuple[Any, ...]], str, tuple[str, str | None]]] = {
    "CoLA": (
        'gj04|1||One more.\ncj99|0|*|They "drank the pub.\n',
        [("One more.", None, "1"), ('They "drank the pub.', None, "0")],
        "index|sentence\n0|Bill whistled.\n", ("Bill whistled.", None),
    ),
    "SST-2": (
        "sentence|label\nhide new secretions |0\nit 's fun |1\n",
        [("hide new secretions", None, "0"), ("it 's fun", None, "1")],
        "index|sentence\n0|uneasy mishmash\n", ("uneasy mishmash", None),
    ),
    "MRPC": (
        '\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String\n1|70|71|He said "no|He said no\n',
        [('He said "no', "He said no", "1")],
        "\ufeffindex|#1 ID|#2 ID|#1 String|#2 String\n0|80|81|A|B\n", ("A", "B"),
    ),
    "STS-B": (
        f"{STS_HEADER}|score\n0|main|x|2012|1|none|none|A plane.|An air plane.|5.000\n1|main|x|2|2|none|none|A|B|0.4\n",
        [("A plane.", "An air plane.", 5.0), ("A", "B", 0.4)],
        f"{STS_HEADER}\n0|main|x|2012|24|none|none|A girl|A boy\n", ("A girl", "A boy"),
    ),
    "QQP": (
        "id|qid1|qid2|question1|question2|is_duplicate\n7|1|2|How is it?|What is it?|0\n"
        "8|3|4|Broken over\nlines|What?|1\n9|5|6||Why?|1\n",
        [("How is it?", "What is it?", "0"), ("", "Why?", "1")],
        "id|question1|question2\n0|Would it?|Will it?\n", ("Would it?", "Will it?"),
    ),
    "QNLI": (
        "index|question|sentence|label\n0|When?|In 1900.|entailment\n1|Who?|So.|not_entailment\n",
        [("When?", "In 1900.", "entailment"), ("Who?", "So.", "not_entailment")],
        "index|question|sentence\n0|Which?|One.\n", ("Which?", "One."),
    ),
    "RTE": (
        "index|sentence1|sentence2|label\n0|No.|Yes.|not_entailment\n",
        [("No.", "Yes.", "not_entailment")], "index|sentence1|sentence2\n0|A|B\n", ("A", "B"),
    ),
    "WNLI": (
        "index|sentence1|sentence2|label\n0|I stuck a pin.|It had a hole.|1\n",
        [("I stuck a pin.", "It had a hole.", "1")], "index|sentence1|sentence2\n0|A|B\n", ("A", "B"),
    ),
}  # fmt: skip


def tsv(rows: str, end: str = "\n") -> str:
    """Return rows whose columns are written with bars between them."""
    return rows.replace("|", "\t").replace("\n", end)


def values(examples: Any) -> list[tuple[Any, ...]]:
    return [(example.text, example.pair, example.label) for example in examples]


def glue(name: Any, folder: Path, **files: str) -> Glue:
    for file, content in files.items():
        write(folder / f"{file}.tsv", content)
    return Glue(name=name, folder=folder)


@pytest.mark.parametrize("name", TASKS)
def test_the_formats_of_the_tasks(name: str, tmp_path: Path) -> None:
    rows, expected, test_rows, tested = TASKS[name]
    dataset = glue(name, tmp_path, train=tsv(rows), dev=tsv(rows, "\r\n"), test=tsv(test_rows))
    assert dataset.splits == ["train", "validation", "test"]
    train, test = list(dataset.read("train")), list(dataset.read("test"))
    assert values(train) == values(dataset.read("validation")) == expected
    assert values(test) == [(*tested, None)]
    assert [example.id for example in train] == [str(n) for n in range(len(expected))]
    first = 1 if name == "CoLA" else 2
    assert (train[0].place, test[0].place) == (f"{tmp_path / 'train.tsv'}:{first}", f"{tmp_path / 'test.tsv'}:2")


def mnli(folder: Path) -> None:
    header = "index|promptID|pairID|genre|" + "parse|" * 4 + "sentence1|sentence2"
    row = "3|p|q|fiction|" + "( a b )|" * 4
    train = f"{header}|label1|gold_label\n{row}train|So.|other|neutral\n"
    write(folder / "train.tsv", tsv(train))
    for kind in ("matched", "mismatched"):
        labels = "|".join(f"label{n}" for n in range(1, 6))
        dev = f"{header}|{labels}|gold_label\n{row}dev {kind}|So.|{'other|' * 5}entailment\n"
        write(folder / f"dev_{kind}.tsv", tsv(dev))
        write(folder / f"test_{kind}.tsv.gz", gzip.compress(tsv(f"{header}\n{row}test {kind}|So.\n").encode()))


def test_mnli_has_two_validations_and_two_tests(tmp_path: Path) -> None:
    mnli(tmp_path)
    dataset = glue("MNLI", tmp_path)
    assert {split: values(dataset.read(split)) for split in dataset.splits} == {
        "train": [("train", "So.", "neutral")],
        "validation": [("dev matched", "So.", "entailment")],
        "validation_mismatched": [("dev mismatched", "So.", "entailment")],
        "test": [("test matched", "So.", None)],
        "test_mismatched": [("test mismatched", "So.", None)],
    }
    assert [example.id for example in dataset.read("test")] == ["3"]


@pytest.mark.parametrize(
    "place", ["MNLI/diagnostics.tsv", "AX/diagnostics.tsv", "diagnostic/diagnostic.tsv", "AX/AX.tsv"]
)
def test_the_diagnostics(place: str, tmp_path: Path) -> None:
    mnli(tmp_path / "MNLI")
    write(tmp_path / place, tsv("index|sentence1|sentence2\n5|The cat sat.|The cat did not sit.\n"))
    dataset, alone = glue("MNLI", tmp_path / "MNLI"), glue("AX", (tmp_path / place).parent)
    assert (dataset.splits[-1], alone.splits) == ("diagnostics", ["test"])
    found = TextExample("The cat sat.", "The cat did not sit.", None, "5", f"{tmp_path / place}:2")
    assert list(dataset.read("diagnostics")) == [found]
    assert values(alone.read("test")) == values([found])


def test_the_diagnostics_with_labels(tmp_path: Path) -> None:
    content = "Lexical Semantics|Logic|Domain|Premise|Hypothesis|Label\n|Negation|News|A|B|contradiction\n"
    full = glue("AX", tmp_path, **{"diagnostic-full": tsv(content)})
    assert values(full.read("test")) == [("A", "B", "contradiction")]


def test_double_unordered_trains_on_both_orders(tmp_path: Path) -> None:
    rows = tsv(TASKS["STS-B"][0])
    once = glue("STS-B", tmp_path, train=rows, dev=rows)
    dataset = Glue(name="STS-B", folder=tmp_path, double_unordered=True)
    found = list(dataset.read("train"))
    assert values(found) == [("A plane.", "An air plane.", 5.0), ("A", "B", 0.4),
                             ("An air plane.", "A plane.", 5.0), ("B", "A", 0.4)]  # fmt: skip
    assert len({example.id for example in found}) == 4
    assert values(dataset.read("validation")) == values(found[:2])
    assert dataset.fingerprint() != once.fingerprint()
    with pytest.raises(ValueError, match="double_unordered is for MRPC and STS-B only"):
        Glue(name="RTE", folder=tmp_path, double_unordered=True)


def test_characters_that_only_look_like_line_ends(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce\rf"
    assert values(glue("SST-2", tmp_path, train=f"sentence\tlabel\n{text}\t1\n").read("train")) == [(text, None, "1")]


def test_only_the_files_that_are_there_are_splits(tmp_path: Path) -> None:
    assert glue("CoLA", tmp_path / "a", dev="a\t1\t\tb\n").splits == ["validation"]
    with pytest.raises(DataError, match=rf"^{tmp_path}: has no file of CoLA\. .*train\.tsv, dev\.tsv, test\.tsv\.$"):
        glue("CoLA", tmp_path)
    write(tmp_path / "SST-2" / "train.tsv", "sentence\tlabel\n")
    with pytest.raises(DataError, match=rf"dev\.tsv, test\.tsv\. Did you mean {tmp_path / 'SST-2'}\?"):
        glue("SST-2", tmp_path)
    with pytest.raises(DataError, match=r"Looked for diagnostics\.tsv, diagnostic\.tsv, AX\.tsv, diagnostic-full\.tsv"):
        glue("AX", tmp_path)


RTE, STS = "index\tsentence1\tsentence2\tlabel\n", "sentence1\tsentence2\tscore\n"


@pytest.mark.parametrize(
    ("name", "file", "content", "line", "reason"),
    [
        ("CoLA", "train", "a\t1\tb\n", 1, "has 3 columns, not 4."),
        ("CoLA", "dev", "source\tlabel\tmark\tsentence\n", 1, "the label 'label' is not 0 or 1."),
        ("SST-2", "train", "sentence\tlabel\na\t1\nb\t2\n", 3, "the label '2' is not 0 or 1."),
        ("SST-2", "train", "sentence\tlabel\na\t\n", 2, "the label '' is not 0 or 1."),
        ("SST-2", "train", "a\t1\n", 1, "there is no column 'sentence'. Known: 1, a. Is it a file of SST-2?"),
        ("SST-2", "test", "index\ttext\n0\ta\n", 1, "there is no column 'sentence'. Known: index, text."),
        ("RTE", "dev", "index\tsentence1\tsentence2\tlable\n", 1, "there is no column 'label'. Did you mean 'lable'?"),
        ("RTE", "train", f"{RTE}0\ta\tb\tneutral\n", 2, "the label 'neutral' is not entailment or not_entailment."),
        ("RTE", "train", f"{RTE}0\ta\tb\tc\tentailment\n", 2, "has 5 columns, not 4."),
        ("STS-B", "train", f"{STS}a\tb\t5.1\n", 2, "the score '5.1' is not a number from 0 to 5."),
        ("STS-B", "train", f"{STS}a\tb\tc\n", 2, "the field 'score' is 'c', not a finite number."),
        ("STS-B", "train", f"{STS}a\tb\t\n", 2, "the score '' is not a number from 0 to 5."),
        ("QQP", "train", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\tc\t1\n", 2, "has 5 columns, not 4."),
        ("QQP", "test", "id\tquestion1\tquestion2\n0\ta\n", 2, "has 2 columns, not 3."),
    ],
)
def test_a_wrong_line_is_named(name: str, file: str, content: str, line: int, reason: str, tmp_path: Path) -> None:
    dataset = glue(name, tmp_path, **{file: content})
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / f'{file}.tsv'}:{line}: {reason}")):
        list(dataset.read(dataset.splits[0]))


@pytest.mark.parametrize(
    ("name", "split", "file", "predictions", "lines"),
    [
        ("CoLA", "test", "CoLA.tsv", ["0", "1"], ["0\t0", "1\t1"]),
        ("RTE", "test", "RTE.tsv", ["not_entailment"], ["0\tnot_entailment"]),
        ("STS-B", "test", "STS-B.tsv", [-0.2, 5.31, 2.34567], ["0\t0.000", "1\t5.000", "2\t2.346"]),
        ("MNLI", "test", "MNLI-m.tsv", ["neutral"], ["0\tneutral"]),
        ("MNLI", "test_mismatched", "MNLI-mm.tsv", ["neutral"], ["0\tneutral"]),
        ("MNLI", "diagnostics", "AX.tsv", ["neutral"], ["0\tneutral"]),
        ("AX", "test", "AX.tsv", ["neutral"], ["0\tneutral"]),
    ],
)
def test_the_files_that_glue_accepts(
    name: Any, split: str, file: str, predictions: list[Any], lines: list[str], tmp_path: Path
) -> None:
    write(tmp_path / ("diagnostics.tsv" if name == "AX" else "train.tsv"), "")
    found = [{"id": str(n), "prediction": prediction} for n, prediction in enumerate(predictions)]
    dataset = Glue(name=name, folder=tmp_path)
    assert dataset.submission(split, found) == (file, "\n".join(["index\tprediction", *lines, ""]))
    for other in ("train", "validation", "validation_mismatched"):
        assert dataset.submission(other, found) is None
