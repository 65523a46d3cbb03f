"""The processes that train one run together, as training sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from registry import Batch, Losses

Seen = tuple[Batch, Losses]  # a batch of an evaluation, and the objective's result


class World:
    """One process alone, for which nothing needs to be exchanged; electra_lab.parallel.group.Group is for several.

    Every method but `part` is a meeting: all ranks must call the same ones in the same order.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """This is rank 0, which writes, prints and does alone what must be done once."""
        return self.rank == 0

    def part(self, rows: int) -> slice:
        """Return this rank's rows of a global batch; `rows` is a multiple of the number of ranks."""
        share = rows // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks, on the device, without waiting for it."""
        return dict(scalars)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, in the order of ranks; each gives a tensor of the same shape."""
        return rows

    def synchronize(self, module: nn.Module, wanted: bool) -> None:
        """Set whether the next backward pass through `module` sums the gradients over all ranks."""

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Gather all of the module's parameters on every rank inside the block, which then needs no exchange."""
        return nullcontext()

    def in_turn(self, seen: Iterator[Seen]) -> Iterator[Seen]:
        """Yield the items of all ranks to rank 0, one of each rank at a time; the others send theirs and get none."""
        return seen

    def once(self, work: Callable[[], str]) -> str:
        """Return the result of `work`, which rank 0 does while the others wait, for days if necessary."""
        return work()

    def agreed(self, number: int) -> int:
        """Return the largest number that a rank gave in the previous call, the same on all ranks.

        The previous call, so that the exchange overlaps with the device's work. With one process it is the number
        itself.
        """
        return number

    def wait(self) -> None:
        """Wait until all ranks are here, for days if necessary."""


ALONE = World()
