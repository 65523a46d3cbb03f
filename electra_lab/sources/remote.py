"""Files in object stores and on servers, read by fsspec: listed once, and read on where a connection broke."""

import atexit
import hashlib
import io
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from registry.component import FailedRequest, Url
from registry.errors import DataError

ATTEMPTS = 6
PAUSE = 0.5  # seconds before the second attempt, twice as long before each further one
BLOCK = 1 << 22  # bytes of a request
SILENCE = 60  # seconds without a byte, after which a connection is lost
# The keys of fsspec's `info` that change with the content, the best first.
TAGS = ("ETag", "etag", "blob_id", "oid", "md5Hash", "Last-Modified", "LastModified", "updated")
EXTRA = "pip install 'electra-lab[remote]'"
T = TypeVar("T")


@lru_cache
def _file_system(scheme: str) -> Any:
    """Return the file system of a scheme. Raises DataError if its library is missing."""
    # A command that a signal ends leaves requests open, about which asyncio would complain.
    atexit.register(logging.getLogger("asyncio").setLevel, logging.CRITICAL)
    options = dict[str, Any]()
    try:
        if scheme.startswith("http"):  # long files take longer than the five minutes that aiohttp grants
            wait = import_module("aiohttp").ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
            options["client_kwargs"] = {"timeout": wait}
        # Without a cache of listings: a changed file must be noticed.
        return import_module("fsspec").filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        raise DataError(f"{scheme}:// cannot be read: {str(error).rstrip('.')}. Install it: {EXTRA}.") from None


def _attempted(url: Url, do: Callable[[], T]) -> T:
    """Return the result of a request, which is repeated if the connection breaks. Raises DataError."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return do()
        except (DataError, MemoryError):
            raise
        except Exception as error:  # libraries of HTTP and of each store have errors of their own
            said = _said(_cause(error))
            if (reason := _refusal(url, error)) or attempt == ATTEMPTS:
                times = "" if reason else f", at {ATTEMPTS} attempts"
                raise DataError(f"{url}: cannot be read ({reason or said}{times}).") from None
            note = f"{url}: a request failed ({said}); attempt {attempt + 1} of {ATTEMPTS}"
            warnings.warn(note, FailedRequest, stacklevel=2)
            time.sleep(PAUSE * 2 ** (attempt - 1))
    raise AssertionError


def _refusal(url: Url, error: Exception) -> str:
    """Return the reason why another attempt would fail, too; "" if it might not."""
    error = _cause(error)
    status = vars(error).get("status")  # of aiohttp's errors
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "there is no such file" if url.scheme.startswith("http") else "there is no such file or bucket"
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ == "NoCredentialsError":
        return "access is denied; credentials are taken from the environment"
    if type(error).__name__ == "TooManyRedirects":
        return "its server redirects without end"
    if type(error).__name__ in ("ParamValidationError", "InvalidURL"):
        return f"the address is wrong: {_said(error).split(': ')[:2][-1]}"  # without the rule in full
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429):
        return f"the server answers with status {status}"
    return ""


def _cause(error: Exception) -> Exception:
    """Return the error of aiohttp behind one of fsspec, which calls all of them "not found"."""
    behind = type(error.__cause__).__module__.startswith("aiohttp")
    return cast("Exception", error.__cause__) if behind else error


def _said(error: Exception) -> str:
    if isinstance(status := vars(error).get("status"), int):
        return f"the server answers with status {status}"
    return (" ".join(str(error).split()) or type(error).__name__)[:200].rstrip(".")


def _info(url: Url) -> dict[str, Any]:
    fs = _file_system(url.scheme)
    info: dict[str, Any] = _attempted(url, lambda: fs.info(fs._strip_protocol(str(url))))
    if info.get("size") is None:
        reason = "its server sends no size, so a lost end could not be noticed"
        raise DataError(f"{url}: {reason}. Copy it to this machine.")
    return info


def _version(info: Mapping[str, Any]) -> bytes | None:
    """Return a hash of ETag and size; None if a listing has none or the other."""
    tag = next((str(info[key]).strip('"') for key in TAGS if info.get(key)), None)
    whole = info.get("size")
    return None if tag is None or whole is None else hashlib.sha256(f"{tag} {whole}".encode()).digest()


def version(url: Url) -> bytes:
    """Return a hash of a file's ETag and size, which changes with its content. Raises DataError if it lacks one.

    The first call after `matched` returns that of the listing.
    """
    listed, url.listed = url.listed, None
    if listed:
        return listed
    if (now := _version(_info(url))) is None:
        raise DataError(
            f"{url}: its server sends no ETag or date, so changes could not be noticed. Copy it to this machine."
        )
    return now


def size(url: Url) -> int:
    """Return the size of a file in bytes. Raises DataError."""
    return int(_info(url)["size"])


def matched(url: Url, reads: Callable[[Path], bool]) -> tuple[list[Path], list[Path]]:
    """Return the files that an address, pattern or folder means, ordered by name, and those that are passed over.

    reads  True for a file that is to be read in a folder
    """
    if url.listed:
        return [url], []
    fs = _file_system(url.scheme)
    path = fs._strip_protocol(str(url))

    def entries() -> dict[str, dict[str, Any]]:
        if any(mark in path for mark in "*?[") and not fs.exists(path):
            matches: dict[str, dict[str, Any]] = fs.glob(path, detail=True)
            shown = matches if "/." in path else [name for name in matches if "/." not in name]  # as on this machine
            return {name: matches[name] for name in shown}
        return {path: fs.info(path)}

    named = _attempted(url, entries)
    if files := {name: info for name, info in named.items() if info["type"] == "file"}:
        return _urls(fs, files), []
    # Otherwise all files in the folders.
    visible = dict[str, dict[str, Any]]()
    for folder in named:
        for name, info in _attempted(url, partial(fs.find, folder, detail=True)).items():
            if not any(part.startswith(".") for part in name.removeprefix(folder).split("/")):  # as on this machine
                visible[name] = info
    files_below = _urls(fs, visible)
    read = [file for file in files_below if reads(file)]
    return read, [file for file in files_below if file not in read]


def _urls(fs: Any, entries: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Return the addresses of a listing, ordered by name."""
    urls = list[Path]()
    for name in sorted(entries):
        url = Url(address := fs.unstrip_protocol(name))
        url.refuse_other_name(address)
        url.listed = _version(entries[name])
        urls.append(url)
    return urls


