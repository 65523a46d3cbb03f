"""Text files: what a document is, what cannot be read, what the fingerprint says."""

import gzip
import hashlib
import json
import lzma
import random
import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra_lab.corpora.text_files import TextFiles
from electra_lab.sources import files as sources
from registry import LONGEST, Skipped
from registry.errors import DataError

TEXT = "one\ntwo\n\n \t\nthree\n\n\n\nfour\nfive\n"
PACK: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
try:
    import zstandard

    PACK[".zst"] = zstandard.ZstdCompressor().compress
except ImportError:
    pass


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (folder / f"{name}.txt").write_bytes(raw)
    return folder


def read(*paths: Path, **options: Any) -> list[Any]:
    return list(TextFiles(paths=list(paths), **options))


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("paragraphs", ["one\ntwo", "three", "four\nfive"]),
        ("lines", ["one", "two", "three", "four", "five"]),
        ("files", ["one\ntwo\n\n \t\nthree\n\n\n\nfour\nfive"]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_what_one_document_is(
    tmp_path: Path, documents: str, expected: list[str], newline: str, end: str, mark: bytes
) -> None:
    text = (TEXT.rstrip() + end).replace("\n", newline)
    write(tmp_path, a=mark + text.encode())
    assert read(tmp_path / "a.txt", documents=documents) == expected


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("paragraphs", ["one two", "three", "four five"]),
        ("lines", ["one", "two", "three", "four", "five"]),
        ("files", ["one two\n\nthree\n\nfour five"]),
    ],
)
def test_hard_line_breaks_are_joined_on_request(tmp_path: Path, documents: str, expected: list[str]) -> None:
    write(tmp_path, a=TEXT.replace("two", "  two").replace("four", "four  "))
    assert read(tmp_path / "a.txt", documents=documents, join_lines=True) == expected


@pytest.mark.parametrize("documents", ["paragraphs", "lines", "files"])
def test_a_document_does_not_span_files(tmp_path: Path, documents: str) -> None:
    write(tmp_path, a="one", b="two", c="", d=" \n\n ")
    assert read(tmp_path / "*.txt", documents=documents) == ["one", "two"]


SPECIAL = [
    "👩‍👩‍👧 family 🏳️‍🌈",  # joined emoji
    "e\u0301 n\u0303 \u0344",  # combining marks
    "שָׁלוֹם \u202bمرحبا\u202c",  # right to left
    "nul\0in the\0 middle",
    "ᄒ ᅡ ᆫ 한 한",  # lone jamo, a syllable, a syllable and a jamo
    "line \u2028 and paragraph \u2029 separators \x85 and \x0b \x0c \x1c.",
    "\U0010ffff \ufffe \ue000",
]
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")
lines = st.text(characters, max_size=30) | st.sampled_from(SPECIAL)
no_blank_line = lines.map(str.strip).filter(lambda text: text and not text.startswith("\ufeff"))
paragraphs = st.lists(no_blank_line, min_size=1, max_size=4).map("\n".join)


