"""A network: embeddings, a projection if widths differ, a backbone, heads; inner states; initial weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Size, Tensor, nn
from torch.nn import functional as F

from registry import Backbone
from registry.core import place
from registry.errors import BadResult

# Shapes: B rows of T positions, K chosen ones; E width of the embeddings, D of the states, V size of the vocabulary.
LAYER_NORM_EPS = 1e-12  # as in google-research/electra
SEGMENTS = 2


class Embeddings(nn.Module):
    """Turn tokens and segments Int[B T] into vectors Float[B T E].

    positions=False leaves out the position table, for backbones that handle positions themselves.
    bare=True returns the vectors of the token table alone, for backbones that do all the rest themselves.
    """

    def __init__(
        self, vocabulary_size: int, dim: int, max_length: int, *, positions: bool, dropout: float, bare: bool = False
    ) -> None:
        super().__init__()
        self.tokens: nn.Embedding | Shifted = nn.Embedding(vocabulary_size, dim)
        self.positions = nn.Embedding(max_length, dim) if positions else None
        self.bare = bare
        if bare:
            return
        self.segments = nn.Embedding(SEGMENTS, dim)
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    @classmethod
    def of(cls, backbone: Backbone, vocabulary_size: int, dim: int, max_length: int, dropout: float) -> Self:
        """Return the embeddings that a backbone needs. The dropout of bare vectors is passed to the backbone."""
        lab, bare = backbone.positions == "lab", backbone.bare_embeddings
        if bare:
            backbone.embedding_dropout.p = dropout  # type: ignore[union-attr]
        return cls(vocabulary_size, dim, max_length, positions=lab, dropout=dropout, bare=bare)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
    ) -> Float[Tensor, "B T E"]:
        """
        documents  number of each position's document: positions count from its beginning instead of the row's
        added      positions, and vectors that are added to those of their tokens
        """
        x: Tensor = self.tokens(tokens)
        if added is not None:
            positions, vectors = added
            x = x.scatter_add(1, positions.unsqueeze(-1).expand_as(vectors), vectors.to(x.dtype))
        if self.bare:
            return x
        x = x + self.segments(segments)
        if self.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = x + self.positions(places if documents is None else within_documents(places, documents))
        normed: Tensor = self.dropout(self.norm(x))
        return normed

    @property
    def dim(self) -> int:
        return self.tokens.embedding_dim


def within_documents(places: Int[Tensor, " T"], documents: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return each position's distance from the first position of its document in the row."""
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return places - places.masked_fill(~begins, 0).cummax(-1).values


