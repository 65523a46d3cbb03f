"""Encoders of transformers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from electra_lab.backbones._families import AFTER_PAD, FAMILIES, Family, known
from electra_lab.model.embeddings import within_documents
from registry import backbones
from registry.errors import BadResult, did_you_mean

# An encoder without a table of words, which the lab has. Keys that a config lacks are left out.
FIXED: dict[str, Any] = {"vocab_size": 8, "use_cache": False}
FIXED |= dict.fromkeys(("is_decoder", "add_cross_attention", "use_bidirectional_attention"), False)


@backbones.register("hugging_face")
class HuggingFace(nn.Module):
    """An encoder of transformers, by its model type, such as roberta: what AutoModel does with vectors for its tokens.

    It keeps the initial weights that transformers draws, its own positions, norm and dropout rates. The vectors of the
    lab's token table are bare, as the class handles the rest; a class without a norm there gets none. The dropout of
    these vectors is embedding.dropout, whatever the config says. Its causal decoders see both directions.

    model_type  as in config.json; see docs/encoders.md
    ff_mult     width of the feed-forward in multiples of `dim`
    config      keys of the class's config, such as {hidden_dropout_prob: 0.0}; the rest has transformers' defaults
    """

    length_multiple = 1
    positions = "own"
    bare_embeddings = True

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        max_length: int,
        /,
        *,
        model_type: Annotated[str, AfterValidator(known)],
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 4.0,
        config: dict[str, Any] = {},  # noqa: B006  # read, never changed
    ) -> None:
        super().__init__()
        family = self.family = FAMILIES[model_type]
        made: Any = _config(model_type, (dim, depth, heads), ff_mult, config)
        # Positions
        if made.pad_token_id is None or made.pad_token_id < 0:
            raise ValueError(f"config.pad_token_id: must be 0 or more, is {made.pad_token_id}.")
        self.max_length = max_length
        self.first = made.pad_token_id + 1 if family.first == AFTER_PAD else family.first
        if self.first is not None:
            if "max_position_embeddings" not in config:
                made.max_position_embeddings = max_length + self.first
            rows, needed = made.max_position_embeddings, max_length + self.first
            if rows < needed:
                reason = f"embedding.max_length {max_length} needs {needed}. Write {needed}, or remove this key."
                raise ValueError(f"config.max_position_embeddings: {rows} is too few; {reason}")
        # The model
        made.vocab_size = max(made.vocab_size, made.pad_token_id + 1)
        self.model: Any = _model(made)
        self.scale = float(getattr(self.model.get_input_embeddings(), "scalar_embed_scale", 1.0))
        _remove_idle_parts(self.model, family)
        # A list, as a ModuleList would give every parameter a second name
        self.layers = [_layer(self.model, family.layers, number, depth) for number in range(depth)]
        # Dropout of the token vectors, where the lab sets embedding.dropout: the model's own, or one before the model
        self.embedding_dropout = nn.Dropout(0.0)
        if family.dropout:
            self.embedding_dropout = self.model.get_submodule(family.dropout)
        # Windows
        self.reach: int | None = getattr(made, family.window) if family.window else None
        if self.reach is not None and family.window == "local_attention":  # counts both sides
            self.reach //= 2
        self.masks = family.masks
        if model_type == "ultrabert" and self.reach is not None and max_length > self.reach + 1:
            self.masks = "rows"  # with any other mask, it would forget its windows
        self.separates_documents = self.masks != "rows"

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        attention_mask: Bool[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        mask = self._mask(x, attention_mask, documents)
        positions = {}
        if self.first is not None:
            length = x.shape[1]
            if length > self.max_length:
                raise BadResult(f"a row of {length} positions is too long for embedding.max_length {self.max_length}.")
            if self.masks != "rows":
                row = torch.arange(length, device=x.device)
                places = row[None] if documents is None else within_documents(row, documents)
                positions["position_ids"] = places + self.first
        if self.scale != 1:
            x = x * self.scale
        if self.family.dropout == "":
            x = self.embedding_dropout(x)
        states: Tensor = self.model(inputs_embeds=x, attention_mask=mask, **positions).last_hidden_state
        return states

    def _mask(
        self, x: Float[Tensor, "B T D"], attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None
    ) -> Any:
        """Return the mask: Int[B T], or Float[B 1 #T T] that is added to the scores, or one for each layer type."""
        if self.masks == "rows":
            return attention_mask.long()
        visible = attention_mask[:, None, :]
        if documents is not None:
            visible = visible & (documents[:, :, None] == documents[:, None, :])
        near, length = visible, x.shape[1]
        if self.reach is not None and (torch.compiler.is_exporting() or length > self.reach + 1):
            row = torch.arange(length, device=x.device)
            near = visible & ((row[:, None] - row).abs() <= self.reach)
        if self.masks == "pairs":
            return _added(near, x.dtype)
        whole = _added(visible, x.dtype)
        return {"full_attention": whole, "sliding_attention": whole if near is visible else _added(near, x.dtype)}

    def at_step(self, seed: int, step: int) -> None:
        """Nothing changes over time."""


def _added(visible: Bool[Tensor, "_ _ T"], dtype: torch.dtype) -> Float[Tensor, "_ 1 _ T"]:
    """Return a mask as numbers to be added: some classes would add True as 1."""
    # Padding might leave the softmax without a key, hence NaN: there, all keys are seen.
    visible = visible | ~visible.any(-1, keepdim=True)
    unseen = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return unseen.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def _config(model_type: str, sizes: tuple[int, int, int], ff_mult: float, given: Mapping[str, Any]) -> Any:
    """Return the config of a model of these sizes. Raises ValueError for keys it lacks, or that are set elsewhere."""
    try:
        from transformers import CONFIG_MAPPING, PreTrainedConfig
    except ImportError:
        raise ValueError(
            "needs transformers 5 or newer. Install it: pip install 'electra-lab[hugging-face]'."
        ) from None
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"this transformers has no {model_type}. Install a newer one: pip install -U transformers.")
    config_class, family = CONFIG_MAPPING[model_type], FAMILIES[model_type]
    dim, depth, heads = sizes
    fields = signature(config_class).parameters
    set_by = dict(zip(family.sizes, ("dim", "depth", "heads", "ff_mult"), strict=False))
    set_by |= {"embedding_size": "dim", "input_embedding_size": "dim", "embedding_dropout": "embedding.dropout"}
    ids = {key: 0 for key in fields if key.endswith("_token_id")}  # which the tokenizer knows
    fixed, usual = {**ids, **FIXED, **family.fixed}, dict[str, Any]()
    if family.first == AFTER_PAD:
        usual["pad_token_id"] = fixed.pop("pad_token_id") + 1
    # The keys that were given
    allowed = fields.keys() - signature(PreTrainedConfig).parameters.keys() - set_by.keys() - fixed.keys()
    for key in given:
        if key in fields and key in set_by:
            raise ValueError(f"config.{key}: is set by {set_by[key]}.")
        if key in fields and key in fixed:
            raise ValueError(f"config.{key}: cannot be set; {fixed[key]!r} is what the lab needs.")
        if key not in allowed:
            raise ValueError(f"config.{key}: {config_class.__name__} has no such key.{did_you_mean(key, allowed)}")
    # The sizes, and what would not fit them by default
    if dim % heads:
        raise ValueError(f"dim {dim} must be a multiple of heads {heads}.")
    inner = round(dim * ff_mult)
    if inner < 1:
        raise ValueError(f"ff_mult {ff_mult} leaves the feed-forward no width at dim {dim}.")
    if len(family.sizes) == 3 and ff_mult != 4:
        raise ValueError(f"ff_mult: {model_type} has a feed-forward of 4 widths; write 4.0.")
    width = dim // heads
    usual |= {"embedding_size": dim, "input_embedding_size": dim, "num_key_value_heads": heads, "head_dim": width}
    usual |= {"query_pre_attn_scalar": width, "embedding_dropout": 0.0}
    usual |= dict(zip(family.sizes, (dim, depth, heads, inner), strict=False))
    keys = {key: value for key, value in {**fixed, **usual}.items() if key in fields or key == "is_causal"}
    with _refusing():
        return config_class(**(keys | dict(given)))


