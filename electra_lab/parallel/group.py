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
from registry.contracts.objective import Seen, World

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


class Group(World):
    """This process among others. Tensors of training go by the default process group, all else by `host`, on the CPU.

    host  a gloo group whose waits are long; it notices at once when a process is gone, which NCCL does not
    """

    def __init__(self, device: torch.device, host: ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device, self._host = device, host
        self._asked: tuple[Work, Tensor] | None = None

    def sum(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = torch.stack([value.double() for value in scalars.values()])  # counts up to 2^53 stay exact
        dist.all_reduce(values)
        return {name: total.to(scalars[name].dtype) for name, total in zip(scalars, values, strict=True)}

    def gather(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def synchronize(self, module: nn.Module, wanted: bool) -> None:
        module.set_requires_gradient_sync(wanted)  # type: ignore[operator]  # of Replicated and of FSDPModule

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        return gathered(module)

    def in_turn(self, seen: Iterator[Seen]) -> Iterator[Seen]:
        if not self.first:
            for item in seen:
                self._send(pack(*item))
            self._send(b"")
            return
        others = list(range(1, self.size))
        own = next(seen, None)
        while own or others:
            if own:
                yield own
                own = next(seen, None)
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
        said = 0
        if self._asked:
            work, largest = self._asked
            work.wait()
            said = int(largest)
        mine = torch.tensor(number)
        self._asked = dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._host, async_op=True), mine
        return said

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
    given = tree["losses"]
    losses = Losses(
        {name: Term(**term) for name, term in given.get("terms", {}).items()},
        {name: Prediction(**asked) for name, asked in given.get("predictions", {}).items()},
        Detection(**given["detection"]) if "detection" in given else None,
        given.get("outputs", {}),
        {name: Term(**term) for name, term in given.get("metrics", {}).items()},
        Choice(**given["choice"]) if "choice" in given else None,
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
