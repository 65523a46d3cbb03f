"""What an error is for the user: one of the lab's, with its exit code, or an internal error."""

import sys

from registry import blame
from registry.errors import ConfigError, LabError, OutOfMemoryError


def known(error: BaseException) -> LabError | None:
    """Return the error as one of the lab's, None if it is internal: the one place that decides it for all commands."""
    if isinstance(error, LabError):
        return error
    if _is_shortage(error):
        brief = (str(error).splitlines() or [type(error).__name__])[0]
        return OutOfMemoryError(f"there is not enough memory ({brief}). Use a smaller corpus, batch or network.")
    if plugin := blame(error):
        return plugin
    if isinstance(error, PermissionError) and error.filename:
        return ConfigError(f"{error.filename}: cannot be read or written ({error.strerror}).")
    return None


def exit_code(error: BaseException) -> int:
    """Return what a command ends with: 1 if the error is internal."""
    found = known(error)
    return found.exit_code if found else 1


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "torch" not in sys.modules:  # which takes seconds to import
        return isinstance(error, MemoryError)
    from electra_lab.training.memory import is_shortage

    return is_shortage(error)
