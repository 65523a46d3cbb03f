"""Files as sources of text: find them, read them plain or compressed, hash their content."""

from __future__ import annotations

import bz2
import codecs
import glob
import hashlib
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from electra_lab.sources import remote
from electra_lab.storage.files import open_regular
from registry import Skipped
from registry.component import Url
from registry.contracts.data import Unit
from registry.errors import DataError

BLOCK = 1 << 20  # bytes
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zstd")
LITTLE = 1 << 9  # bytes, which may grow many thousandfold when they are decompressed
LONGEST_LINE = 1 << 26  # bytes
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DAMAGE = 2  # raise it when damaged files would give other documents


class Files:
    """The files of a corpus or a dataset, and the hashes of their content.

    extensions  extensions of the files to read in a folder, also with one of COMPRESSED appended; "/a.b" is a whole
                name
    options     all other options that determine the documents or the examples

    `files` are read. `ignored` are other files that the paths match, and links to folders, which are not followed.
    Raises DataError for a path that matches nothing and for a file that is not a regular file.
    """

    def __init__(self, paths: Sequence[Path], extensions: Sequence[str], options: Mapping[str, Any]) -> None:
        skips = options.get("on_error", "stop") != "stop"
        self.options = {**options, "damage": DAMAGE} if skips else dict(options)
        read: dict[Path, None] = {}  # an ordered set
        ignored: dict[Path, None] = {}
        for path in map(Url.of, paths):
            matched, passed_over = _matched(path, extensions)
            read.update(dict.fromkeys(matched))
            ignored.update(dict.fromkeys(passed_over))
        self.files = list(read)
        self.ignored = [file for file in ignored if file not in read]
        for file in self.files:
            if not isinstance(file, Url) and not file.is_file():
                opened(file).close()  # says why it cannot be read
        self._hashes: dict[Path, bytes] = {}  # of the content; of a file elsewhere, of its ETag and size

    def fingerprint(self) -> str:
        """Hash the options and the content of the files in their order; names do not count."""
        state = hashlib.sha256(json.dumps(self.options, sort_keys=True).encode())
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for file, digest in zip(self.files, pool.map(_hashed, self.files), strict=True):
                self._hashes[file] = digest
                state.update(digest)
        return state.hexdigest()

    def blocks(self, file: Path, text: bool = True) -> Iterator[bytes]:
        """Yield the content of a file, decompressed, in blocks of at most BLOCK bytes.

        Raises BadInput for text in UTF-16 and, after everything that can be decompressed, for a truncated or corrupt
        file; DataError for a file that cannot be read or has changed.
        """
        read = 0
        with self.opened(file) as raw:
            hashing = _Hashing(raw)
            try:
                for block in _blocks(_unpacked(file, hashing)):
                    if text and not read and is_utf16(block):
                        cure = "Convert it: iconv -f UTF-16 -t UTF-8."
                        raise BadInput(str(file), "is UTF-16, not UTF-8", cure, size_of(file), "bytes")
                    read += len(block)
                    yield block
            except (EOFError, zlib.error) as error:
                self.check(file)  # a file that is being written to is cut short too
                wrong = "is cut short" if isinstance(error, EOFError) else f"is damaged or not a {file.suffix} file,"
                reason = f"{wrong} after {read:,} bytes of {'text' if text else 'content'}"
                raise BadInput(str(file), reason, "Copy or download it again.", unit="ends of files") from None
            except OSError as error:
                _unreadable(file, error)
        self._compare(file, remote.version(file) if isinstance(file, Url) else hashing.state.digest())

    def opened(self, file: Path) -> BinaryIO:
        """Open a file to read it. Raises DataError if it is elsewhere and has changed, as no hash could tell later."""
        if isinstance(file, Url):
            self.check(file)
        return opened(file)

    def lines(self, file: Path, blocks: Iterator[bytes] | None = None) -> Iterator[bytes]:
        """Yield the lines of a file without line feeds and without a byte order mark. Raises like `blocks`.

        blocks  its blocks, if the caller has begun to read it

        If the first block has carriage returns and no line feed, carriage returns end the lines.
        """
        rest, number, end = b"", 1, b""
        for block in blocks or self.blocks(file):
            if number == 1 and not rest:
                block = block.removeprefix(BYTE_ORDER_MARK)
            rest += block
            if not end and b"\n" in rest:
                end = b"\n"
            elif not end and b"\r" in rest[:-1]:
                end = b"\r"
            *lines, rest = rest.split(end) if end else [rest]
            yield from lines
            number += len(lines)
            if len(rest) > LONGEST_LINE:
                reason = f"the line has more than {LONGEST_LINE >> 20} MiB"
                raise BadInput(
                    f"{file}:{number}", reason, "Write one record per line, and divide long ones.", unit="ends of files"
                )
        yield rest

    def check(self, file: Path) -> None:
        """Raise DataError if the file has changed since it was first hashed or read."""
        self._compare(file, _hashed(file))

    def _compare(self, file: Path, digest: bytes) -> None:
        if self._hashes.setdefault(file, digest) != digest:
            raise DataError(f"{file}: changed while it was read. Start again when it is complete.")


