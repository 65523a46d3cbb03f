"""ModernBERT, around the backbone `modernbert`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.pretrained.families.family import Activation, Config, Family, Sections
from electra_lab.pretrained.families.names import Names
from registry.errors import ConfigError

FIXED = {"hidden_activation": "gelu", "classifier_activation": "gelu", "norm_eps": 1e-5, "norm_bias": False,
         "attention_bias": False, "mlp_bias": False, "decoder_bias": True, "classifier_bias": False}  # fmt: skip
ENCODER = {
    "embeddings.tokens": "embeddings.tok_embeddings",
    "backbone.embedding_norm": "embeddings.norm",
    "backbone.final_norm": "final_norm",
}
LAYER = {
    "attention_norm": "attn_norm",
    "qkv": "attn.Wqkv",
    "attended": "attn.Wo",
    "feed_forward_norm": "mlp_norm",
    "expand": "mlp.Wi",
    "contract": "mlp.Wo",
}
TRANSFORM = {"transform.dense": "head.dense", "transform.norm": "head.norm"}  # in all classes of tasks
LABELS = ("ORIGINAL", "REPLACED")  # of a discriminator
TABLE = "model.embeddings.tok_embeddings.weight"


class ModernBert(Family):
    """All classes with a head call its first layers `head`, so the names depend on the class.

    A discriminator is a ForTokenClassification with the labels of LABELS: the logit of ORIGINAL is 0.
    """

    model_type = "modernbert"
    backbone = "modernbert"
    prefix = "ModernBert"
    beyond = ("qk_norm",)
    classes: ClassVar[Mapping[str, str]] = {"replaced": "ForTokenClassification", "tokens": "ForMaskedLM"}
    task_layers: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "ForSequenceClassification": {**TRANSFORM, "out": "classifier"},
        "ForTokenClassification": {**TRANSFORM, "out": "classifier"},
        "ForQuestionAnswering": {**TRANSFORM, "span": "classifier"},
    }

    def names(self, head: str) -> Names:
        heads = {f"heads.{head}.dense": "head.dense", f"heads.{head}.norm": "head.norm"}
        last = {"tokens": {"heads.tokens": "decoder"}, "replaced": {"heads.replaced.out": "classifier"}}
        foreign = r"classifier\..*" if head == "tokens" else r"decoder\..*"
        return Names(
            "model", "layers", ENCODER, LAYER,
            heads | last[head] if head else {},
            {"decoder.weight": TABLE} if head == "tokens" else {},
            foreign if head else r"(head|classifier|decoder|qa_outputs)\..*",
        )  # fmt: skip

    def detects(self, config: Mapping[str, Any]) -> bool:
        labels: Any = config.get("id2label") or {}
        return isinstance(labels, dict) and tuple(labels.values()) == LABELS

    def head_of(self, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> str:
        if "classifier.weight" in stored and self.detects(config):
            return "replaced"
        return "tokens" if "decoder.bias" in stored else ""

    def read(self, config: Config) -> Sections:
        config.refuse_others(FIXED, self.backbone)
        size, longest = config.size("vocab_size"), config.size("max_position_embeddings", 8192)
        inner, shape = config.size("intermediate_size"), config.shape()
        dropout = config.rate("attention_dropout", 0.0)
        backbone = {
            "type": self.backbone, **shape,
            "ff_mult": inner / shape["dim"],
            "global_every": self._global_every(config, shape["depth"]),
            "local_attention": config.size("local_attention", 128),
            **self._thetas(config),
            "dropout": dropout,
            "attention_dropout": dropout,
            "ff_dropout": config.rate("mlp_dropout", 0.0),
        }  # fmt: skip
        dropped = config.rate("embedding_dropout", 0.0)
        return backbone, {"dim": shape["dim"], "max_length": longest, "dropout": dropped}, size

    def _global_every(self, config: Config, depth: int) -> int:
        """Return the n of layers 0, n, 2n, ..., which are global."""
        kinds = config.values.get("layer_types")
        if kinds is None:
            return config.size("global_attn_every_n_layers", 3)
        for every in range(1, depth + 1):
            if kinds == _layer_types(depth, every):
                return every
        reason = "the lab's `modernbert` has a global layer at regular distances, from the first on"
        raise ConfigError(f"{config.place}: layer_types is {kinds!r}; {reason}.")

    def _thetas(self, config: Config) -> dict[str, float]:
        thetas = {}
        ropes: Any = config.values.get("rope_parameters") or {}
        if not isinstance(ropes, dict) or not all(isinstance(rope, dict) for rope in ropes.values()):
            raise ConfigError(f"{config.place}: rope_parameters is {ropes!r}; it must map layer types to a theta.")
        for reach, kind, usual in (("global", "full", 160_000.0), ("local", "sliding", 10_000.0)):
            old = config.values.get(f"{reach}_rope_theta", usual)
            rope = ropes.get(f"{kind}_attention") or {}
            theta = rope.get("rope_theta", old)
            if rope.get("rope_type", "default") != "default" or not isinstance(theta, int | float) or theta <= 0:
                raise ConfigError(
                    f"{config.place}: rope_parameters of {kind}_attention are {rope!r}, not a plain theta."
                )
            thetas[f"{reach}_theta"] = float(theta)
        return thetas

    def write(
        self, backbone: Mapping[str, Any], embedding: Mapping[str, Any], ids: Mapping[str, int], head: str
    ) -> dict[str, Any]:
        labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
        return {
            **FIXED,
            **(labels if head == "replaced" else {}),
            # The defaults are ids of ModernBERT's own vocabulary.
            "bos_token_id": ids["cls"],
            "cls_token_id": ids["cls"],
            "eos_token_id": ids["sep"],
            "sep_token_id": ids["sep"],
            "global_attn_every_n_layers": backbone["global_every"],
            "layer_types": _layer_types(backbone["depth"], backbone["global_every"]),
            "local_attention": backbone["local_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": backbone["global_theta"]},
                "sliding_attention": {"rope_type": "default", "rope_theta": backbone["local_theta"]},
            },
            "classifier_pooling": "cls",
            "embedding_dropout": embedding["dropout"],
            "attention_dropout": backbone["attention_dropout"],
            "mlp_dropout": backbone["ff_dropout"],
        }

    def writes(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> bool:
        return bool(embedding["dim"] == backbone["dim"] and super().writes(backbone, embedding))

    def limits(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> list[str]:
        if backbone["dropout"] == backbone["attention_dropout"]:
            return []
        return [
            f"ModernBertConfig has one dropout for the weights and the output of attention; {backbone['dropout']} was "
            "used for the output in training."
        ]

    def pooling(self, config: Config) -> tuple[Activation, bool]:
        pooling = config.values.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise ConfigError(f"{config.place}: classifier_pooling is {pooling!r}; it must be 'cls' or 'mean'.")
        return F.gelu, pooling == "mean"

    def tensors_in(self, tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
        for name in ("heads.replaced.out.weight", "heads.replaced.out.bias") if head == "replaced" else ():
            if name in tensors and len(tensors[name]) == len(LABELS):
                original, replaced = tensors[name]
                tensors[name] = (replaced - original).unsqueeze(0)
        return tensors

    def tensors_out(self, tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
        for name in ("classifier.weight", "classifier.bias") if head == "replaced" else ():
            tensors[name] = torch.cat([torch.zeros_like(tensors[name]), tensors[name]])
        return tensors


def _layer_types(depth: int, every: int) -> list[str]:
    return ["sliding_attention" if number % every else "full_attention" for number in range(depth)]
