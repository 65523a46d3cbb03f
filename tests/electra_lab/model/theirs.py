"""Random models of transformers, in memory and in folders, and networks of the lab of the same sizes."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, ElectraConfig
from transformers.utils import logging

from electra_lab.backbones.bert import Bert
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.model.weights import Account, account_for, fill, own_tensors
from electra_lab.pretrained.families import FAMILIES, Config

logging.set_verbosity_error()
logging.disable_progress_bar()

TINY = {
    "vocab_size": 37, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 20, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def model(kind: type, *, seed: int = 0, **options: Any) -> Any:
    """A model in eval mode whose weights are all random, also gains and biases, so that any swap is detected."""
    bert = kind.__name__.startswith("Bert")
    options = {**TINY, **options}
    config = (
        BertConfig(**{k: v for k, v in options.items() if k != "embedding_size"}) if bert else ElectraConfig(**options)
    )
    torch.manual_seed(seed)
    made = kind(config).eval()
    for parameter in made.parameters():
        if parameter.numel() < 1e5:  # larger ones are random already
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def saved(made: Any, folder: Path) -> Path:
    made.save_pretrained(folder)
    return folder


def network(config: dict[str, Any], *heads: str) -> Network:
    backbone, tables, size = FAMILIES[config.get("model_type", "electra")].read(Config(config, "config.json"))
    dim, length = backbone["dim"], tables["max_length"]
    with torch.device("meta"):  # random weights of a large one would take seconds
        options = {"ff_mult": backbone["ff_mult"], "dropout": backbone["dropout"]}
        bert = Bert(dim, backbone["depth"], backbone["heads"], length, **options)
        embedding = EmbeddingSizes(size, tables["dim"], length, tables["dropout"])
        made = make_pair(None, 0, bert, dim, embedding, "none", 0, heads)[1].to_empty(device="cpu").eval()
    for parameter in made.parameters():
        nn.init.constant_(parameter, 0.5)
    return made


def from_transformers(given: dict[str, Tensor], ours: Network, kind: str) -> Account:
    names = FAMILIES[kind].names("")
    named = names.lab_tensors(given)
    account = account_for(named, own_tensors(ours), names.stored_name, re.compile(names.foreign))
    fill(ours, named)
    return account


def to_transformers(ours: Network) -> dict[str, Tensor]:
    return {
        FAMILIES["electra"].names("").stored_name(name): tensor.detach() for name, tensor in own_tensors(ours).items()
    }


def inputs(vocabulary: int, length: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, vocabulary, (3, length), generator=generator)
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1, length // 2 :] = mask[2, 1:] = False
    return tokens, mask, torch.randint(0, 2, (3, length), generator=generator)


@torch.no_grad()
def logits(made: nn.Module, head: str, vocabulary: int) -> Tensor:
    tokens, mask, segments = inputs(vocabulary)
    if not isinstance(made, Network):
        found: Tensor = made(input_ids=tokens, attention_mask=mask.long(), token_type_ids=segments).logits
        return found[mask]
    hidden = made.hidden(tokens, mask, segments)
    if head == "replaced":
        return made.replaced_logits(hidden)[mask]
    return made.token_logits(hidden, torch.arange(tokens.shape[1]).expand_as(tokens))[mask]
