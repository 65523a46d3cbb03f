"""Standard streams of a command. An answer that cannot be printed is an error; a lost message is not."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from registry.errors import shown

CLOSED_PIPE = 141  # the exit code in shells of a command ended by SIGPIPE
_ANSWERS: ContextVar[TextIO] = ContextVar("answers")  # standard output, while sys.stdout is standard error


class _Messages(io.FileIO):
    """Standard error. Text that cannot be written (closed terminal, full disk) is lost, and training continues."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


@contextmanager
def usable() -> Iterator[None]:
    """Make standard input, output and error usable, even if the command was started without some of them."""
    # Otherwise the next file to be opened takes the number of a closed stream, and output of libraries goes into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)  # writing to it fails, as before
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for descriptor in range(3) if os.name == "posix" else ():
        os.set_blocking(descriptor, True)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path that is not UTF-8 is printed as its bytes
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8() else "backslashreplace")
    out = sys.stdout
    with _messages():
        try:
            yield
        finally:
            try:
                out.flush()
            except OSError:  # the interpreter would try again when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def _messages() -> AbstractContextManager[Any]:
    """Return a context in which no message raises. Streams of others, such as a notebook's, stay."""
    if sys.stderr and getattr(sys.stderr, "name", None) not in ("<stderr>", 2):
        return nullcontext()
    raw = io.BufferedWriter(_Messages(2, "w", closefd=False))
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    return redirect_stderr(io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True))


@contextmanager
def answering() -> Iterator[None]:
    """Reserve standard output for `answer`. Output of plug-ins goes to standard error."""
    before = _ANSWERS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(before)


def stdout() -> TextIO:
    """Return the stream of answers."""
    return _ANSWERS.get(sys.stdout)


def is_utf8() -> bool:
    """Return True if every character can be printed."""
    return getattr(stdout(), "encoding", "").lower().replace("-", "") == "utf8"


def answer(text: object) -> None:
    """Print an answer; on a terminal, with its control characters escaped.

    An OSError ends the command; `electra_lab.cli.main` reports it.
    """
    written = shown(str(text)) if stdout().isatty() else str(text)
    print(written, flush=True, file=stdout())
