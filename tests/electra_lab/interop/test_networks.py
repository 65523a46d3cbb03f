"""Networks of users: the output of a layer, and return values."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_lab.interop.electra_pytorch import MLM, Electra, HiddenLayerExtractor
from tests.electra_lab.interop.networks import IDS, SIZE, First, Tiny, electra_seed, text


class Deep(nn.Module):
    """With the children first, inner (which has a child) and last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(SIZE, 8), nn.Linear(8, 3)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.last = self._modules.pop("last")  # the children in the order in which they run

    def forward(self, tokens: Tensor, *, shift: float = 0.0) -> Tensor:
        return self.last(self.inner(self.first(tokens)) + shift)


def deep() -> Deep:
    torch.manual_seed(0)
    return Deep()


LAYERS: dict[Any, Any] = {
    "first": lambda net, x: net.first(x),
    "inner": lambda net, x: net.inner(net.first(x)),
    "inner.0": lambda net, x: net.inner[0](net.first(x)),
    0: lambda net, x: net.first(x),
    1: lambda net, x: net.inner(net.first(x)),
    -2: lambda net, x: net.inner(net.first(x)),
    -3: lambda net, x: net.first(x),
    -1: lambda net, x: net(x),
}


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_output_of_a_layer_is_that_of_theirs(layer: str | int) -> None:
    """By name, by index from either end, and -1 for the network's own output; at every call."""
    net, tokens = deep(), text()
    ours, theirs = HiddenLayerExtractor(net, layer), electra_seed.HiddenLayerExtractor(deep(), layer)
    for rows in (slice(0, 6), slice(0, 3), slice(2, 5)):
        expected = LAYERS[layer](net, tokens[rows])
        assert torch.equal(ours(tokens[rows]), expected)
        assert torch.equal(theirs(tokens[rows]), expected)


def test_gradients_pass_and_arguments_reach_the_network() -> None:
    net, tokens = deep(), text()
    extractor = HiddenLayerExtractor(net, "inner")
    for _ in range(2):  # the second call leaves the network after the layer
        net.zero_grad()
        extractor(tokens).square().sum().backward()
        assert net.first.weight.grad.any()
        assert net.last.weight.grad is None
    last = HiddenLayerExtractor(net, "last")
    assert torch.equal(last(tokens, shift=1.0), net(tokens, shift=1.0))
    assert not torch.equal(last(tokens, shift=1.0), last(tokens))


@pytest.mark.parametrize("layer", ["inner.5", "nowhere", "", 3, -4])
def test_a_layer_that_does_not_exist_is_refused_at_once(layer: str | int) -> None:
    with pytest.raises(ValueError, match=rf"no layer {layer!r}\. It has: first, inner, last"):
        HiddenLayerExtractor(deep(), layer)


def test_a_layer_that_speaks_several_times_is_read_the_last_time() -> None:
    class Twice(Tiny):
        def forward(self, tokens: Tensor, **_: Any) -> Tensor:
            x = self.mix(self.mix(self.table(tokens)))
            self.last = x.detach()
            return x

    discriminator = Twice(8)
    trainer = Electra(Tiny(SIZE), discriminator, discr_dim=8, discr_layer="mix", **IDS)
    for _ in range(3):
        results = trainer(text())
        logits = trainer.discriminator.head(discriminator.last).squeeze(-1)
        assert torch.equal(results.disc_predictions, (logits > 0).float())


def test_the_layers_of_a_wrapped_network_are_the_wrappers() -> None:
    """torch.compile's module forwards `mix`, but its own layer has another name."""
    tokens, network = text(), Tiny(8)
    compiled = torch.compile(network, backend="eager")
    with pytest.raises(ValueError, match=r"no layer 'mix'\. It has: _orig_mod\."):
        Electra(Tiny(SIZE), compiled, discr_dim=8, discr_layer="mix", **IDS)
    trainer = Electra(Tiny(SIZE), compiled, discr_dim=8, discr_layer="_orig_mod.mix", **IDS)
    assert [name for name, _ in trainer.discriminator.after()] == ["_orig_mod.out"]
    plain = Electra(trainer.generator, network, discr_dim=8, discr_layer="mix", **IDS)
    plain.discriminator.head = trainer.discriminator.head
    for _ in range(2):
        assert torch.equal(trainer(tokens).loss, plain(tokens).loss)


def test_a_layer_may_go_by_two_names() -> None:
    tokens, network = text(), Tiny(8)
    network.again = network.mix
    losses = []
    for layer in ("mix", "again"):
        torch.manual_seed(0)
        trainer = Electra(Tiny(SIZE), network, discr_dim=8, discr_layer=layer, **IDS)
        assert [name for name, _ in trainer.discriminator.after()] == ["out"]
        losses.append(trainer(tokens).loss)
    assert torch.equal(*losses)


class Sliced(First):
    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        return self.adaptee(*arguments, **options)[:, 0]


def test_networks_that_return_something_else_are_named() -> None:
    silent = Electra(Tiny(SIZE), Tiny(1), discr_dim=1, discr_layer="mix", **IDS)
    silent.discriminator.net.forward = lambda tokens: torch.zeros(*tokens.shape, 1)
    wrong: list[tuple[nn.Module, str]] = [
        (MLM(Sliced(Tiny(SIZE)), **IDS), r"returned \[6, 30\]; .* vocabulary logits"),
        (Electra(Tiny(SIZE), Tiny(8), **IDS), r"returned \[6, 20, 8\]; .* one logit per position"),
        (silent, "discr_layer: 'mix' "),
    ]
    for trainer, said in wrong:
        with pytest.raises(ValueError, match=said):
            trainer(text())
