"""What a run leaves to be read: report.html, the closing words, the console."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from electra_lab.runs import execute, summary
from electra_lab.runs.console import Console
from electra_lab.runs.directory import RunDirectory
from electra_lab.runs.report import write_report
from tests.helpers import write_experiment
from tests.pages import Page

HOSTILE = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny experiment, not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    file = write_experiment(
        folder,
        data=f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        train="{steps: 4, batch_size: 4, warmup_steps: 0, precision: fp32, log_every: 1}",
        evaluate="{every: 2, examples: 3}",
    )
    return execute.run(file, [], folder / "run", "cpu")


@pytest.fixture
def directory(finished: Path, tmp_path: Path) -> RunDirectory:
    """A copy of the run, to be changed."""
    return RunDirectory(Path(shutil.copytree(finished, tmp_path / "run")))


def page(directory: RunDirectory) -> Page:
    return Page(write_report(directory).read_text(encoding="utf-8"))


def without_evaluation(directory: RunDirectory) -> None:
    directory.write(
        "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in directory.records() if r["split"] == "train")
    )


def test_the_report_is_one_page_that_loads_nothing(directory: RunDirectory) -> None:
    written = page(directory)
    assert written.tags[:2] == ["html", "head"]
    assert written.tags.count("svg") == 4
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(written.tags)
    loading = [(n, v) for n, v in written.attributes if n in ("src", "href", "xlink:href", "data", "action", "srcset")]
    assert all(value.startswith("#") for _, value in loading), loading
    assert not [name for name, _ in written.attributes if name.startswith("on")]
    text = (directory.path / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert "url(http" not in text.replace('"', "").replace("'", "")


def test_the_report_holds_what_was_found(directory: RunDirectory) -> None:
    text = " ".join("".join(page(directory).parts).split())
    last = directory.records()[-1]
    assert last["split"] == "held_out"
    assert "Measured after step 4 on the held-out documents" in text
    for key in ("discriminator_auc", "discriminator_accuracy", "generator_loss", "unigram_auc", "unigram_entropy"):
        assert f"{last[key]:.3f}" in text
    for token in json.loads((directory.path / "examples.json").read_text())[0]:
        assert token["token"] in text
    assert (directory.path / "config.yaml").read_text().splitlines()[0] in text


def test_the_same_run_gives_the_same_bytes(directory: RunDirectory) -> None:
    before = (directory.path / "report.html").read_bytes()
    assert write_report(directory).read_bytes() == before
    assert write_report(directory).read_bytes() == before


def test_hostile_text_is_text(directory: RunDirectory) -> None:
    """In tokens, in the config, in the name of the folder."""
    token = {"token": HOSTILE, "original": "</p><img src=x>", "replaced": True, "probability": 0.5}
    directory.write_json("examples.json", [[token]])
    config = (directory.path / "config.yaml").read_text()
    directory.write("config.yaml", config + f"# </pre>{HOSTILE}\n")
    moved = RunDirectory(directory.path.rename(directory.path.with_name("<b onclick=x>")))
    written = page(moved)
    assert not {"script", "img", "b"} & set(written.tags)
    assert not [name for name, _ in written.attributes if name == "onclick"]
    assert "".join(written.parts).count(HOSTILE) == 2
    assert "</p><img src=x>" in written.parts
    assert "<b onclick=x>" in "".join(written.parts)


def test_a_run_without_evaluation_has_a_report(directory: RunDirectory) -> None:
    without_evaluation(directory)
    (directory.path / "examples.json").unlink()
    text = "".join(page(directory).parts)
    assert "The run has not been evaluated yet." in text
    assert "as the discriminator saw it" not in text


def test_a_run_without_any_record_has_a_report(directory: RunDirectory) -> None:
    directory.metrics.unlink()
    (directory.path / "examples.json").unlink()
    assert "The run has not been evaluated yet." in "".join(page(directory).parts)
    assert "no held-out evaluation" in summary.closing(directory, directory.path / "report.html", 1)


def test_numbers_that_do_not_exist_are_dashes(directory: RunDirectory) -> None:
    """Held-out text in which nothing was replaced has no AUC; JSON keeps null for it."""
    last = directory.records()[-1]
    directory.append({**last, "discriminator_auc": float("nan"), "unigram_auc": float("nan"), "generator_loss": None})
    assert "rare-token detector -" in "".join(page(directory).parts)
    closing = summary.closing(directory, directory.path / "report.html", 1)
    assert "rare-token detector -" in closing
    assert "nan" not in closing


def test_the_closing_words_compare_with_the_baselines(directory: RunDirectory) -> None:
    closing = summary.closing(directory, directory.path / "report.html", 61.4)
    last = directory.records()[-1]
    assert f"after step {last['step']}, on held-out text" in closing
    assert f"always 'original' {last['always_original_auc']:.3f}" in closing
    assert f"rare-token detector {last['unigram_auc']:.3f}" in closing
    assert f"always 'original' has {last['always_original_accuracy']:.3f}" in closing
    assert f"word frequencies alone give {last['unigram_entropy']:.3f}" in closing
    assert f"{last['discriminator_auc']:.3f}" in closing
    assert closing.endswith(f"trained in 61 s; report {directory.path / 'report.html'}")


def test_a_sentence_shows_replacements_and_false_alarms() -> None:
    def token(token: str, original: str | None = None, probability: float = 0.1) -> dict[str, Any]:
        replaced = original is not None
        return {"token": token, "original": original or token, "replaced": replaced, "probability": probability}

    words = [
        token("[CLS]"), token("the"), token("play", probability=0.5), token("##ing"), token("dog", "cat", 0.914),
        token("##s", probability=0.75), token("ran", probability=0.51), token("##away", "##ning", 0.2), token("home"),
    ]  # fmt: skip
    expected = "[CLS] the playing [cat > dog, 0.91]s (0.75) ran (0.51) [##ning > ##away, 0.20] home"
    assert summary.sentence(words) == expected


def test_examples_show_the_text_around_the_first_replacement(finished: Path) -> None:
    for tokens in json.loads((finished / "examples.json").read_text()):
        assert 0 < len(tokens) <= summary.EXCERPT
        for token in tokens:
            assert token["replaced"] == (token["token"] != token["original"])
            assert 0 <= token["probability"] <= 1


def test_the_console_prints_plain_lines_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """One a record, unbroken however long, no escape codes, no markup, nothing on standard output."""
    console, long = Console(), "word " * 100
    with console.progress(0, 10):
        console.advance(3)
        console.say("[bold]not markup[/bold] 12 'x' http://a.b")
        console.say(long)
        losses = {"loss": 3.0, "generator_loss": 1.25, "discriminator_loss": 0.5}
        console.record({"step": 3, "split": "train", **losses, "tokens_per_second": 12345.6})
        console.record({"step": 3, "split": "held_out", **losses, "discriminator_auc": 0.75})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "\x1b" not in printed.err
    assert printed.err.splitlines() == [
        "[bold]not markup[/bold] 12 'x' http://a.b",
        long,
        "step      3  train     generator 1.250  discriminator 0.500  12,346 tokens/s",
        "step      3  held_out  generator 1.250  discriminator 0.500  AUC 0.750",
    ]
