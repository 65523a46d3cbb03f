"""The memory that a computation needs, found from shapes alone."""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from registry.errors import LabError


@cache  # one mode for all: the weights of another mode would be copied, and counted as new
def shapes_only() -> FakeTensorMode:
    """Build and compute with shapes and types but without memory, so that a large network costs nothing.

    Unlike the meta device, it supports autocast and picks the kernels that the CPU would.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


def peak_bytes(computation: Callable[[], object]) -> int | None:
    """Return the peak bytes of the tensors that `computation` creates: activations, gradients, temporaries.

    None if it reads numbers inside `shapes_only`. A kernel's own workspace is not counted, nor what an allocator rounds
    up or keeps.
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
