"""The standard streams of a command: an answer that cannot be printed is an error, a message that cannot is not."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TextIO

from registry.errors import DataError, shown

P = ParamSpec("P")
CLOSED_PIPE = 141  # what shells report for a command that SIGPIPE has ended
_ANSWERS: ContextVar[TextIO] = ContextVar("answers")  # standard output, while sys.stdout is standard error


class _Messages(io.FileIO):
    """Standard error. What cannot be written, to a closed terminal or a full disk, is lost, and training goes on."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


@contextmanager
def usable() -> Iterator[None]:
    """Let a command print, whatever it was started with as standard input, output and error."""
    # The next file that is opened would take the number of a closed stream, and what libraries print would go into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)  # whatever is written to it fails, as before
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for descriptor in range(3) if os.name == "posix" else ():
        os.set_blocking(descriptor, True)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path that is not UTF-8 is printed as its bytes
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8() else "backslashreplace")
    with _messages():
        try:
            yield
        finally:
            try:
                print(end="", flush=True)  # the help of typer
            except OSError:
                _discard()


def _messages() -> redirect_stderr[Any] | nullcontext[None]:
    """Return a context in which no message raises. Streams of others, such as a notebook's, stay."""
    try:
        ours = sys.stderr is None or sys.stderr.fileno() == 2
    except (AttributeError, OSError):
        ours = False
    if not ours:
        return nullcontext()
    raw = io.BufferedWriter(_Messages(2, "w", closefd=False))
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    return redirect_stderr(io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True))


def answers(verb: Callable[P, None]) -> Callable[P, None]:
    """Let a verb print by `answer` alone. What plug-ins print goes to standard error."""

    @wraps(verb)
    def call(*arguments: P.args, **options: P.kwargs) -> None:
        before = _ANSWERS.set(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                verb(*arguments, **options)
        finally:
            _ANSWERS.reset(before)

    return call


def stdout() -> TextIO:
    """Return where answers go."""
    return _ANSWERS.get(sys.stdout)


def is_utf8() -> bool:
    """Return True if every character can be printed."""
    return getattr(stdout(), "encoding", "").lower().replace("-", "") == "utf8"


def answer(text: object, *, end: str = "\n", folds: bool = False, escaped: bool = False) -> None:
    """Print an answer as it is; on a terminal, with its control characters escaped.

    folds    fold it to the width of a terminal
    escaped  they are already; those that are left are colours

    Ends the command if nobody reads the answer. Raises DataError if it cannot be written.
    """
    if stdout().isatty():
        from electra_lab.runs.console import folded

        text = text if escaped else shown(str(text))
        text = folded(str(text), stdout()) if folds else text
    try:
        print(text, end=end, flush=True, file=stdout())
    except BrokenPipeError:
        _discard()
        raise SystemExit(CLOSED_PIPE) from None
    except OSError as error:
        _discard()
        raise DataError(f"standard output: cannot be written ({error.strerror}).") from None


def _discard() -> None:
    """Discard what standard output has not taken: the interpreter would try again when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout().fileno())
