"""Files that are written whole or not at all, folders that are sealed with checksums, and locks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

import yaml
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from registry.errors import CheckpointError, ConfigError, DataError, guide, is_shortage, not_utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer


MANIFEST = "MANIFEST.json"
MOST_BYTES = 64 << 20  # of a file that is read as a whole, unless its reader knows better
MOST_TOKENS = 1 << 29  # bytes of tokenizer.json
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # errors of a write, which lack the name of the file
T = TypeVar("T")
# Errors that say nothing about a file: of rights, of a network file system, of too many open files, of memory.
_PASSING = {errno.EACCES, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
PATIENCE = 0.05  # seconds, as `reading` keeps a lock from others for a moment
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class Unreadable(CheckpointError):
    """A file is there, but cannot be read: nothing says that it is damaged."""


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn errors of the file system, except too little memory, into CheckpointError."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise
        raise CheckpointError(
            f"{error.filename or path}: cannot be written ({error.strerror}). What was saved before is intact; fix the "
            "disk and resume."
        ) from None


@contextmanager
def new_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[Any]:
    """Yield a file that appears at `path`, durably, once the block is left without an error.

    However many processes write it at once, it is whole.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with temporary.open(mode, encoding="utf-8" if mode == "w" else None) as stream:
            yield stream
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file whole and durably. Raises OSError."""
    with new_file(path) as stream:
        stream.write(text)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole and durably. Raises CheckpointError."""
    with disk(path):
        write_text(path, text)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file that somebody else may have put there: one that is not regular raises OSError, and waits for nobody.

    To be written it must not be a link either: that would change a file elsewhere.
    """
    writing = flags & (os.O_WRONLY | os.O_RDWR)
    extra = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT", *(["O_NOFOLLOW"] if writing else []))
    for name in extra:
        flags |= getattr(os, name, 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link" if writing else "it is a link to itself", str(path)) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            what = "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file"
            raise OSError(errno.EINVAL, what, str(path))
        return os.fdopen(descriptor, "wb" if writing else "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError, also for more bytes than `most`."""
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
        return stream.read(most + 1)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return a regular file's text, without a BOM. Raises OSError, also for more bytes than `most`, and ValueError."""
    return read_bytes(path, most).decode("utf-8-sig")


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file that the lab wrote.

    Raises OSError, YAMLError, ValueError, and RecursionError where values are nested more than 100 deep: the parser in
    C, which is ten times as fast as the one in Python, ends the process at some thousands. Merge keys, which the lab
    never writes, raise RecursionError too: a few nested ones would take hours.
    """
    text = read_text(path)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        merges = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]
        if depth > 100 or merges:
            raise RecursionError
    return loader(text).get_single_data()


def config_of(file: Path) -> dict[str, Any]:
    """Return the complete config in a file that the lab wrote. Raises CheckpointError."""
    try:
        config: dict[str, Any] = dict(read_yaml(file))
    except PermissionError as error:
        raise CheckpointError(f"{file}: cannot be read ({reason(error)}).") from None
    except (OSError, yaml.YAMLError, TypeError, ValueError, RecursionError):
        raise CheckpointError(f"{file}: is damaged.") from None
    return config


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json. Raises OSError, DataError."""
    from tokenizers import Tokenizer

    text = read_text(path, MOST_TOKENS)
    with tokenizer_failures(f"{path}: is not a tokenizer"):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True  # "[MASK]" written in a document is text, not the mask token
    return tokenizer


