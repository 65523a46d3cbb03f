"""DeBERTa-v2 and DeBERTa-v3, around the backbone `deberta`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from electra_lab.pretrained.families.family import Activation, Config, Family, Sections, most_task_layers
from electra_lab.pretrained.families.names import Names
from registry.errors import ConfigError

FIXED = {"hidden_act": "gelu", "layer_norm_eps": 1e-7, "type_vocab_size": 0, "position_biased_input": False,
         "relative_attention": True}  # fmt: skip
ENCODER = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "backbone.embedding_norm": "embeddings.LayerNorm",
    "backbone.absolute_positions": "embeddings.position_embeddings",
    "backbone.relative_positions": "encoder.rel_embeddings",
    "backbone.position_norm": "encoder.LayerNorm",
    "backbone.convolution.conv": "encoder.conv.conv",
    "backbone.convolution.norm": "encoder.conv.LayerNorm",
}
LAYER = {
    "query": "attention.self.query_proj",
    "key": "attention.self.key_proj",
    "value": "attention.self.value_proj",
    "position_key": "attention.self.pos_key_proj",
    "position_query": "attention.self.pos_query_proj",
    "attended": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
# The names of the authors' files.
HEADS = {
    "heads.tokens.dense": "lm_predictions.lm_head.dense",
    "heads.tokens.norm": "lm_predictions.lm_head.LayerNorm",
    "heads.tokens": "lm_predictions.lm_head",
    "heads.replaced.norm": "mask_predictions.LayerNorm",
    "heads.replaced.dense": "mask_predictions.dense",
    "heads.replaced.out": "mask_predictions.classifier",
}
# Those of transformers' class for masked language modelling before it had a head as the authors'.
LEGACY = {
    "heads.tokens.dense": "cls.predictions.transform.dense",
    "heads.tokens.norm": "cls.predictions.transform.LayerNorm",
    "heads.tokens": "cls.predictions",
    "heads.tokens.decoder": "cls.predictions.decoder",
}
# Parts of fine-tuned models; absolute positions where nothing uses them, and the differences of a discriminator to its
# generator's tables, which its file has next to the sums.
FOREIGN = r"(pooler|classifier|qa_outputs)\..*|(embeddings\.tokens|backbone\.absolute_positions)\._weight"
FOREIGN += r"|backbone\.absolute_positions\.weight"
TABLE = "deberta.embeddings.word_embeddings.weight"


class Deberta(Family):
    """No class of transformers has the head of a discriminator, so it is written as an encoder alone."""

    model_type = "deberta-v2"
    backbone = "deberta"
    prefix = "DebertaV2"
    beyond = ("mask_decoder",)
    classes: ClassVar[Mapping[str, str]] = {"tokens": "ForMaskedLM"}
    task_layers: ClassVar[Mapping[str, Mapping[str, str]]] = most_task_layers("pooler.dense", "classifier")
    dropouts: ClassVar[Sequence[str]] = ("pooler_dropout", "cls_dropout")

    def names(self, head: str) -> Names:
        legacy = head == "legacy"
        copies = {"cls.predictions.decoder.weight": TABLE, "cls.predictions.decoder.bias": "cls.predictions.bias",
                  "lm_predictions.lm_head.weight": TABLE}  # fmt: skip
        return Names("deberta", "encoder.layer", ENCODER, LAYER, LEGACY if legacy else HEADS, copies, FOREIGN)

    def head_of(self, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> str:
        return "legacy" if any(name.startswith("cls.predictions.") for name in stored) else ""

    def read(self, config: Config) -> Sections:
        values = config.values
        config.refuse_others(FIXED, self.backbone)
        size, longest = config.size("vocab_size"), config.size("max_position_embeddings", 512)
        inner, shape = config.size("intermediate_size"), config.shape()
        terms = values.get("pos_att_type") or []
        terms = terms.split("|") if isinstance(terms, str) else terms
        if not isinstance(terms, list) or set(map(str, terms)) != {"c2p", "p2c"}:
            raise ConfigError(f"{config.place}: pos_att_type is {terms!r}, but `deberta` computes with p2c and c2p.")
        width = values.get("embedding_size", shape["dim"])
        if width != shape["dim"]:
            raise ConfigError(f"{config.place}: embedding_size is {width!r}; it must be hidden_size {shape['dim']}.")
        if values.get("conv_kernel_size", 0) and values.get("conv_act", "gelu") != "gelu":
            raise ConfigError(
                f"{config.place}: conv_act is {values['conv_act']!r}, but `deberta` computes with 'gelu'."
            )
        distance = values.get("max_relative_positions", -1)
        dropout = config.rate("hidden_dropout_prob", 0.1)
        backbone = {
            "type": self.backbone, **shape,
            "ff_mult": inner / shape["dim"],
            "buckets": config.size("position_buckets"),
            "max_distance": distance if isinstance(distance, int) and distance > 0 else longest,
            "share_projections": bool(values.get("share_att_key", False)),
            "normalize_positions": "layer_norm" in str(values.get("norm_rel_ebd", "none")),
            "convolution": config.size("conv_kernel_size") if values.get("conv_kernel_size") else 0,
            "mask_decoder": False,
            "dropout": dropout,
            "attention_dropout": config.rate("attention_probs_dropout_prob", 0.1),
        }  # fmt: skip
        return backbone, {"dim": shape["dim"], "max_length": longest, "dropout": dropout}, size

    def pooling(self, config: Config) -> tuple[Activation, bool]:
        config.refuse_others({"pooler_hidden_act": "gelu"}, self.backbone)
        return super().pooling(config)

    def shown_by(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Only the authors' generators have absolute positions that nothing but the mask decoder uses."""
        decodes = "backbone.absolute_positions.weight" in tensors and "heads.tokens.dense.weight" in tensors
        return {"mask_decoder": True} if decodes else {}

    def write(
        self, backbone: Mapping[str, Any], embedding: Mapping[str, Any], ids: Mapping[str, int], head: str
    ) -> dict[str, Any]:
        return {
            **FIXED,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": backbone["buckets"],
            "max_relative_positions": backbone["max_distance"],
            "share_att_key": backbone["share_projections"],
            "norm_rel_ebd": "layer_norm" if backbone["normalize_positions"] else "none",
            "conv_kernel_size": backbone["convolution"],
            "conv_act": "gelu",
            "hidden_dropout_prob": backbone["dropout"],
            "attention_probs_dropout_prob": backbone["attention_dropout"],
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": backbone["dim"],
            "legacy": False,
        }

    def writes(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> bool:
        return bool(embedding["dim"] == backbone["dim"] and super().writes(backbone, embedding))

    def limits(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> list[str]:
        if embedding["dropout"] == backbone["dropout"]:
            return []
        return [f"DebertaV2Config has no dropout of embeddings; {embedding['dropout']} was used in training."]