def _model(config: Any) -> Any:
    """Return the model, without a pooler if its class allows. Raises ValueError if transformers refuses a key."""
    from transformers import MODEL_MAPPING, AutoModel

    from_config: Any = AutoModel.from_config
    model_class: Any = MODEL_MAPPING[type(config)]
    without = {"add_pooling_layer": False} if "add_pooling_layer" in signature(model_class).parameters else {}
    with _refusing():
        return from_config(config, **without)


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise ValueError in the words of transformers for what it refuses."""
    try:
        yield
    except RuntimeError:  # a number that the meta device does not have
        raise
    except Exception as error:  # transformers has several types
        words = f"transformers has no {error}." if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"config: {words}") from error


def _remove_idle_parts(model: Any, family: Family) -> None:
    """Remove the word table, which is the lab's, and what states alone never train; parameters are frozen."""
    model.set_input_embeddings(nn.Identity())
    for name in family.idle:
        if isinstance(getattr(model, name, None), nn.Module):
            setattr(model, name, nn.Identity())
    # When a whole network is loaded by transformers, buffers that files lack are computed again without this mark.
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] in family.idle:
            parameter.requires_grad_(False)


def _layer(model: Any, paths: tuple[str, ...], number: int, depth: int) -> nn.Module:
    """Return a layer; ALBERT has one for many depths, and XLM the parts of a layer in several lists."""
    lists = [model.get_submodule(path) for path in paths]
    parts = [modules[number * len(modules) // depth] for modules in lists]
    return parts[0] if len(parts) == 1 else nn.ModuleList(parts)
