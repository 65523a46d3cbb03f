"""Generator and discriminator, and the parameters that they share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from electra_lab.model.embeddings import Embeddings, Shifted
from electra_lab.model.heads import ReplacedHead, TokenHead
from electra_lab.model.network import Network

Tie = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"]
CURE_OF_ALL = "Write generator: {scale: 1.0}, with no option of its own, or use tie: embeddings."


@dataclass(frozen=True)
class EmbeddingSizes:
    vocabulary_size: int
    dim: int
    max_length: int
    dropout: float


# By name: built from the width of the network and the sizes of the embeddings.
HEADS: dict[str, Callable[[int, EmbeddingSizes], nn.Module]] = {
    "tokens": lambda dim, sizes: TokenHead(dim, sizes.dim, sizes.vocabulary_size),
    "replaced": lambda dim, sizes: ReplacedHead(dim),
}


def make_pair(
    generator: nn.Module | None,
    generator_dim: int,
    discriminator: nn.Module,
    discriminator_dim: int,
    sizes: EmbeddingSizes,
    tie: Tie,
    pad_id: int,
    heads: Sequence[str] = ("replaced",),
) -> tuple[Network | None, Network]:
    """Build the two networks around two backbones; without a generator, the discriminator alone.

    tie   tokens                 the token table
          embeddings             tokens, positions, segments and LayerNorm (Clark et al. 2020, section 3.2, and
                                 google-research/electra)
          all                    the whole encoder too, with the discriminator's backbone; the generator's is not used
          gradient_disentangled  the discriminator reads the generator's token table plus a difference of its own, and
                                 its gradient reaches only the difference (He et al. 2021, DeBERTa-v3, section 3.3)
    heads  of the discriminator, names of HEADS

    A shared part is one object, so a shared table is one parameter. Raises ValueError if the backbones cannot share.
    """

    def embeddings(backbone: nn.Module) -> Embeddings:
        table, lab = (sizes.vocabulary_size, sizes.dim, sizes.max_length), backbone.positions == "lab"
        return Embeddings(*table, positions=lab, dropout=sizes.dropout)

    own = embeddings(discriminator)
    made = {name: HEADS[name](discriminator_dim, sizes) for name in heads}
    model = Network(own, discriminator, discriminator_dim, pad_id=pad_id, heads=made)
    if generator is None:
        return None, model

    if tie == "embeddings" and generator.positions != discriminator.positions:
        raise ValueError(
            "tie: embeddings shares positions, but only one of the two backbones uses the lab's. "
            "Use tie: tokens, or two backbones of the same kind."
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
    made = {"tokens": HEADS["tokens"](generator_dim, sizes)}
    guessing = Network(shared, generator, generator_dim, pad_id=pad_id, heads=made)
    if tie == "all":
        guessing.project = model.project
    return guessing, model


def _refuse_unequal(generator: nn.Module, generator_dim: int, discriminator: nn.Module, discriminator_dim: int) -> None:
    one, other = ({n: p.shape for n, p in network.named_parameters()} for network in (generator, discriminator))
    if generator_dim != discriminator_dim or type(generator) is not type(discriminator) or one != other:
        raise ValueError(f"tie: all shares the whole encoder, but the two backbones differ. {CURE_OF_ALL}")
    if getattr(discriminator, "reversible", False):
        raise ValueError(
            "tie: all runs the encoder twice before one backward pass, which reversible layers cannot. "
            "Use reversible: false, or tie: embeddings."
        )
