"""detect, corrupt, fill, embed and score: texts from arguments, files and standard input, as text, JSON and a page."""

import csv
import gzip
import io
import json
import lzma
import math
import os
import re
import select
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import electra_lab
from electra_lab.api import held_out
from electra_lab.cli._inputs import LONGEST
from electra_lab.cli._items import Reading, read
from electra_lab.cli._texts import LEGENDS
from electra_lab.cli.score import _in_whole, _without
from electra_lab.inference import opening
from electra_lab.inference.results import Scored
from electra_lab.model.network import Network
from electra_lab.presentation.pages import STYLE
from tests.electra_lab.cli.conftest import CPU

TEXTS = ["the cat sat", "", "3 dogs saw the mat"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def rows(out: str) -> list[Any]:
    return [json.loads(line) for line in out.split("\n")[:-1]]


def plain(results: Any) -> Any:
    """Convert answers as a round trip through JSON does: keys become text."""
    return [json.loads(json.dumps(result.as_dict())) for result in results]


def test_every_way_in_gives_what_the_python_api_gives(lab: Any, model: Path, file: Path, given: Any) -> None:
    pair = electra_lab.load(model, device="cpu")
    expected = plain(pair.detect(TEXTS))
    for arguments in ([*TEXTS], ["--file", file], ["-"], ["--file", "-"]):
        given(file.read_bytes())
        code, out, _ = lab("detect", model, *arguments, "--json", *CPU)
        assert (code, rows(out)) == (0, expected)
    assert lab("detect", model, "the cat", *CPU) == (0, f"{pair.detect('the cat')}\n", "")
    one, two = (lab("detect", model, "the cat", "--step", step, "--json")[1] for step in (8, 12))
    assert one != two


LINES = b"\xef\xbb\xbfthe cat\rsat\r\nthe \xff cat\n\n3 \xe2\x80\xa8 \x7f dogs\n\xe9t\xe9\n\xef\xbb\xbflast\r"
READ = ["the cat\rsat", "", "3 \u2028 \x7f dogs", "\ufefflast\r"]


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed"])
@pytest.mark.parametrize("way", ["file", "standard input", "arguments"])
def test_texts_are_read_as_those_of_a_corpus(lab, model, tmp_path, given, verb, way) -> None:
    """A byte order mark is dropped, lines end at line feeds alone, and bad bytes are an error, or left out."""
    (tmp_path / "a.txt").write_bytes(LINES)
    words, place, before, good, bad = {
        "file": (["--file", tmp_path / "a.txt"], f"{tmp_path}/a.txt:2", READ[:1], READ, [2, 5]),
        "standard input": (["-"], "standard input:2", READ[:1], READ, [2, 5]),
        "arguments": ([os.fsdecode(word) for word in (b"the \xff cat", "one", b"\xe9")], "TEXT 1", [], ["one"], [1, 3]),
    }[way]
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", *CPU)
    assert (code, err.splitlines()[-1].startswith(f"{place}: byte 4 ")) == (3, True)
    assert [row["text"] for row in rows(out)] == before
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", "--on-error", "skip", *CPU)
    assert (code, [row["text"] for row in rows(out)]) == (0, good)
    assert [int(number) for number in re.findall(r"(\d+): byte", err)] == bad


WRITTEN = {
    "a.csv": 'n,text,line\n1,"the, cat",a\n2,3 dogs,b\n',
    "b.csv": "sep=;\r\nn;text;line\r\n1;the, cat;a\r\n2;3 dogs;b\r\n",
    "c.csv": "n\ttext\tline\n1\tthe, cat\ta\n2\t3 dogs\tb\n",
    "d.tab": "n\ttext\tline\n1\tthe, cat\ta\n2\t3 dogs\tb\n",
    "e.jsonl": '{"text": "the, cat", "line": "a"}\n\n{"text": "3 dogs", "line": "b"}\n',
    "f.fa": ">1 one\nthe, \n; left out\n cat\n\n>2\r\n3 do\r\ngs\r\n",
    "none.csv": "1,the,a\n2,dogs,b\n",
}


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score"])
def test_every_verb_reads_tables_and_records(lab, model, tmp_path: Path, given: Any, verb: str) -> None:
    for name, content in WRITTEN.items():
        (tmp_path / name).write_text(content, newline="")

    def read(*words: object) -> list[str]:
        code, out, err = lab(verb, model, *words, "--json", *CPU)
        assert code == 0, err
        return [row["text"] for row in rows(out)] if "--field" not in words or verb != "score" else rows(out)

    read_of = {name: read("--file", tmp_path / name) for name in list(WRITTEN)[:6]}
    assert read_of == {name: ["the, cat", "3 dogs"] for name in list(WRITTEN)[:5]} | {"f.fa": ["the,cat", "3dogs"]}
    given(WRITTEN["a.csv"].encode())
    fields = ("--field", "line", "--field", "text")
    joined = ["a the, cat", "b 3 dogs"]
    if verb == "score":  # which keeps the fields
        expected = electra_lab.load(model, device="cpu").score(joined)
        assert [row["score"] for row in read("-", "--format", "csv", *fields)] == pytest.approx(
            [found.score for found in expected], abs=1e-5
        )
    else:
        assert read("-", "--format", "csv", *fields) == joined
    lab.fails(3, verb, model, "--file", tmp_path / "a.csv", "--field", "none", *CPU)


def test_several_files_are_read_in_order(lab: Any, model: Path, tmp_path: Path) -> None:
    for name, content in WRITTEN.items():
        (tmp_path / name).write_text(content, newline="")
    twice = [str(tmp_path / "d.tab"), str(tmp_path / "[ab].csv")]
    found = scored(lab, model, *(word for file in twice for word in ("--file", file)))
    assert [(row["n"], row["text"]) for row in found] == [("1", "the, cat"), ("2", "3 dogs")] * 3
    (tmp_path / "other.csv").write_text("m,text\n1,the cat\n")
    both = ("--file", tmp_path / "a.csv", "--file", tmp_path / "other.csv")
    code, out, err = lab("score", model, *both, "--json", *CPU)
    assert (code, out.count("\n"), err.splitlines()[-1].startswith(f"{tmp_path}/other.csv")) == (3, 2, True)
    for name in ("one.log", "two.log"):
        (tmp_path / name).write_text("the cat\n3 dogs\n")
    assert [row["name"] for row in scored(lab, model, "--file", tmp_path / "f.fa")] == ["1", "2"]
    found = scored(lab, model, "--file", tmp_path / "*.log", "--above", -99)
    assert [row["line"] for row in found] == [f"{tmp_path}/{name}.log:{n}" for name in ("one", "two") for n in (1, 2)]
    assert "'*.log'" not in lab.fails(3, "score", model, "--file", tmp_path / "*.none", *CPU)


def test_columns_without_a_header_have_numbers(lab: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(WRITTEN["none.csv"])
    found = scored(lab, model, "--file", tmp_path / "a.csv", "--field", "2", "--csv")
    assert [[*row.items()][:3] for row in found] == [
        [("1", "1"), ("2", "the"), ("3", "a")],
        [("1", "2"), ("2", "dogs"), ("3", "b")],
    ]
    for row in ("the cat,1", "text,1"):  # a cell of the first row, or the name of a column
        (tmp_path / "b.csv").write_text(f"{row}\na dog,0\n")
        said = lab.fails(3, "score", model, "--file", tmp_path / "b.csv", "--field", "1", *CPU)
        assert said.startswith(f"{tmp_path}/b.csv:1: ")
        assert [row["2"] for row in scored(lab, model, "--file", tmp_path / "b.csv", "--field", "2")] == ["1", "0"]
    (tmp_path / "a.csv").write_text("2,1\nthe,cat\n")  # these are names
    assert [row["2"] for row in scored(lab, model, "--file", tmp_path / "a.csv", "--field", "2")] == ["the"]
    lab.fails(3, "score", model, "--file", tmp_path / "a.csv", "--field", "3", *CPU)


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score", "predict"])
def test_a_field_of_text_is_refused(lab, model, tuned, tmp_path: Path, given: Any, verb: str) -> None:
    """Lines of JSON must not be read as text."""
    (tmp_path / "a.log").write_bytes(line := b'{"line": "the cat"}\n')
    given(line)
    for words in (["-"], ["--file", tmp_path / "a.log"], ["the cat"]):
        err = lab.fails(2, verb, tuned["labels"] if verb == "predict" else model, *words, "--field", "line", *CPU)
        assert err.startswith("--field: ")


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed", "score", "predict"])
def test_headers_of_sequences_are_not_read_as_text(lab, model, tuned, tmp_path: Path, given: Any, verb: str) -> None:
    """A file that looks like FASTA is refused, unless the format says what it is."""
    folder, content = tuned["labels"] if verb == "predict" else model, b">one\nTHE CAT\n"
    (tmp_path / "a.txt").write_bytes(content)
    given(content)
    for words, name in ((["-"], "standard input"), (["--file", tmp_path / "a.txt"], f"{tmp_path}/a.txt")):
        assert lab.fails(3, verb, folder, *words, *CPU).startswith(f"{name}:1: ")
    for format, number in (("text", 2), ("fasta", 1)):
        code, out, _ = lab(verb, folder, "--file", tmp_path / "a.txt", "--format", format, "--json", *CPU)
        assert (code, len(rows(out))) == (0, number)
    (tmp_path / "a.txt").write_bytes(b"the\n>cat\n" * 9)
    for words in ([">one"], ["--file", tmp_path / "a.txt"]):
        assert lab(verb, folder, *words, *CPU)[0] == 0


def test_a_fasta_file_that_is_none_or_too_long(lab: Any, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.fa").write_text("\nthe cat\n>1\ndogs\n")
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:2: ")
    monkeypatch.setattr("electra_lab.cli._inputs.LONGEST", 10)
    (tmp_path / "a.fa").write_text(">1\n" + "ab\n" * 4)
    assert lab("score", model, "--file", tmp_path / "a.fa", *CPU)[0] == 0
    (tmp_path / "a.fa").write_text(">1\n" + "ab\n" * 5)
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:1: ")
    for wrong in (b">1\rab\r>2\rcd\r", b">1\na\xff\n"):  # lines end with CR alone; letters are not UTF-8
        (tmp_path / "a.fa").write_bytes(wrong)
        assert lab.fails(3, "score", model, "--file", tmp_path / "a.fa", *CPU).startswith(f"{tmp_path}/a.fa:1: ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused(lab: Any, model: Path, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text(f"{'the cat ' * 9}\n3 dogs\n", encoding=encoding)
    assert lab.fails(3, "score", model, "--file", tmp_path / "a.txt", *CPU).startswith(f"{tmp_path}/a.txt: ")


def test_standard_input_is_read_once(lab: Any, model: Path) -> None:
    assert lab.fails(2, "score", model, "-", "--normal", "-", *CPU).startswith("--normal -: ")


def test_a_table_has_the_probability_of_each_letter(lab: Any, model: Path, tmp_path: Path) -> None:
    """The name is that of the sequence, otherwise the number of the text; positions begin with 1."""
    (tmp_path / "a.fa").write_text(">one x\nth\ne3 \n>two\nsat\n")
    for words, names, texts in (
        (("--file", tmp_path / "a.fa"), ["one", "two"], ["the3", "sat"]),
        (("the cat", "sat"), ["1", "2"], ["the cat", "sat"]),
    ):
        code, out, _ = lab("detect", model, *words, "--csv", *CPU)
        expected = list[tuple[str, str, str]]()
        chances = list[float]()
        for name, found in zip(names, electra_lab.load(model, device="cpu").detect(texts), strict=True):
            expected += [(name, str(at + 1), token) for (at, _), token in zip(found.offsets, found.tokens, strict=True)]
            chances += found.probabilities
        table = list(csv.DictReader(io.StringIO(out)))
        assert (code, [(row["name"], row["position"], row["token"]) for row in table]) == (0, expected)
        assert [float(row["probability"]) for row in table] == pytest.approx(chances, abs=1e-5)
    for other in (("--json",), ("--html", "a.html")):
        lab.fails(2, "detect", model, "a", "--csv", *other, *CPU)


def test_arguments_are_text_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    assert [item["text"] for _, _, item in read(["caf\xe9 \xff"], None, Reading("stop"))] == ["caf\xe9 \xff"]


def test_a_line_without_an_end_is_not_read_to_its_end(lab: Any, model: Path, given: Any, monkeypatch) -> None:
    """The results of a line take 250 times its bytes."""
    assert LONGEST <= 1 << 21
    monkeypatch.setattr("electra_lab.cli._inputs.LONGEST", 10)
    for verb in ("detect", "score"):
        given(b"the cat\n" + b"x" * 11)
        code, out, err = lab(verb, model, "-", *CPU)
        assert (code, out.count("\n"), err.partition(": ")[0]) == (3, 1, "standard input:2")


def test_what_plug_ins_print_is_not_the_answer(lab: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Network.hidden
    monkeypatch.setattr(Network, "hidden", lambda *given: print("loud") or forward(*given))
    code, out, err = lab("detect", model, "the cat", "--json", *CPU)
    assert (code, json.loads(out)["text"], err) == (0, "the cat", "loud\n")


def test_texts_on_a_terminal_show_their_control_characters(lab, model: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = lab("detect", model, "the \x1b]0;owned\x07 cat :smile:", *CPU)
    assert (code, r"\x1b" in out, "\x1b[" in out) == (0, True, True)
    assert not {"\x1b]", "\x07", "\U0001f604"} & {*out, *re.findall(r"\x1b.", out)}


@pytest.mark.parametrize(
    ("words", "step", "options"),
    [
        ("detect --step 8 --batch-size 3", 8, {"batch_size": 3}),
        ("corrupt --best --top 2 --seed 4 --mask-prob 0.5 --temperature 2", "best",
         {"batch_size": 32, "top": 2, "seed": 4, "mask_prob": 0.5, "temperature": 2.0}),
        ("fill --best --top 2 --batch-size 3", "best", {"batch_size": 3, "top": 2}),
        ("embed --step 8 --pooling cls --batch-size 3", 8, {"batch_size": 3, "pooling": "cls"}),
        ("embed --best", "best", {"batch_size": 32, "pooling": "mean"}),
        ("score --step 8 --by likelihood --exact --reduce sum --batch-size 3", 8,
         {"by": "likelihood", "mask_prob": None, "reduce": "sum", "batch_size": 3}),
        ("score --best --mask-prob 0.5", "best", {"by": None, "mask_prob": 0.5, "reduce": "mean", "batch_size": 32}),
    ],
)  # fmt: skip
def test_options_reach_the_model(lab: Any, monkeypatch: Any, words: str, step: Any, options: dict[str, Any]) -> None:
    passed = list[Any]()
    pair = SimpleNamespace(stream=lambda verb, _, **options: passed.append((verb, options)) or iter(()))
    for module in (opening, electra_lab.api):
        monkeypatch.setattr(module, "load", lambda model, **options: passed.append((model, options)) or pair)
    verb, *more = words.split()
    assert lab(verb, "it", "the cat", *more, *CPU)[0] == 0
    assert passed == [("it", {"device": "cpu", "step": step}), (verb, {"more": None, **options})]


def test_corrupt_and_fill_pass_their_options_on(lab: Any, model: Path) -> None:
    pair = electra_lab.load(model, device="cpu")
    options = ("--mask-prob", 0.5, "--temperature", 0.5, "--top", 2, "--seed", 7, "--json")
    code, out, _ = lab("corrupt", model, *TEXTS, *options, *CPU)
    assert (code, rows(out)) == (0, plain(pair.corrupt(TEXTS, mask_prob=0.5, temperature=0.5, top=2, seed=7)))
    code, out, _ = lab("fill", model, "the [MASK] sat", "--top", 3, *CPU)
    assert (code, out) == (0, f"{pair.fill('the [MASK] sat', top=3)}\n")
    code, out, err = lab("fill", model, "a cat", "[MASK] sat", "--top", 3, *CPU)
    assert (code, out.splitlines()[0], "1 of 2" in err) == (0, "a cat", True)


def test_a_page_is_whole_or_not_there(lab: Any, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert lab("detect", model, *TEXTS, "--html", page, *CPU)[:2] == (0, f"{page}\n")
    first, *others = page.read_text(encoding="utf-8").split("<p style")
    assert (first.splitlines()[0], len(others)) == ("<!doctype html>", 3)
    assert f"<style>{STYLE}</style>" in first, "it looks like the other pages"
    assert LEGENDS["detect"] in first
    page.unlink()
    err = lab.fails(2, "corrupt", model, "a b", "--temperature", "inf", "--html", page, *CPU)
    assert err.startswith("mask_prob must be above 0 and at most 1")
    assert not [*tmp_path.glob("*.html*"), *tmp_path.glob(".*.part")]
    for place in (tmp_path, tmp_path / "none" / "page.html"):
        assert lab.fails(2, "detect", model, "a", "--html", place, *CPU).startswith(f"--html {place}: ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("", 2, "give either texts or --file FILE"), ("a --file none.txt", 2, "give either texts or --file FILE"),
        ("a --json --html x.html", 2, "give either --json or --html"), ("--file none.txt", 3, "none.txt: "),
        ("a --step 4", 4, "there is no checkpoint of step 4. Kept: 8, 12."), ("a --step 4 --best", 2, "give either"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(lab: Any, model: Path, arguments: str, code: int, said: str) -> None:
    assert said in lab.fails(code, "detect", model, *arguments.split())


def test_embeddings_are_those_of_the_python_api(lab: Any, model: Path, tmp_path: Path, given: Any) -> None:
    pair, file, out = electra_lab.load(model, device="cpu"), tmp_path / "texts.txt", tmp_path / "all.npy"
    texts = [f"the cat number {n} sat" if n % 7 else "" for n in range(70)]  # more lines than are read at once
    file.write_text("\n".join(texts) + "\n")
    embed = ("embed", model, "--file", file, "--batch-size", 1, *CPU)
    for pooling in ("mean", "cls"):
        expected = pair.embed(texts, pooling=pooling, batch_size=1).numpy()
        code, answer, _ = lab(*embed, "--pooling", pooling, "--json")
        assert (code, [row["text"] for row in rows(answer)]) == (0, texts)
        assert np.array_equal(np.array([row["embedding"] for row in rows(answer)], np.float32), expected)
        assert lab(*embed, "--pooling", pooling, "--out", out) == (0, f"{out}\n", "")
        assert np.array_equal(np.load(out), expected)
    _, answer, _ = lab("embed", model, texts[1], *CPU)
    assert np.array_equal(np.array(answer.split(), np.float32), pair.embed(texts[1]).numpy())

    # The file is complete or absent; without texts it has no rows.
    file.write_bytes(b"the cat\n\xff\n")
    assert lab(*embed, "--out", tmp_path / "bad.npy")[0] == 3
    assert not list(tmp_path.glob("*bad.npy*"))
    given(b"")
    assert lab("embed", model, "-", "--out", out, *CPU)[0] == 0
    assert np.load(out).shape == (0, expected.shape[1])
    for wrong in (("--out", tmp_path), ("--out", tmp_path / "none" / "a.npy"), ("--json", "--out", "a.npy")):
        assert lab("embed", model, "a", *wrong)[0] == 2


@pytest.mark.parametrize(("verb", "option"), [("fill", "--html"), ("embed", "--out")])
def test_a_file_is_written_where_its_name_leads(lab: Any, model: Path, verb: str, option: str) -> None:
    """A link stays a link, and a FIFO a FIFO, whose reader gets everything, also if nothing can be written."""
    command = (verb, model, "the [MASK] sat", *CPU, option)
    assert lab(*command, "plain")[0] == 0
    expected = Path("plain").read_bytes()
    Path("old").write_text("old")
    for link, target in (("link", "old"), ("dangling", "new")):
        Path(link).symlink_to(target)
        assert lab(*command, link)[:2] == (0, f"{link}\n")
        assert (Path(link).readlink(), Path(target).read_bytes()) == (Path(target), expected)
    os.mkfifo("fifo")
    for words, code, written in ((command, 0, expected), ((verb, "no-model", "a", option), 3, b"")):
        reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
        assert lab(*words, "fifo")[0] == code
        poll = select.poll()
        poll.register(reader)
        [(_, events)] = poll.poll(0)
        assert events & select.POLLHUP, "somebody has written to it"
        assert (os.read(reader, 1 << 20), Path("fifo").is_fifo()) == (written, True)
        os.close(reader)
    Path("circle").symlink_to("circle")
    Path("nowhere").symlink_to("none/file")
    for wrong in ("circle", "nowhere"):
        assert lab.fails(2, *command, wrong).startswith(f"{option} {wrong}: ")
        assert Path(wrong).is_symlink()
    assert {*os.listdir()} == {"plain", "old", "new", "link", "dangling", "fifo", "circle", "nowhere"}


def test_a_device_stays_a_device(lab: Any, model: Path) -> None:
    """Of the numbers of /dev/null and /dev/full, as a mistake must not destroy those."""
    for name, minor, code in (("null", 3, 0), ("full", 7, 3)):
        try:
            os.mknod(name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        except OSError:
            pytest.skip("only root makes devices")
        for verb, option in (("detect", "--html"), ("embed", "--out")):
            assert lab(verb, model, "the cat", option, name, *CPU)[0] == code
            assert Path(name).is_char_device()


SCORED = ["the cat sat on the mat", "", "7 dogs saw dogs", "cat cat 12345 mat"]


@pytest.fixture(scope="module")
def scores(model: Path) -> list[float | None]:
    return [found.score for found in electra_lab.load(model, device="cpu").score(SCORED)]


def scored(lab: Any, model: Path, *options: object) -> list[dict[str, Any]]:
    """Return the answers of a command as JSON, or of `--csv` as text."""
    form = "--csv" if "--csv" in options else "--json"
    code, out, err = lab("score", model, *options, *([] if form in options else [form]), *CPU)
    assert code == 0, err
    return (
        [json.loads(line) for line in out.splitlines()]
        if form == "--json"
        else [*csv.DictReader(io.StringIO(out, newline=""))]
    )


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


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_compressed_files_are_read(lab: Any, model: Path, tmp_path: Path, pack: Any) -> None:
    """With all line endings, also a missing one at the end, they are read as without compression."""
    ending = {gzip.compress: "gz", lzma.compress: "xz"}[pack]
    table = b"n\ttext\r\n1\tthe cat\n\n2\tsat\r on the mat"
    (tmp_path / "a.tsv").write_bytes(table)
    (tmp_path / f"a.tsv.{ending}").write_bytes(pack(table))
    plain, packed = (scored(lab, model, "--file", tmp_path / name, "--csv") for name in ("a.tsv", f"a.tsv.{ending}"))
    assert packed == plain
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
    [("--json --csv", 2), ("--mask-prob 0", 2), ("--top 0", 2), ("--normal absent.txt", 3), ("--format jsonl", 3)],
)
def test_what_cannot_be_meant_is_refused(lab: Any, model: Path, options: str, code: int) -> None:
    assert lab.fails(code, "score", model, "no record", *options.split(), *CPU)
