"""Generator and discriminator with what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from electra_lab.model.embeddings import Embeddings, Shifted
from electra_lab.model.heads import ReplacedHead, TokenHead
from electra_lab.model.network import Network

Tie = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"]


@dataclass(frozen=True)
class EmbeddingSizes:
    vocabulary_size: int
    dim: int
    max_length: int
    dropout: float


def make_pair(
    generator: nn.Module | None,
    generator_dim: int,
    discriminator: nn.Module,
    discriminator_dim: int,
    sizes: EmbeddingSizes,
    tie: Tie,
    pad_id: int,
    head: Literal["replaced", "tokens"] = "replaced",
) -> tuple[Network | None, Network]:
    """The two networks around two backbones; without a generator, the network under study alone.

    tie   tokens                 the token table
          embeddings             tokens, positions, segments and LayerNorm (Clark et al. 2020, section 3.2, and
                                 google-research/electra)
          all                    the whole encoder too, with the discriminator's backbone; the generator's is not used
          gradient_disentangled  the discriminator reads the generator's token table plus a difference of its own, and
                                 its gradient reaches the difference alone (He et al. 2021, DeBERTa-v3, section 3.3)
    head  of the discriminator

    What is shared is one object, so a shared table is one parameter. Raises ValueError where backbones cannot share.
    """

    def embeddings(backbone: nn.Module) -> Embeddings:
        lab_positions = backbone.positions == "lab"
        return Embeddings(
            sizes.vocabulary_size, sizes.dim, sizes.max_length, positions=lab_positions, dropout=sizes.dropout
        )

    own = embeddings(discriminator)
    tokens = TokenHead(discriminator_dim, sizes.dim, sizes.vocabulary_size) if head == "tokens" else None
    replaced = ReplacedHead(discriminator_dim) if head == "replaced" else None
    studied = Network(own, discriminator, discriminator_dim, pad_id=pad_id, token_head=tokens, replaced_head=replaced)
    if generator is None:
        return None, studied

    if tie == "embeddings" and generator.positions != discriminator.positions:
        raise ValueError(
            "tie: embeddings shares positions, but only one of the two backbones takes the lab's. "
            "Use tie: tokens, or backbones of one kind."
        )
    shared = own if tie in ("embeddings", "all") else embeddings(generator)
    if tie == "tokens":
        shared.tokens = own.tokens
    if tie == "gradient_disentangled":
        assert isinstance(shared.tokens, nn.Embedding)
        own.tokens = Shifted(shared.tokens)
    if tie == "all":
        _refuse_unequal(generator, generator_dim, discriminator, discriminator_dim)
        generator = discriminator
    token_head = TokenHead(generator_dim, sizes.dim, sizes.vocabulary_size)
    guessing = Network(shared, generator, generator_dim, pad_id=pad_id, token_head=token_head)
    if tie == "all":
        guessing.project = studied.project
    return guessing, studied


def _refuse_unequal(generator: nn.Module, generator_dim: int, discriminator: nn.Module, discriminator_dim: int) -> None:
    one, other = ({n: p.shape for n, p in network.named_parameters()} for network in (generator, discriminator))
    if generator_dim != discriminator_dim or type(generator) is not type(discriminator) or one != other:
        raise ValueError(
            "tie: all shares the whole encoder, but the two backbones differ. Write generator: {scale: 1.0}, with no "
            "option of its own, or use tie: embeddings."
        )
    if getattr(discriminator, "reversible", False):
        raise ValueError(
            "tie: all runs the encoder twice before one backward pass, which reversible layers cannot. "
            "Use reversible: false, or tie: embeddings."
        )
