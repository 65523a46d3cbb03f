"""Objectives around networks whose numbers can be worked out by hand, and around tiny BERTs."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.network import initialise
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.testing import CLS, MASK, PAD, SEP, vocabulary
from electra_lab.training.random import Streams
from registry import Batch, Masked, Needs, backbones, masking_strategies, objectives, samplers

SIZE = 10  # five ordinary tokens besides [PAD] [UNK] [CLS] [SEP] [MASK]; [UNK] is ordinary, too
ORDINARY = [1, 5, 6, 7, 8, 9]
# Options that have no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "two_stage": {"generator_steps": 7}, "frozen_generator": {"run": Path("runs/earlier")}
}  # fmt: skip


class Table(nn.Module):
    """A network of free numbers: its output for a token depends only on the token and its position."""

    def __init__(self, length: int, size: int = SIZE, seed: int = 0) -> None:
        super().__init__()
        draw = partial(torch.randn, length, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.dim, self.depth = size, 2
        self.guesses, self.scores = nn.Parameter(draw()), nn.Parameter(draw())
        self.inner_states = True
        self.coupling = 0.0  # how much a detection also depends on the mirrored position

    def hidden(self, tokens: Tensor, mask: Tensor, segments: Tensor, documents: Tensor | None = None) -> Tensor:
        return nn.functional.one_hot(tokens, self.dim).double()

    def token_logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return self.guesses[positions]

    def replaced_logits(self, hidden: Tensor) -> Tensor:
        own = (hidden * self.scores).sum(-1)
        return own + self.coupling * own.tanh().flip(1)

    def predict(self, head: str, hidden: Tensor, *candidates: Tensor, positions: Tensor | None = None) -> Tensor:
        """The heads `energy`, and `candidates` with "none of them" for a discriminator: its output for the token
        that it read.
        """
        if head == "energy":
            return self.replaced_logits(hidden)
        assert head == "candidates"
        assert positions is not None
        seen = self.replaced_logits(hidden).gather(1, positions).unsqueeze(-1)
        return torch.cat([seen, self.scores[positions].gather(-1, *candidates)], dim=-1)


class Fixed:
    """Masks the given positions; slots that are not valid point at the first token, as strategies may do."""

    def __init__(self, *positions: int, empty: int = 0) -> None:
        self.positions, self.empty = positions, empty

    def __call__(self, tokens: Tensor, *_: Any, **__: Any) -> Masked:
        row = torch.tensor([*self.positions, *[0] * self.empty])
        positions = row.expand(len(tokens), -1)
        valid = torch.arange(len(row)).expand_as(positions) < len(self.positions)
        inputs = tokens.clone()
        inputs[:, list(self.positions)] = MASK
        return Masked(inputs, positions, valid)


class Says:
    """A sampler that draws the given tokens and keeps its logits."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = torch.tensor(tokens)
        self.logits = torch.empty(0)

    def __call__(self, logits: Tensor, _: Any) -> Tensor:
        self.logits = logits
        return self.tokens.repeat(len(logits) // len(self.tokens))


def needs_of(name: str, **options: Any) -> Needs:
    entry = objectives.get(name)
    defaults = {key: field.default for key, field in entry.schema.model_fields.items()}
    return Needs.of(entry.component, {**defaults, **options})


def rows(*tokens: int, number: int = 1) -> Batch:
    rows = torch.tensor(tokens).expand(number, -1).contiguous()
    return Batch(rows, rows != PAD, torch.zeros_like(rows), torch.arange(number))


def tables(name: str, masking: Any, sampler: Any, length: int, **options: Any) -> Any:
    component = objectives.get(name).component
    generator, discriminator = Table(length, seed=1), Table(length, seed=2)
    made = component(generator, discriminator, masking, sampler, vocabulary(SIZE), **options)
    return made.double().eval()


def berts(
    name: str, tie: Any = "none", masking: Any = None, sampler: Any = None, size: int = 30, equal: bool = False,
    dropout: float = 0.0, build: Any = None, depth: int = 1, **options: Any,
) -> Any:  # fmt: skip
    """An objective around two tiny BERTs (of one size if `equal`) or other networks, with large weights."""
    component = objectives.get(name).component
    build = build or partial(backbones.get("bert").component, dropout=dropout)
    torch.manual_seed(0)
    width = 16 if equal else 8
    generator_depth = 2 if name == "amos" else min(depth, 2)
    generator, discriminator = build(width, generator_depth, 2, 32), build(16, depth, 2, 32)
    needs, sizes = needs_of(name, **options), EmbeddingSizes(size, 16, 32, dropout)
    pair = make_pair(generator if needs.generator else None, width, discriminator, 16, sizes, tie, PAD, needs.heads)
    masking = masking or masking_strategies.get("replace_prob").component
    sampler = (sampler or samplers.get("gumbel").component) if needs.sampler else None
    made = component(*pair, masking, sampler, vocabulary(size), **options)
    initialise(made)
    for parameter in made.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return made


def sentences(number: int = 6, length: int = 20, padding: int = 5, size: int = 30) -> Batch:
    tokens = torch.randint(5, size, (number, length), generator=torch.Generator().manual_seed(1))
    tokens[:, 0], tokens[:, length - padding - 1] = CLS, SEP
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, length - padding :] = False
    return Batch(tokens.masked_fill(~mask, PAD), mask, torch.zeros_like(tokens), torch.arange(number))


def total(losses: Any) -> Tensor:
    return torch.stack([t.weight * t.sum / t.count.clamp(min=1) for t in losses.terms.values()]).sum()


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        say = lambda reason, name=name: f"{name}: {reason}"  # noqa: E731
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12, msg=say)


def streams(batch: Any, step: int = 0) -> Streams:
    return Streams.of(0, step, batch.example_ids)


def everywhere(network: Any, tokens: torch.Tensor, batch: Any) -> torch.Tensor:
    hidden = network.hidden(tokens, batch.attention_mask, batch.segments)
    return network.token_logits(hidden, torch.arange(tokens.shape[1]).expand_as(tokens))


def plain_mlm(network: Any, inputs: torch.Tensor, batch: Any, chosen: torch.Tensor, smoothing: float = 0) -> Any:
    """The common implementation: labels of -100 where nothing is predicted, and the mean over the rest."""
    labels = batch.tokens.masked_fill(~chosen, -100)
    logits = everywhere(network, inputs, batch).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing)


class Chosen:
    def __init__(self) -> None:
        self.strategy = masking_strategies.get("replace_prob").component

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.masked = self.strategy(*arguments, random_prob=0.1, **options)
        self.at = torch.zeros_like(arguments[1]).scatter(1, self.masked.positions, self.masked.valid)
        return self.masked
