"""Laws of heads."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra_lab.model.network import initialise
from electra_lab.testing.common import Contract, vocabulary
from registry import EmbeddingSizes, heads

DIM, ROWS, LENGTH, MASKED = 16, 3, 12, 4


class HeadContract(Contract):
    """Laws of heads, on random states. Override `inputs` if `forward` takes more than states.

    reads  states that it receives: those of all "positions", or of "masked" ones alone
    """

    registry = heads
    size = 24
    reads = "positions"

    def inputs(self, states: Tensor) -> tuple[Any, ...]:
        """Return the inputs of `forward` after the states, except the token table."""
        return ()

    def built(self) -> tuple[Any, Tensor, Tensor]:
        """Return the head with random weights, states, and a token table."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            sizes = EmbeddingSizes(self.size, 8, LENGTH, 0.0)
            head: nn.Module = self.component()(DIM, sizes, vocabulary(self.size))
            initialise(head)
            for parameter in head.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
            states = torch.randn(ROWS, LENGTH if self.reads == "positions" else MASKED, DIM)
            return head.eval(), states.requires_grad_(), torch.randn(self.size, 8)

    def read(self, head: Any, states: Tensor, table: Tensor) -> Tensor:
        """Return the output of the head."""
        named = {"table": table} if getattr(head, "reads_table", False) else {}
        output: Tensor = head(states, *self.inputs(states), **named)
        return output

    def test_a_row_is_read_alone(self) -> None:
        """The output of a row is a function of its states; all of it is finite."""
        head, states, table = self.built()
        whole = self.read(head, states, table)
        assert whole.is_floating_point()
        assert whole.isfinite().all()
        assert len(whole) == ROWS, f"returned {list(whole.shape)}, must have a row for each of {ROWS}"
        for row in range(ROWS):
            torch.testing.assert_close(self.read(head, states[row : row + 1], table)[0], whole[row])

    def test_everything_learns(self) -> None:
        """Gradients reach every trainable parameter, and the states."""
        head, states, table = self.built()
        self.read(head, states, table).square().sum().backward()  # type: ignore[no-untyped-call]
        parameters = [(name, p) for name, p in head.named_parameters() if p.requires_grad]
        for name, tensor in [("states", states), *parameters]:
            assert tensor.grad is not None, f"{name} has no gradient"
            assert tensor.grad.any(), f"{name} has a gradient of zeros"

    def test_flops_are_those_that_torch_counts(self) -> None:
        """For a row, without a backward pass."""
        head, states, table = self.built()
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.read(head, states[:1].detach(), table)
        assert head.flops(LENGTH, MASKED) == counter.get_total_flops()

    def test_it_is_built_without_memory(self) -> None:
        """On torch's meta device, where --dry-run looks at shapes."""
        words = vocabulary(self.size)
        with torch.device("meta"):
            head: nn.Module = self.component()(DIM, EmbeddingSizes(self.size, 8, LENGTH, 0.0), words)
        if not all(parameter.is_meta for parameter in head.parameters()):
            pytest.fail("some parameters have memory: create them on the default device")