@contextmanager
def tokenizer_failures(
    problem: str = "the tokenizer fails on the text", cure: str = "Correct its tokenizer.json, or its options."
) -> Iterator[None]:
    """Raise DataError for errors of the tokenizers library: bare Exceptions, and panics, which are not Exceptions."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{problem} ({reason(error)}). {cure}") from None


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, without the name of the file."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def read_json(path: Path, cure: str = "") -> Any:
    """Raises CheckpointError, with `cure` as its last words."""
    try:
        return json.loads(read_text(path))
    except PermissionError as error:
        raise Unreadable(f"{path}: cannot be read ({reason(error)}).") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)}). {cure}".rstrip()) from None


def read_as(kind: type[T], path: Path, cure: str = "") -> T:
    """Return a JSON file as a pydantic model, or another type. Raises CheckpointError, with `cure` as its last words.

    A validator that raises a PydanticCustomError of the type "lab" says all itself.
    """
    try:
        return TypeAdapter(kind).validate_python(read_json(path, cure))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "lab":
            raise CheckpointError(f"{path}: {first['msg']}") from None
        key, wrong = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{path}: is damaged: {key}{': ' * bool(key)}{wrong}. {cure}".rstrip()) from None


def flush(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    if os.name == "nt" and path.is_dir():  # not possible for folders on Windows
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that appears at `final`, durably, once the block is left without an error.

    The caller holds a lock: the remains of a killed process go first, and a folder at `final` is replaced.
    """
    building = final.with_name(f".{final.name}.part")
    restore(final)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
        for path in (*building.iterdir(), building):
            flush(path)
        put_in_place(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def put_in_place(building: Path, final: Path) -> None:
    """Rename a folder, durably, to one that may exist and is replaced. Raises OSError."""
    old = _moved_away(final)  # removal takes time, and must not show half a folder
    if final.exists():
        final.rename(old)  # the folder is missing for a moment
    building.rename(final)
    flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def restore(final: Path) -> None:
    """Clean up after a process that was killed in `put_in_place`: a folder that it had moved aside comes back."""
    old = _moved_away(final)
    if old.exists() and not final.exists():
        old.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _moved_away(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def refuse_unusable(path: Path) -> None:
    """Raise ConfigError for a file or folder that cannot be: its name is too long or holds a zero byte, its links form
    a circle, or its name is not UTF-8, so that safetensors and JSON cannot hold it.
    """
    try:
        str(path.absolute()).encode()
        path.stat()
    except UnicodeEncodeError:
        raise ConfigError(f"{path.absolute()}: its name {not_utf8()}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise ConfigError(f"{path}: cannot be used ({reason(error)}). Choose another one.") from None


def seal(folder: Path, names: Collection[str] | None = None, manifest: str = MANIFEST) -> None:
    """Write the checksums and sizes of the files `names` in a folder, by default of all, into the file `manifest`."""
    if names is None:
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    sums = {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in sorted(names)}
    (folder / manifest).write_text(json.dumps(sums, indent=1), encoding="utf-8")


def damage(folder: Path, names: Collection[str] | None = None, manifest: str = MANIFEST) -> str | None:
    """Return the damage to the sealed files `names` in a folder, by default to all, in words; None if they are sound.

    Raises Unreadable if this process may not read them.
    """
    try:
        sums = json.loads(read_text(folder / manifest))
        for name in sums if names is None else names:
            size = (folder / name).stat().st_size
            if size != sums[name]["bytes"]:
                return f"{name} is damaged: it has {size} bytes, not {sums[name]['bytes']}"
            if sha256(folder / name) != sums[name]["sha256"]:
                return f"{name} is damaged: its checksum is wrong"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        if error.errno in _PASSING:
            raise Unreadable(f"{error.filename or folder}: cannot be read ({reason(error)}).") from None
        return f"{Path(error.filename or manifest).name} cannot be read ({reason(error)})"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{manifest} is damaged ({type(error).__name__})"
    return None


def sha256(path: Path) -> str:
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


class Hold:
    """A lock file; true if this process holds it."""

    def __init__(self, path: Path, *, held: bool) -> None:
        self.path, self._held = path, held
        self._file = self._now()

    def __bool__(self) -> bool:
        return self._held

    @property
    def is_lost(self) -> bool:
        """Return True if the file was removed or replaced, so that another process may hold the new one."""
        return self._held and self._now() != self._file

    def refuse_lost(self) -> None:
        """Raise CheckpointError if the file was removed or replaced."""
        if self.is_lost:
            raise CheckpointError(
                f"{self.path}: was removed or replaced while this process held it, so another may write to the folder. "
                "This one stops, and what was saved before is intact. Run one process alone to continue."
            )

    def _now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[Hold]:
    """Hold the lock file at `path`. Yields a false value if another process holds it and `wait` is off.

    Raises ConfigError if the file system has no locks or something else is there, OSError if it cannot be written.
    """
    _refuse_others(path)
    file_lock = FileLock(path, timeout=-1 if wait else PATIENCE, poll_interval=0.02, fallback_to_soft=False)
    try:
        with suppress(Timeout):
            file_lock.acquire()
    except (OSError, NotImplementedError) as error:  # filelock turns ENOSYS into NotImplementedError
        if isinstance(error, NotImplementedError) or error.errno in UNSUPPORTED:
            raise ConfigError(
                f"{path.parent}: this file system does not support locks, which the lab needs. Choose another folder; "
                f"see {guide('clusters')}"
            ) from None
        raise
    try:
        yield Hold(path, held=file_lock.is_locked)
    finally:
        file_lock.release()


@contextmanager
def reading(path: Path) -> Iterator[bool]:
    """Keep others from holding the lock at `path`, without writing. Yields False if one holds it already.

    If the file does not exist or files cannot be locked, nobody is locked out.
    """
    _refuse_others(path)
    with ExitStack() as stack:
        free = True
        try:
            import fcntl  # not on Windows

            fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except (ImportError, OSError):
            pass
        yield free


def _refuse_others(path: Path) -> None:
    """Raise ConfigError for a file that only looks like a lock: a link would let a file elsewhere be overwritten."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise ConfigError(f"{path}: is not a lock file of the lab but a link, a folder or a device. Remove it.")
