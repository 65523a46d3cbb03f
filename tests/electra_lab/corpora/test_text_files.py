"""Text files: documents, unreadable files, and the fingerprint."""

import gzip
import hashlib
import json
import lzma
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra_lab.corpora.text_files import TextFiles
from electra_lab.sources import files as sources
from registry import LONGEST, Skipped
from registry.errors import DataError

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
    ("options", "expected"),
    [
        ({"documents": "paragraphs"}, ["one\n  two", "three", "four  \nfive"]),
        ({"documents": "lines"}, ["one", "two", "three", "four", "five"]),
        ({"documents": "files"}, ["one\n  two\n\n \t\nthree\n\n\n\nfour  \nfive"]),
        ({"documents": "paragraphs", "join_lines": True}, ["one two", "three", "four five"]),
        ({"documents": "lines", "join_lines": True}, ["one", "two", "three", "four", "five"]),
        ({"documents": "files", "join_lines": True}, ["one two\n\nthree\n\nfour five"]),
    ],
)
def test_what_one_document_is(tmp_path: Path, options: Any, expected: list[str]) -> None:
    write(tmp_path, a="one\n  two\n\n \t\nthree\n\n\n\nfour  \nfive\n")
    assert read(tmp_path / "a.txt", **options) == expected


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
    end=st.sampled_from(["", "\n", "\n\n\n"]), ending=st.sampled_from(sorted(PACK)),
    block=st.sampled_from([1, 3, 64, 1 << 20]),
)  # fmt: skip
@example(texts=SPECIAL, blank="\n\n", newline="\r\n", mark="\ufeff", end="\n", ending="", block=1)
def test_every_file_of_the_same_documents_gives_them_back(
    tmp_path_factory: Any, texts: list[str], blank: str, newline: str, mark: str, end: str, ending: str, block: int
) -> None:
    file, whole = tmp_path_factory.mktemp("texts") / f"a.txt{ending}", blank.join(texts)
    file.write_bytes(PACK[ending]((mark + (whole + end).replace("\n", newline)).encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", block)
        assert read(file) == texts
        assert read(file, documents="lines") == [line for text in texts for line in text.split("\n")]
        assert read(file, documents="files") == ([whole.strip()] if texts else [])


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
    """And left out on request: the line alone."""
    monkeypatch.setattr(sources, "BLOCK", block)
    write(tmp_path, a=content, b="next")
    place = f"{tmp_path / 'a.txt'}:{line}"
    with pytest.raises(DataError, match=f"^{place}: byte {byte} is not UTF-8"):
        read(tmp_path)
    found = read(tmp_path, on_error="skip")
    (skipped,) = [item for item in found if isinstance(item, Skipped)]
    assert skipped.place == place
    assert f"byte {byte} " in skipped.reason
    assert (skipped.number, skipped.unit) == (1, "lines")
    text = "\n".join(item for item in found if isinstance(item, str))
    assert text == "\n".join([*before, *after, "next"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"documents": "paragraphs"}, ["a b", "c\nd\nf", "g"]),
        ({"documents": "paragraphs", "join_lines": True}, ["a b", "c d f", "g"]),
        ({"documents": "lines"}, ["a b", "c", "d", "f", "g"]),
        ({"documents": "files"}, ["a b\n\nc\nd\nf\n\n\ng"]),
        ({"documents": "files", "join_lines": True}, ["a b\n\nc d f\n\ng"]),
    ],
)
def test_damage_within_documents(tmp_path: Path, options: Any, expected: list[str]) -> None:
    """In the middle of a paragraph, and in a paragraph of one line."""
    write(tmp_path, a=b"a b\n\nc\nd\n\xffe\nf\n\nzz\xfe\n\ng")
    found = read(tmp_path, on_error="skip", **options)
    assert [item for item in found if isinstance(item, str)] == expected
    damage = [(item.place, item.number) for item in found if isinstance(item, Skipped)]
    assert damage == [(f"{tmp_path / 'a.txt'}{line}", 1) for line in (":5", ":8")]


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
    for documents in ("lines", "paragraphs", "files"):
        found = read(tmp_path, on_error="skip", documents=documents)
        (skipped,) = [item for item in found if isinstance(item, Skipped)]
        assert (skipped.place, skipped.number, skipped.unit) == (str(file), 1, "ends of files")
        kept = "\n".join(item for item in found if isinstance(item, str)).split("\n")
        assert kept[-1] == "next"
        assert kept[:-1] == lines[: len(kept) - 1]
        left = len(text) - sum(len(line) + 1 for line in kept[:-1])
        assert left < 0.3 * len(text) + 2 * (1 << 17)  # zstandard uses blocks of 128 KiB


def test_a_store_of_damaged_files_is_not_taken_for_one_that_kept_less(tmp_path: Path) -> None:
    """The fingerprint of undamaged files is that of earlier versions; every other option changes it."""
    write(tmp_path, a="one")
    options = {"documents": "paragraphs", "join_lines": False, "on_error": "stop"}
    digest = hashlib.sha256(b"one").digest()
    written = [json.dumps(options | {"on_error": on_error}, sort_keys=True) for on_error in ("stop", "skip")]
    earlier, damaged = (hashlib.sha256(text.encode() + digest).hexdigest() for text in written)
    others: list[Any] = [{"on_error": "skip"}, {"documents": "lines"}, {"join_lines": True}]
    others += [{"group": "a"}, {"group": "b"}, {"remove": "a"}]
    assert TextFiles(paths=[tmp_path]).fingerprint() == earlier
    found = {TextFiles(paths=[tmp_path], **options).fingerprint() for options in others}
    assert len({earlier, damaged, *found}) == 2 + len(others)


def test_one_giant_line_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Such as text8: 100 MB without a line break. Here, one line of two million words, 24 MB."""
    with (tmp_path / "a.txt").open("wb") as stream:
        for begin in range(0, 2_000_000, 100_000):
            stream.write(b"".join(b"word%07d " % number for number in range(begin, begin + 100_000)))
    for documents in ("paragraphs", "files"):
        corpus, words, longest = TextFiles(paths=[tmp_path], documents=documents), 0, 0  # type: ignore[arg-type]
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


def test_of_a_giant_line_only_the_damaged_part_is_left_out(tmp_path: Path) -> None:
    words = b"".join(b"word%07d " % number for number in range(400_000))
    write(tmp_path, a=words[:2_000_000] + b"\xff" + words[2_000_000:])
    kept = sum(len(item) for item in read(tmp_path, on_error="skip") if isinstance(item, str))
    assert len(words) - 2 * sources.BLOCK < kept < len(words)
