"""Errors as the user sees them: one of the lab's, with its exit code, or an internal error."""

import errno
import os
import sys

from registry import blame
from registry.errors import ConfigError, DataError, LabError, OutOfMemoryError

# Errors of the system that concern a path or a disk, wherever it is used.
PATHS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
DISKS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}  # EBADF: it is closed


def known(error: BaseException) -> LabError | None:
    """Return the error as one of the lab's, None if it is internal: the one place that decides it for all commands."""
    if isinstance(error, LabError):
        return error
    if _is_shortage(error):
        brief = (str(error).splitlines() or [type(error).__name__])[0]
        return OutOfMemoryError(f"there is not enough memory ({brief}). Use a smaller corpus, batch or network.")
    if plugin := blame(error):
        return plugin
    return _of_the_system(error) if isinstance(error, OSError) else None


def _of_the_system(error: OSError) -> LabError | None:
    if error.errno in PATHS and error.filename:
        return ConfigError(f"{error.filename}: cannot be read or written ({error.strerror}).")
    if error.errno in DISKS:
        return DataError(f"{error.filename or 'a file or standard output'}: cannot be written ({error.strerror}).")
    if "usable temporary directory" in str(error):  # of tempfile
        return ConfigError(f"{error.strerror}. Set TMPDIR to a folder that can be written to.")
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        return ConfigError("the working directory has been deleted. Change to another one.")
    return None


def _is_somewhere() -> bool:
    """Return True if the working directory exists."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error, 1 if it is internal."""
    found = known(error)
    return found.exit_code if found else 1


def _is_shortage(error: BaseException) -> bool:
    if "torch" not in sys.modules:  # which takes seconds to import
        return isinstance(error, MemoryError)
    from electra_lab.planning.memory import is_shortage

    return is_shortage(error)
