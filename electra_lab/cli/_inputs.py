"""The input of commands: arguments, files and standard input. The items of a pipe are answered as they come."""

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
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from registry.errors import ConfigError, DataError, Stopped

if TYPE_CHECKING:
    from electra_lab.jobs.endings import Arrived

T = TypeVar("T")
Line = tuple[str, bytes]  # its place, and its bytes without the line end
LONGEST = 1 << 21  # bytes of a text, whose tokens and result take half a gigabyte
PAUSE = 0.2  # seconds without a line after which a text of several lines is complete; it looks for signals then
AHEAD = 64  # items of a pipe that are read before they are needed
MOMENT = 0.002  # seconds in which the next item is read if its lines are there


@dataclass
class Incoming(Iterator[T]):
    """The input of a command.

    more     waits for the next item of a pipe or a terminal: see Pair.stream
    columns  names of a table's columns
    format   format of the input
    several  True if there are several files
    signal   signal that ends the lines of a pipe or a terminal
    stopped  error that the signal raised
    """

    items: Iterator[T]
    more: Callable[[float], bool] | None = None
    columns: Sequence[str] = ()
    format: str = "text"
    several: bool = False
    signal: "Arrived | None" = None
    stopped: Stopped | None = None

    def __next__(self) -> T:
        return next(self.items)

    def end(self) -> None:
        """Raise Interrupted or Preempted if a signal ended it, once everything that was read is answered."""
        if self.stopped:
            raise self.stopped


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
            from electra_lab.jobs.endings import Arrived

            signal = Arrived()
            return Incoming(_lines(_split(_blocks(stream, signal)), name), signal=signal)
    return Incoming(_lines(iter(partial(stream.readline, LONGEST + 1), b""), name))


def _blocks(stream: BinaryIO, signal: "Arrived") -> Iterator[bytes]:
    """Yield blocks of a pipe or a terminal; an empty one at a pause, and before a signal raises Stopped."""
    from electra_lab.jobs.endings import name_of, stopped

    block = b""
    while not signal.number:
        if select.select([stream], [], [], PAUSE)[0] and not (block := os.read(stream.fileno(), 1 << 16)):
            return
        yield block
        block = b""
    yield block
    raise stopped(signal.number, f"stopped by {name_of(signal.number)}. The lines that were read are answered.")


def _split(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends, which the last one may lack; of one that is too long, the beginning; pauses."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if not block:
            yield b""
        if len(rest) > LONGEST:
            break
    if rest:
        yield rest


def _lines(lines: Iterable[bytes], name: str) -> Iterator[Line]:
    """Yield the place and the bytes of each line. A lone carriage return does not end one; a pause has no place."""
    from electra_lab.sources.files import BYTE_ORDER_MARK, is_utf16

    try:
        number = 0
        for line in lines:
            number += len(line) > 0
            refuse_long(len(line), f"{name}:{number}")
            if number == 1 and is_utf16(line):
                raise DataError(f"{name}: is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            yield f"{name}:{number}" if line else "", text.removesuffix(b"\r\n").removesuffix(b"\n")
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}).") from None


def refuse_long(length: int, place: str) -> None:
    if length > LONGEST:
        raise DataError(f"{place}: the text has more than {LONGEST >> 20} MiB. Divide it.")


def ahead(items: Iterator[T], signal: "Arrived") -> Incoming[T]:
    """Return items, read by a thread as they come: several lines of a pipe may be an item, and some lines are none."""
    from electra_lab.jobs.endings import noted

    read = Queue[T | BaseException](AHEAD)
    following = deque[T | BaseException]()  # the next item, if `more` has seen it

    def fill() -> None:
        try:
            while True:
                read.put(next(items))
        except BaseException as error:  # StopIteration, too
            read.put(error)

    def more(until: float) -> bool:
        with suppress(Empty):
            if not following:
                following.append(read.get(timeout=max(until - time.monotonic(), MOMENT)))
        return bool(following) and not isinstance(following[0], BaseException)

    def ready() -> Iterator[T]:
        with noted(lambda _: None, alone=True, arrived=signal):
            Thread(target=fill, daemon=True).start()
            while not isinstance(item := following.pop() if following else read.get(), BaseException):
                yield item
        if not isinstance(item, StopIteration):
            raise item

    return Incoming(ready(), more)
