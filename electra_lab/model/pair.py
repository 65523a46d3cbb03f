"""Generator and discriminator with what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from electra_lab.model.embeddings import Embeddings
from electra_lab.model.heads import ReplacedHead, TokenHead
from electra_lab.model.network import Network

Tie = Literal["none", "tokens", "embeddings"]


@dataclass(frozen=True)
class EmbeddingSizes:
    vocabulary_size: int
    dim: int
    max_length: int
    dropout: float


def make_pair(
    generator: nn.Module,
    generator_dim: int,
    discriminator: nn.Module,
    discriminator_dim: int,
    sizes: EmbeddingSizes,
    tie: Tie,
    pad_id: int,
) -> tuple[Network, Network]:
    """The two networks around two backbones.

    tie: `tokens` shares the token table, `embeddings` tokens, positions, segments and LayerNorm (as the paper,
    section 3.1, and google-research/electra). A shared module is one object, so a shared table is one parameter.
    Raises ValueError where the backbones cannot share.
    """

    def embeddings(backbone: nn.Module) -> Embeddings:
        lab_positions = backbone.positions == "lab"
        return Embeddings(
            sizes.vocabulary_size, sizes.dim, sizes.max_length, positions=lab_positions, dropout=sizes.dropout
        )

    if tie == "embeddings" and generator.positions != discriminator.positions:
        raise ValueError(
            "tie: embeddings shares positions, but only one of the two backbones takes the lab's. "
            "Use tie: tokens, or backbones of one kind."
        )
    discriminator_embeddings = embeddings(discriminator)
    generator_embeddings = discriminator_embeddings if tie == "embeddings" else embeddings(generator)
    if tie == "tokens":
        generator_embeddings.tokens = discriminator_embeddings.tokens
    token_head = TokenHead(generator_dim, sizes.dim, sizes.vocabulary_size)
    return (
        Network(generator_embeddings, generator, generator_dim, pad_id=pad_id, token_head=token_head),
        Network(
            discriminator_embeddings,
            discriminator,
            discriminator_dim,
            pad_id=pad_id,
            replaced_head=ReplacedHead(discriminator_dim),
        ),
    )
