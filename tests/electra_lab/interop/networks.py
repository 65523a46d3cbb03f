"""Networks for the tests of the drop-in classes, and both packages under one interface."""

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reformer_pytorch import ReformerLM
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.interop.electra_pytorch import MLM, Electra
from electra_lab.testing import CLS, MASK, PAD, SEP
from tests.helpers import peer

SIZE = 30
IDS: dict[str, Any] = {"mask_token_id": MASK, "pad_token_id": PAD, "mask_ignore_token_ids": [CLS, SEP]}

electra_seed, mlm_seed = peer("electra_pytorch.electra_pytorch"), peer("mlm_pytorch.mlm_pytorch")
OURS = SimpleNamespace(Electra=Electra, MLM=MLM)
THEIRS = SimpleNamespace(Electra=electra_seed.Electra, MLM=mlm_seed.MLM)
BOTH_KINDS = pytest.mark.parametrize("kind", ["Electra", "MLM"])


class Tiny(nn.Module):
    """Maps tokens to [B T width], each position depending on those before it. Keeps its input."""

    def __init__(self, width: int, size: int = SIZE) -> None:
        super().__init__()
        self.table, self.mix, self.out = nn.Embedding(size, 8), nn.Linear(8, 8), nn.Linear(8, width)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        self.seen, self.options = tokens, options
        x = self.table(tokens)
        if (mask := options.get("mask")) is not None:
            x = x * mask.unsqueeze(-1)
        return self.out(torch.tanh(self.mix(x + x.cumsum(1) / 5)))


class Constant(nn.Module):
    """Returns the same logits at every position. Keeps its input."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        self.seen = tokens
        return self.logits.expand(*tokens.shape, -1)


def build(package: Any, kind: str, network: nn.Module | None = None, **options: Any) -> tuple[nn.Module, Any]:
    """Return a trainer and its network that predicts tokens."""
    torch.manual_seed(0)
    network = network or Tiny(SIZE)
    if kind == "Electra":
        return package.Electra(network, Tiny(1), **{**IDS, **options}), network
    return package.MLM(network, **{**IDS, **options}), network


def loss_of(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result.loss


def row(left: int, real: int, right: int, rows: int = 8) -> Tensor:
    """Ordinary tokens between padding."""
    tokens = torch.randint(5, SIZE, (rows, left + real + right), generator=torch.Generator().manual_seed(1))
    tokens[:, :left] = tokens[:, left + real :] = PAD
    return tokens


def text(rows: int = 6, length: int = 20, padding: int = 5) -> Tensor:
    """[CLS] ordinary tokens [SEP] and padding."""
    tokens = row(1, length - padding - 2, padding + 1, rows)
    tokens[:, 0], tokens[:, length - padding - 1] = CLS, SEP
    return tokens


def give_them_the_choices_of(ours: Electra | MLM, tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let electra-pytorch and mlm-pytorch use the masks and draws that ours has just used.

    Masks and draws are read from the inputs of our networks, so that nothing in our code is replaced. Every masked
    token must have become [MASK].
    """
    chosen = (ours.generator if isinstance(ours, Electra) else ours.transformer).seen != tokens
    exact = SimpleNamespace(  # labels are float32 there, which costs a float64 comparison half of its digits
        cross_entropy=F.cross_entropy,
        binary_cross_entropy_with_logits=lambda x, y: F.binary_cross_entropy_with_logits(x, y.to(x.dtype)),
    )
    for module in (electra_seed, mlm_seed):
        monkeypatch.setattr(module, "get_mask_subset_with_prob", lambda *_: chosen)
        monkeypatch.setattr(module, "prob_mask_like", lambda t, _: torch.ones_like(t, dtype=torch.bool))
        monkeypatch.setattr(module, "F", exact)
    if isinstance(ours, Electra):
        network = getattr(ours.discriminator, "net", ours.discriminator)
        drawn = network.seen[chosen]
        monkeypatch.setattr(electra_seed, "gumbel_sample", lambda *_, **__: drawn)


def gradients(networks: list[nn.Module], loss: Tensor) -> dict[str, Tensor]:
    """Return the gradients by name, without parameters that get none; a shared parameter occurs once."""
    root = nn.ModuleList(networks)
    root.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in root.named_parameters() if p.grad is not None}


def assert_same_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        assert (found[name] - expected[name]).norm() <= tolerance * expected[name].norm(), name


def watch(network: nn.Module) -> nn.Module:
    """Let `network` keep the tokens of its last call in `seen`."""

    def keep(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        module.seen = arguments[0]

    network.register_forward_pre_hook(keep)
    return network


def gone(match: str, failure: type[Exception] = AssertionError) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a law of a `package` that fails on theirs, in the known way, and holds on ours."""

    def test_of(law: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(law)
        def test(**options: Any) -> None:
            with pytest.raises(failure, match=match):
                law(THEIRS, **options)
            law(OURS, **options)

        others = [parameter for parameter in inspect.signature(law).parameters.values() if parameter.name != "package"]
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]  # which pytest fills
        return test

    return test_of


def reformer(**options: Any) -> ReformerLM:
    sizes = {"num_tokens": SIZE, "emb_dim": 8, "dim": 16, "heads": 2, "dim_head": 8, "depth": 2, "max_seq_len": 32}
    return ReformerLM(**sizes, bucket_size=8, n_hashes=2, ff_chunks=1, **options)


def pair(**options: Any) -> tuple[ReformerLM, ReformerLM]:
    torch.manual_seed(0)
    generator, discriminator = reformer(**options), reformer(**options)
    generator.token_emb, generator.pos_emb = discriminator.token_emb, discriminator.pos_emb
    return generator, discriminator


MAGIC = {"discr_dim": 16, "discr_layer": "reformer"}


class First(nn.Module):
    def __init__(self, adaptee: nn.Module) -> None:
        super().__init__()
        self.adaptee = adaptee

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        return self.adaptee(*arguments, **options)[0]
