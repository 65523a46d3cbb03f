"""The memory that a computation needs, found from shapes alone, and the memory that there is."""

import logging
import mmap
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from registry.errors import LabError

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

PAGE = mmap.PAGESIZE
# Names of the files with the limit and the used memory, and the line of memory.stat with memory that the kernel would
# drop: of version 2 and version 1.
CONTROL_GROUPS = (("max", "current", "inactive_file"), ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"))


class _Unfilled(TorchFunctionMode):
    """Leave out the functions that fill tensors. On the meta device some import torch's compiler, which takes seconds.

    torch.nn.init passes its functions to a mode with the tensor as the first argument.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "") == "torch.nn.init" or function in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else (kwargs or {})["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def without_numbers() -> Iterator[None]:
    """Build on the meta device, quicker than in `shapes_only`, but nothing can be computed with the networks."""
    with torch.device("meta"), _Unfilled():
        yield


@cache  # one mode for all: the weights of another mode would be copied, and counted as new
def shapes_only() -> "FakeTensorMode":
    """Build and compute with shapes and types but without memory, so that a large network costs nothing.

    Unlike the meta device, it supports autocast and picks the kernels that the CPU would.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports torch's compiler

    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # it logs errors that it also raises
    return FakeTensorMode(allow_non_fake_inputs=True)


def peak_bytes(computation: Callable[[], object]) -> int | None:
    """Return the peak bytes of the tensors that `computation` creates: activations, gradients, temporaries.

    None if it reads numbers inside `shapes_only`. The workspace of kernels and the overhead of allocators do not count.
    """
    try:
        with _Live() as live:
            computation()
    except LabError:
        raise
    except Exception:  # torch has many ways to say that shapes are not enough
        return None
    return int(live.peak)


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the storages that operations create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = {id(t.untyped_storage()) for t in (*args, *(kwargs or {}).values()) if isinstance(t, Tensor)}
        made = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, lambda tensor: self._note(tensor, taken), made)
        return made

    def _note(self, tensor: Tensor, taken: set[int]) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._known or key in taken:  # a view, or written in place
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, None if it is not known.

    On the CPU, the limits of a container, of a job and of the process (`ulimit -v`) also count.
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return None
        # Memory that torch keeps for its next tensors is free for this process.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    known = [value * 1024 for value in (_number("/proc/meminfo", r"MemAvailable:\s+(\d+)"),) if value is not None]
    for group in _control_groups():
        for highest, usage, dropped in CONTROL_GROUPS:
            most, used = (_number(f"{group}/memory.{name}", r"(\d+)") for name in (highest, usage))
            if most is not None and used is not None:
                cached = _number(f"{group}/memory.stat", rf"^{dropped} (\d+)") or 0  # the kernel drops it if necessary
                known.append(max(0, most - used + cached))
    limit, mapped = _number("/proc/self/limits", r"Max address space +(\d+)"), _number("/proc/self/statm", r"(\d+)")
    if limit is not None and mapped is not None:
        known.append(max(0, limit - mapped * PAGE))
    return min(known, default=None)


def _control_groups() -> list[str]:
    """Return the folders of the process's control groups and of those around them, such as a job of Slurm.

    Version 1 has a tree for each resource, hence one of memory; version 2 has one tree for all.
    """
    top = Path("/sys/fs/cgroup")
    try:
        said = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        said = ""
    folders = []
    for root, line in ((top, r"^0::/(.*)$"), (top / "memory", r"^\d+:(?:\w+,)*memory(?:,\w+)*:/(.*)$")):
        found = re.search(line, said, re.MULTILINE)
        # A container may see the names that its groups have outside, and its own at the root.
        inner = root / found[1] if found else root
        folders += [str(folder) for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return folders


def _number(file: str, pattern: str) -> int | None:
    try:
        found = re.search(pattern, Path(file).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
