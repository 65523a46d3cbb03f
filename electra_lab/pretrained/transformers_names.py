"""The tensors of transformers' ELECTRA and BERT, and their places in a network around the backbone `bert`."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["electra", "bert"]
_ENCODER = {
    "embeddings.tokens": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.segments": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "project": "embeddings_project",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}
_HEADS: dict[Kind, dict[str, str]] = {
    "electra": {
        "heads.tokens.dense": "generator_predictions.dense",
        "heads.tokens.norm": "generator_predictions.LayerNorm",
        "heads.tokens": "generator_lm_head",
        "heads.replaced.dense": "discriminator_predictions.dense",
        "heads.replaced.out": "discriminator_predictions.dense_prediction",
    },
    "bert": {
        "heads.tokens.dense": "cls.predictions.transform.dense",
        "heads.tokens.norm": "cls.predictions.transform.LayerNorm",
        "heads.tokens": "cls.predictions",
        "heads.tokens.decoder": "cls.predictions.decoder",
    },
}
# Second names of a tensor, which some files have next to the first one or instead of it.
_COPIES = {
    "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# Parts of BERT and of fine-tuned models for which pre-training has no place.
FOREIGN = re.compile(r"(bert\.pooler|cls\.seq_relationship|classifier|qa_outputs|sequence_summary)\..*")
_BUFFERS = (".position_ids", ".token_type_ids")  # constants that old versions saved
_OLD = {"gamma": "weight", "beta": "bias"}  # of LayerNorms that were converted from TensorFlow


def transformers_name(name: str, kind: Kind) -> str:
    """Return the name of one of our tensors in transformers; an unknown name is returned unchanged."""
    part, dot, last = name.rpartition(".")
    if (found := re.fullmatch(r"backbone\.layers\.(\d+)\.(\w+)", part)) and found[2] in _LAYER:
        return f"{kind}.encoder.layer.{found[1]}.{_LAYER[found[2]]}.{last}"
    return f"{_parts(kind).get(part, part)}{dot}{last}"


def in_our_names(given: Mapping[str, Tensor], kind: Kind) -> dict[str, Tensor]:
    """Return the tensors of a file of transformers under our names, copies once; unknown names are unchanged.

    Raises ValueError if a tensor appears twice.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if (modern := _modern(name, kind)) in found:
            raise ValueError(f"{modern} appears twice, under an old name and a new one.")
        if not name.endswith(_BUFFERS):
            found[modern] = tensor
    for copy in found.keys() & _COPIES.keys():
        original = found.setdefault(_COPIES[copy], found[copy])
        if original.shape == found[copy].shape and torch.equal(original, found[copy]):
            del found[copy]
    return {_our_name(name, kind): tensor for name, tensor in found.items()}


def _our_name(name: str, kind: Kind) -> str:
    part, dot, last = name.rpartition(".")
    if (found := re.fullmatch(rf"{kind}\.encoder\.layer\.(\d+)\.(.+)", part)) and found[2] in _LAYER.values():
        return f"backbone.layers.{found[1]}.{_reversed(_LAYER)[found[2]]}.{last}"
    return f"{_reversed(_parts(kind)).get(part, part)}{dot}{last}"


@cache
def _parts(kind: Kind) -> dict[str, str]:
    """Return the names of all parts outside the layers."""
    return {part: f"{kind}.{name}" for part, name in _ENCODER.items()} | _HEADS[kind]


def _reversed(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


def _modern(name: str, kind: Kind) -> str:
    """Return the current name for a tensor of a base model, which has no prefix, or of an old conversion."""
    part, dot, last = name.rpartition(".")
    name = f"{part}{dot}{_OLD.get(last, last)}"
    return f"{kind}.{name}" if name.startswith(("embeddings.", "encoder.", "embeddings_project.", "pooler.")) else name
