"""Several processes, by torch.distributed. Batches and losses travel as safetensors, so that nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn

from electra_lab.parallel.wrap import gathered
from registry import Batch, Choice, Detection, Losses, Prediction, Term
from registry.contracts.objective import Evaluated, World

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


class Group(World):
    """This process among others. Tensors of training go by the default process group, all else by `host`, on the CPU.

    host  a gloo group whose waits are long; it notices at once when a process is gone, which NCCL does not
    """

    def __init__(self, device: torch.device, host: ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self._host = device, host
        self._pending: tuple[Work, Tensor] | None = None

    def sum(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = torch.stack([value.double() for value in scalars.values()])  # counts up to 2^53 stay exact
        dist.all_reduce(values)
        return {name: total.to(scalars[name].dtype) for name, total in zip(scalars, values, strict=True)}

    def gather(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def synchronize(self, module: nn.Module, enabled: bool) -> None:
        module.set_requires_gradient_sync(enabled)  # type: ignore[operator]  # of Replicated and of FSDPModule

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        return gathered(module)

    def in_turn(self, results: Iterator[Evaluated]) -> Iterator[Evaluated]:
        if not self.first:
            for item in results:
                self._send(pack(*item))
            self._send(b"")
            return
        others = list(range(1, self.size))
        local = next(results, None)
        while local or others:
            if local:
                yield local
                local = next(results, None)
            for rank in tuple(others):
                if data := self._receive(rank):
                    yield unpack(data, self.device)
                else:
                    others.remove(rank)

    def once(self, work: Callable[[], str]) -> str:
        text = work().encode() if self.first else b""
        length = torch.tensor(len(text))
        dist.broadcast(length, 0, group=self._host)
        data = torch.tensor(list(text), dtype=torch.uint8) if self.first else torch.zeros(int(length)).byte()
        dist.broadcast(data, 0, group=self._host)
        return bytes(data.tolist()).decode()

    def agreed(self, number: int) -> int:
        largest_before = 0
        if self._pending:
            work, largest = self._pending
            work.wait()
            largest_before = int(largest)
        value = torch.tensor(number)
        self._pending = dist.all_reduce(value, dist.ReduceOp.MAX, group=self._host, async_op=True), value
        return largest_before

    def wait(self) -> None:
        dist.barrier(group=self._host)

    def _send(self, data: bytes) -> None:
        dist.send(torch.tensor(len(data)), 0, group=self._host)
        if data:
            dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0, group=self._host)

    def _receive(self, rank: int) -> bytes:
        length = torch.tensor(0)
        dist.recv(length, rank, group=self._host)
        data = torch.empty(int(length), dtype=torch.uint8)
        if len(data):
            dist.recv(data, rank, group=self._host)
        return data.numpy().tobytes()


_BETWEEN = "\x1f"  # the parts of a tensor's name, which may be names that components chose


def pack(batch: Batch, losses: Losses) -> bytes:
    """Return the bytes of a batch and its losses, wherever these are."""
    named = {**dict(_leaves(batch, ("batch",))), **dict(_leaves(losses, ("losses",)))}
    # A copy of each, as safetensors refuses tensors that share memory.
    return save({_BETWEEN.join(name): value.detach().cpu().contiguous().clone() for name, value in named.items()})


def unpack(data: bytes, device: torch.device) -> tuple[Batch, Losses]:
    """Return the arguments of `pack`; weights have become tensors."""
    tree: dict[str, Any] = {"batch": {}, "losses": {}}
    for name, value in load(data).items():
        *above, last = name.split(_BETWEEN)
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value.to(device)
    parts = tree["losses"]
    losses = Losses(
        {name: Term(**term) for name, term in parts.get("terms", {}).items()},
        {name: Prediction(**prediction) for name, prediction in parts.get("predictions", {}).items()},
        Detection(**parts["detection"]) if "detection" in parts else None,
        parts.get("outputs", {}),
        {name: Term(**term) for name, term in parts.get("metrics", {}).items()},
        Choice(**parts["choice"]) if "choice" in parts else None,
    )
    return Batch(**tree["batch"]), losses


def _leaves(value: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, (*name, key))
    elif value is not None:
        yield name, value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