@settings(deadline=None, max_examples=150)
@given(
    texts=st.lists(paragraphs, max_size=6), blank=st.sampled_from(["\n\n", "\n \n", "\n\n\n\n", "\n\t\n\u3000\n"]),
    newline=st.sampled_from(["\n", "\r\n", "\r"]), mark=st.sampled_from(["", "\ufeff"]),
    ending=st.sampled_from(sorted(PACK)), block=st.sampled_from([1, 3, 64, 1 << 20]),
)  # fmt: skip
@example(texts=SPECIAL, blank="\n\n", newline="\r\n", mark="\ufeff", ending="", block=1)
def test_every_file_of_the_same_documents_gives_them_back(
    tmp_path_factory: Any, texts: list[str], blank: str, newline: str, mark: str, ending: str, block: int
) -> None:
    file = tmp_path_factory.mktemp("texts") / f"a.txt{ending}"
    file.write_bytes(PACK[ending]((mark + blank.join(texts).replace("\n", newline)).encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", block)
        assert read(file) == texts
        assert read(file, documents="lines") == [line for text in texts for line in text.split("\n")]
        whole = blank.join(texts)
        assert read(file, documents="files") == ([whole.strip()] if texts else [])


def test_patterns_and_order(tmp_path: Path) -> None:
    """Paths in the order they are given, a pattern's files by name, folders below by two stars, each file once."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path, b="b", a="a")
    write(tmp_path / "deep" / "er", c="c")
    assert read(tmp_path / "*.txt") == ["a", "b"]
    assert read(tmp_path / "[b-z].txt") == ["b"]
    assert read(tmp_path / "b.txt", tmp_path / "a.txt") == ["b", "a"]
    assert sorted(read(tmp_path / "**" / "*.txt")) == ["a", "b", "c"]
    assert read(tmp_path / "b.txt", tmp_path / "*.txt", tmp_path / "b.txt") == ["b", "a"]
    assert read(tmp_path) == ["a", "b", "c"]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="a")
    monkeypatch.chdir(tmp_path)
    assert read(Path("a.txt")) == read(Path("*.txt")) == read(Path()) == ["a"]
    with pytest.raises(DataError, match=r"no\.txt: no file matches"):
        TextFiles(paths=[Path("no.txt")])


def test_brackets_in_names_are_meant_as_they_are_written(tmp_path: Path) -> None:
    """Experiments live in folders such as `run[1]`, and files are called `notes [old].txt`."""
    folder = tmp_path / "run[1]" / "what?"
    folder.mkdir(parents=True)
    write(folder, **{"notes [old]": "notes", "n": "other"})
    assert read(folder / "notes [old].txt") == ["notes"]
    assert read(folder / "n*.txt") == ["other", "notes"]
    assert read(folder / "[mn].txt") == ["other"]
    assert read(folder) == ["other", "notes"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.txt", r"no\.txt: no file matches\."),
        ("*.md", r"\*\.md: no file matches\."),
        ("folder", r"folder: this folder has no file that ends in \.txt or \.text or \.md\. Give a pattern or another"),
    ],
)
def test_what_is_not_there_is_a_sentence(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path, a="a")
    with pytest.raises(DataError, match=message):
        TextFiles(paths=[tmp_path / "a.txt", tmp_path / path])


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
@pytest.mark.parametrize(
    ("content", "line", "byte", "before", "after"),
    [
        (b"caf\xe9\n", 1, 3, [], []),
        (b"\xff\ntwo\n", 1, 0, [], ["two"]),
        (b"one\ntwo\nthree\nM\xe4dchen", 4, 15, ["one\ntwo\nthree"], []),
        (b"one\ntwo\n\nth\xffree\nfour", 4, 11, ["one\ntwo"], ["four"]),
        (b"one\r\ntwo\r\n\r\nth\xffree\r\n\r\nfour", 4, 14, ["one\ntwo"], ["four"]),
        (b"one\rtwo\r\rth\xffree\rfour\r", 4, 11, ["one\ntwo"], ["four"]),
        (b"one\r\n\xff", 2, 5, ["one"], []),
        (b"one\r\xff", 2, 4, ["one"], []),
        (b"\xef\xbb\xbfone\xff", 1, 6, [], []),
        (b"\xef\xbb\xbfone\ntw\xff\n\nthree", 2, 9, ["one"], ["three"]),
        (b"one\n\ncut short \xe2\x82", 3, 15, ["one"], []),
        (b"\x89PNG\r\n\x1a\n\0\0", 1, 0, [], ["\x1a\n\0\0"]),
        (b"one\0\ntwo \xed\xa0\x80 half of a character", 2, 9, ["one\0"], []),
    ],
)
def test_what_is_not_utf8_is_named_by_line_and_byte(
    tmp_path: Path, monkeypatch: Any, block: int, content: bytes, line: int, byte: int, before: Any, after: Any
) -> None:
    """And left out on request: the line alone, or the rest of the file from this line on."""
    monkeypatch.setattr(sources, "BLOCK", block)
    write(tmp_path, a=content, b="next")
    place = f"{tmp_path / 'a.txt'}:{line}"
    with pytest.raises(DataError) as refused:
        read(tmp_path)
    assert str(refused.value).startswith(f"{place}: byte {byte} is not UTF-8. ")
    begin = sum(map(len, content.splitlines(keepends=True)[: line - 1]))
    for on_error, number, unit, kept in (
        ("skip", len(content) - begin, "bytes", before),
        ("skip_line", 1, "lines", before + after),
    ):
        found = read(tmp_path, on_error=on_error)
        (skipped,) = [each for each in found if isinstance(each, Skipped)]
        assert skipped.place == place
        assert f"byte {byte} " in skipped.reason
        assert (skipped.number, skipped.unit) == (number, unit)
        text = "\n".join(each for each in found if isinstance(each, str))
        assert text == "\n".join([*kept, "next"])


@pytest.mark.parametrize(
    ("options", "whole", "line_alone"),
    [
        ({"documents": "paragraphs"}, ["a b", "c\nd"], ["a b", "c\nd\nf", "g"]),
        ({"documents": "paragraphs", "join_lines": True}, ["a b", "c d"], ["a b", "c d f", "g"]),
        ({"documents": "lines"}, ["a b", "c", "d"], ["a b", "c", "d", "f", "g"]),
        ({"documents": "files"}, ["a b\n\nc\nd"], ["a b\n\nc\nd\nf\n\n\ng"]),
        ({"documents": "files", "join_lines": True}, ["a b\n\nc d"], ["a b\n\nc d f\n\ng"]),
    ],
)
def test_damage_within_documents(tmp_path: Path, options: Any, whole: list[str], line_alone: list[str]) -> None:
    """Twice: in the middle of a paragraph, and in a line that is one."""
    write(tmp_path, a=b"a b\n\nc\nd\n\xffe\nf\n\nzz\xfe\n\ng")
    for on_error, expected, skipped in (
        ("skip", whole, [(":5", 12)]),
        ("skip_line", line_alone, [(":5", 1), (":8", 1)]),
    ):
        found = read(tmp_path, on_error=on_error, **options)
        assert [each for each in found if isinstance(each, str)] == expected
        damage = [(each.place, each.number) for each in found if isinstance(each, Skipped)]
        assert damage == [(f"{tmp_path / 'a.txt'}{line}", number) for line, number in skipped]


@pytest.mark.parametrize("shift", range(-3, 3))
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_damage_and_line_ends_at_the_border_of_a_block(tmp_path: Path, shift: int, newline: bytes) -> None:
    """A block has 1 MiB; a line end or a damaged character lies across its border."""
    line = "ein Mädchen".encode() + newline
    good = line * ((sources.BLOCK + shift - 3) // len(line))
    good += b"." * (sources.BLOCK + shift - len(good) - len(newline)) + newline
    assert len(good) == sources.BLOCK + shift
    write(tmp_path, a=good + b"M\xe4dchen" + newline + line * 2)
    count = good.count(newline)
    for on_error, kept in (("skip", count), ("skip_line", count + 2)):
        found = read(tmp_path, documents="lines", on_error=on_error)
        *_, skipped = (each for each in found if isinstance(each, Skipped))
        assert skipped.place == f"{tmp_path / 'a.txt'}:{count + 1}"
        texts = [each for each in found if isinstance(each, str)]
        assert len(texts) == kept
        assert set(texts) <= {"ein Mädchen", "." * len(texts[count - 1])}


def test_of_a_giant_line_only_the_damaged_part_is_left_out(tmp_path: Path) -> None:
    words = b"".join(b"word%07d " % number for number in range(400_000))
    middle = len(words) // 2
    write(tmp_path, a=words[:middle] + b"\xff" + words[middle:])
    found = read(tmp_path, documents="files", on_error="skip_line")
    kept = sum(len(each) for each in found if isinstance(each, str))
    assert len(words) - 2 * sources.BLOCK < kept < len(words)


@pytest.mark.parametrize("ending", sorted(set(PACK) - {""}))
def test_all_lines_before_a_cut_are_kept(tmp_path: Path, ending: str) -> None:
    rng = random.Random(1)
    lines = [f"{number} {rng.random()} {rng.random()}" for number in range(20_000)]
    text = "\n".join(lines).encode()
    packed = PACK[ending](text)
    file = tmp_path / f"a.txt{ending}"
    file.write_bytes(packed[: len(packed) * 3 // 4])
    write(tmp_path, b="next")
    with pytest.raises(DataError, match=r"is cut short"):
        read(tmp_path)
    for on_error, documents in product(("skip", "skip_line"), ("lines", "paragraphs", "files")):
        found = read(tmp_path, on_error=on_error, documents=documents)
        (skipped,) = [each for each in found if isinstance(each, Skipped)]
        assert (skipped.place, skipped.number, skipped.unit) == (str(file), 1, "ends of files")
        kept = "\n".join(each for each in found if isinstance(each, str)).split("\n")
        assert kept[-1] == "next"
        assert kept[:-1] == lines[: len(kept) - 1]
        left = len(text) - sum(len(line) + 1 for line in kept[:-1])
        assert left < 0.3 * len(text) + 2 * (1 << 17)  # zstandard has blocks of 128 KiB


def test_a_store_of_damaged_files_is_not_taken_for_one_that_kept_less(tmp_path: Path) -> None:
    """Files that read well keep their fingerprint, which earlier versions had; skipping has another one."""
    write(tmp_path, a="one")
    made = {on_error: TextFiles(paths=[tmp_path], on_error=on_error) for on_error in ("stop", "skip", "skip_line")}
    digest = hashlib.sha256(b"one").digest()
    options = {"documents": "paragraphs", "join_lines": False, "on_error": "stop"}
    earlier = hashlib.sha256(json.dumps(options, sort_keys=True).encode() + digest).hexdigest()
    assert made["stop"].fingerprint() == earlier
    options["on_error"] = "skip"
    damaged = hashlib.sha256(json.dumps(options, sort_keys=True).encode() + digest).hexdigest()
    assert len({damaged, *(corpus.fingerprint() for corpus in made.values())}) == 4


def test_a_file_that_goes_away_or_grows_is_a_sentence(tmp_path: Path) -> None:
    damaged = TextFiles(paths=[write(tmp_path, c=b"a\xff") / "c.txt"], on_error="skip")
    damaged.fingerprint()
    write(tmp_path, c=b"b\xff")
    with pytest.raises(DataError, match=r"c\.txt: changed while it was read"):
        list(damaged)
    corpus = TextFiles(paths=[write(tmp_path, a="a") / "a.txt"])
    corpus.fingerprint()
    reading = iter(TextFiles(paths=[write(tmp_path, b="one\n\ntwo") / "b.txt"]))
    write(tmp_path, a="a\n\nb")
    with pytest.raises(DataError, match=r"a\.txt: changed while it was read\. Start again when it is complete\."):
        list(corpus)
    assert next(reading) == "one"
    (tmp_path / "a.txt").unlink()
    for again in (lambda: list(corpus), corpus.fingerprint):
        with pytest.raises(DataError, match=r"a\.txt: cannot be read \(No such file or directory\)"):
            again()


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one line of two million words, 24 MB."""
    folder = tmp_path_factory.mktemp("giant")
    with (folder / "a.txt").open("wb") as stream:
        for number in range(20):
            stream.write(b"".join(b"word%07d " % (100_000 * number + each) for each in range(100_000)))
    return folder


@pytest.mark.parametrize("documents", ["paragraphs", "lines", "files"])
def test_one_giant_line_is_read_in_bounded_memory(giant: Path, documents: Any) -> None:
    """As text8 is: 100 MB without a line break."""
    corpus = TextFiles(paths=[giant], documents=documents)
    words = longest = 0
    tracemalloc.start()
    try:
        corpus.fingerprint()
        for text in corpus:
            assert isinstance(text, str)
            assert text.startswith(f"word{words:07}")
            words, longest = words + (len(text) + 1) // 12, max(longest, len(text))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words == 2_000_000
    assert LONGEST - 12 <= longest <= LONGEST
    assert peak < 15e6, f"{peak / 1e6:.0f} MB for 24 MB of text"


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    write(tmp_path, a="one\n\ntwo", b="three", c="one\n\ntwo", d="one\n\ntwoth", e="ree")

    def fingerprint(*names: str, **options: Any) -> str:
        return TextFiles(paths=[tmp_path / f"{name}.txt" for name in names], **options).fingerprint()

    assert fingerprint("a") == fingerprint("c") == fingerprint("a", "a")
    others = [
        fingerprint("a"), fingerprint("b"), fingerprint("a", "b"), fingerprint("b", "a"), fingerprint("d", "e"),
        fingerprint("a", documents="lines"), fingerprint("a", join_lines=True),
    ]  # fmt: skip
    assert len(set(others)) == len(others)


def test_damage_in_a_file_that_is_cut_short_is_counted_up_to_the_cut(tmp_path: Path) -> None:
    rng = random.Random(1)
    text = b"one\nM\xe4\n" + b"".join(b"%f\n" % rng.random() for _ in range(20_000))
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress(text)[:-20_000])
    end, rest = (each for each in read(tmp_path, on_error="skip") if isinstance(each, Skipped))
    assert (end.place, end.unit) == (str(file), "ends of files")
    assert (rest.place, rest.unit) == (f"{file}:2", "bytes")
    kept = "".join(each for each in read(tmp_path, on_error="skip_line") if isinstance(each, str))
    assert 100_000 < rest.number == len(kept.removeprefix("one\n").encode() + b"\nM\xe4\n")