class BadInput(DataError):
    """A bad place in a source. The user may choose to skip it, and with it `number` units."""

    def __init__(
        self, place: str, reason: str, cure: str = "Correct it.", number: int = 1, unit: Unit = "records"
    ) -> None:
        self.skipped = Skipped(place, reason, number, unit)
        super().__init__(f"{place}: {reason}. {cure}")


class _Hashing:
    """A file that hashes the bytes read from it."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw, self.state = raw, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self.raw.read(size)
        self.state.update(data)
        return data


def _blocks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the parts joined to blocks of BLOCK bytes; before an error, everything that preceded it."""
    block = bytearray()
    try:
        for part in parts:
            block += part
            while len(block) >= BLOCK:
                yield bytes(block[:BLOCK])
                del block[:BLOCK]
    except (EOFError, zlib.error):
        if block:
            yield bytes(block)
        raise
    yield bytes(block)


def _unpacked(file: Path, raw: _Hashing) -> Iterator[bytes]:
    """Yield the decompressed content. Raises EOFError if it is truncated, zlib.error if it is corrupt."""
    if uncompressed(file) == file:
        yield from iter(partial(raw.read, BLOCK), b"")
        return
    begin, damage = _decompressor(file)
    stream = begin()
    while data := raw.read(LITTLE):
        while data:
            if stream.eof:  # another stream may follow, or padding
                data = data.lstrip(b"\0")
                if not data:
                    break
                stream = begin()
            try:
                yield stream.decompress(data)
            except damage as error:
                raise zlib.error(str(error)) from None
            data = stream.unused_data
    if not stream.eof:
        raise EOFError


def _decompressor(file: Path) -> tuple[Callable[[], Any], type[Exception]]:
    """Return a function that begins a compressed stream, and the error that a corrupt stream raises."""
    kind = file.suffix.lower()
    if kind == ".gz":
        return partial(zlib.decompressobj, zlib.MAX_WBITS | 16), zlib.error
    if kind == ".xz":
        return lzma.LZMADecompressor, lzma.LZMAError
    if kind == ".bz2":
        return bz2.BZ2Decompressor, OSError
    zstandard = needed("zstandard", f"to read {file.name}")
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


