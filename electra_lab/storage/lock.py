"""One lock for run directories, cells and token stores. It ends with its process, also a killed one."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from registry.errors import ConfigError, guide

PATIENCE = 0.05  # seconds, as `reading` keeps a lock from others for a moment
UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


@contextmanager
def lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock file at `path`. Yields False if another process holds it and `wait` is off.

    Raises ConfigError if the file system has no locks or something else is there, OSError if it cannot be written.
    """
    _refuse_others(path)
    held = FileLock(path, timeout=-1 if wait else PATIENCE, poll_interval=0.02, fallback_to_soft=False)
    try:
        with suppress(Timeout):
            held.acquire()
    except (OSError, NotImplementedError) as error:  # filelock turns ENOSYS into NotImplementedError
        if isinstance(error, NotImplementedError) or error.errno in UNSUPPORTED:
            raise ConfigError(
                f"{path.parent}: this file system does not support locks, which the lab needs. Choose another folder; "
                f"see {guide('clusters')}"
            ) from None
        raise
    try:
        yield held.is_locked
    finally:
        held.release()


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
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise ConfigError(f"{path}: is not a lock file of the lab but a link, a folder or a device. Remove it.")
