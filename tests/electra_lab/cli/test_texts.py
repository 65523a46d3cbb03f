"""detect, corrupt, fill and embed: texts from arguments, files and standard input, as text, JSON and a page."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import electra_lab
from electra_lab.cli._texts import OnError, texts_of
from electra_lab.model.network import Network
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run

TEXTS = ["the cat sat", "", "3 dogs saw the mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with for_a_module():
        return run(experiment(folder), folder / "run")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def plain(results: Any) -> Any:
    """As JSON gives them back: its keys are text."""
    return [json.loads(json.dumps(result.as_dict())) for result in results]


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_every_way_in_gives_what_the_python_api_gives(lab: Any, model: Path, file: Path, monkeypatch: Any) -> None:
    expected = plain(electra_lab.load(model, device="cpu").detect(TEXTS))
    for arguments in ([*TEXTS], ["--file", file], ["-"], ["--file", "-"]):
        given(monkeypatch, file.read_bytes())
        code, out, _ = lab("detect", model, *arguments, "--json", "--device", "cpu")
        assert (code, [json.loads(line) for line in out.splitlines()]) == (0, expected)
    code, out, err = lab("detect", model, "the cat", "--device", "cpu")
    assert (code, err) == (0, "")
    assert out == f"{electra_lab.load(model, device='cpu').detect('the cat')}\n"


LINES = b"\xef\xbb\xbfthe cat\rsat\r\nthe \xff cat\n\n3 \xe2\x80\xa8 \x7f dogs\n\xe9t\xe9\n\xef\xbb\xbflast\r"
READ = ["the cat\rsat", "", "3 \u2028 \x7f dogs", "\ufefflast\r"]


@pytest.mark.parametrize("verb", ["detect", "corrupt", "fill", "embed"])
@pytest.mark.parametrize("way", ["file", "standard input", "arguments"])
def test_texts_are_read_as_those_of_a_corpus(lab, model, tmp_path, monkeypatch, verb, way) -> None:
    """A byte order mark is dropped, lines end at line feeds alone, and bad bytes are an error, or left out."""
    (tmp_path / "a.txt").write_bytes(LINES)
    words, place, good, bad = ["--file", tmp_path / "a.txt"], f"{tmp_path}/a.txt:2", READ, [2, 5]
    if way == "standard input":
        given(monkeypatch, LINES)
        words, place = ["-"], "standard input:2"
    if way == "arguments":
        words, place, good, bad = [b"the \xff cat", "one", b"\xe9"], "TEXT 1", ["one"], [1, 3]
    words = [os.fsdecode(word) for word in words]
    code, out, err = lab(verb, model, *words, "--json", "--device", "cpu")
    assert (code, err.splitlines()[-1].startswith(f"{place}: byte 4 ")) == (3, True)
    assert [json.loads(line)["text"] for line in out.splitlines()] == ([] if way == "arguments" else good[:1])
    given(monkeypatch, LINES)
    code, out, err = lab(verb, model, *words, "--json", "--on-error", "skip", "--device", "cpu")
    assert (code, [json.loads(line)["text"] for line in out.split("\n")[:-1]]) == (0, good)
    assert [int(number) for number in re.findall(r"(\d+): byte", err)] == bad


def test_arguments_are_text_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    assert list(texts_of(["caf\xe9 \xff"], None, OnError.stop)) == ["caf\xe9 \xff"]


def test_a_line_without_an_end_is_not_read_to_its_end(lab: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra_lab.sources.files.LONGEST_LINE", 10)
    given(monkeypatch, b"the cat\n" + b"x" * 11)
    code, out, err = lab("detect", model, "-", "--device", "cpu")
    assert (code, out.count("\n")) == (3, 1)
    assert err.startswith("standard input:2: ")


def test_what_plug_ins_print_is_not_the_answer(lab: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Network.hidden

    def loud(*arguments: Any) -> Any:
        print("loud")
        return forward(*arguments)

    monkeypatch.setattr(Network, "hidden", loud)
    code, out, err = lab("detect", model, "the cat", "--json", "--device", "cpu")
    assert (code, json.loads(out)["text"], err) == (0, "the cat", "loud\n")


def test_texts_on_a_terminal_show_their_control_characters(lab, model: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = lab("detect", model, "the \x1b]0;owned\x07 cat :smile:", "--device", "cpu")
    assert code == 0
    assert r"\x1b" in out
    assert ":" in out
    assert "\x1b[" in out
    assert not {"\x1b]", "\x07", "\U0001f604"} & {*out, *re.findall(r"\x1b.", out)}
    code, out, _ = lab("detect", model, "a :smile: \x07", "--device", "cpu")


def test_corrupt_and_fill_pass_their_options_on(lab: Any, model: Path, monkeypatch: Any) -> None:
    pair = electra_lab.load(model, device="cpu")
    options = ("--mask-prob", 0.5, "--temperature", 0.5, "--top", 2, "--seed", 7, "--json", "--device", "cpu")
    code, out, _ = lab("corrupt", model, *TEXTS, *options)
    wanted = pair.corrupt(TEXTS, mask_prob=0.5, temperature=0.5, top=2, seed=7)
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, plain(wanted))
    code, out, _ = lab("fill", model, "the [MASK] sat", "--top", 3, "--device", "cpu")
    assert (code, out) == (0, f"{pair.fill('the [MASK] sat', top=3)}\n")
    code, out, err = lab("fill", model, "a cat", "[MASK] sat", "--top", 3, "--device", "cpu")
    assert (code, out.splitlines()[0], "1 of 2" in err) == (0, "a cat", True)


def test_a_page_is_whole_or_not_there(lab: Any, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = lab("detect", model, *TEXTS, "--html", page, "--device", "cpu")
    assert (code, out) == (0, f"{page}\n")
    assert page.read_text(encoding="utf-8").count("<p style") == 3
    page.unlink()
    code, _, err = lab("corrupt", model, "a b", "--temperature", "inf", "--html", page, "--device", "cpu")
    assert (code, err.split(",")[0]) == (2, "mask_prob must be above 0 and at most 1")
    assert not list(tmp_path.glob("*.html*"))
    assert not list(tmp_path.glob(".*.part"))
    for place in (tmp_path, tmp_path / "none" / "page.html"):
        code, _, err = lab("detect", model, "a", "--html", place, "--device", "cpu")
        assert (code, err) == (2, f"--html {place}: is a folder, or its folder does not exist.\n")


def test_mistakes_are_sentences(lab: Any, model: Path, file: Path, tmp_path: Path) -> None:
    both = "give either texts or --file FILE with a text on each line; - reads standard input.\n"
    for arguments in ([], ["a", "--file", file]):
        assert lab("detect", model, *arguments) == (2, "", both)
    assert lab("detect", model, "a", "--json", "--html", "x.html") == (2, "", "give either --json or --html.\n")
    absent = "none.txt: cannot be read (No such file or directory).\n"
    assert lab("detect", model, "--file", "none.txt") == (3, "", absent)
    code, _, err = lab("detect", model, "a", "--step", 4)
    assert (code, err.split(": ", 1)[1]) == (4, "there is no checkpoint of step 4. Kept: 8, 12.\n")
    code, _, err = lab("detect", tmp_path / "none", "a")
    assert (code, err) == (3, f"{tmp_path / 'none'}: does not exist.\n")


def test_another_checkpoint_answers_differently(lab: Any, model: Path) -> None:
    one, two = (lab("detect", model, "the cat", "--step", step, "--json")[1] for step in (8, 12))
    assert one != two


def test_embeddings_are_those_of_the_python_api(lab: Any, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import numpy as np

    pair = electra_lab.load(model, device="cpu")
    texts = [f"the cat number {n} sat" if n % 7 else "" for n in range(70)]  # more than are read at once
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    given = ("embed", model, "--file", tmp_path / "texts.txt", "--batch-size", 1, "--device", "cpu")
    for pooling in ("mean", "cls"):
        expected = pair.embed(texts, pooling=pooling, batch_size=1).numpy()
        code, out, _ = lab(*given, "--pooling", pooling, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert (code, [each["text"] for each in found]) == (0, texts)
        assert np.array_equal(np.array([each["embedding"] for each in found], np.float32), expected)
        assert lab(*given, "--pooling", pooling, "--out", tmp_path / "all.npy") == (0, f"{tmp_path / 'all.npy'}\n", "")
        assert np.array_equal(np.load(tmp_path / "all.npy"), expected)
    code, out, _ = lab("embed", model, texts[1], "--device", "cpu")
    assert np.array_equal(np.array(out.split(), np.float32), pair.embed(texts[1]).numpy())

    # The file is whole or not there; without texts it has no rows.
    (tmp_path / "texts.txt").write_bytes(b"the cat\n\xff\n")
    assert lab(*given, "--out", tmp_path / "bad.npy")[0] == 3
    assert not list(tmp_path.glob("*bad.npy*"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert lab("embed", model, "-", "--out", tmp_path / "none.npy", "--device", "cpu")[0] == 0
    assert np.load(tmp_path / "none.npy").shape == (0, expected.shape[1])
    for wrong in (("--out", tmp_path), ("--out", tmp_path / "none" / "a.npy"), ("--json", "--out", "a.npy")):
        assert lab("embed", model, "a", *wrong)[0] == 2
