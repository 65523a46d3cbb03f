"""CoNLL's columns: words, tags in any scheme, and malformed lines."""

import gzip
import json
import re
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


def conll(folder: Path, content: str | bytes = NER, **options: Any) -> Conll:
    return Conll(test=write(folder / "eng", content), **options)


def test_sentences_columns_and_plain_tags(tmp_path: Path) -> None:
    place = str(tmp_path / "eng")
    assert list(conll(tmp_path).read("test")) == [
        WordsExample(("EU", "rejects", "German", "call"), ("B-ORG", "O", "B-MISC", "I-MISC"), "0", f"{place}:3"),
        WordsExample(("Peter", "Paul"), ("B-PER", "B-PER"), "1", f"{place}:11"),
    ]
    (first, _) = conll(tmp_path, tag_column=1, scheme="plain").read("test")
    assert first.tags == ("NNP", "VBZ", "JJ", "NN")
    (first, _) = conll(tmp_path, tag_column=-2, scheme="IOB1").read("test")
    assert first.tags == ("B-NP", "B-VP", "B-NP", "I-NP")
    (first, _) = conll(tmp_path, word_column=-1, tag_column=0, scheme="plain").read("test")
    assert (first.words[0], first.tags) == ("I-ORG", ("EU", "rejects", "German", "call"))


def test_json_lines_of_words_and_tags(tmp_path: Path) -> None:
    """With the tags of the columns' files: any scheme, checked, and refused if they are numbers or too few."""
    file = tmp_path / "a.jsonl.gz"

    def read(*records: dict[str, Any], **options: Any) -> list[WordsExample]:
        file.write_bytes(gzip.compress("\n\n".join(map(json.dumps, records)).encode()))
        return list(Conll(test=file, **options).read("test"))

    words = ["EU", "New York", "call"]
    found = read({"tokens": words, "ner_tags": ["I-ORG", "I-LOC", "O"], "id": 7}, {"tokens": ["x"], "ner_tags": ["O"]})
    expected = WordsExample(tuple(words), ("B-ORG", "B-LOC", "O"), "0", f"{file}:1")
    assert found == [expected, WordsExample(("x",), ("O",), "1", f"{file}:3")]
    assert read({"a": ["x"], "b": ["NN"]}, words="a", tags="b", scheme="plain")[0].tags == ("NN",)
    assert read({"tokens": ["x"]})[0].tags is None
    assert read({"tokens": ["x"], "ner_tags": ["B-A|B-B"]}, layer=1)[0].tags == ("B-B",)
    for wrong in ({"ner_tags": ["O"]}, {"tokens": ["x"], "ner_tags": [1]}, {"tokens": ["x", "y"], "ner_tags": ["O"]},
                  {"tokens": "x", "ner_tags": "O"}, {"tokens": ["x"], "ner_tags": ["NN"]}, {"tokens": ["\ud800"]},
                  {"tokens": []}, {"tokens": ["x"], "ner_tags": []}):  # fmt: skip
        with pytest.raises(DataError, match=r"a\.jsonl\.gz:1: "):
            read(wrong)
    prints = {Conll(test=file, **options).fingerprint() for options in ({}, {"words": "a"}, {"tags": "a"})}
    assert len(prints) == 3


def test_words_without_tags_and_with_other_spaces(tmp_path: Path) -> None:
    dataset = conll(tmp_path, "-DOCSTART-\n\none\ntwo\n\nthree\n", tag_column=3)
    assert [(found.words, found.tags) for found in dataset.read("test")] == [(("one", "two"), None), (("three",), None)]
    (found,) = conll(tmp_path, "10\u00a0000 CD O\n\u3000 X O\n").read("test")
    assert found.words == ("10\u00a0000", "\u3000")  # other spaces are parts of words


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
        with pytest.raises(DataError, match=rf"does not fit {other}\..* scheme: plain"):
            list(conll(tmp_path, content, scheme=other).read("test"))


@pytest.mark.parametrize(
    ("tags", "line", "reason"),
    [
        ("B-A I-A | O I-A", 5, "the tag 'I-A' does not fit IOB2, and"),
        ("I-A I-B | O B-A | I-A", 5, "the tag 'B-A' does not fit IOB1, and"),
        ("S-A O | B-A O | S-A", 5, "the tag 'O' does not fit BIOES, and"),
        ("O O | O L-A", 5, "the tag 'L-A' does not fit IOB2, and"),
        ("O O | O L.A", 5, "the tag 'L.A' is neither O nor B-,"),
        ("B-A O | NN O", 4, "the tag 'NN' is neither O nor B-,"),
    ],
)
def test_tags_of_no_scheme_are_refused(tags: str, line: int, reason: str, tmp_path: Path) -> None:
    content = "".join("\n" if tag == "|" else f"w {tag}\n" for tag in tags.split())
    with pytest.raises(DataError, match=rf"^{tmp_path / 'eng'}:{line}: {re.escape(reason)} .*scheme: plain"):
        list(conll(tmp_path, content).read("test"))
    assert len(list(conll(tmp_path, content, scheme="plain").read("test"))) == tags.count("|") + 1


