"""CoNLL's columns: words, tags in any scheme, and lines that are not what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from electra_lab.datasets.conll import Conll
from registry import WordsExample
from registry.errors import DataError
from tests.electra_lab.datasets.written import write

NER = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP I-MISC

-DOCSTART- -X- -X- O

 \t
Peter\tNNP\tI-NP\tI-PER
Paul NNP B-NP B-PER
"""


def conll(folder: Path, content: str = NER, **options: Any) -> Conll:
    return Conll(test=write(folder / "eng", content), **options)


def test_sentences(tmp_path: Path) -> None:
    place = str(tmp_path / "eng")
    assert list(conll(tmp_path).read("test")) == [
        WordsExample(("EU", "rejects", "German", "call"), ("B-ORG", "O", "B-MISC", "I-MISC"), "0", f"{place}:3"),
        WordsExample(("Peter", "Paul"), ("B-PER", "B-PER"), "1", f"{place}:11"),
    ]


def test_columns_and_plain_tags(tmp_path: Path) -> None:
    (first, _) = conll(tmp_path, tag_column=1, scheme="plain").read("test")
    assert first.tags == ("NNP", "VBZ", "JJ", "NN")
    (first, _) = conll(tmp_path, tag_column=-2, scheme="IOB1").read("test")
    assert first.tags == ("B-NP", "B-VP", "B-NP", "I-NP")
    (first, _) = conll(tmp_path, word_column=-1, tag_column=0, scheme="plain").read("test")
    assert (first.words[0], first.tags) == ("I-ORG", ("EU", "rejects", "German", "call"))


def test_words_without_tags(tmp_path: Path) -> None:
    dataset = conll(tmp_path, "-DOCSTART-\n\none\ntwo\n\nthree\n", tag_column=3)
    assert [(each.words, each.tags) for each in dataset.read("test")] == [(("one", "two"), None), (("three",), None)]


def test_other_spaces_are_parts_of_words(tmp_path: Path) -> None:
    (found,) = conll(tmp_path, "10\u00a0000 CD O\n\u3000 X O\n").read("test")
    assert found.words == ("10\u00a0000", "\u3000")


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("IOB2", "B-A I-A B-A O B-B", "B-A I-A B-A O B-B"),
        ("IOB1", "I-A I-A B-A O I-B", "B-A I-A B-A O B-B"),
        ("BIOES", "B-A E-A S-A O S-B", "B-A I-A B-A O B-B"),
    ],
)
def test_the_scheme_is_found(scheme: Any, tags: str, expected: str, tmp_path: Path) -> None:
    content = "a O\nb O\n\n" + "".join(f"w {tag}\n" for tag in tags.split())
    for given in ("auto", scheme):
        assert list(conll(tmp_path, content, scheme=given).read("test"))[1].tags == tuple(expected.split())
    (_, plain) = conll(tmp_path, content, scheme="plain").read("test")
    assert plain.tags == tuple(tags.split())
    for other in {"IOB1", "IOB2", "BIOES"} - {scheme}:
        with pytest.raises(
            DataError, match=rf"does not fit {other}\. Correct it\. To take tags as they are set scheme"
        ):
            list(conll(tmp_path, content, scheme=other).read("test"))


@pytest.mark.parametrize(
    ("tags", "line", "reason"),
    [
        ("B-A I-A | O I-A", 5, "the tag 'I-A' does not fit IOB2, and the other schemes fit even less."),
        ("I-A I-B | O B-A", 5, "the tag 'B-A' does not fit IOB1, and the other schemes fit even less."),
        ("S-A O | B-A O", 5, "the tag 'O' does not fit BIOES, and the other schemes fit even less."),
        ("O O | O L-A", 5, "the tag 'L-A' is neither O nor B-, I-, E- or S- with a type."),
        ("B-A O | NN O", 4, "the tag 'NN' is neither O nor B-, I-, E- or S- with a type."),
    ],
)
def test_tags_of_no_scheme_are_refused(tags: str, line: int, reason: str, tmp_path: Path) -> None:
    content = "".join("\n" if tag == "|" else f"w {tag}\n" for tag in tags.split())
    with pytest.raises(DataError) as refused:
        list(conll(tmp_path, content).read("test"))
    assert str(refused.value).startswith(f"{tmp_path / 'eng'}:{line}: {reason} ")
    assert "scheme: plain" in str(refused.value)
    assert len(list(conll(tmp_path, content, scheme="plain").read("test"))) == 2


@pytest.mark.parametrize(
    ("content", "options", "line", "reason"),
    [
        ("a B\n\nb C D\n", {}, 3, "has 3 columns, not 2 as the lines before it. Correct it."),
        ("a X O\n\nb\n", {}, 3, "has 1 column, not 3 as the lines before it. Correct it."),
        ("\na X O\n", {"tag_column": 3}, 2, "has 3 columns, but tag_column is 3. They are counted from 0."),
        ("a X O\n", {"word_column": -4}, 1, "has 3 columns, but word_column is -4. They are counted from 0."),
        ("a X O\n", {"word_column": 2}, 1, "word_column and tag_column are the same column. Change one of them."),
    ],
)
def test_wrong_columns_are_named(content: str, options: dict[str, int], line: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        list(conll(tmp_path, content, **options).read("test"))
    assert str(refused.value) == f"{tmp_path / 'eng'}:{line}: {reason}"


def test_a_part_of_train_is_held_out_by_its_words(tmp_path: Path) -> None:
    content = "".join(f"w{n % 300} {'B-A' if n < 300 else 'O'}\n\n" for n in range(600))
    dataset = Conll(train=write(tmp_path / "train", content))
    assert dataset.splits == ["train", "validation"]
    train, validation = ([each.words for each in dataset.read(split)] for split in dataset.splits)
    assert len(train + validation) == 600
    assert 30 < len(validation) < 100
    assert not {*train} & {*validation}


def test_the_input_of_conlleval(tmp_path: Path) -> None:
    predictions = [{"prediction": ["B-ORG", "O", "O", "O"]}, {"prediction": ["B-PER", "I-PER"]}]
    name, text = conll(tmp_path).submission("test", predictions)
    assert name == "test.txt"
    assert text == (
        "EU B-ORG B-ORG\nrejects O O\nGerman B-MISC O\ncall I-MISC O\n\nPeter B-PER B-PER\nPaul B-PER I-PER\n\n"
    )
    assert conll(tmp_path, "one\ntwo\n").submission("test", [{"prediction": ["O", "B-A"]}])[1] == "one O\ntwo B-A\n\n"
