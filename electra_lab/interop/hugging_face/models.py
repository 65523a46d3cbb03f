"""Networks around any backbone as models of transformers; the model type is `electra_lab`.

A model is a Network of the lab, with an output layer on top. Its tensors have their names of the lab, after
`electra_lab.network.`. Networks around `bert` are exported as transformers' own classes and do not need these.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"
# (transformers has types, but not everywhere.)

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.electra.modeling_electra import ElectraForPreTrainingOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from electra_lab.assembly import networks
from electra_lab.assembly.build import brought_by
from electra_lab.model.network import STANDARD_DEVIATION, Network, everywhere, glorot_layers
from electra_lab.model.weights import repeated
from registry import backbones


class ElectraLabConfig(PreTrainedConfig):  # type: ignore[misc]
    """The sections of an experiment that describe one network.

    backbone  its name, its sizes and all its options: {type, dim, depth, heads, ...}
    embedding  {dim, max_length, dropout}
    plugin     the file next to the weights that defines the backbone, or the installed package; None for a built-in
    """

    model_type = "electra_lab"

    vocab_size: int = 30_522
    pad_token_id: int | None = 0
    backbone: dict[str, Any] | None = None
    embedding: dict[str, Any] | None = None
    plugin: str | None = None
    classifier_dropout: float = 0.1
    tie_word_embeddings: bool = False  # the token head reads the table of the embeddings: there is nothing to tie

    @property
    def hidden_size(self) -> int:
        return (self.backbone or {})["dim"]

    @property
    def num_hidden_layers(self) -> int:
        return (self.backbone or {})["depth"]

    @property
    def num_attention_heads(self) -> int:
        return (self.backbone or {})["heads"]

    @property
    def max_position_embeddings(self) -> int:
        return (self.embedding or {})["max_length"]


def make_network(config: ElectraLabConfig, heads: tuple[str, ...]) -> Network:
    """Build the network of a config. Raises UnknownName, naming the plug-in that it needs, and ValidationError."""
    plugin: Path | str | None = config.plugin
    if config.plugin and config.plugin.endswith(".py"):
        plugin = Path(config.name_or_path or "") / config.plugin
    sections = config.backbone or {}, config.embedding or {}
    return networks.make_network(*sections, config.vocab_size, config.pad_token_id or 0, heads, plugin)


def _leave_out_repeated(network: nn.Module, tensors: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Keep each tensor once in a `state_dict`, as files of safetensors do."""
    for name in repeated(network):
        tensors.pop(f"{prefix}{name}", None)


def _fixed(module: nn.Module, brought: Set[nn.Parameter]) -> dict[str, Tensor]:
    """Return copies of the tensors of a module, without its parts, that `initialise` does not draw."""
    tensors = dict(chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)))
    if isinstance(module, nn.Linear | nn.Embedding) and module.weight not in brought and module.weight.count_nonzero():
        tensors.pop("weight", None)
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


class ElectraLabPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Weights and names that all models share."""

    config: ElectraLabConfig
    config_class = ElectraLabConfig
    base_model_prefix = "electra_lab"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Set the tensors that a file lacks, where transformers leaves memory uninitialized, by its own functions.

        Weights are drawn as `initialise` draws them. Everything else has the value that it had when it was built.
        """
        built = getattr(self, "built", {}).get(module, {})
        for name, value in built.items():
            initialization.copy_(getattr(module, name), value)
        if isinstance(module, nn.Linear | nn.Embedding) and "weight" not in built:
            if module in glorot_layers(self):
                initialization.xavier_uniform_(module.weight)
            else:
                most = 2 * STANDARD_DEVIATION
                initialization.trunc_normal_(module.weight, std=STANDARD_DEVIATION, a=-most, b=most)
            if isinstance(module, nn.Linear) and module.bias is not None:
                initialization.zeros_(module.bias)

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Embedding:
        """As in transformers; a token head's bias, which no layer of transformers holds, gets the size of the table."""
        table: nn.Embedding = super().resize_token_embeddings(*arguments, **options)
        base: Any = self.base_model
        if "tokens" in base.network.heads:
            head = base.network.heads["tokens"]
            extra = table.num_embeddings - len(head.bias)
            head.bias = nn.Parameter(F.pad(head.bias.detach(), (0, extra)), head.bias.requires_grad)
        return table

    def tie_weights(self, *arguments: Any, **options: Any) -> None:
        """Share tensors again: loading has put new parameters in the first of several places."""
        super().tie_weights(*arguments, **options)
        base: Any = self.base_model
        for name, first in base.repeated.items():
            owner, _, last = name.rpartition(".")
            setattr(base.network.get_submodule(owner), last, base.get_parameter_or_buffer(f"network.{first}"))


