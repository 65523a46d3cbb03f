"""Models for tasks without training: an exported pair of tiny networks, and networks with given outputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_lab.data.text_encoder import TextEncoder
from electra_lab.export.export import export
from electra_lab.tasks.minimal_pairs import MinimalPairs
from registry import Encoded, PairExample, Pretrained, Results, Vocabulary
from tests.electra_lab.export.exports import finished, opened
from tests.electra_lab.jobs.pretraining.tiny import for_a_module

CPU = torch.device("cpu")
REFORMER = "{type: reformer, dim: 16, depth: 2, heads: 2, bucket_size: 2, hashes: 2}"


PAIRS = [
    ("the cat sat on the mat and saw 37 dogs", "the cat sats on the mat and saw 37 dogs"),
    ("the cat number 12345 sat", "the number 12345 cat sat"),
    ("and saw dogs, doesn't it?", "and saw dogs, does not it?"),
    ("zebras", "a zebra"),
]
EXAMPLES = [PairExample(good, bad, "order", "syntax", str(i)) for i, (good, bad) in enumerate(PAIRS)]
SENTENCES = [text for pair in PAIRS for text in pair]


def trained(folder: Path, **sections: str) -> tuple[Pretrained, Path]:
    """Train a tiny pair, and return it with its export for transformers."""
    with for_a_module():
        path = finished(folder, **sections)
        found = opened(path)
        exported = export(path, folder / "exported").path
    networks: dict[str, Any] = {name: network.eval() for name, network in found.networks.items()}
    heads = {name: tuple(network.heads) for name, network in networks.items()}
    encoder = TextEncoder(found.tokenizer, found.vocabulary)
    return Pretrained(networks, heads, encoder, length=48, device=CPU, batch_size=4), exported


class Letters:
    """An encoder whose tokens are letters, with the ids 4 to 29; words are separated by spaces."""

    def __init__(self) -> None:
        ids, special = torch.arange(30), torch.arange(30) < 4
        self.vocabulary = Vocabulary(30, 0, 1, 2, 3, (0, 1, 2, 3), special, ids[4:], ~special, torch.ones_like(ids))

    def texts(self, texts: Any) -> list[Encoded]:
        found = []
        for text in texts:
            words = [word for word, letters in enumerate(text.split()) for _ in letters]
            letters = text.replace(" ", "")
            found.append(Encoded([ord(letter) - 93 for letter in letters], [(0, 0)] * len(letters), words))
        return found

    def words(self, sentences: Any) -> list[Encoded]:
        raise AssertionError("tasks without training read texts, not words")


class Given:
    """A network with given outputs. Keeps the rows that it read.

    replaced  the logit of "replaced" by token
    guesses   logits of tokens by token: the output at a masked position does not depend on other positions
    """

    dim = 30

    def __init__(self, replaced: Tensor | None = None, guesses: Tensor | None = None) -> None:
        self.replaced = torch.zeros(30) if replaced is None else replaced
        self.guesses = torch.zeros(30) if guesses is None else guesses
        self.rows: list[list[int]] = []
        self.recorded = False

    def hidden(self, tokens: Tensor, mask: Tensor, segments: Tensor, documents: Tensor | None = None) -> Tensor:
        assert not segments.any()
        self.rows += [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
        self.recorded |= torch.is_grad_enabled()
        return torch.nn.functional.one_hot(tokens, 30).float()

    def replaced_logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.replaced

    def predict(self, head: str, hidden: Tensor) -> Tensor:
        assert head == "energy"
        return hidden @ self.replaced

    def token_logits(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return self.guesses.expand(*positions.shape, -1)


def given(length: int = 20, /, **networks: Any) -> Pretrained:
    """Return a model with a discriminator that finds replaced tokens, a generator that predicts tokens, or both."""
    heads = {"discriminator": ("replaced",), "generator": ("tokens",)}
    own = {name: heads[name] for name in networks}
    return Pretrained(networks, own, Letters(), length, CPU, batch_size=2)


def with_heads(model: Pretrained, **heads: tuple[str, ...]) -> Pretrained:
    return replace(model, heads=heads)


def scores(found: Results) -> list[float]:
    return [prediction[side] for prediction in found.predictions for side in ("good_score", "bad_score")]


def masked(**options: Any) -> MinimalPairs:
    return MinimalPairs(score="pseudo_likelihood", **options)
