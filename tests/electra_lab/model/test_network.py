"""Padding, and logits at chosen positions."""

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.backbones.bert import Bert
from electra_lab.backbones.reformer import Reformer
from electra_lab.backbones.transformer import Transformer
from electra_lab.model.attention import visible_in
from electra_lab.model.embeddings import Embeddings
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_heads
from electra_lab.training.recompute import recompute
from registry.errors import BadResult

VOCABULARY, DIM, MAX_LENGTH, PAD = 30, 16, 32, 3
BACKBONES = {
    "bert": lambda: Bert(DIM, 2, 2, MAX_LENGTH),
    "transformer": lambda: Transformer(DIM, 2, 2, MAX_LENGTH),
    "reformer": lambda: Reformer(DIM, 2, 2, MAX_LENGTH, bucket_size=4, hashes=2),
}


class Recorder(nn.Module):
    positions = "lab"

    def __init__(self, length_multiple: int) -> None:
        super().__init__()
        self.length_multiple = length_multiple

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        self.x, self.mask = x, attention_mask
        return x


def network(backbone: Any, embedding_dim: int = 8) -> Network:
    sizes = EmbeddingSizes(VOCABULARY, embedding_dim, MAX_LENGTH, 0.0)
    embeddings = Embeddings(VOCABULARY, embedding_dim, MAX_LENGTH, positions=backbone.positions == "lab", dropout=0.1)
    return Network(embeddings, backbone, DIM, pad_id=PAD, heads=make_heads(["tokens", "replaced"], DIM, sizes)).eval()


@lru_cache
def of(name: str) -> Network:
    torch.manual_seed(0)
    return network(BACKBONES[name]())


def tokens_and_mask(real: list[int], length: int, left: bool) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(5, VOCABULARY, (len(real), length), generator=torch.Generator().manual_seed(length))
    places = torch.arange(length)
    inside = torch.tensor(real).unsqueeze(1)
    return tokens, places >= length - inside if left else places < inside


@pytest.mark.parametrize(("length", "padded"), [(1, 8), (7, 8), (8, 8), (9, 16)])
def test_the_length_is_padded_to_the_multiple_and_cut_again(length: int, padded: int) -> None:
    """Added positions are padding: the pad token, masked."""
    recorder = Recorder(8)
    made = network(recorder, embedding_dim=DIM)
    tokens, mask = tokens_and_mask([length, length], length, left=False)
    segments = torch.ones_like(tokens)
    states = made.hidden(tokens, mask, segments)
    assert states.shape == (2, length, DIM)
    assert recorder.x.shape == (2, padded, DIM)
    assert recorder.mask.sum(1).tolist() == [length, length]
    assert recorder.mask[:, :length].all()
    added = (0, padded - length)
    whole = made.embeddings(F.pad(tokens, added, value=PAD), F.pad(segments, added))
    assert torch.equal(recorder.x, whole)
    assert torch.equal(states, whole[:, :length])


def test_documents_reach_a_backbone_that_separates_them() -> None:
    """Added positions belong to a document of their own. Without documents: test_shared.py of the objectives."""

    class Separating(Recorder):
        separates_documents = True

        def forward(self, x: Tensor, attention_mask: Tensor, documents: Tensor) -> Tensor:
            self.documents = documents
            return super().forward(x, attention_mask)

    made, (tokens, mask) = network(Separating(8), embedding_dim=DIM), tokens_and_mask([6, 4], 6, left=False)
    documents = torch.tensor([[0, 0, 1, 1, 2, 2], [0] * 4 + [1] * 2])
    made.hidden(tokens, mask, torch.zeros_like(tokens), documents)
    padded = F.pad(documents, (0, 2), value=-1)
    assert torch.equal(made.backbone.documents, padded)
    read = F.pad(tokens.masked_fill(~mask, PAD), (0, 2), value=PAD)
    assert torch.equal(made.backbone.x, made.embeddings(read, torch.zeros_like(read), padded))


def test_a_backbone_is_given_the_pad_token_whatever_padding_holds_and_documents_only_if_it_can_separate_them() -> None:
    """So that one that does not mask well enough is safe too."""
    recorder = Recorder(1)
    made = network(recorder, embedding_dim=DIM)
    tokens, mask = tokens_and_mask([2, 5, 0], 6, left=False)
    made.hidden(tokens, mask, torch.zeros_like(tokens), None)
    assert torch.equal(recorder.x, made.embeddings(tokens.masked_fill(~mask, PAD), torch.zeros_like(tokens)))
    with pytest.raises(BadResult, match=r"test_network\.py:\d+: Recorder cannot separate documents\."):
        made.hidden(tokens, mask, torch.zeros_like(tokens), torch.zeros_like(tokens))


@pytest.mark.parametrize("apart", [False, True])
def test_states_at_depths_are_those_of_layers_called_by_hand(apart: bool) -> None:
    """Also with checkpointed layers; gradients stop at a depth if they are to."""
    made = network(Bert(DIM, 4, 2, MAX_LENGTH, dropout=0.0), embedding_dim=DIM)
    inputs = torch.randint(5, VOCABULARY, (2, 9)), torch.arange(9).expand(2, -1) < 7, torch.zeros(2, 9).long()
    visible = visible_in(inputs[1])
    read = made.embeddings(inputs[0].masked_fill(~inputs[1], PAD), inputs[2])
    layers: Any = made.backbone.layers
    two = layers[1](layers[0](read, visible), visible)
    three = layers[2](two.detach() if apart else two, visible)
    four = layers[3](three.detach() if apart else three, visible)

    def slopes(states: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        # Cubes: the mean square of what a LayerNorm returns is the same whatever it reads.
        loss = sum(((number + 1) * part.pow(3).mean() for number, part in enumerate(states)), torch.zeros(()))
        return torch.autograd.grad(loss, [*made.parameters()], allow_unused=True)

    expected = (two, three, four), slopes((two, three, four))
    recompute(layers)
    layers.train()
    states = made.hidden_at((2, 3, 4), *inputs, apart=apart)
    torch.testing.assert_close((states, slopes(states)), expected, rtol=1e-5, atol=1e-6)


def test_states_at_depths_are_refused_where_there_are_none() -> None:
    inputs = torch.full((1, 4), 7), torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4).long()
    with pytest.raises(BadResult, match=r"no states at the depths \[1, 3\]: the network has 2 layers"):
        of("bert").hidden_at((1, 3), *inputs)
    with pytest.raises(BadResult, match=r"Reformer cannot return the states of inner layers"):
        of("reformer").hidden_at((1,), *inputs)


def test_a_head_that_was_not_built_says_so() -> None:
    """An objective that forgets to ask for it is told how."""
    made, states = network(Recorder(1)), torch.zeros(1, 2, DIM)
    made.heads.clear()
    for name, ask in (
        ("tokens", lambda: made.token_logits(states, torch.zeros(1, 1, dtype=torch.long))),
        ("replaced", lambda: made.replaced_logits(states)),
    ):
        with pytest.raises(BadResult, match=rf"has no head '{name}'.* needs = Needs\(heads=\('{name}',\)\)"):
            ask()
