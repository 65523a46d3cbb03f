"""Files that are written whole or not at all, and folders that are sealed with checksums."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from registry.errors import CheckpointError

MANIFEST = "MANIFEST.json"
T = TypeVar("T")


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn errors of the file system into CheckpointError."""
    try:
        yield
    except OSError as error:
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


def read_json(path: Path, cure: str = "") -> Any:
    """Raises CheckpointError, with `cure` as its last words."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({' '.join(str(error).split())}). {cure}".rstrip()) from None


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
        key, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{path}: is damaged: {key}{': ' * bool(key)}{reason}. {cure}".rstrip()) from None


def flush(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows has no such thing for folders
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that appears at `final`, durably, once the block is left without an error.

    The caller holds a lock: what a killed process left behind goes first, and a folder at `final` is replaced.
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
    if final.exists():
        final.rename(_moved_away(final))  # to remove it takes time, in which half of it would be there
    building.rename(final)
    flush(final.parent)
    shutil.rmtree(_moved_away(final), ignore_errors=True)


def restore(final: Path) -> None:
    """Undo what a process that was killed in `put_in_place` left of an earlier folder."""
    old = _moved_away(final)
    if old.exists() and not final.exists():
        old.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _moved_away(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def seal(folder: Path) -> None:
    """Write the manifest of all files in a folder."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    manifest = {file.name: {"sha256": sha256(file), "bytes": file.stat().st_size} for file in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def damage(folder: Path, names: Collection[str] | None = None) -> str | None:
    """Return the damage to a sealed folder, or to the files in it that `names` lists, in words; None if it is sound."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name in manifest if names is None else names:
            size = (folder / name).stat().st_size
            if size != manifest[name]["bytes"]:
                return f"{name} is damaged: it has {size} bytes, not {manifest[name]['bytes']}"
            if sha256(folder / name) != manifest[name]["sha256"]:
                return f"{name} is damaged: its checksum is wrong"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{MANIFEST} is damaged ({type(error).__name__})"
    return None


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
