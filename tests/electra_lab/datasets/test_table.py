"""CSV and TSV: columns, quotes, labels, and malformed rows."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.datasets.table import TableFiles
from registry import TextExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import write


def read(
    folder: Path, content: str | bytes, ending: str = ".csv", split: str = "test", **options: Any
) -> list[TextExample]:
    paths: dict[str, Any] = {split: write(folder / f"a{ending}", content)}
    return list(TableFiles(**paths, held_out=0, **options).read(split))


def test_columns_by_name(tmp_path: Path) -> None:
    content = "key,one,two,class\n7, a ,b , x\n8,c,d,\n"
    found = read(tmp_path, content, text="one", pair="two", label="class", id="key")
    place = str(tmp_path / "a.csv")
    assert found == [TextExample("a", "b", "x", "7", f"{place}:2"), TextExample("c", "d", None, "8", f"{place}:3")]
    found = read(tmp_path, "1\tone\n0\ttwo\n", ".tsv", columns=["label", "text"])
    assert [(example.text, example.label) for example in found] == [("one", "1"), ("two", "0")]


def test_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "text,label\na,1\nb, -2.5e1 \nc,\n", label_type="number")
    assert [example.label for example in found] == [1.0, -25.0, None]
    for wrong in ("one", "nan", "inf", "1,5"):
        with pytest.raises(DataError, match=r"a\.csv:2: the field 'label' is .*, not a finite number\."):
            read(tmp_path, f'text,label\na,"{wrong}"\n', label_type="number")


def test_only_the_test_may_lack_labels(tmp_path: Path) -> None:
    assert [example.label for example in read(tmp_path, "text\na\n")] == [None]
    for split in ("train", "validation"):
        with pytest.raises(DataError, match=r"a\.csv:1: there is no column 'label'\. Did you mean 'lable'\?"):
            read(tmp_path, "text,lable\na,b\n", split=split)


@pytest.mark.parametrize("name", ["text", "pair", "id"])
def test_a_column_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"a\.csv:1: there is no column 'nothing'\. Known: label, text\."):
        read(tmp_path, "text,label\na,b\n", **{name: "nothing"})


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv:1: 2 columns are called 'text'\. Rename all but one of them\."):
        read(tmp_path, "text,label,text\na,b,c\n")
    assert len(read(tmp_path, "text,label,x,x\na,b,c,d\n")) == 1


def test_csv_quotes_and_tsv_does_not(tmp_path: Path) -> None:
    quoted = 'text,label\n"a, ""b""\nc",x\n\n"d",y\n'
    found = read(tmp_path, quoted)
    assert [(example.text, example.label) for example in found] == [('a, "b"\nc', "x"), ("d", "y")]
    assert [example.place.rpartition(":")[2] for example in found] == ["2", "5"]
    odd = read(tmp_path, 'text\tlabel\n"a\tx\nb"\ty\n"c, d"\tz\n', ".tsv")
    assert [example.text for example in odd] == ['"a', 'b"', '"c, d"']
    # Empty rows are left out, such as those that Excel writes at the end.
    assert len(read(tmp_path, "text,label\n\na,b\n,\n , \n")) == 1
    assert len(read(tmp_path, "text\tlabel\n\na\tb\n\t\n \t \n", ".tsv")) == 1
    # Python's reader has a limit of 131,072 characters.
    assert len(read(tmp_path, "text,label\n" + "a" * 200_000 + ",x\n")[0].text) == 200_000


def test_delimiters(tmp_path: Path) -> None:
    assert read(tmp_path, 'text;label\n"a;b";1,5\n', delimiter="semicolon")[0].label == "1,5"
    assert read(tmp_path, 'text\tlabel\n"a\tx\n', delimiter="tab")[0].text == '"a'
    assert read(tmp_path, "text,label\na,x\n", ".tsv", delimiter="comma")[0].text == "a"
    assert read(tmp_path, "text,label\na,x\n", ".txt")[0].text == "a"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("content", "ending", "options"),
    [
        ("text,label\na;b\tc,x\n", ".csv", {}),
        ('text;label\n"a;b\tc";x\n', ".csv", {}),
        ("\ufeffid; text ;label\n1,5;a;b\tc;x\n".replace("a;b", '"a;b').replace("c;x", 'c";x'), ".csv", {"id": "id"}),
        ("text\tlabel\na;b c\tx\n", ".csv", {}),
        ("text\tlabel\na;b,c\tx\n", ".txt", {}),
        ('label,text\nx,"a;b\tc"\n', ".tsv", {}),
        ('label;text;a,b\nx;"a;b\tc";\n', ".tsv", {}),
        ('x;"a;b\tc"\n', ".csv", {"columns": ["label", "text"]}),
        ('x,1;2;3,"a;b\tc"\n', ".csv", {"columns": ["label", "id", "text"]}),
        ("text;label\na;b;x\n", ".csv", {"text": "text;label", "label": "none"}),
        ("sep=|\ntext|label\na;b\tc|x\n", ".csv", {}),
        ('"sep=;"\nx;"a;b\tc"\n', ".tsv", {"columns": ["label", "text"]}),
        ('sep=;\ntext\tlabel\n"a;b c"\tx\n'.replace('"', ""), ".csv", {"delimiter": "tab"}),
    ],
)
def test_the_delimiter_is_the_one_that_gives_the_columns(
    tmp_path: Path, content: str, ending: str, options: dict[str, Any], newline: str
) -> None:
    (found,) = read(tmp_path, content.replace("\n", newline), ending, **options)
    assert re.sub(r"[\t ,]", ".", found.text) in ("a;b.c", "a;b;x")
    assert found.label == (None if "none" in options.values() else "x")


@pytest.mark.parametrize(
    ("content", "ending", "line", "reason"),
    [
        ("text,label\na,b\nc\n", ".csv", 3, "has 1 column, but there are names for 2"),
        ("text,label\na,b,c\n", ".csv", 2, "has 3 columns, but there are names for 2"),
        ("text\tlabel\n\na\tb\tc\n", ".tsv", 3, "has 3 columns, but there are names for 2"),
        ('text,label\n"a\nb",x\n"c,y\nd,z\n', ".csv", 4, "is not a row of columns (unexpected end of data)"),
        ('text,label\n"a"b,x\n', ".csv", 2, "is not a row of columns (',' expected after '\"')"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, content: str, ending: str, line: int, reason: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"a{ending}:{line}: {reason}. ")):
        read(tmp_path, content, ending)


@pytest.mark.parametrize(
    ("content", "ending", "kept", "lines"),
    [
        (b"text,label\na,x\nb\xff,x\nc,\xff\nd,x\n", ".csv", ["a", "d"], [3, 4]),
        (b"text\tlabel\na\tx\nb\xff\tx\nd\tx\n", ".tsv", ["a", "d"], [3]),
        (b'text,label\n"a\nb\xff",x\nc,x\n', ".csv", ["c"], [2]),
        (b'text,label\n"a"b,x\nc,x\n"d""\n,y\ne,x\n"f\n",x\n', ".csv", ["c", "e", "f"], [2, 4, 5]),
        (b'text,label\na,x\n"b,x\nc,x\nd,x\n', ".csv", ["a", "c", "d"], [3]),
    ],
)
def test_a_line_that_is_not_utf8_or_lacks_a_quote_is_skipped_alone(
    tmp_path: Path, content: bytes, ending: str, kept: list[str], lines: list[int]
) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, content, ending)
    places = re.findall(rf"^{tmp_path}/a{ending}:(\d+): ", str(refused.value), re.MULTILINE)
    assert [int(line) for line in places] == lines
    assert [example.text for example in read(tmp_path, content, ending, on_error="skip")] == kept
    with pytest.raises(DataError, match=rf"a{ending}:1: byte 1 of the line is not UTF-8"):
        read(tmp_path, b"t\xff" + content, ending, on_error="skip")  # a header is needed


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters='\n\t"'), max_size=8)
WRITTEN = CELLS.filter(lambda cell: bool(cell.strip()))


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.tuples(WRITTEN, WRITTEN), min_size=1))
def test_csv_files_are_read_like_pandas_does(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("text", "label"), *rows])
    found = read(tmp_path_factory.mktemp("csv"), text.getvalue())
    theirs = pandas.read_csv(io.StringIO(text.getvalue()), dtype=str, keep_default_na=False)
    expected = [(a.strip(), b.strip()) for a, b in theirs.itertuples(index=False)]
    assert [(example.text, example.label) for example in found] == expected == [(a.strip(), b.strip()) for a, b in rows]
