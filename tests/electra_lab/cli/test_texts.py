"""detect, corrupt, fill and embed: texts from arguments, files and standard input, as text, JSON and a page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import electra_lab
from electra_lab.cli._texts import OnError, texts_of
from electra_lab.model.network import Network
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
    """As JSON gives them back: its keys are text."""
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
        "arguments": ([os.fsdecode(each) for each in (b"the \xff cat", "one", b"\xe9")], "TEXT 1", [], ["one"], [1, 3]),
    }[way]
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", *CPU)
    assert (code, err.splitlines()[-1].startswith(f"{place}: byte 4 ")) == (3, True)
    assert [row["text"] for row in rows(out)] == before
    given(LINES)
    code, out, err = lab(verb, model, *words, "--json", "--on-error", "skip", *CPU)
    assert (code, [row["text"] for row in rows(out)]) == (0, good)
    assert [int(number) for number in re.findall(r"(\d+): byte", err)] == bad


def test_arguments_are_text_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    assert list(texts_of(["caf\xe9 \xff"], None, OnError.stop)) == ["caf\xe9 \xff"]


def test_a_line_without_an_end_is_not_read_to_its_end(lab: Any, model: Path, given: Any, monkeypatch) -> None:
    monkeypatch.setattr("electra_lab.sources.files.LONGEST_LINE", 10)
    given(b"the cat\n" + b"x" * 11)
    code, out, err = lab("detect", model, "-", *CPU)
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
    assert page.read_text(encoding="utf-8").count("<p style") == 3
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
    texts = [f"the cat number {n} sat" if n % 7 else "" for n in range(70)]  # more than are read at once
    file.write_text("\n".join(texts) + "\n")
    embed = ("embed", model, "--file", file, "--batch-size", 1, *CPU)
    for pooling in ("mean", "cls"):
        expected = pair.embed(texts, pooling=pooling, batch_size=1).numpy()
        code, answer, _ = lab(*embed, "--pooling", pooling, "--json")
        assert (code, [each["text"] for each in rows(answer)]) == (0, texts)
        assert np.array_equal(np.array([each["embedding"] for each in rows(answer)], np.float32), expected)
        assert lab(*embed, "--pooling", pooling, "--out", out) == (0, f"{out}\n", "")
        assert np.array_equal(np.load(out), expected)
    _, answer, _ = lab("embed", model, texts[1], *CPU)
    assert np.array_equal(np.array(answer.split(), np.float32), pair.embed(texts[1]).numpy())

    # The file is whole or not there; without texts it has no rows.
    file.write_bytes(b"the cat\n\xff\n")
    assert lab(*embed, "--out", tmp_path / "bad.npy")[0] == 3
    assert not list(tmp_path.glob("*bad.npy*"))
    given(b"")
    assert lab("embed", model, "-", "--out", out, *CPU)[0] == 0
    assert np.load(out).shape == (0, expected.shape[1])
    for wrong in (("--out", tmp_path), ("--out", tmp_path / "none" / "a.npy"), ("--json", "--out", "a.npy")):
        assert lab("embed", model, "a", *wrong)[0] == 2