class ElectraLabModel(ElectraLabPreTrainedModel):
    """The states of every position. `heads` are the network's own, by name."""

    network: Network

    def __init__(self, config: ElectraLabConfig, heads: tuple[str, ...] = ()) -> None:
        super().__init__(config)
        self.network = make_network(config, heads)
        self.network.register_state_dict_post_hook(_leave_out_repeated)
        self.repeated = repeated(self.network)
        brought = brought_by(backbones.get((config.backbone or {})["type"]), self.network.backbone)
        self.built = {module: _fixed(module, brought) for module in self.network.modules()}
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.network.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.network.embeddings.tokens = value  # type: ignore[assignment]  # an nn.Embedding

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """Take integers [B, T]; without a mask every token is real. Returns states Float[B T D]."""
        if input_ids is None:
            raise ValueError("input_ids is required; inputs_embeds is not supported.")
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return BaseModelOutput(last_hidden_state=self.network.hidden(input_ids, real.bool(), segments))


class _WithHead(ElectraLabPreTrainedModel):
    """An ElectraLabModel with something on top."""

    heads: ClassVar[tuple[str, ...]] = ()  # of the network
    output: ClassVar[type[ModelOutput]]
    classifier: nn.Module

    def __init__(self, config: ElectraLabConfig) -> None:
        super().__init__(config)
        self.electra_lab = ElectraLabModel(config, self.heads)
        self.add_layers(config.hidden_size, config.num_labels or 2, config.classifier_dropout)
        self.post_init()

    def add_layers(self, dim: int, labels: int, dropout: float) -> None:
        """Add the layers that pre-training lacks."""

    def states(self, input_ids: Tensor | None, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        return self.electra_lab(input_ids, mask, segments, return_dict=True).last_hidden_state

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> ModelOutput:
        """Return logits, and the loss if there are labels, whose meaning is that of the class."""
        logits = self.logits(self.states(input_ids, attention_mask, token_type_ids))
        loss = None if labels is None else self.loss(logits, labels, attention_mask)
        return self.output(loss=loss, logits=logits)

    def logits(self, states: Tensor) -> Tensor:
        return self.classifier(states)

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        return self.loss_function(logits, labels, self.config)


class ElectraLabForPreTraining(_WithHead):
    """Replaced token detection: a logit at each position, positive for "replaced".

    Labels are 1 where a token was replaced and 0 elsewhere; padding has no loss.
    """

    heads, output = ("replaced",), ElectraForPreTrainingOutput

    def logits(self, states: Tensor) -> Tensor:
        return self.electra_lab.network.replaced_logits(states)

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask.bool()
        return F.binary_cross_entropy_with_logits(logits[real], labels[real].to(logits.dtype))


class ElectraLabForMaskedLM(_WithHead):
    """Masked language modelling: logits over the vocabulary at each position. A label of -100 has no loss."""

    heads, output = ("tokens",), MaskedLMOutput

    def logits(self, states: Tensor) -> Tensor:
        return self.electra_lab.network.token_logits(states, everywhere(states))

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        return self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)


class ElectraLabForSequenceClassification(_WithHead):
    """A label for each row, from the state of its first token, through the layers that ELECTRA has for it.

    Labels are Int[B], or numbers Float[B] for a regression.
    """

    output = SequenceClassifierOutput

    def add_layers(self, dim: int, labels: int, dropout: float) -> None:
        layers = nn.Dropout(dropout), nn.Linear(dim, dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, labels)
        self.classifier = nn.Sequential(*layers)

    def logits(self, states: Tensor) -> Tensor:
        return self.classifier(states[:, 0])

    def loss(self, logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class ElectraLabForTokenClassification(_WithHead):
    """A label for each token, Int[B T], and -100 where there is no loss."""

    output = TokenClassifierOutput

    def add_layers(self, dim: int, labels: int, dropout: float) -> None:
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(dim, labels))


class ElectraLabForQuestionAnswering(_WithHead):
    """The first and the last token of an answer."""

    def add_layers(self, dim: int, labels: int, dropout: float) -> None:
        self.qa_outputs = nn.Linear(dim, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **_: Any,
    ) -> QuestionAnsweringModelOutput:
        """Positions are Int[B]."""
        start, end = self.qa_outputs(self.states(input_ids, attention_mask, token_type_ids)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start, end, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start, end_logits=end)
