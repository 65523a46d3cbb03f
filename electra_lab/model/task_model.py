"""A pre-trained network with a task's layers on top, as an objective for the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from electra_lab.model.network import Network
from registry import Batch, Losses, Objective, Streams, Task

Rule = Literal["exact", "official"]


class TaskModel(Objective, nn.Module):
    """The network without the heads of pre-training, and the task's layers.

    frozen  True if the network learns nothing and stays in eval mode
    """

    def __init__(self, network: Network, task: Task, dropout: float, *, frozen: bool = False) -> None:
        super().__init__()
        network.heads = nn.ModuleDict()
        self.network, self.head, self.task, self.frozen = network, task.head(network.dim, dropout), task, frozen
        if frozen:
            network.requires_grad_(False)
        short, long = (self._shapes(length) for length in (2, 3))
        self.of_tokens = {name for name in short if short[name] != long[name]}  # outputs with a value per token

    @torch.no_grad()
    def _shapes(self, length: int) -> dict[str, torch.Size]:
        """Return the shapes of the outputs in evaluation of a row of that length."""
        tokens = torch.zeros(1, length, dtype=torch.int64)
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.ones_like(tokens), tokens[:, 0])
        outputs = self._outputs(self.head.eval(), torch.zeros(1, length, self.network.dim), batch)
        self.head.train()
        return {name: output.shape for name, output in outputs.items()}

    def train(self, mode: bool = True) -> TaskModel:
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        outputs = self.outputs(batch)
        terms = self.task.losses(outputs, batch) if batch.labels else {}
        return Losses(dict(terms), outputs={} if self.training else self.task.kept(outputs))

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the complete outputs of the head, in float32."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.network.hidden(
                batch.tokens, batch.attention_mask, batch.segments, batch.attention_document_ids
            )
        return self._outputs(self.head, hidden, batch)

    @torch.no_grad()
    def counts(self, batch: Batch, rng: Streams) -> dict[str, Tensor]:
        """Return the counts of the terms, which states do not change."""
        states = torch.zeros(*batch.tokens.shape, self.network.dim, device=batch.tokens.device)
        outputs = self._outputs(self.head, states, batch)
        return {name: term.count for name, term in self.task.losses(outputs, batch).items()}

    @staticmethod
    def _outputs(head: nn.Module, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        returned: Tensor | Mapping[str, Tensor] = head(states, batch)
        named = {"logits": returned} if isinstance(returned, Tensor) else returned
        return {name: output.float() for name, output in named.items()}


class Predicting(Objective, nn.Module):
    """One or several models of a task, whose outputs are averaged; without labels and losses.

    models  models of several seeds, which read the same rows
    """

    def __init__(self, models: Sequence[TaskModel]) -> None:
        super().__init__()
        self.models, self.task = nn.ModuleList(models), models[0].task

    def forward(self, batch: Batch, rng: Streams) -> Losses:
        of_models = [model.outputs(batch) for model in self.models]  # type: ignore[operator]
        outputs = of_models[0]
        if len(of_models) > 1:
            assert self.task.average, "the caller checks that the task can average"
            outputs = dict(self.task.average(of_models))
        return Losses({}, outputs=outputs if self.task.answers else self.task.kept(outputs))

    def counts(self, batch: Batch, rng: Streams) -> dict[str, Tensor]:
        return {}


def with_layer_rates(optimizer: Optimizer, model: TaskModel, decay: float, rule: Rule) -> Optimizer:
    """Split the optimizer's groups, so that each parameter learns at the rate of its layer.

    Clark et al. (2020), appendix B: the rate is that of the task's layers times decay^d, where d is 1 for the top
    layer of the encoder, one more for each layer below it, and one more again for the embeddings.
    """
    rates = {parameter: decay ** depth(rule) for parameter, depth in _depths(model)}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        shared = {key: value for key, value in group.items() if key != "params"}
        for rate in sorted({rates[parameter] for parameter in group["params"]}, reverse=True):
            parameters = [parameter for parameter in group["params"] if rates[parameter] == rate]
            groups.append({**shared, "params": parameters, "lr": group["lr"] * rate})
    optimizer.param_groups[:] = groups
    return optimizer


def _depths(model: TaskModel) -> Iterator[tuple[nn.Parameter, Any]]:
    """Yield each parameter with a function from the rule to its distance from the task's layers.

    Parameters of a backbone outside its layers, such as a last norm, belong to its top layer.
    """
    layers = list(model.network.backbone.layers)
    above: dict[nn.Parameter, int] = {}
    for number, layer in enumerate(layers):
        above |= dict.fromkeys(layer.parameters(), len(layers) - number)
    head = set(model.head.parameters())
    backbone = set(model.network.backbone.parameters())
    for parameter in model.parameters():
        if parameter in head:
            distance = 0
        elif parameter in backbone:
            distance = above.get(parameter, 1)
        else:
            distance = len(layers) + 1
        yield parameter, lambda rule, far=distance: far + (rule == "official" and far > 0)
