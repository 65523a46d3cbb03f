"""Standard output and standard error: no failure to print ends a command, and no text commands the terminal."""

import io
import os
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # all but tab and newline
# Colours, and how progress bars move the cursor and hide it: what libraries write to a terminal.
_HARMLESS = r"\r|\x08|\x1b\[[0-9;]*[A-HJKm]|\x1b\[\?25[hl]"


def shown(text: str) -> str:
    """Show control characters as escapes: a file or a key may be called anything."""
    return re.sub(_CONTROL, _escape, text)


def _tamed(text: str) -> str:
    """Do the same, except for what libraries need."""
    return re.sub(f"({_HARMLESS})|{_CONTROL}", lambda found: found[1] or _escape(found), text)


def _escape(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


class Stream(io.TextIOWrapper):
    """Shows control characters; `coloured` lets those of progress bars and of colours through."""

    coloured = False
    before: TextIO | None = None  # in whose place it stands

    def isatty(self) -> bool:
        return self.before.isatty() if self.before else super().isatty()

    def write(self, text: str) -> int:
        super().write(_tamed(text) if self.coloured else shown(text))
        return len(text)


class _Lasting(io.FileIO):
    """A descriptor of the process that goes silent when it can no longer be written to."""

    def write(self, data: Any) -> int:
        try:
            while (written := super().write(data)) is None:  # somebody made it non-blocking, and it is full
                select.select([], [self], [])
            return written
        except OSError:  # nobody reads any longer, a full disk, a terminal that is gone
            silence(self.fileno())
            return len(data)


def silence(descriptor: int) -> None:
    """Let whatever is written to a descriptor vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.set_inheritable(descriptor, True)
    if nowhere != descriptor:
        os.close(nowhere)


@contextmanager
def lasting() -> Iterator[None]:
    """Put streams in the place of sys.stdout and sys.stderr that last and show control characters."""
    before = sys.stdout, sys.stderr
    ours = [_stream(stream, descriptor) for descriptor, stream in enumerate(before, start=1)]
    sys.stdout, sys.stderr = ours[0] or before[0], ours[1] or before[1]
    if ours[1]:
        ours[1].coloured = True
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in filter(None, ours):
            stream.flush()
            stream.detach()  # it must not close what it wrote to


def _stream(stream: TextIO | None, descriptor: int) -> Stream | None:
    """Return a stream that writes where `stream` does, None if that is neither a descriptor nor bytes."""
    if stream is None:  # it was closed: the next file that is opened would become it
        silence(descriptor)
        return Stream(io.BufferedWriter(_Lasting(descriptor, "w", closefd=False)), "utf-8", "backslashreplace")
    if (target := getattr(stream, "buffer", None)) is None:
        return None
    stream.flush()
    if isinstance(getattr(target, "raw", target), io.FileIO):
        target = io.BufferedWriter(_Lasting(target.fileno(), "w", closefd=False))
    encoding = stream.encoding or "utf-8"
    errors = stream.errors or "strict"
    if errors == "strict":  # in an answer, a path that is not UTF-8 is printed as the bytes that it is
        exact = descriptor == 1 and encoding.lower().replace("-", "") == "utf8"
        errors = "surrogateescape" if exact else "backslashreplace"
    made = Stream(target, encoding, errors, line_buffering=bool(stream.line_buffering) or stream.isatty())
    made.before = stream
    return made


@contextmanager
def colours(stream: TextIO) -> Iterator[None]:
    """Let the colours through that are written to a terminal."""
    if not isinstance(stream, Stream):
        yield
        return
    stream.coloured = True
    try:
        yield
    finally:
        stream.coloured = False
