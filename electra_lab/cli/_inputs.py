"""Lines of a pipe or a terminal, which are answered as they come."""

import os
import select
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from electra_lab.cli._streams import until_the_end

POLL = 0.2  # seconds after which it looks for signals


def is_live(stream: BinaryIO) -> bool:
    """Return True if others may still be writing what a stream reads."""
    with suppress(OSError):  # of a stream in memory
        return os.name == "posix" and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    return False


class Live:
    """Lines with their line feeds, each as soon as it arrives; only the beginning of a line that is too long.

    A signal ends them: after those that have been read, Interrupted or Preempted is raised.
    """

    def __init__(self, stream: BinaryIO, longest: int) -> None:
        from electra_lab.jobs.endings import Arrived

        self._stream, self._longest, self._ended = stream, longest, False
        self._lines, self._rest = deque[bytes](), bytearray()
        self._arrived = Arrived()

    def __iter__(self) -> Iterator[bytes]:
        from electra_lab.jobs.endings import name_of, noted, stopped

        self._arrived = until_the_end(noted(lambda _: None, alone=True))
        while self.more(float("inf")):
            yield self._lines.popleft()
        if number := self._arrived.number:
            raise stopped(number, f"stopped by {name_of(number)}. The lines that were read are answered.")

    def more(self, until: float) -> bool:
        """Wait for a line, until a time of time.monotonic(). Return True if there is one."""
        while not (self._lines or self._ended or self._arrived.number):
            rest = max(until - time.monotonic(), 0)
            if select.select([self._stream], [], [], min(rest, POLL))[0]:
                self._read()
            if not rest:
                break
        return bool(self._lines)

    def _read(self) -> None:
        block = os.read(self._stream.fileno(), 1 << 16)
        *lines, rest = block.split(b"\n")
        for line in lines:
            self._lines.append(bytes(self._rest) + line + b"\n")
            self._rest.clear()
        self._rest += rest
        self._ended = not block or len(self._rest) > self._longest
        if self._ended and self._rest:
            self._lines.append(bytes(self._rest))