def is_utf16(block: bytes) -> bool:
    """Return whether a block has the byte order mark of UTF-16, or many NULs, all at even or all at odd positions."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    few, many = sorted([block[::2].count(0), block[1::2].count(0)])
    return len(block) >= 64 and few == 0 and many > len(block) / 8


def opened(file: Path) -> BinaryIO:
    """Open a regular file to read it. Raises DataError."""
    if isinstance(file, Url):
        return remote.opened(file)
    try:
        return open_regular(file)
    except OSError as error:
        _unreadable(file, error)


def _unreadable(path: Path, error: OSError) -> NoReturn:
    raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None


def exists(path: Path) -> bool:
    """Return True if there is a file or folder; of an address, if it is from a listing."""
    return path.listed is not None if isinstance(path, Url) else os.path.exists(path)


def size_of(file: Path) -> int:
    """Return the size of a file in bytes."""
    return remote.size(file) if isinstance(file, Url) else file.stat().st_size


def _hashed(file: Path) -> bytes:
    if isinstance(file, Url):
        return remote.version(file)
    with opened(file) as raw:
        try:
            return hashlib.file_digest(raw, "sha256").digest()  # type: ignore[arg-type]
        except OSError as error:
            _unreadable(file, error)


def _matched(path: Path, extensions: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the files that a path, pattern or folder matches, ordered by name, and those that are passed over.

    Raises DataError if there are none to read.
    """

    def reads(file: Path) -> bool:
        return f"/{uncompressed(file).name.lower()}".endswith(tuple(extensions))

    endings = f" that ends in {' or '.join(extensions)}" if any(extensions) else ""
    if isinstance(path, Url):
        files, ignored = remote.matched(path, reads)
        if files:
            return files, ignored
        if ignored:
            raise DataError(f"{path}: this folder has no file{endings}. Give a pattern or another folder.")
        raise DataError(f"{path}: no file matches.")
    matches = [Path(match) for match in _matches(path)]
    folders = [match for match in matches if match.is_dir()]
    # A pattern that matches files means these.
    if len(folders) < len(matches):
        return [match for match in matches if match not in folders], folders
    # Otherwise it means all files in the folders.
    if folders:
        files, ignored = [], []
        for folder in folders:
            inside, links = below(folder)
            for file in inside:
                (files if reads(file) else ignored).append(file)
            ignored += links
        if files:
            return files, ignored
        raise DataError(f"{path}: this folder has no file{endings}. Give a pattern or another folder.")
    # Nothing matches, perhaps for lack of permissions.
    for folder in filter(os.path.isdir, path.parents):
        if not os.access(folder, os.R_OK | os.X_OK):
            raise DataError(f"{path}: cannot be read (no permission to list {folder}).")
    raise DataError(f"{path}: no file matches.")


def below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return all files below a folder in the order of their relative paths, and the links to folders.

    Links are not followed, and hidden files are left out. Raises DataError.
    """

    def refuse(error: OSError) -> NoReturn:
        _unreadable(Path(error.filename), error)

    files, links = [], []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
        links += [Path(parent, name) for name in folders if os.path.islink(Path(parent, name))]
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix()), sorted(links)


def uncompressed(file: Path) -> Path:
    """Return the path without the extension of a compressed file."""
    return file.with_suffix("") if file.suffix.lower() in COMPRESSED else file


def _matches(path: Path) -> list[str]:
    """Return the paths that match a pattern, ordered by name.

    The part that exists is taken literally, as a folder may be called `a[1]`. Only the rest is a pattern.
    """
    exists = next(part for part in (path, *path.parents) if os.path.exists(part))
    patterns = {glob.escape(str(exists))}
    parts = path.relative_to(exists).parts
    for part in (*parts, "*") if parts[-1:] == ("**",) else parts:
        if part == "**":
            begins = chain.from_iterable(map(glob.glob, patterns))
            folders = chain.from_iterable(map(_folders, begins))
            patterns = set(map(glob.escape, folders))
        else:
            patterns = {os.path.join(pattern, part) for pattern in patterns}
    return sorted(chain.from_iterable(map(glob.glob, patterns)))


def _folders(folder: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield a folder and all folders below it except hidden ones, also through links unless they lead back."""
    real = os.path.realpath(folder)
    if real not in above:
        yield folder
        for child in glob.glob(os.path.join(glob.escape(folder), "*", "")):
            yield from _folders(child, above | {real})


def needed(module: str, purpose: str) -> Any:
    """Import an optional library. Raises DataError that names the extra."""
    try:
        return import_module(module)
    except ImportError:
        raise _missing(module, purpose) from None


def refuse_missing(module: str, purpose: str) -> None:
    """Raise the error of `needed` for a missing library, without importing it, which may take a second."""
    if not find_spec(module):
        raise _missing(module, purpose)


def _missing(module: str, purpose: str) -> DataError:
    return DataError(f"{module} is needed {purpose}. Install it: pip install 'electra-lab[data]'.")
