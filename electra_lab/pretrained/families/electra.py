"""ELECTRA and BERT, around the backbone `bert`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from electra_lab.model.network import LAYER_NORM_EPS, SEGMENTS
from electra_lab.pretrained.families.family import Activation, Config, Family, Sections, most_task_layers
from electra_lab.pretrained.families.names import Names

# How the encoder of the lab computes. A file that lacks one of these keys means the same.
FIXED = {"hidden_act": "gelu", "layer_norm_eps": LAYER_NORM_EPS, "type_vocab_size": SEGMENTS,
         "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}  # fmt: skip
ENCODER = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.segments": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "project": "embeddings_project",
}
LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
# Parts of BERT and of fine-tuned models for which pre-training has no place.
FOREIGN = r"(bert\.pooler|cls\.seq_relationship|classifier|qa_outputs|sequence_summary)\..*"


class Electra(Family):
    model_type = "electra"
    backbone = "bert"
    prefix = "Electra"
    classes: ClassVar[Mapping[str, str]] = {"replaced": "ForPreTraining", "tokens": "ForMaskedLM"}
    task_layers: ClassVar[Mapping[str, Mapping[str, str]]] = most_task_layers("classifier.dense", "classifier.out_proj")
    heads: ClassVar[Mapping[str, str]] = {
        "heads.tokens.dense": "generator_predictions.dense",
        "heads.tokens.norm": "generator_predictions.LayerNorm",
        "heads.tokens": "generator_lm_head",
        "heads.replaced.dense": "discriminator_predictions.dense",
        "heads.replaced.out": "discriminator_predictions.dense_prediction",
    }
    copies: ClassVar[Mapping[str, str]] = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
    usual_width: ClassVar[int | None] = 128  # of embeddings, as in transformers

    def names(self, head: str) -> Names:
        return Names(self.model_type, "encoder.layer", ENCODER, LAYER, self.heads, self.copies, FOREIGN)

    def read(self, config: Config) -> Sections:
        config.refuse_others(FIXED, self.backbone)
        size, longest = config.size("vocab_size"), config.size("max_position_embeddings")
        inner, shape = config.size("intermediate_size"), config.shape()
        width = config.size("embedding_size", self.usual_width or shape["dim"])
        dropout = config.rate("hidden_dropout_prob", 0.1)
        backbone = {"type": self.backbone, **shape, "ff_mult": inner / shape["dim"], "dropout": dropout}
        return backbone, {"dim": width, "max_length": longest, "dropout": dropout}, size

    def write(
        self, backbone: Mapping[str, Any], embedding: Mapping[str, Any], ids: Mapping[str, int], head: str
    ) -> dict[str, Any]:
        return {
            "embedding_size": embedding["dim"],
            "hidden_act": "gelu",
            "hidden_dropout_prob": backbone["dropout"],
            "attention_probs_dropout_prob": backbone["dropout"],
            "type_vocab_size": SEGMENTS,
            "layer_norm_eps": LAYER_NORM_EPS,
        }

    def limits(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> list[str]:
        if embedding["dropout"] == backbone["dropout"]:
            return []
        return [f"ElectraConfig has no dropout of embeddings; {embedding['dropout']} was used in training."]


class Bert(Electra):
    """Read alone: the lab writes `bert` as ELECTRA."""

    model_type = "bert"
    heads: ClassVar[Mapping[str, str]] = {
        "heads.tokens.dense": "cls.predictions.transform.dense",
        "heads.tokens.norm": "cls.predictions.transform.LayerNorm",
        "heads.tokens": "cls.predictions",
        "heads.tokens.decoder": "cls.predictions.decoder",
    }
    copies: ClassVar[Mapping[str, str]] = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    task_layers: ClassVar[Mapping[str, Mapping[str, str]]] = most_task_layers("bert.pooler.dense", "classifier")
    usual_width = None

    def pooling(self, config: Config) -> tuple[Activation, bool]:
        return torch.tanh, False
