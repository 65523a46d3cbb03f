"""Encoders of transformers that can be a backbone, and why others cannot, by the model type of their config."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from registry.errors import did_you_mean
from registry.signature import problem

Masks = Literal["pairs", "by layer", "rows"]
AFTER_PAD = -1  # as the first row: the one after pad_token_id
BERT_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True)
class Family:
    """The facts about a model class that a wrapper needs.

    sizes      config keys of width, depth, heads and, unless it is fixed at 4 widths, the feed-forward
    layers     path of the list of layers; several lists hold one part of each layer
    dropout    path of the token vectors' nn.Dropout, "" if the class has none, None if no module has it alone
    first      row of the position table that a document begins with; None: positions are relative
    masks      pairs     a mask for each query and key, so that documents can be separated
               by layer  the same, one for each type of layer
               rows      a mask of padding alone
    window     config key of the distance that a position sees to one side
    fixed      config keys that cannot be set otherwise
    idle       parts that never learn from states alone: modules are removed, parameters are frozen
    table      path of the table of tokens
    renamed    True if files have other names than the class, which transformers turns into them
    """

    sizes: tuple[str, ...] = BERT_SIZES
    layers: tuple[str, ...] = ("encoder.layer",)
    dropout: str | None = "embeddings.dropout"
    first: int | None = 0
    masks: Masks = "pairs"
    window: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    table: str = "embeddings.word_embeddings"
    renamed: bool = False


# Sees both directions.
_DECODER = Family(layers=("layers",), dropout="", first=None, fixed={"is_causal": False}, table="embed_tokens")
_MODERN = "embeddings.tok_embeddings"
_XLM_LAYERS = ("attentions", "layer_norm1", "ffns", "layer_norm2")
_XLM_SIZES = ("emb_dim", "n_layers", "n_heads")
_ONE_LANGUAGE = {"languages": ["en_XX"], "default_language": "en_XX"}
_BERT, _ROBERTA = Family(), Family(first=AFTER_PAD)
_SLIDING = replace(_DECODER, window="sliding_window")
_BY_LAYER = replace(_SLIDING, masks="by layer")
_XLM = Family(
    sizes=_XLM_SIZES, layers=_XLM_LAYERS, dropout=None, masks="rows", fixed={"causal": False}, table="embeddings"
)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("bert", "ernie", "splinter", "megatron-bert", "electra", "rembert"), _BERT),
    "big_bird": Family(fixed={"attention_type": "original_full"}),
    "squeezebert": Family(layers=("encoder.layers",), idle=("pooler",)),
    "albert": Family(layers=("encoder.albert_layer_groups",)),
    "distilbert": Family(sizes=("dim", "n_layers", "n_heads", "hidden_dim"), layers=("transformer.layer",)),
    "mpnet": Family(first=2, fixed={"pad_token_id": 1}),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text"), _ROBERTA),
    **dict.fromkeys(("roberta-prelayernorm", "xlm-roberta-xl"), _ROBERTA),
    "ibert": Family(first=AFTER_PAD, fixed={"quant_mode": False}),
    "xmod": Family(first=AFTER_PAD, fixed=_ONE_LANGUAGE),
    "roformer": Family(masks="rows"),
    **dict.fromkeys(("nomic_bert", "jina_embeddings_v3"), Family(layers=("layers",), first=None, renamed=True)),
    "modernbert": replace(
        _DECODER, dropout="embeddings.drop", masks="by layer", window="local_attention", fixed={}, table=_MODERN
    ),
    "eurobert": replace(_DECODER, fixed={}),
    "ultrabert": replace(_SLIDING, fixed={}),
    "esm": Family(
        dropout="", first=None, idle=("contact_head",),
        fixed={"position_embedding_type": "rotary", "emb_layer_norm_before": False, "token_dropout": False},
    ),
    **dict.fromkeys(("llama", "olmo2"), _DECODER),
    **dict.fromkeys(("qwen2", "qwen3", "smollm3", "olmo3", "gemma2", "gemma3_text"), _BY_LAYER),
    **dict.fromkeys(("mistral", "phi3"), _SLIDING),
    "gpt_neox": replace(_DECODER, dropout="emb_dropout", table="embed_in"),
    "xlnet": Family(
        sizes=("d_model", "n_layer", "n_head", "d_inner"), layers=("layer",), dropout=None, first=None, masks="rows",
        fixed={"attn_type": "bi", "use_mems_eval": False}, idle=("mask_emb", "seg_embed", "r_s_bias"),
        table="word_embedding",
    ),
    **dict.fromkeys(("xlm", "flaubert"), _XLM),
}  # fmt: skip

_LEAKS = "states depend on what padding holds"
REFUSED = {
    "deberta-v2": "the lab has a backbone for it: type: deberta",
    "longformer": "it looks its padding up in its word table, and its global projections never learn",
    "funnel": _LEAKS,
    "convbert": f"{_LEAKS}: its convolutions read it",
    "mobilebert": f"{_LEAKS}: each position reads its neighbours' vectors",
    "yoso": _LEAKS,
    "fnet": f"{_LEAKS}: it has no attention mask",
    "nystromformer": f"{_LEAKS}, and rows must have one length",
    "mra": "its attention returns zeros without its CUDA kernel",
    "reformer": "its states have twice the width; the lab has a backbone for it: type: reformer",
    "esmc": "it takes no inputs_embeds",
    **dict.fromkeys(("t5", "umt5"), "it is an encoder with a decoder"),
}


def supported(model_type: str) -> str:
    """Return a model type that can be a backbone. Raises ValidationError with the reason for any other."""
    if model_type in REFUSED:
        raise problem((), f"{model_type} cannot be a backbone: {REFUSED[model_type]}.", model_type)
    if model_type not in FAMILIES:
        raise problem((), f"no encoder that the lab has tried.{did_you_mean(model_type, FAMILIES)}", model_type)
    return model_type


def family_of(model_type: object) -> Family | None:
    """Return the facts of a family, None for an unknown one. Raises ValueError with the reason if it is refused."""
    if not isinstance(model_type, str):
        return None
    if model_type in REFUSED:
        raise ValueError(f"{model_type} cannot be a backbone: {REFUSED[model_type]}.")
    return FAMILIES.get(model_type)
