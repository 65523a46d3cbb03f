"""The console: one line per record; a progress bar is drawn only on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from electra_lab.metrics import PRETRAINING
from electra_lab.presentation.console import Console
from registry import Metric


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("step", "split", "values", "line"),
    [
        (5, "train", {"generator_loss": 1.2345, "discriminator_loss": 0.5, "tokens_per_second": 12345.6},
         "step      5  train       generator 1.234  discriminator 0.500  12,346 tokens/s"),
        (10, "validation",
         {"discriminator_loss": 0.5, "discriminator_auc": 0.75, "discriminator_token_accuracy": 0.1},
         "step     10  validation  discriminator 0.500  token accuracy 0.100  own-task AUC 0.750"),
        (10, "validation", {"discriminator_token_accuracy": 0.125}, "step     10  validation  token accuracy 0.125"),
        (10, "test", {"generator_loss": 4.25, "generator_mask_loss": 5.125},
         "step     10  test        generator at [MASK] 5.125  generator 4.250"),
        (10, "test", {}, "step     10  test        loss 9.000"),
        (10, "validation", {"word_loss": 2.5, "words": 3.0, "quiet": 1.0},
         "step     10  validation  per word 2.500  words 3.000"),
    ],
)  # fmt: skip
def test_a_record_is_one_line(capsys, step: int, split: str, values: dict[str, float], line: str) -> None:
    own = {
        "words": Metric(brief="words"),
        "quiet": Metric(chart=True),
        "word_loss": Metric(higher_is_better=False, brief="per word"),
    }
    Console().record({"step": step, "split": split, "loss": 9.0, **values}, PRETRAINING | own)
    assert capsys.readouterr() == ("", line + "\n")


def test_brackets_are_text_and_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[bold]3[/bold] steps of [MASK] in runs/:smile:", "\x1b]0;owned\x07: \x1b[31mbad\n  step 3"):
        Console().say(text)
        assert capsys.readouterr().err == text.replace("\x1b", "\\x1b").replace("\x07", "\\x07") + "\n"


def test_the_bar_is_for_a_terminal_and_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console()
    with console.progress(0, 10):
        assert console._progress is None
        console.advance(3)  # no bar without work
    monkeypatch.setattr(sys, "stderr", Terminal())
    console = Console()
    with console.progress(2, 10):
        (task,) = console._progress.tasks
        assert (task.completed, task.total) == (2, 10)
        console.advance(7)
        assert console._progress.tasks[0].completed == 7
        console.show("saving", 1, 2, "1 of 2")
        (task,) = console._progress.tasks
        assert (task.description, task.completed, task.total) == ("saving", 1, 2)
    assert console._progress is None
    for total, amounts in ((1000, ["0/1,000 texts", "3/1,000 texts"]), (None, ["", "3/? texts"])):
        with console.progress(0, total, "score", "texts"):
            before = console._progress.tasks[0].fields["amount"]
            console.advance(3)
            assert [before, console._progress.tasks[0].fields["amount"]] == amounts


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_a_program_that_calls_the_lab_is_not_ended(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """The program owns its streams, and rich would end the process silently."""

    def fail(text: str) -> int:
        raise error

    broken, console = io.StringIO(), Console()
    broken.write = fail  # type: ignore[method-assign]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", broken)
        console.say("step 1")
    console.say("step 2")