class Shifted(nn.Module):
    """Another table plus a difference that starts at zero; gradients reach only the difference.

    Gradient-disentangled embedding sharing of DeBERTa-v3 (He et al. 2021, section 3.3). It takes the place of an
    nn.Embedding.
    """

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.difference = nn.Embedding(table.num_embeddings, table.embedding_dim)
        nn.init.zeros_(self.difference.weight)

    def forward(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape E"]:
        vectors: Tensor = F.embedding(tokens, self.table.weight.detach()) + self.difference(tokens)
        return vectors

    @property
    def weight(self) -> Float[Tensor, "V E"]:
        """The sum of both tables, for an output layer that is tied to it."""
        return self.table.weight.detach() + self.difference.weight


States = Float[Tensor, "B T D"]
STANDARD_DEVIATION = 0.02
Distribution = Literal["official", "normal"]
Source = Callable[[str, Size], Generator | None]  # name and shape of a weight -> its random numbers


class Exits:
    """Collects states at some depths while a backbone runs, each normalized as the last one is.

    depths  depths to collect, counted from 1; without any, the backbone returns its result as always
    top     the backbone's depth
    detach  True to stop gradients between a depth and the layer above it
    norm    the last LayerNorm of a pre-norm backbone
    """

    def __init__(
        self, depths: Sequence[int], top: int, detach: bool, norm: Callable[[States], States] = lambda x: x
    ) -> None:
        self.depths, self.top, self.detach, self.norm = tuple(depths), top, detach, norm
        self.inner: dict[int, States] = {}

    def after(self, depth: int, x: States) -> States:
        """Keep the states of a layer if its depth is to be collected; return the input of the next layer."""
        if depth not in self.depths or depth == self.top:
            return x
        self.inner[depth] = self.norm(x)
        return x.detach() if self.detach else x

    def result(self, states: States) -> States | tuple[States, ...]:
        """Return the states at all depths in their order, or the backbone's result `states` if there are none."""
        if not self.depths:
            return states
        return tuple(states if depth == self.top else self.inner[depth] for depth in self.depths)


def computed(x: Tensor) -> torch.dtype:
    """Return the type in which products with x are computed: that of autocast, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def everywhere(hidden: Float[Tensor, "B T D"]) -> Int[Tensor, "B T"]:
    """Return the positions of all states, for `token_logits` of every one of them."""
    return torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])


class Network(nn.Module):
    """A registry.contracts.Network around any backbone of width `dim`.

    heads  heads by name; a head that nothing uses is left out, as its parameters would never get a gradient
    """

    def __init__(
        self,
        embeddings: Embeddings,
        backbone: Backbone,
        dim: int,
        *,
        pad_id: int,
        heads: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        width = backbone.input_dim or dim
        self.project = nn.Linear(embeddings.dim, width) if embeddings.dim != width else None
        self.backbone = backbone
        self.length_multiple, self.depth = backbone.length_multiple, len(backbone.layers)
        self.separates_documents, self.inner_states = backbone.separates_documents, backbone.inner_states
        self.heads = nn.ModuleDict(heads)
        self.dim, self.pad_id = dim, pad_id

    def longest(self, rows: int) -> int:
        """Return the longest input for a table of `rows` positions, as `hidden` pads every input."""
        return rows // self.length_multiple * self.length_multiple

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the state of every position. T is padded up to the backbone's length_multiple, and states are cut.

        Whatever the padding holds is read as the pad token, so it cannot matter to any backbone. With `documents`,
        positions restart at each document; raises BadResult if the backbone cannot separate them.

        added  positions, and vectors that are added to those of their tokens, such as a perturbation
        """
        return self._read(tokens, attention_mask, segments, documents, added)[0]

    def hidden_at(
        self,
        depths: Sequence[int],
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        *,
        detach: bool = False,
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """Return the states after each of these layers, counted from 1, as `hidden` of a network that ended there.

        The last LayerNorm of a pre-norm backbone is applied to all of them.

        detach  True if the layer above a depth reads its states without their gradient

        Raises BadResult if the backbone cannot return them, as reversible ones, or has no such layer.
        """
        if not self.inner_states:
            name = type(self.backbone).__name__
            raise BadResult(f"{place(type(self.backbone))}: {name} cannot return the states of inner layers.")
        if not depths or not all(1 <= depth <= self.depth for depth in depths):
            raise BadResult(f"there are no states at the depths {[*depths]}: the network has {self.depth} layers.")
        return self._read(tokens, attention_mask, segments, documents, depths=tuple(depths), detach=detach)

    def _read(
        self,
        tokens: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        segments: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None,
        added: tuple[Int[Tensor, "B K"], Float[Tensor, "B K E"]] | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """Return the backbone's states, or all its results with these options."""
        length = tokens.shape[1]
        extra = -length % self.length_multiple
        tokens = tokens.masked_fill(~attention_mask, self.pad_id)
        if self.length_multiple > 1:
            tokens = F.pad(tokens, (0, extra), value=self.pad_id)
            segments, attention_mask = F.pad(segments, (0, extra)), F.pad(attention_mask, (0, extra), value=False)
        if documents is not None:
            if not self.separates_documents:
                raise BadResult(
                    f"{place(type(self.backbone))}: {type(self.backbone).__name__} cannot separate documents."
                )
            documents = F.pad(documents, (0, extra), value=-1) if self.length_multiple > 1 else documents
        x = self.embeddings(tokens, segments, documents, added)
        if self.project is not None:
            x = self.project(x)
        inputs = (x, attention_mask) if documents is None else (x, attention_mask, documents)
        returned = self.backbone(*inputs, **options)
        outputs: tuple[Tensor, ...] = returned if isinstance(returned, tuple) and options else (returned,)
        for states in outputs:
            self._refuse_unlike(states, x)
        return tuple(states[:, :length] for states in outputs)

    @property
    def glorot_layers(self) -> Sequence[nn.Module]:
        """The official code names no initializer for the projection."""
        return [] if self.project is None else [self.project]

    def predict(
        self, head: str, hidden: Float[Tensor, "B T D"], *inputs: Any, positions: Int[Tensor, "B K"] | None = None
    ) -> Tensor:
        """Return the output of a head for all states, or for those at `positions` alone.

        inputs  arguments of the head's forward after the states

        Raises BadResult if the network has no such head, or if the head does not return a tensor of the right shape.
        """
        if head not in self.heads:
            raise BadResult(
                f"the network has no head '{head}'. An objective asks for it by needs = Needs(heads=('{head}',))."
            )
        if positions is not None:  # [B T D] -> [B K D]
            hidden = hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        module = self.heads[head]
        table = {"table": self.embeddings.tokens.weight} if getattr(module, "reads_table", False) else {}
        predicted: Tensor = module(hidden, *inputs, **table)
        rows = tuple(hidden.shape[:-1])
        whole = {"tokens": (*rows, self.embeddings.tokens.num_embeddings), "replaced": rows}.get(head)
        shape = tuple(predicted.shape) if isinstance(predicted, Tensor) else ()
        fits = shape == whole if whole else shape[:1] == rows[:1]
        if not fits:
            returned = f"the shape {[*shape]}" if shape else f"a {type(predicted).__name__}"
            must = f"a tensor of shape {[*whole]}" if whole else f"a tensor with {rows[0]} rows"
            raise BadResult(f"{place(type(module))}: head '{head}' returned {returned}, must be {must}.")
        return predicted

    def _refuse_unlike(self, states: object, x: Float[Tensor, "B T D"]) -> None:
        """Raise BadResult unless states have the shape and type of the input; under autocast any floating type."""
        name = type(self.backbone).__name__
        if not isinstance(states, Tensor):
            returned = f"a {type(states).__name__}"
        elif states.shape != (*x.shape[:2], self.dim):
            returned = f"the shape {list(states.shape)}"
        elif states.dtype != x.dtype and not (states.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            returned = f"the type {states.dtype}"
        elif x.requires_grad and torch.is_grad_enabled() and not states.requires_grad:
            returned = "a tensor without a gradient"
        else:
            return
        raise BadResult(
            f"{place(type(self.backbone))}: {name}.forward returned {returned}; it must return a tensor like its "
            f"input, {list(x.shape)} of {x.dtype}."
        )

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Return vocabulary logits at `positions` alone: they take most of the memory and much of the time."""
        return self.predict("tokens", hidden, positions=positions)

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        """Return the logits of "replaced" at every position."""
        return self.predict("replaced", hidden)


def backbones_of(networks: Iterable[nn.Module]) -> list[Backbone]:
    """Return the backbones of networks; a generator of another kind has none."""
    return [network.backbone for network in networks if isinstance(network, Network)]


@torch.no_grad()
def initialise(
    module: nn.Module,
    source: Source = lambda *_: None,
    distribution: Distribution = "official",
    keep: Set[nn.Parameter] = frozenset(),
) -> None:
    """Set the weights of every nn.Linear and nn.Embedding, once each, except the parameters to keep.

    source        random numbers, by default of torch's global generator. A source that depends on the name alone gives
                  equal weights to equal parts of different models; of several names of a part, the first counts
    distribution  official  normal of deviation 0.02, truncated at two deviations; where google-research/electra names
                            no initializer, which are the projection of the embeddings and the last layer of the
                            detection head, TensorFlow's default, Glorot's uniform (Glorot and Bengio 2010)
                  normal    normal of deviation 0.02

    Gains, gates and zero weights of a library are left alone: a zero output projection is a deliberate choice, and
    x-transformers stores LayerNorm gains as offsets.
    """
    glorot, names = glorot_layers(module), dict[nn.Module, str]()
    for name, part in module.named_modules():
        if isinstance(part, Shifted):
            names[part.table] = name  # where the table would be without a difference
        if isinstance(part, nn.Linear | nn.Embedding) and part.weight not in keep and part.weight.count_nonzero():
            generator = source(names.get(part, name), part.weight.shape)
            if distribution == "normal":
                nn.init.normal_(part.weight, std=STANDARD_DEVIATION, generator=generator)
            elif part in glorot:
                nn.init.xavier_uniform_(part.weight, generator=generator)
            else:
                truncated_normal_(part.weight, generator)
            if isinstance(part, nn.Linear) and part.bias is not None and part.bias not in keep:
                nn.init.zeros_(part.bias)


def truncated_normal_(weight: torch.Tensor, generator: Generator | None = None, *, scale: float = 1.0) -> torch.Tensor:
    """Draw normal numbers of deviation 0.02 * scale, truncated at two deviations, which leaves 0.0176 * scale."""
    deviation = STANDARD_DEVIATION * scale
    return nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)


def glorot_layers(module: nn.Module) -> set[nn.Module]:
    """Return the layers of networks and heads that the official code draws from Glorot's uniform distribution."""
    layers: set[nn.Module] = set()
    for part in module.modules():
        layers.update(getattr(part, "glorot_layers", ()))
    return layers
