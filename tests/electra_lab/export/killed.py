"""Exports that are killed at every point: `main` prints each with its exit code, and leaves its folder."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from electra_lab.export import export as module
from electra_lab.pretrained import writing
from electra_lab.storage import files


def kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Return the function, which kills after so many calls."""
    calls: list[Any] = []

    def called(*given: Any, **options: Any) -> Any:
        calls.append(function(*given, **options))
        if len(calls) == number:
            kill()
        return calls[-1]

    return called


def partly(folder: Any, **_: Any) -> None:
    """Delete one file of an export that was put aside, then die."""
    if Path(folder).name.endswith(".old") and Path(folder).exists():
        next(path for path in Path(folder).rglob("*") if path.is_file()).unlink()
        kill()


def without(number: int) -> Callable[..., bool]:
    """Refuse to exchange two folders, and die after so many renames."""

    def exchange(*_: Any) -> bool:
        pathlib.Path.rename = after(pathlib.Path.rename, number)  # type: ignore[method-assign]
        return False

    return exchange


def main(run: str, folder: str) -> None:
    # Writing needs transformers as little as anything but reading does; it takes seconds.
    assert not any(name.startswith("transformers.") for name in sys.modules)
    sys.modules["transformers"] = None  # type: ignore[assignment]
    place = Path(folder)
    out = place

    def half(_: Any, file: Path, **__: Any) -> None:
        file.write_bytes(b"half")
        kill()

    def flushed(path: Path) -> None:
        if path == out.parent:
            kill()

    points: dict[str, tuple[Any, str, Any]] = {
        "before anything": (module, "_write", kill),
        "the first tensors are there": (writing, "save_file", after(writing.save_file, 1)),
        "half of the tensors": (writing, "save_file", half),
        "one of two networks": (module, "seal", after(module.seal, 1)),
        "both networks": (module, "seal", after(module.seal, 2)),
        "all of it": (files, "flush", flushed),
        "the new one is beside the old one": (pathlib.Path, "rename", after(pathlib.Path.rename, 3)),
        "both were exchanged": (files, "_exchange", after(files._exchange, 1)),
        "they cannot be exchanged, and the old one is aside": (files, "_exchange", without(2)),
        "they cannot be exchanged, and the new one is in its place": (files, "_exchange", without(3)),
        "half of the old one is deleted": (shutil, "rmtree", partly),
    }
    for number, (name, (owner, attribute, replacement)) in enumerate(points.items()):
        out = place / str(number) / "out"
        for earlier in (False, True)[number > 5 :]:  # the last points are about an earlier export
            if earlier:
                module.export(Path(run), out, 8)
            if not (child := os.fork()):
                setattr(owner, attribute, replacement)
                module.export(Path(run), out, 12)
                os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.parent.rename(place / f"{name}, {earlier}")
            print(name, earlier, ended, sep=";")
