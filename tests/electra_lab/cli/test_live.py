"""Lines of a pipe that stays open are answered as they come."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from electra_lab.cli._items import Reading, read
from electra_lab.data.texts import chunks as in_chunks
from registry.errors import DataError
from tests.electra_lab.cli.conftest import CPU
from tests.helpers import ROOT

GENEROUS = 120  # seconds, on a busy machine
LINES = 300  # more than a batch has, in less than a pipe takes at once


def test_lines_are_answered_while_the_pipe_is_open_and_before_a_signal_ends_it(model: Path) -> None:
    command = [sys.executable, "-m", "electra_lab", "score", str(model), "-", "--batch-size", "2", *CPU]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            # Fewer lines than a batch, as many, more, and a line that arrives in two parts.
            for written, answers in (
                (b"the cat\n", 1),
                (b"a cat\na dog\n", 2),
                (b"b\n" * 5 + b"the", 5),
                (b" end\n", 1),
            ):
                process.stdin.write(written)
                for _ in range(answers):
                    assert select.select([process.stdout], [], [], GENEROUS)[0], "no answer while the pipe is open"
                    answer = process.stdout.readline()
            assert answer.endswith(b"the end\n")
            process.stdin.write(b"the cat\n" * LINES)
            assert process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read().count(b"\n") == LINES - 1
            assert (process.wait(GENEROUS), b"Traceback" in process.stderr.read()) == (75, False)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "verb",
    ["detect", "corrupt", "fill", "embed", "predict", "score", "score --top 9", "FIFO", "Ctrl-C", "blank",
     "detect --html page", "embed --out vectors", "predict --csv"],
)  # fmt: skip
def test_every_verb_answers_what_it_has_read(lab, model, tuned, monkeypatch, tmp_path: Path, verb: str) -> None:
    """A signal that arrives while it waits for another line, also if the last one has no text."""
    os.mkfifo(tmp_path / "fifo")
    pipe = os.open(tmp_path / "fifo", os.O_RDWR)
    lines = (
        b'{"text": "the cat sat"}\n{"text": "the dog"}\n\n{"te'
        if verb == "blank"
        else b"the cat sat\nthe dog\nhalf a l"
    )
    os.write(pipe, lines)
    monkeypatch.setattr("sys.stdin", (tmp_path / "fifo").open())
    number, expected = (signal.SIGINT, 130) if verb == "Ctrl-C" else (signal.SIGTERM, 75)
    name, *options = {"FIFO": "detect", "Ctrl-C": "detect", "blank": "fill --format jsonl"}.get(verb, verb).split()
    where = ["--file", tmp_path / "fifo"] if verb == "FIFO" else ["-"]
    folder = tuned["labels"] if name == "predict" else model
    before = signal.getsignal(number)

    def stop() -> None:
        until, left = time.monotonic() + GENEROUS, b"\1\0\0\0"
        while time.monotonic() < until and (signal.getsignal(number) == before or any(left)):
            time.sleep(0.02)
            left = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
        if signal.getsignal(number) != before:
            os.kill(os.getpid(), number)
        else:
            os.close(pipe)

    stopping = threading.Thread(target=stop)
    stopping.start()
    form = [] if {"--html", "--out", "--csv"} & {*options} else ["--json"]
    code, out, _ = lab(name, folder, *where, *options, *form, *CPU)
    stopping.join()
    answers = out.count("\n") - ("--csv" in options)
    if "--html" in options:
        answers = Path("page").read_text().count("<p style")
    elif "--out" in options:
        answers = len(np.load("vectors"))
    assert (code, answers, signal.getsignal(number)) == (expected, 2, before)


LOG = re.compile(r"\d")


@pytest.mark.parametrize(
    ("reading", "written", "expected"),
    [
        (Reading("stop", "csv"), [b"n,text\n1,a\n2,b\n3", b",c\n", b"4,z"], ["a", "b", "c", "z"]),
        (Reading("stop", "jsonl"), [b'{"text":"a"}\n{"text":"b"}\n', b'{"text":"c"}\n', b'{"text":""}'], [*"abc", ""]),
        (Reading("stop", begins=LOG), [b"1 a\n at\n2 c\n", b"3 d\n e\n", b"4"], ["1 a\n at", "2 c", "3 d\n e", "4"]),
        # Lines that are no items, and parts of items, come after them.
        (Reading("stop", "jsonl"), [b'{"text":"a"}\n\n{"text":"b"}\n\n', b'{"text":"c"}\n\n', b'{"text":"d"}'], "abcd"),
        (Reading("skip", "jsonl"), [b'{"text":"a"}\n{"text":"b"}\n0\n', b'{"text":"c"}\n0\n', b'{"text":"d"}'], "abcd"),
        (Reading("stop", "csv"), [b'text,n\na,1\n\nb,2\n\n"c', b'",3\nd', b",4"], "abcd"),
        (Reading("skip"), [b"a\nb\n\xff\n", b"c\n\xff\n", b"d"], "abcd"),
        (Reading("stop", "fasta"), [b">1\na\n>2\nb\nb\n\n>3\nc\n", b"d\n\n>4\nz\n", b"z"], ["a", "bb", "cd", "zz"]),
    ],
)  # fmt: skip
def test_records_are_live(monkeypatch, reading: Reading, written: list[bytes], expected: Sequence[str]) -> None:
    """They are there while the pipe is open; a text of several lines when no line follows."""
    end, pipe = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(end))
    os.write(pipe, written[0])
    hangs = threading.Timer(GENEROUS, os.close, [pipe])
    hangs.start()
    incoming = read(["-"], None, reading)
    chunks = in_chunks((item["text"] for _, _, item in incoming), 32, incoming.more)
    found = list[str]()
    while len(found) < 2:
        found += next(chunks)
    assert (found, hangs.finished.is_set()) == ([*expected[:2]], False)
    os.write(pipe, written[1])
    assert (next(chunks), hangs.finished.is_set()) == ([expected[2]], False)
    os.write(pipe, written[2])
    hangs.cancel()
    os.close(pipe)
    assert [*chunks] == [[expected[3]]]


def test_a_text_is_answered_while_the_lines_of_the_next_one_come(monkeypatch: pytest.MonkeyPatch) -> None:
    end, pipe = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(end))
    answered, until = threading.Event(), time.monotonic() + GENEROUS

    def write() -> None:
        os.write(pipe, b"1 a\n at\n2 c\n")
        while not answered.wait(0.01) and time.monotonic() < until:
            os.write(pipe, b" at\n")
        os.close(pipe)

    writing = threading.Thread(target=write)
    writing.start()
    incoming = read(["-"], None, Reading("stop", begins=LOG))
    first = next(in_chunks((item["text"] for _, _, item in incoming), 32, incoming.more))
    assert (first, time.monotonic() < until) == (["1 a\n at"], True)
    answered.set()
    writing.join()


def test_a_line_of_a_pipe_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra_lab.cli._inputs.LONGEST", 10)
    end, pipe = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(end))
    os.write(pipe, b"the cat\n" + b"x" * 11)
    hangs = threading.Timer(GENEROUS, os.close, [pipe])
    hangs.start()
    incoming = read(["-"], None, Reading("stop"))
    assert next(incoming)[-1] == {"text": "the cat"}
    with pytest.raises(DataError, match="standard input:2: "):
        next(incoming)
    assert not hangs.finished.is_set()
    hangs.cancel()
    os.close(pipe)


def test_a_batch_waits_for_others_until_it_is_full() -> None:
    waits, begin = list[float](), time.monotonic()

    def more(until: float) -> bool:
        waits.append(until)
        return len(waits) == 1

    assert [*in_chunks("abc", 2, more)] == [["a", "b"], ["c"]]
    assert [until and begin + 0.2 <= until < begin + 9 for until in waits] == [True, 0, True]


def test_a_text_waits_no_longer_than_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there is always another one."""
    times = (0.15 * number for number in range(99))
    monkeypatch.setattr("electra_lab.data.texts.time", SimpleNamespace(monotonic=lambda: next(times)))
    assert [*in_chunks("abcd", 99, lambda _: True)] == [["a", "b"], ["c", "d"]]
