"""Files as sources of text: finding them, reading them plain or compressed, hashing what was read."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NoReturn

from registry import Skipped
from registry.errors import DataError

BLOCK = 1 << 20  # bytes
LITTLE = 1 << 14  # bytes, which may grow a thousandfold when they are decompressed
LONGEST_LINE = 1 << 26  # bytes
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
READERS: dict[str, Any] = {".gz": lambda raw: gzip.GzipFile(fileobj=raw), ".xz": lzma.LZMAFile}
COMPRESSED = (*READERS, ".zst")


class Files:
    """The files of a corpus or a dataset, and the hashes of their content.

    extensions  of the files that are read below a folder, also with one of COMPRESSED after it
    options     everything else that decides the documents or the examples
    """

    def __init__(self, paths: Sequence[Path], extensions: Sequence[str], options: dict[str, Any]) -> None:
        self.options = options
        found = [file for path in paths for file in _found(path, extensions)]
        self.files = list(dict.fromkeys(found))
        self._hashes: dict[Path, bytes] = {}

    def fingerprint(self) -> str:
        """Hash the options and the content of the files, one by one and in their order; their names do not count."""
        state = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode())
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for file, digest in zip(self.files, pool.map(_hashed, self.files), strict=True):
                self._hashes[file] = digest
                state.update(digest)
        return state.hexdigest()

    def blocks(self, file: Path) -> Iterator[bytes]:
        """Yield the content of a file, decompressed, in blocks of at most BLOCK bytes.

        Raises BadInput for one that is cut short or corrupt, DataError for one that cannot be read or has changed.
        """
        with _opened(file) as raw:
            hashing = _Hashing(raw)
            try:
                yield from _unpacked(file, hashing)
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
                self.check(file)  # a file that is being written to is cut short too
                cut_short = isinstance(error, EOFError)
                reason = "is cut short" if cut_short else f"is damaged or not a {file.suffix} file"
                raise BadInput(str(file), reason, "Copy or download it again.") from None
            except OSError as error:
                _unreadable(file, error)
            while hashing.read(BLOCK):  # what follows the compressed stream
                pass
        self._compare(file, hashing.state.digest())

    def lines(self, file: Path, cure: str) -> Iterator[bytes]:
        """Yield the lines of a file without line feeds and, of the first one, a byte order mark. Raises like `blocks`.

        cure  for a line of more than LONGEST_LINE
        """
        rest, number = b"", 1
        for block in self.blocks(file):
            if number == 1 and not rest:
                block = block.removeprefix(BYTE_ORDER_MARK)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            number += len(lines)
            if len(rest) > LONGEST_LINE:
                raise BadInput(f"{file}:{number}", f"the line has more than {LONGEST_LINE >> 20} MiB", cure)
        yield rest

    def check(self, file: Path) -> None:
        """Raise DataError if the file is another one than it was when it was hashed or read first."""
        self._compare(file, _hashed(file))

    def _compare(self, file: Path, digest: bytes) -> None:
        if self._hashes.setdefault(file, digest) != digest:
            raise DataError(f"{file}: changed while it was read. Start again when it is complete.")


class BadInput(DataError):
    """A place in a source that is not what it should be; the user may choose to skip it."""

    def __init__(self, place: str, reason: str, cure: str) -> None:
        self.skipped = Skipped(place, reason)
        super().__init__(f"{place}: {reason}. {cure}")


class _Hashing(io.RawIOBase):
    """A file that hashes the bytes that are read from it."""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.state = raw, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read: int = self.raw.readinto(buffer)  # type: ignore[attr-defined]
        self.state.update(memoryview(buffer)[:read])
        return read


def _unpacked(file: Path, raw: _Hashing) -> Iterator[bytes]:
    kind = file.suffix.lower()
    stream: Any = raw
    if kind in COMPRESSED and not file.stat().st_size:
        raise EOFError
    if kind == ".zst":
        yield from _zstandard(file, raw)
        return
    if kind in READERS:
        stream = READERS[kind](io.BufferedReader(raw, BLOCK))
    while block := stream.read(BLOCK):
        yield block


def _zstandard(file: Path, raw: _Hashing) -> Iterator[bytes]:
    """The library's own readers do not tell a file that is cut short from a whole one."""
    zstandard = needed("zstandard", f"to read {file.name}")
    frame = None
    while block := raw.read(LITTLE):
        while block:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                text = frame.decompress(block)
            except zstandard.ZstdError as error:
                raise zlib.error(str(error)) from None
            for start in range(0, len(text), BLOCK):
                yield text[start : start + BLOCK]
            block = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame:
        raise EOFError


def _opened(file: Path) -> IO[bytes]:
    try:
        return file.open("rb", buffering=0)
    except OSError as error:
        _unreadable(file, error)


def _unreadable(path: Path, error: OSError) -> NoReturn:
    raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None


def _hashed(file: Path) -> bytes:
    with _opened(file) as raw:
        try:
            return hashlib.file_digest(raw, "sha256").digest()  # type: ignore[arg-type]
        except OSError as error:
            _unreadable(file, error)


def _found(path: Path, extensions: Sequence[str]) -> list[Path]:
    """Return the files that a path, a pattern or a folder stands for, ordered by name. Raises DataError for none."""
    matches = [Path(match) for match in sorted(glob.glob(_pattern(path), recursive=True))]
    if files := [match for match in matches if match.is_file()]:
        return files
    if folders := [match for match in matches if match.is_dir()]:
        if files := [file for folder in folders for file in below(folder) if _is_read(file, extensions)]:
            return files
        endings = f" that ends in {' or '.join(extensions)}" if any(extensions) else ""
        raise DataError(f"{path}: this folder has no file{endings}. Give a pattern or another folder.")
    if denied := next((part for part in path.parents if os.path.isdir(part) and not _may_list(part)), None):
        raise DataError(f"{path}: cannot be read (no permission to list {denied}).")
    raise DataError(f"{path}: no file matches.")


def _may_list(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def below(folder: Path) -> list[Path]:
    """Return all files below a folder, by their relative paths; hidden ones are left out. Raises DataError."""

    def refuse(error: OSError) -> NoReturn:
        _unreadable(Path(error.filename), error)

    found = []
    for at, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(at, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _is_read(file: Path, extensions: Sequence[str]) -> bool:
    name = file.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return name.endswith(tuple(extensions))


def _pattern(path: Path) -> str:
    """Take the part of a path that exists literally: a folder may be called `a[1]`. Only the rest is a pattern."""
    exists = next(part for part in (path, *path.parents) if os.path.exists(part))
    return str(Path(glob.escape(str(exists)), path.relative_to(exists)))


def needed(module: str, purpose: str) -> Any:
    """Import an optional library. Raises DataError that names the extra."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"{module} is needed {purpose}. Install it: pip install 'electra-lab[data]'.") from None