def opened(url: Url) -> BinaryIO:
    """Open a file to read it. Raises DataError, also later, if it cannot be read."""
    return io.BufferedReader(_Resuming(url), 1 << 16)


class _Resuming(io.RawIOBase):
    """A file that is opened again, at the same byte, when its connection breaks. `Files` notices if it has changed."""

    def __init__(self, url: Url) -> None:
        self._url, self._fs = url, _file_system(url.scheme)
        self._size, self._at = size(url), 0
        self._raw: Any = None
        self._block = BLOCK  # 0 if the server sends the whole file alone

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = _attempted(self._url, lambda: self._next(len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _next(self, most: int) -> bytes:
        """Return the next bytes. Raises the error of a broken connection; the next call opens another one."""
        try:
            if self._raw is None:
                self._raw = self._fs.open(self._fs._strip_protocol(str(self._url)), "rb", block_size=self._block)
            if self._raw.tell() != self._at:
                self._go_to(self._raw)
            data: bytes = self._raw.read(most)
            if not data and self._at < self._size:
                raise ConnectionError("it ended too early")
            return data
        except BaseException as error:
            self._drop()
            if not (isinstance(error, ValueError) and self._block and "block_size=0" in str(error)):
                raise
        self._block = 0
        return self._next(most)

    def _go_to(self, raw: Any) -> None:
        """Move to the current byte; a server that cannot send parts sends all bytes before it again."""
        with suppress(ValueError):  # of a stream, which says that it could seek
            raw.seek(self._at)
            return
        if raw.tell() > self._at:
            raise DataError(f"{self._url}: its server cannot send parts of a file. Copy it to this machine.")
        while raw.tell() < self._at and raw.read(min(BLOCK, self._at - raw.tell())):
            pass
