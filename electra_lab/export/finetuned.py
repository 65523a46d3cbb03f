"""A fine-tuned network as a model of transformers, for its pipelines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import nn

from electra_lab.backbones.bert import Bert
from electra_lab.export.networks import tensors_of
from electra_lab.export.tokenizer import write_tokenizer
from electra_lab.model.network import Network
from electra_lab.pretrained.hugging_face import CONFIG
from electra_lab.storage.files import disk, new_folder, seal
from registry import Plugin, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# By class: where our layers are in transformers' ELECTRA, and in the lab's own classes.
PLACES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "ForSequenceClassification": {
        "dense": ("classifier.dense", "classifier.1"),
        "out": ("classifier.out_proj", "classifier.4"),
    },
    "ForTokenClassification": {"out": ("classifier", "classifier.1")},
    "ForQuestionAnswering": {"span": ("qa_outputs", "qa_outputs")},
}


def write_finetuned(
    final: Path,
    network: Network,
    head: nn.Module,
    *,
    kind: str,
    labels: Sequence[str],
    dropout: float,
    described: Mapping[str, Any],
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    longest: int,
    plugins: Sequence[Plugin],
) -> None:
    """Write a folder that transformers loads, whole or not at all.

    kind       the class, a key of PLACES
    described  config.json of the pre-trained network
    longest    input in tokens
    """
    plain, tensors = type(network.backbone) is Bert, tensors_of(network)
    for ours, places in PLACES[kind].items():
        for name, parameter in head.get_submodule(ours).named_parameters():
            tensors[f"{places[0 if plain else 1]}.{name}"] = parameter
    config = {
        **described,
        "architectures": [("Electra" if plain else "ElectraLab") + kind],
        "vocab_size": network.embeddings.tokens.num_embeddings,
        "classifier_dropout": dropout,
    }
    if labels:
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    with disk(final), new_folder(final) as folder:
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {name: each.detach().cpu().contiguous() for name, each in tensors.items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        write_tokenizer(folder, tokenizer, vocabulary, longest)
        for plugin in plugins:
            if config.get("plugin") == plugin.file.name:
                (folder / plugin.file.name).write_bytes(plugin.source)
        seal(folder)
