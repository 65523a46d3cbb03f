"""How much memory a computation needs, found from shapes alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from registry.errors import LabError


@contextmanager
def shapes_only() -> Iterator[None]:
    """What is built and computed inside has shapes and types but no memory, so a large network costs nothing.

    Unlike the meta device it knows autocast, and picks the kernels that the CPU would.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def peak_bytes(computation: Callable[[], object]) -> int | None:
    """The most bytes that tensors made by `computation` hold at one moment: activations, gradients, temporaries.

    None where it reads numbers, inside `shapes_only`. What a kernel takes for itself while it runs, and what an
    allocator rounds up or keeps, is not seen.
    """
    try:
        with _Live() as live:
            computation()
    except LabError:
        raise
    except Exception:  # torch has many ways to say that a shape alone does not tell
        return None
    return int(live.peak)


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, until they are freed."""

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
