"""States of a backbone's inner layers."""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

States = Float[Tensor, "B T D"]


class Exits:
    """Collects states at some depths while a backbone runs, each as the backbone would return it if it ended there.

    depths  counted from 1; without any, the backbone returns its result as always
    top     the backbone's depth
    apart   the layer above a depth reads its states without their gradient
    norm    the last LayerNorm of a pre-norm backbone
    """

    def __init__(
        self, depths: Sequence[int], top: int, apart: bool, norm: Callable[[States], States] = lambda x: x
    ) -> None:
        self.depths, self.top, self.apart, self.norm = tuple(depths), top, apart, norm
        self.inner: dict[int, States] = {}

    def after(self, depth: int, x: States) -> States:
        """Keep what a layer returned, if it was asked for, and return what the next layer reads."""
        if depth not in self.depths or depth == self.top:
            return x
        self.inner[depth] = self.norm(x)
        return x.detach() if self.apart else x

    def result(self, states: States) -> States | tuple[States, ...]:
        """Return the states at all depths in their order, or the backbone's result `states` if there are none."""
        if not self.depths:
            return states
        return tuple(states if depth == self.top else self.inner[depth] for depth in self.depths)
