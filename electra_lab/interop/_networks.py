"""A user's networks as objectives need them: any nn.Module that takes tokens, with the methods of
registry.contracts.Network that `electra` and `mlm` call."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def tensor_of(output: Any) -> Tensor:
    """Return the tensor of a network's output: itself, its `logits` (transformers), or the first of several."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else tensor_of(output[0])


class Guess:
    """A registry.contracts.Generator with a known answer: its states are its logits Float[B T V]."""

    def __init__(self, output: Any, tokens: Int[Tensor, "B T"]) -> None:
        self._logits = tensor_of(output)
        if self._logits.dim() != 3 or self._logits.shape[:2] != tokens.shape:
            raise ValueError(
                f"for tokens of shape {list(tokens.shape)} the network returned {list(self._logits.shape)}; it must "
                "return vocabulary logits, [batch, length, vocabulary]."
            )
        self.dim = self._logits.shape[-1]

    def hidden(self, tokens: Int[Tensor, "B T"], *_: Any) -> Float[Tensor, "B T V"]:
        return self._logits

    def token_logits(self, hidden: Float[Tensor, "B T V"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, self.dim))


class Verdict:
    """The detecting half of a Network: its states are its logits, one per position. `options` go to every call.

    text    the objective's version of the user's tokens
    tokens  the input of the network wherever the objective did not replace the text
    """

    dim = 1

    def __init__(
        self, network: nn.Module, options: Mapping[str, Any], text: Int[Tensor, "B T"], tokens: Int[Tensor, "B T"]
    ) -> None:
        self._network, self._options, self._text, self._tokens = network, options, text, tokens

    def hidden(self, tokens: Int[Tensor, "B T"], *_: Any) -> Float[Tensor, "B T 1"]:
        shown = torch.where(tokens == self._text, self._tokens, tokens)
        logits = tensor_of(self._network(shown, **self._options))
        if logits.numel() != tokens.numel():
            raise ValueError(
                f"for tokens of shape {list(tokens.shape)} the discriminator returned {list(logits.shape)}; it must "
                "return one logit per position. Pass discr_dim, the width of its states, to add a head."
            )
        return logits.reshape(*tokens.shape, 1)

    def replaced_logits(self, hidden: Float[Tensor, "B T 1"]) -> Float[Tensor, "B T"]:
        return hidden.squeeze(-1)


class _Heard(BaseException):
    """Ends a forward pass after the layer's output. Not an Exception, so that no network's own `except` stops it."""


class HiddenLayerExtractor(nn.Module):
    """The output of one layer of a network, for tokens and any other arguments of the network.

    layer  the name of a module of the network, the index of one of its children, or -1 for the network's output

    The layer is read by a hook that lives for one call. If a layer runs once per forward pass, nothing after it is
    computed; if it runs several times, which the first call shows, its last output counts.
    """

    def __init__(self, net: nn.Module, layer: str | int = -2) -> None:
        super().__init__()
        self.net, self.layer = net, layer
        self._runs_once: bool | None = None
        self._path()  # a wrong name shows now

    def forward(self, x: Int[Tensor, "B T"], **options: Any) -> Any:
        if self.layer == -1:
            return self.net(x, **options)
        layer, heard = self.net.get_submodule(self._path()), []

        def listen(module: nn.Module, _: Any, output: Any) -> None:
            heard.append(output)
            if self._runs_once:
                raise _Heard

        def too_early(module: nn.Module, _: Any) -> None:
            if not heard:
                raise RuntimeError(
                    f"discr_layer: {self.layer!r} uses a {type(module).__name__} that the discriminator defines after "
                    "it, so distributed training would not average its gradients. Define it before."
                )

        handles = [layer.register_forward_hook(listen)]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            handles += [module.register_forward_pre_hook(too_early) for _, module in self.after()]
        try:
            self.net(x, **options)
        except _Heard:
            pass
        finally:
            for handle in handles:
                handle.remove()
        if not heard:
            raise ValueError(f"discr_layer: {self.layer!r} was not called in the discriminator's forward pass.")
        if self._runs_once is None:
            self._runs_once = len(heard) == 1
        return heard[-1]

    def _path(self) -> str:
        """Return the layer's name within the network."""
        if self.layer == -1:
            return ""
        children = [name for name, _ in self.net.named_children()]
        path = self.layer
        if isinstance(path, int):
            path = children[path] if -len(children) <= path < len(children) else ""
        # get_submodule would also find modules that a wrapper, such as torch.compile's, only passes on.
        if not path or path not in dict(self.net.named_modules(remove_duplicate=False)):
            names = ", ".join(children)
            raise ValueError(f"discr_layer: the discriminator has no layer {self.layer!r}. It has: {names}.")
        return path

    def after(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name, module) of everything that the network defines, and so presumably runs, after the layer."""
        module, walked = self.net, ""
        for step in self._path().split(".") if self.layer != -1 else ():
            children, inner = list(module.named_children()), module.get_submodule(step)
            place = [child for _, child in children].index(inner)
            for name, child in children[place + 1 :]:
                yield f"{walked}{name}", child
            module, walked = inner, f"{walked}{step}."


class Detector(HiddenLayerExtractor):
    """A head on one layer of a network: turns tokens, and any other arguments, into logits Float[B T 1]."""

    def __init__(self, network: nn.Module, dim: int, layer: str | int) -> None:
        super().__init__(network, layer)
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Int[Tensor, "B T"], **options: Any) -> Float[Tensor, "B T 1"]:
        logits: Tensor = self.head(tensor_of(super().forward(x, **options)))
        return logits


def tie(network: nn.Module, table: nn.Parameter, to: nn.Parameter) -> None:
    """Replace the parameter `table` by `to` wherever `network` uses it, its output layer included.

    `generator.token_emb = discriminator.token_emb` leaves an output layer tied to the replaced table.
    Raises ValueError if `table` is not a parameter of `network`, or if the shapes differ.
    """
    if table.shape != to.shape:
        raise ValueError(f"tie: a parameter of shape {list(table.shape)} cannot become one of {list(to.shape)}.")
    if not any(parameter is table or parameter is to for parameter in network.parameters()):
        raise ValueError("tie: the network has no such parameter.")
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter is table:
                setattr(module, name, to)
