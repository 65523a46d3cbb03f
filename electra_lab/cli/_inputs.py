"""The lines that a command reads: of arguments, files and standard input. Those of a pipe are answered as they come."""

import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from registry.errors import ConfigError, DataError

T = TypeVar("T")
Line = tuple[str, bytes]  # its place, and its bytes without the line end
LONGEST = 1 << 21  # bytes of a text, whose tokens and result take half a gigabyte
POLL = 0.2  # seconds after which it looks for signals


@dataclass
class Incoming(Iterator[T]):
    """What a command reads.

    more     of a pipe or a terminal: see Pair.stream
    columns  of a table
    format   of the input
    several  there are several files
    """

    items: Iterator[T]
    more: Callable[[float], bool] | None = None
    columns: Sequence[str] = ()
    format: str = "text"
    several: bool = False

    def __next__(self) -> T:
        return next(self.items)


def inputs_of(texts: list[str] | None, files: list[Path] | None) -> list[Path | None]:
    """Return the files, also those that patterns match; None stands for arguments. Raises ConfigError, DataError."""
    from electra_lab.sources.files import Files

    if bool(files) == bool(texts):
        raise ConfigError("give either texts or --file FILE with a text on each line; - reads standard input.")
    inputs: list[Path | None] = [Path("-") if texts == ["-"] else None] if texts else []
    for file in files or ():
        inputs += [file] if str(file) == "-" or os.path.exists(file) else Files([file], [""], {}).files
    return inputs


def lines_of(texts: list[str] | None, file: Path | None) -> Incoming[Line]:
    """Return the texts of a command, or the lines of a file; `-` is standard input. Raises DataError."""
    from electra_lab.sources.files import Files, uncompressed

    if file is None:
        encoded = (text.encode("utf-8", "surrogateescape") for text in texts or ())  # bytes that are not text
        return Incoming((f"TEXT {number}", text) for number, text in enumerate(encoded, start=1))
    if str(file) == "-":
        if sys.stdin is None:
            raise DataError("standard input: is closed, so no text can be read.")
        return _of_stream(sys.stdin.buffer, "standard input")
    if uncompressed(file) != file:
        return Incoming(_lines(_split(Files([file], [""], {}).blocks(file)), str(file)))
    try:
        return _of_stream(file.open("rb"), str(file))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}).") from None


def _of_stream(stream: BinaryIO, name: str) -> Incoming[Line]:
    with suppress(OSError):  # of a stream in memory
        if os.name == "posix" and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            live = _Live(stream)
            return Incoming(_lines(live, name), live.more)
    return Incoming(_lines(iter(partial(stream.readline, LONGEST + 1), b""), name))


def _split(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their line feeds, the last one perhaps without; only the beginning of one that is too long."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > LONGEST:
            break
    if rest:
        yield rest


def _lines(lines: Iterable[bytes], name: str) -> Iterator[Line]:
    """Yield the place of each line and its bytes, without its end. A lone carriage return does not end a line."""
    from electra_lab.sources.files import BYTE_ORDER_MARK, is_utf16

    try:
        for number, line in enumerate(lines, start=1):
            refuse_long(len(line), f"{name}:{number}")
            if number == 1 and is_utf16(line):
                raise DataError(f"{name}: is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            yield f"{name}:{number}", text.removesuffix(b"\r\n").removesuffix(b"\n")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}).") from None


def refuse_long(length: int, place: str) -> None:
    if length > LONGEST:
        raise DataError(f"{place}: the text has more than {LONGEST >> 20} MiB. Divide it.")


class _Live:
    """Lines of a pipe or a terminal, like `_split`, each as soon as it arrives.

    A signal ends them: after those that have been read, Interrupted or Preempted is raised.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._ended = stream, False
        self._waiting, self._rest = deque[bytes](), b""

    def __iter__(self) -> Iterator[bytes]:
        from electra_lab.jobs.endings import name_of, noted, stopped

        with noted(lambda _: None, alone=True) as self._arrived:
            while self.more(float("inf")):
                yield self._waiting.popleft()
        if number := self._arrived.number:
            raise stopped(number, f"stopped by {name_of(number)}. The lines that were read are answered.")

    def more(self, until: float) -> bool:
        """Wait for a line, until a time of time.monotonic(). Return True if there is one."""
        while not (self._waiting or self._ended or self._arrived.number):
            rest = max(until - time.monotonic(), 0)
            if select.select([self._stream], [], [], min(rest, POLL))[0]:
                self._read()
            elif not rest:
                break
        return bool(self._waiting)

    def _read(self) -> None:
        block = os.read(self._stream.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._waiting.extend(line + b"\n" for line in lines)
        self._ended = not block or len(self._rest) > LONGEST
        if self._ended and self._rest:
            self._waiting.append(self._rest)
