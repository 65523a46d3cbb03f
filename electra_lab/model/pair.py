"""Generator and discriminator, and the parameters that they share."""

from typing import Any, Literal

from torch import Size, nn

import registry
from electra_lab.model.network import Embeddings, Network, Shifted
from registry import Backbone, Vocabulary
from registry.contracts.training import EmbeddingSizes as EmbeddingSizes
from registry.contracts.training import Heads, options_by_name
from registry.errors import BadResult
from registry.signature import validate

Tie = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"] | int
CURE_OF_ALL = "Write generator: {scale: 1.0}, without further options, or use tie: embeddings."


def own_head(name: str, backbone: Backbone | None) -> tuple[str, dict[str, Any]]:
    """Return the registered name of the head that a backbone has for `name`, and its options."""
    options = dict(backbone.own_heads.get(name, {}) if backbone else {})
    return options.pop("type", name), options


def make_heads(
    heads: Heads,
    dim: int,
    sizes: EmbeddingSizes,
    vocabulary: Vocabulary | None = None,
    backbone: Backbone | None = None,
) -> dict[str, nn.Module]:
    """Build heads on states of width `dim`, by name. Raises UnknownName, BadResult.

    backbone  backbone under the heads, which may replace some; see `own_heads` of registry.contracts.Backbone
    """
    modules: dict[str, nn.Module] = {}
    for name, overrides in options_by_name(heads).items():
        kind, options = own_head(name, backbone)
        entry, options = registry.heads.get(kind), {**options, **overrides}
        try:
            head: Any = entry.component(dim, sizes, vocabulary, **dict(validate(entry.schema, options)))
        except ValueError as error:
            raise BadResult(f"{entry.place}: head '{name}' refuses this: {error}") from error
        if not (isinstance(head, nn.Module) and callable(getattr(head, "flops", None))):
            raise BadResult(
                f"{entry.place}: head '{name}' must be a class derived from torch.nn.Module with a method "
                "flops(length, masked)."
            )
        modules[name] = head
    return modules


def make_pair(
    generator: Backbone | None,
    generator_dim: int,
    discriminator: Backbone,
    discriminator_dim: int,
    sizes: EmbeddingSizes,
    tie: Tie,
    pad_id: int,
    heads: Heads = ("replaced",),
    generator_heads: Heads = ("tokens",),
    vocabulary: Vocabulary | None = None,
) -> tuple[Network | None, Network]:
    """Build the two networks around two backbones; without a generator, the discriminator alone.

    tie   tokens                 the token table
          embeddings             tokens, positions, segments and LayerNorm (Clark et al. 2020, section 3.2, and
                                 google-research/electra)
          all                    the whole encoder too, with the discriminator's backbone; the generator's is not used
          gradient_disentangled  the discriminator reads the generator's token table plus a separate difference, and
                                 its gradient reaches only the difference (He et al. 2021, DeBERTa-v3, section 3.3)
          a number j             embeddings, their projection, and the j lowest layers (Shen et al. 2021, TEAMS)
    heads, generator_heads  heads of the two networks; `vocabulary` is for heads of plug-ins

    A shared part is one object, so a shared table is one parameter. Raises ValueError if the backbones cannot share.
    """

    def embeddings(backbone: Backbone) -> Embeddings:
        return Embeddings.of(backbone, sizes.vocabulary_size, sizes.dim, sizes.max_length, sizes.dropout)

    # The discriminator
    discriminator_embeddings = embeddings(discriminator)
    modules = make_heads(heads, discriminator_dim, sizes, vocabulary, discriminator)
    model = Network(discriminator_embeddings, discriminator, discriminator_dim, pad_id=pad_id, heads=modules)
    if generator is None:
        return None, model

    # Share parameters, before the generator's network is built from them
    generator_embeddings = embeddings(generator)
    if tie == "embeddings" and _parts(generator_embeddings) != _parts(discriminator_embeddings):
        raise ValueError(
            "tie: embeddings shares tokens, positions, segments and LayerNorm, but the two backbones use different "
            "ones of these. Use tie: tokens, or two backbones of the same kind."
        )
    if isinstance(tie, int):
        _share_layers(generator, discriminator, tie)
    if tie in ("embeddings", "all") or isinstance(tie, int):
        generator_embeddings = discriminator_embeddings
    if tie == "tokens":
        generator_embeddings.tokens = discriminator_embeddings.tokens
    if tie == "gradient_disentangled":
        assert isinstance(generator_embeddings.tokens, nn.Embedding)
        discriminator_embeddings.tokens = Shifted(generator_embeddings.tokens)
    if tie == "all":
        _refuse_unequal(generator, generator_dim, discriminator, discriminator_dim)
        generator = discriminator
    # The generator
    modules = make_heads(generator_heads, generator_dim, sizes, vocabulary, generator)
    guessing = Network(generator_embeddings, generator, generator_dim, pad_id=pad_id, heads=modules)
    if tie == "all" or isinstance(tie, int):
        guessing.project = model.project
    return guessing, model


def _share_layers(generator: Backbone, discriminator: Backbone, number: int) -> None:
    """Let the lowest layers of the generator have the parameters of the discriminator's; buffers are not shared."""
    least = min(len(generator.layers), len(discriminator.layers))
    if number > least or len(generator.layers) > len(discriminator.layers):
        raise ValueError(
            f"{number} layers are shared, but the generator has {len(generator.layers)} and the discriminator "
            f"{len(discriminator.layers)}. Both need at least {number}, and the generator at most as many as the "
            "discriminator."
        )
    _refuse_reversible(discriminator, "layers")
    for layer, source in zip(generator.layers[:number], discriminator.layers[:number], strict=True):
        if _shapes(layer) != _shapes(source):
            raise ValueError("layers that are shared must have the same parameters in both networks.")
        modules = dict(layer.named_modules())
        for name, module in source.named_modules():
            modules[name]._parameters.update(module._parameters)


def _refuse_reversible(backbone: Backbone, tie: str) -> None:
    if backbone.reversible:
        raise ValueError(
            f"tie: {tie} runs layers twice before one backward pass, which reversible ones cannot. "
            "Use reversible: false, or tie: embeddings."
        )


def _parts(embeddings: Embeddings) -> list[str]:
    return [name for name, _ in embeddings.named_children()]


def _refuse_unequal(generator: Backbone, generator_dim: int, discriminator: Backbone, discriminator_dim: int) -> None:
    shapes, other_shapes = _shapes(generator), _shapes(discriminator)
    if generator_dim != discriminator_dim or type(generator) is not type(discriminator) or shapes != other_shapes:
        raise ValueError(f"tie: all shares the whole encoder, but the two backbones differ. {CURE_OF_ALL}")
    _refuse_reversible(discriminator, "all")


def _shapes(module: nn.Module) -> dict[str, Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}
