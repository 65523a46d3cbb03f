"""What was measured on this machine, kept for later runs."""

import hashlib
import json
import os
import platform
import re
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from electra_lab.storage.files import write_text

T = TypeVar("T", bound=BaseModel)


def measured_folder() -> Path:
    """Return the folder of this user's measurements: `measured` in electra_lab's part of XDG_CACHE_HOME.

    For a user without a home directory, as in some containers, it is in the folder of temporary files.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        cache = Path(tempfile.gettempdir())
    return cache / "electra_lab" / "measured"


def processor() -> str:
    """Return the name of the processor's model."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def remembered(kind: type[T], folder: Path, about: Any, measure: Callable[[], T]) -> T:
    """Return what was measured `about` this, and measure it if nobody has. Of several at once, the first counts.

    A file that is damaged is written anew; without a folder that can be written to, nothing is kept.
    """
    text = json.dumps(about, sort_keys=True)
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if (known := _read(kind, file)) is not None:
        return known
    found = measure()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        mine = file.with_suffix(f".{uuid.uuid4().hex}")  # processes of two machines may share a number, and the folder
        write_text(mine, json.dumps({"about": about, "found": found.model_dump()}, indent=2) + "\n")
        try:
            os.link(mine, file)
        except FileExistsError:
            if (known := _read(kind, file)) is not None:
                return known
            mine.replace(file)
        finally:
            mine.unlink(missing_ok=True)
    return found


def _read(kind: type[T], file: Path) -> T | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return kind.model_validate(json.loads(file.read_text(encoding="utf-8"))["found"])
    return None
