"""Streams of the command line: no reader, no disk and no text stops what runs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from electra_lab.runs import streams
from electra_lab.runs.console import Console
from electra_lab.runs.streams import Stream, colours, lasting, shown
from tests.helpers import ROOT

TITLE = "\x1b]0;owned\x07"
WRITES = """
import sys
from electra_lab.runs.streams import lasting
with lasting():
    for number in range(20_000):
        print("a line of the answer", number)
        print("a line of progress", number, file=sys.stderr)
    with open(sys.argv[1], "w") as stream:
        stream.write("came to the end")
"""


@pytest.mark.parametrize("redirection", ["2>&1 | true", "2>/dev/null | true", "2>/dev/full >/dev/full", "2>&- >&-"])
def test_what_cannot_be_printed_ends_nothing(tmp_path: Path, redirection: str) -> None:
    """A pipe that nobody reads, a full disk, no descriptor at all: the exit code stays 0, also when Python flushes."""
    command = f'{{ "$0" -c "$1" end; echo $? > code; }} {redirection}'
    subprocess.run(
        ["bash", "-c", command, sys.executable, WRITES],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=False,
    )  # fmt: skip
    assert (tmp_path / "code").read_text() == "0\n"
    assert (tmp_path / "end").read_text() == "came to the end"


def test_a_full_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 300_000
    with os.fdopen(reading, "rb") as pipe:
        script = (
            "import sys; from electra_lab.runs.streams import lasting\nwith lasting(): print(sys.argv[1] * 300_000)"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", script, "x"], stdout=writing, env=environment) as process:
            os.close(writing)
            assert pipe.read().decode() == text + "\n"
    assert process.returncode == 0


def test_control_characters_are_shown_and_layout_stays() -> None:
    assert shown("a\tb\nc é [MASK]") == "a\tb\nc é [MASK]"
    assert shown(f"{TITLE}\r\x00\x7f\x9b31m") == r"\x1b]0;owned\x07\r\x00\x7f\x9b31m"


def test_answers_show_all_and_messages_let_progress_bars_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = "\r50%\x1b[A\x1b[2K\x1b[1;31mred\x1b[0m\x1b[?25l"
    before = sys.stdout, sys.stderr
    with lasting():
        print(f"{bar}{TITLE}")
        print(f"{bar}{TITLE}", file=sys.stderr)
        with colours(sys.stdout):
            print(f"{bar}{TITLE}")
        print(bar)
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    escaped = r"\r50%\x1b[A\x1b[2K\x1b[1;31mred\x1b[0m\x1b[?25l"
    tamed = rf"{bar}\x1b]0;owned\x07"
    assert out == rf"{escaped}\x1b]0;owned\x07" + f"\n{tamed}\n{escaped}\n"
    assert err == f"{tamed}\n"


def test_a_path_that_is_not_utf_8_is_printed_as_it_is() -> None:
    written = io.BytesIO()
    before = io.TextIOWrapper(written, "utf-8")
    stream = streams._stream(before, 1)
    assert isinstance(stream, Stream)
    stream.write(os.fsdecode(b"caf\xe9"))
    stream.flush()
    assert written.getvalue() == b"caf\xe9"
    stream.detach()


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, _: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_a_program_that_calls_the_lab_is_not_ended_either(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """There the streams are the program's own, and rich would end the process without a word."""
    console = Console()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Broken(error))
        console.say("step 1")
    console.say("step 2")
