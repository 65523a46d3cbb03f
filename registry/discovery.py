"""Plug-ins by file: the files that an experiment lists under `imports:`; and the plug-in that caused an exception.

A plug-in imports `registry` (and torch), registers components with the decorator, and is used by name like a
built-in. Nothing else but installed packages (registry.listing) loads code: an unknown name is an error, not an
import.
"""

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.core import Entry, Registry
from registry.errors import LabError, PluginError, Signalled, said
from registry.listing import short


@dataclass(frozen=True)
class Plugin:
    """A loaded file with its source, for the run directory."""

    file: Path
    sha256: str
    source: bytes = field(repr=False)
    package: str | None = None  # the installed package that it belongs to, with its version; None under `imports:`


def packaged(entry: Entry[Any]) -> Plugin:
    """Return the file of a component that came with an installed package."""
    try:
        source = entry.file.read_bytes()
    except OSError:  # compiled or zipped: there is no source to keep
        source = b""
    return Plugin(entry.file, hashlib.sha256(source).hexdigest(), source, entry.package)


_loaded: dict[Path, Plugin] = {}


def already_loaded(sha256: str) -> Plugin | None:
    """Return the plug-in of that content that this process has loaded, wherever its file is."""
    return next((plugin for plugin in _loaded.values() if plugin.sha256 == sha256), None)


def load_plugin(path: Path) -> Plugin:
    """Run a plug-in file, or a run's copy of it, once in this process. Raises PluginError with file:line."""
    file = Path(os.path.realpath(path))  # never raises, as Path.resolve does for links in a circle
    try:
        source = file.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: the plug-in cannot be read ({error.strerror}).") from None
    plugin = Plugin(file, hashlib.sha256(source).hexdigest(), source)
    if loaded := _loaded.get(file):
        if loaded != plugin:
            raise PluginError(f"{path}: the plug-in changed since this process loaded it. Start a new process.")
        return loaded
    if file.name.startswith(f"{plugin.sha256[:8]}-") and (original := already_loaded(plugin.sha256)):
        return original  # of the copy of a run: a name is taken once

    name = f"electra_lab_plugin_{plugin.sha256[:16]}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if file.suffix != ".py" or spec is None:
        raise PluginError(f"{path}: a plug-in is a Python file with the ending .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling of the module's classes look it up
    try:
        # Compiled from the bytes that were hashed, never from a cached .pyc of an earlier version.
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # also SystemExit, which would end the lab with code 0
        sys.modules.pop(name, None)
        Registry.forget_failed()
        if isinstance(error, LabError | KeyboardInterrupt | Signalled):
            raise
        raise PluginError(f"{short(file)}:{_line(error, file)}: {type(error).__name__}: {_reason(error)}") from error
    _loaded[file] = plugin
    return plugin


def _line(error: BaseException, file: Path) -> int:
    if isinstance(error, SyntaxError) and error.lineno and error.filename == str(file):
        return error.lineno
    lines = [frame.lineno or 1 for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return lines[-1] if lines else 1


def _reason(error: BaseException) -> str:
    return ((isinstance(error, SyntaxError) and error.msg) or said(error))[:2000]


@contextmanager
def using(*entries: Entry[Any]) -> Iterator[None]:
    """Let `blame` name the plug-ins among the components for errors in code that uses their results."""
    try:
        yield
    except Exception as error:
        used = getattr(error, "used", [])
        error.__dict__["used"] = used + [entry for entry in entries if not entry.built_in and entry not in used]
        raise


def blame(error: BaseException) -> PluginError | None:
    """Return an error that names the plug-in whose code raised `error`, or called the code that did, with its line.

    Otherwise it names the plug-ins that were used. None if there were none.
    """
    entries = Registry.all_plugged_in()
    files, used = {str(entry.file) for entry in entries}, getattr(error, "used", [])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        if not used or isinstance(error, OSError):
            return None
        others = "".join(f", or {other.kind} '{other.name}' at {other.place}," for other in used[1:])
        who, problem = f"{used[0].kind} '{used[0].name}'{others}", f"{type(error).__name__}: {_reason(error)}"
        return PluginError(f"{used[0].place}: {who} does not follow its contract: {problem}")
    last = frames[-1]
    # The definition that contains the line; a helper function above all of them belongs to the first.
    of_file = [entry for entry in entries if str(entry.file) == last.filename]
    of_file.sort(key=lambda entry: (entry.line, entry.kind))
    entry = next((entry for entry in reversed(of_file) if entry.line <= (last.lineno or 0)), of_file[0])
    calls = "".join(f"\n  {short(Path(call.filename))}:{call.lineno} in {call.name}: {call.line}" for call in frames)
    # Only its objective knows which shape a head returns.
    heads = [other for other in used if other.kind == "head"] if entry.kind == "objective" else []
    read = "".join(f" (it reads head '{head.name}' at {head.place})" for head in heads)
    failed = f"{entry.kind} '{entry.name}' failed: {type(error).__name__}: {_reason(error)}"
    return PluginError(f"{short(entry.file)}:{last.lineno}: {failed}{read}{calls}")