@pytest.mark.parametrize(
    ("content", "options", "line", "reason"),
    [
        ("a B\n\nb C D\n", {}, 3, "has 3 columns, not 2 "),
        ("a X O\n\nb\n", {}, 3, "has 1 column, not 3 "),
        ("\na X O\n", {"tag_column": 3}, 2, "has 3 columns, but tag_column is 3."),
        ("a X O\n", {"word_column": -4}, 1, "has 3 columns, but word_column is -4."),
        ("a X O\n", {"word_column": 2}, 1, "word_column and tag_column are the same column."),
    ],
)
def test_wrong_columns_are_named(content: str, options: dict[str, int], line: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{tmp_path / 'eng'}:{line}: {re.escape(reason)}"):
        list(conll(tmp_path, content, **options).read("test"))


def test_a_part_of_train_is_held_out_by_its_words(tmp_path: Path) -> None:
    content = "".join(f"w{n % 300} {'B-A' if n < 300 else 'O'}\n\n" for n in range(600))
    dataset = Conll(train=write(tmp_path / "train", content))
    train = [sentence.words for sentence in dataset.read("train")]
    validation = [sentence.words for sentence in dataset.read("validation")]
    assert len(train + validation) == 600
    assert 30 < len(validation) < 100
    assert not {*train} & {*validation}


@pytest.mark.parametrize(
    ("content", "predictions", "expected"),
    [
        (NER, [["B-ORG", "O", "O", "O"], ["B-PER", "I-PER"]],
         "EU B-ORG B-ORG\nrejects O O\nGerman B-MISC O\ncall I-MISC O\n\nPeter B-PER B-PER\nPaul B-PER I-PER\n\n"),
        ("one\ntwo\n", [["O", "B-A"]], "one O\ntwo B-A\n\n"),
        ("New York\tB-A\n \tO\n", [["B-A", "O"]], "New_York B-A B-A\n_ O O\n\n"),  # spaces do not separate columns
    ],
)  # fmt: skip
def test_the_input_of_conlleval(content: str, predictions: list[list[str]], expected: str, tmp_path: Path) -> None:
    found = conll(tmp_path, content).submission("test", [{"prediction": tags} for tags in predictions])
    assert found == ("test.txt", expected)


U = """\
# sent_id = 1
# text = Zum Haus
1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_
1\tZu\tzu\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\tCase=Dat|Number=Sing\t3\tdet\t_\t_
2.1\tx\tx\tVERB\t_\t_\t_\t_\t_\t_
3\tNew York\tHaus\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No

# sent_id = 2
1\tJa\tja\tINTJ\t_\t_\t0\troot\t_\t_
"""
U_WORDS = "Zu/ADP dem/DET New York/NOUN | Ja/INTJ"
NESTED = "# http://x [2009]\n1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n# y\n1\tDem\tO\tO\n"
LAYERS = "Bank\tB-ORG|O\nof\tI-ORG|O\nNew York\tI-ORG|B-LOC\nis\tO\n"
BROKEN = "a O\nb\n\nc O\n\nd X O\n\ne L.A\n\nf O\ng O\nh I-A\n\ni B-A\n\nj B-A\n"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        # Tabs and spaces.
        ("New York\tB-A\nis\tO\n", {}, "New York/B-A is/O"),
        (" \tO\na\tB-A\n", {}, " /O a/B-A"),
        ("a B-A\n  O\n", {}, "a/B-A  /O"),
        ("  O\na B-A\nb O\n", {}, " /O a/B-A b/O"),
        ("a\t\tO\nlonger\tB-A \n \t \nb\tO\t\n", {}, "a/O longer/B-A | b/O"),
        # Comments and words that begin with #.
        ("# 1\na\tO\n\n# 2\nb\tB-A\n", {}, "a/O | b/B-A"),
        ("# text = a b\na O\nb B-A\n", {}, "a/O b/B-A"),
        ("# text = a\nb N\n", {"scheme": "plain"}, "b/N"),
        ("# id 52\tdomain=en\na _ _ O\nb _ _ B-A\n", {}, "a/O b/B-A"),
        ("#begin document (x); part 000\na\tO\n\n#end document\n", {}, "a/O"),
        ("# O\na B-A\n\na O\n# O\n", {}, "#/O a/B-A | a/O #/O"),
        ("#a=b\tO\na\tB-A\n\n#tag\tO\n", {}, "#a=b/O a/B-A | #tag/O"),
        ("# #\n1 CD\n", {"scheme": "plain"}, "#/# 1/CD"),
        # Numbered words.
        (U, {"scheme": "plain"}, U_WORDS),
        (U, {"scheme": "plain", "word_column": 1, "tag_column": 3}, U_WORDS),
        (U, {"scheme": "plain", "word_column": 2, "tag_column": 4}, "zu/APPR der/ART Haus/NN | ja/_"),
        (NESTED, {"tag_column": 2}, "Schartau/B-PER sagte/O | Dem/O"),
        ("1 CD O\n\n2 CD O\n", {}, "1/O | 2/O"),
        # Several tags in a column.
        (LAYERS, {"layer": 0}, "Bank/B-ORG of/I-ORG New York/I-ORG is/O"),
        (LAYERS, {"layer": 1}, "Bank/O of/O New York/B-LOC is/O"),
        (LAYERS, {"scheme": "plain"}, "Bank/B-ORG|O of/I-ORG|O New York/I-ORG|B-LOC is/O"),
        ("a\tB-LOC|ORG\n", {}, "a/B-LOC|ORG"),
        # BILOU and BMES.
        ("a U-A\nb B-A\nc I-A\nd L-A\ne O\n", {}, "a/B-A b/B-A c/I-A d/I-A e/O"),
        ("a U-A\nb O\n", {"scheme": "BILOU"}, "a/B-A b/O"),
        ("a S\nb B\nc M\nd E\n\ne B\nf E\n", {"scheme": "BMES"}, "a/B b/B c/I d/I | e/B f/I"),
        # Malformed sentences are left out.
        (BROKEN, {"on_error": "skip"}, "c/O | i/B-A | j/B-A"),
        (b"a O\nf\xff O\n\n# \xff\nb O\n\nc \xff\n", {"on_error": "skip"}, "b/O"),
    ],
)
def test_files_as_people_have_them(
    content: str | bytes, options: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    found = conll(tmp_path, content, **options).read("test")
    read = []
    for sentence in found:
        read.append(" ".join(map("/".join, zip(sentence.words, sentence.tags or (), strict=True))))
    assert " | ".join(read) == expected


@pytest.mark.parametrize(
    ("content", "options", "lines"),
    [
        ("a O\nNew York\tB-A\n", {}, [2]),
        ("a\tO\nb\tO\nYork I-LOC\n", {}, [3]),
        ("\tO\na\tB-A\nb\tO\n", {}, [1]),
        ("a\tO\nb\tO\n\n#sad O\n", {}, [4]),
        (U, {}, [4, 10]),
        (U.replace("3\tNew York", "rubbish\n3\tNew York"), {"scheme": "plain"}, [7]),
        (LAYERS, {}, [1]),
        ("is\tO\na\tB-A|B-B\n", {}, [2]),
        ("a U-A\nb B-A\nc O\n", {"scheme": "BILOU"}, [3]),
        ("1-2 a _ _\n1 b _ O\n2 c _ I-A\n\n1 d _ B-A\n\n1 e _ B-A\n", {}, [3]),
        (BROKEN, {}, [2, 6, 8, 12]),
        (b"a O\nb\xff O\n\nc \xff\n", {}, [2, 4]),
    ],
)
def test_what_cannot_be_read_is_named(
    content: str | bytes, options: dict[str, Any], lines: list[int], tmp_path: Path
) -> None:
    """All mistakes are reported at once, each by the first wrong word of a sentence."""
    with pytest.raises(DataError) as refused:
        list(conll(tmp_path, content, **options).read("test"))
    named = [line for line in str(refused.value).splitlines() if line.startswith(str(tmp_path))]
    assert [int(line.split(":")[1]) for line in named] == lines
    assert str(refused.value).endswith("set on_error: skip.")


def test_single_columns_may_have_comments(tmp_path: Path) -> None:
    dataset = conll(tmp_path, "# newdoc id = 3\n#tag\n# a b\n\n# sent 2\nNew\n", held_out=0)
    with pytest.raises(DataError, match="eng:3: "):
        list(dataset.read("test"))
    dataset = conll(tmp_path, "# newdoc id = 3\n#tag\nb\n\n# sent 2\nNew\n")
    assert [(found.words, found.tags) for found in dataset.read("test")] == [(("#tag", "b"), None), (("New",), None)]
