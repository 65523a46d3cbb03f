"""Keep the memory that a step frees, for the next one."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the C library keep memory freed by CPU tensors until the process ends; returns whether it does.

    By default glibc returns every large block to the system, and each step spends a tenth of its time on getting them
    back, page by page and filled with zeros. Only glibc has these settings (mallopt(3)); elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
