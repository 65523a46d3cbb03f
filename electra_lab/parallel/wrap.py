"""An objective whose gradients are summed over all ranks: by DDP, or by FSDP2, which also divides its parameters."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel


class Replicated(DistributedDataParallel):
    """DDP that sums gradients, as losses are divided by the counts of the global batch already.

    partly  a step may leave parameters without a gradient, which DDP then has to look for
    """

    def __init__(self, objective: nn.Module, *, partly: bool) -> None:
        super().__init__(objective, find_unused_parameters=partly, gradient_as_bucket_view=True)
        self.broadcast_buffers = False  # from here on they are functions of (seed, step), the same on all ranks
        self.register_comm_hook(None, _summed)

    def set_requires_gradient_sync(self, enabled: bool) -> None:
        """FSDP's name for what DDP does by its context `no_sync`."""
        self.require_backward_grad_sync = enabled


def _summed(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    summed: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return summed


def shard(objective: nn.Module, layers: Iterable[list[nn.Module]], device: torch.device) -> nn.Module:
    """Divide the parameters of an objective over all ranks, in place: a layer's at a time, then all others together.

    `layers` has the modules of each layer that are called. Embeddings and heads are among the others, as networks may
    share them.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    inside: set[nn.Parameter] = set()
    for layer in layers:
        parts = [part for part in layer if next(part.parameters(), None) is not None]
        fully_shard(parts, mesh=mesh)
        inside |= set(nn.ModuleList(parts).parameters())
    # Libraries may hold a layer's modules in a second place, where they must not be found again.
    fully_shard(objective, mesh=mesh, ignored_params=inside)
    for module in _sharded(objective):
        module.set_gradient_divide_factor(1.0)  # sums, as losses are divided by the counts of the global batch already
        module.set_force_sum_reduction_for_comms(True)  # gloo has no factor
    return objective


@contextmanager
def gathered(objective: nn.Module) -> Iterator[None]:
    """Hold all parameters inside the block. Without FSDP there is nothing to do."""
    modules = _sharded(objective)  # the objective first
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for number, module in enumerate(modules):
            module.reshard()
            module.set_reshard_after_forward(number > 0, recurse=False)


def _sharded(objective: nn.Module) -> list[FSDPModule]:
    return [module for module in objective.modules() if isinstance(module, FSDPModule)]
