"""Encoders of transformers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from electra_lab.backbones._families import AFTER_PAD, FAMILIES, Family, family_of, supported
from electra_lab.model.network import within_documents
from registry import Backbone, backbones
from registry.errors import BadResult, did_you_mean

# An encoder without a table of words, which the lab has. Keys that a config lacks are left out.
FIXED: dict[str, Any] = {"vocab_size": 8, "use_cache": False}
FIXED |= dict.fromkeys(("is_decoder", "add_cross_attention", "use_bidirectional_attention"), False)
MOST_LAYERS, LARGEST = 1_000, 1 << 24  # so that damaged sizes are refused before memory is allocated
UNLIMITED = 8192  # positions of a config that names no limit
DROPOUTS = ("embedding_dropout", "hidden_dropout_prob", "embd_pdrop", "hidden_dropout", "dropout")  # of token vectors


@backbones.register("hugging_face")
class HuggingFace(Backbone, nn.Module):
    """An encoder of transformers, by its model type, such as roberta: AutoModel's class on vectors of tokens.

    Initial weights are those that transformers draws; positions, norm and dropout rates are the class's. The vectors of
    the lab's token table are bare, as the class handles the rest; a class without a norm there gets none. The dropout
    of these vectors is embedding.dropout, whatever the config says. Its causal decoders see both directions.

    model_type  model type as in config.json, such as roberta
    ff_mult     width of the feed-forward in multiples of `dim`
    config      keys of the class's config, such as {hidden_dropout_prob: 0.0}; others have transformers' defaults
    """

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
        model_type: Annotated[str, AfterValidator(supported)],
        ff_mult: Annotated[float, Field(gt=0, le=1000)] = 4.0,
        config: dict[str, Any] = {},  # noqa: B006  # read, never changed
    ) -> None:
        super().__init__()
        family = self.family = FAMILIES[model_type]
        settings, self.first = _settings(model_type, (dim, depth, heads), max_length, ff_mult, config)
        self.max_length, self.input_dim = max_length, _input_dim(settings, dim)
        # The model
        settings.vocab_size = max(settings.vocab_size, settings.pad_token_id + 1)
        self.model: Any = _model(settings)
        self.scale = float(getattr(self.model.get_input_embeddings(), "scalar_embed_scale", 1.0))
        _remove_idle_parts(self.model, family)
        # A list, as a ModuleList would give every parameter a second name
        self.layers = [_layer(self.model, family.layers, number, depth) for number in range(depth)]
        # Dropout of the token vectors, where the lab sets embedding.dropout: a module of the model, or one before it
        self.embedding_dropout = nn.Dropout(0.0)
        if family.dropout:
            self.embedding_dropout = self.model.get_submodule(family.dropout)
        # Windows
        self.reach: int | None = getattr(settings, family.window) if family.window else None
        if self.reach is not None and family.window == "local_attention":  # counts both sides
            self.reach //= 2
        self.masks = family.masks
        if model_type == "ultrabert" and self.reach is not None and max_length > self.reach + 1:
            self.masks = "rows"  # with any other mask, it would forget its windows
        self.separates_documents = self.masks != "rows"

    def forward(
        self,
        x: Float[Tensor, "B T E"],
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
        self, x: Float[Tensor, "B T E"], attention_mask: Bool[Tensor, "B T"], documents: Int[Tensor, "B T"] | None
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

    # Facts for readers and writers of files, which import no backbone.

    AFTER_PAD = AFTER_PAD
    family_of = staticmethod(family_of)

    @staticmethod
    def config_of(section: Mapping[str, Any], max_length: int) -> Any:
        """Return the config of the model that a section of an experiment describes. Raises ValueError."""
        sizes = section["dim"], section["depth"], section["heads"]
        return _settings(section["model_type"], sizes, max_length, section["ff_mult"], section["config"])[0]

    @staticmethod
    def sections_of(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
        """Return backbone, embedding and vocabulary size for a config.json. Raises ValueError, naming the key."""
        return _sections_of(values)


def _settings(
    model_type: str, sizes: tuple[int, int, int], max_length: int, ff_mult: float, options: Mapping[str, Any]
) -> tuple[Any, int | None]:
    """Return the config of a model, and the row of its position table that a document begins with."""
    config = _config(model_type, sizes, ff_mult, options)
    first = _first(config)
    if first is not None:
        needed = max_length + first
        if "max_position_embeddings" not in options:
            config.max_position_embeddings = needed
        rows = config.max_position_embeddings
        if rows < needed:
            reason = f"embedding.max_length {max_length} needs {needed}. Write {needed}, or remove this key."
            raise ValueError(f"config.max_position_embeddings: {rows} is too few; {reason}")
    return config, first


def _sections_of(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
    # The sizes
    kind = str(values["model_type"])
    config_class, family = _config_class(kind), FAMILIES[kind]
    with _refusing():
        settings: Any = config_class.from_dict(dict(values))
    numbers = dict.fromkeys((*family.sizes, "vocab_size"), 0)
    if family.first is not None:
        numbers["max_position_embeddings"] = 0
    for key in numbers:
        number, most = getattr(settings, key, None), MOST_LAYERS if key == family.sizes[1] else LARGEST
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
            raise ValueError(f"{key} is {number!r}; it must be a whole number from 1 to {most:,}.")
        numbers[key] = number
    dim, depth, heads, *inner = (numbers[key] for key in family.sizes)
    ff_mult = inner[0] / dim if inner else 4.0
    # The values with which the lab computes
    computed: dict[str, Any] = {"is_decoder": False, "add_cross_attention": False, "use_bidirectional_attention": False}
    computed |= family.fixed
    for key in ("pad_token_id", "use_mems_eval"):
        computed.pop(key, None)
    for key, expected in computed.items():
        value, cure = getattr(settings, key, None), ""
        if key == "is_causal":
            cure = f' Write "{key}": false there to train it in both directions.'
        elif value is None:
            value = expected
        if value != expected:
            raise ValueError(f"{key} is {value!r}, but the lab's `hugging_face` computes with {expected!r}.{cure}")
    # Keys that differ from the lab's defaults
    usual = _config(kind, (dim, depth, heads), ff_mult, {})
    allowed = [key for key in sorted(_keys(kind)[0]) if not key.endswith("_index")]  # of a token
    config = {key: getattr(settings, key) for key in allowed if getattr(settings, key) != getattr(usual, key)}
    longest = getattr(settings, "max_position_embeddings", None) or UNLIMITED
    longest = UNLIMITED if longest < 1 else longest
    if family.first is not None:
        config.pop("max_position_embeddings", None)  # follows from the length
        longest -= _first(settings) or 0
    dropped = next((getattr(settings, key) for key in DROPOUTS if hasattr(settings, key)), None)
    section = {"type": "hugging_face", "dim": dim, "depth": depth, "heads": heads}
    section |= {"model_type": kind, "ff_mult": ff_mult, "config": config}
    embedding = {"dim": _input_dim(settings, dim), "max_length": longest, "dropout": float(dropped or 0.0)}
    return section, embedding, settings.vocab_size


def _first(config: Any) -> int | None:
    """Return the row of the position table that a document begins with. Raises ValueError."""
    if config.pad_token_id is None or config.pad_token_id < 0:
        raise ValueError(f"config.pad_token_id: must be 0 or more, is {config.pad_token_id}.")
    first = FAMILIES[config.model_type].first
    return int(config.pad_token_id) + 1 if first == AFTER_PAD else first


def _input_dim(config: Any, dim: int) -> int:
    """Return the width of the token vectors, which some families project to that of the layers."""
    width: int = getattr(config, "input_embedding_size", getattr(config, "embedding_size", dim))
    return width


def _added(visible: Bool[Tensor, "_ _ T"], dtype: torch.dtype) -> Float[Tensor, "_ 1 _ T"]:
    """Return a mask as numbers to be added: some classes would add True as 1."""
    # Padding might leave the softmax without a key, hence NaN: there, all keys are seen.
    visible = visible | ~visible.any(-1, keepdim=True)
    unseen = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return unseen.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def _config(model_type: str, sizes: tuple[int, int, int], ff_mult: float, options: Mapping[str, Any]) -> Any:
    """Return the config of a model of these sizes. Raises ValueError for keys it lacks, or that are set elsewhere."""
    config_class, family = _config_class(model_type), FAMILIES[model_type]
    dim, depth, heads = sizes
    fields = signature(config_class).parameters
    allowed, set_by, fixed = _keys(model_type)
    usual: dict[str, Any] = {"pad_token_id": 1} if family.first == AFTER_PAD else {}
    # The keys in the config
    for key in options:
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
        return config_class(**(keys | dict(options)))


def _config_class(model_type: str) -> Any:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise ValueError(
            "needs transformers 5 or newer. Install it: pip install 'electra-lab[hugging-face]'."
        ) from None
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"this transformers has no {model_type}. Install a newer one: pip install -U transformers.")
    return CONFIG_MAPPING[model_type]


def _keys(model_type: str) -> tuple[set[str], dict[str, str], dict[str, Any]]:
    """Return the keys of a config that may be set, those that follow from others, and those with a fixed value."""
    from transformers import PreTrainedConfig

    family, fields = FAMILIES[model_type], signature(_config_class(model_type)).parameters
    set_by = dict(zip(family.sizes, ("dim", "depth", "heads", "ff_mult"), strict=False))
    set_by["embedding_dropout"] = "embedding.dropout"
    ids = {key: 0 for key in fields if key.endswith("_token_id")}  # which the tokenizer knows
    fixed = {**ids, **FIXED, **family.fixed}
    if family.first == AFTER_PAD:
        del fixed["pad_token_id"]
    return fields.keys() - signature(PreTrainedConfig).parameters.keys() - set_by.keys() - fixed.keys(), set_by, fixed


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
