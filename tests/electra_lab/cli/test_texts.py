"""detect, corrupt, fill and embed: options, and answers as text, JSON, a page and a file."""

import json
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import electra_lab
from electra_lab.cli._texts import LEGENDS
from electra_lab.inference import opening
from electra_lab.model.network import Network
from electra_lab.presentation.pages import STYLE
from tests.electra_lab.cli.conftest import CPU, rows

TEXTS = ["the cat sat", "", "3 dogs saw the mat"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


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
    """A link stays a link; a FIFO is refused, and stays."""
    command = (verb, model, "the [MASK] sat", *CPU, option)
    assert lab(*command, "plain")[0] == 0
    expected = Path("plain").read_bytes()
    Path("old").write_text("old")
    for link, target in (("link", "old"), ("dangling", "new")):
        Path(link).symlink_to(target)
        assert lab(*command, link)[:2] == (0, f"{link}\n")
        assert (Path(link).readlink(), Path(target).read_bytes()) == (Path(target), expected)
    os.mkfifo("fifo")
    assert lab.fails(2, *command, "fifo").startswith(f"{option} fifo: ")
    assert Path("fifo").is_fifo()
    Path("circle").symlink_to("circle")
    Path("nowhere").symlink_to("none/file")
    for wrong in ("circle", "nowhere"):
        assert lab.fails(2, *command, wrong).startswith(f"{option} {wrong}: ")
        assert Path(wrong).is_symlink()
    assert {*os.listdir()} == {"plain", "old", "new", "link", "dangling", "fifo", "circle", "nowhere"}


def test_a_device_stays_a_device(lab: Any, model: Path) -> None:
    """It has the numbers of /dev/null, as a mistake must not destroy that."""
    try:
        os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except OSError:
        pytest.skip("only root makes devices")
    for verb, option in (("detect", "--html"), ("embed", "--out")):
        assert lab(verb, model, "the cat", option, "null", *CPU)[0] == 2
        assert Path("null").is_char_device()
