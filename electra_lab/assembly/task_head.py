"""The head of a task as a model of transformers has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electra_lab.pretrained.families import Config, prepare, reading, task_layers
from electra_lab.pretrained.hugging_face import CONFIG
from electra_lab.pretrained.trained_model import Part
from registry import tasks
from registry.errors import DataError

TASKS = {
    "ForSequenceClassification": "text_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
}


def kind_of_head(config: Mapping[str, Any]) -> str | None:
    """Return the class of a config.json that has the head of a task, None for anything else."""
    try:
        family, architectures = reading(config), config.get("architectures")
    except ValueError:  # a family that the lab refuses, with its reason, when it opens the model
        return None
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if family and family.detects(config):
        return None
    return next((kind for kind in task_layers(family) if first.endswith(kind)), None)


def outputs_of(kind: str, part: Part) -> int:
    """Return the number of outputs of a head, such as labels. Raises DataError if its layers are missing."""
    layers = task_layers(part.read_as)[kind]
    last = part.tensors.get(f"{layers.get('out', layers.get('span'))}.weight")
    if last is None:
        raise DataError(f"{part.path}: is a model {kind}, but its tensors lack the layers of that class.")
    return len(last)


def labels_of(config: Mapping[str, Any], outputs: int) -> list[str]:
    """Return the names of a head's outputs by a config.json."""
    numbers = [str(number) for number in range(outputs)]
    names = config.get("id2label") or {number: f"LABEL_{number}" for number in numbers}
    if not isinstance(names, dict) or {*names} != {*numbers} or len({*map(str, names.values())}) < outputs:
        raise DataError(f"{CONFIG}: id2label must name the outputs 0 to {outputs - 1}, each once; is {names!r:.60}.")
    return [str(names[number]) for number in numbers]


def task_of(kind: str, part: Part, facts: Mapping[str, Any], name: str = "", **options: Any) -> Any:
    """Return the task of a class, with facts such as its labels."""
    task: Any = tasks.get(name or TASKS[kind]).component(**options, head="transformers")
    task.set_labels(facts)
    prepare(task, part.read_as)
    return task


@torch.no_grad()
def fill_head(head: nn.Module, kind: str, part: Part, config: Mapping[str, Any]) -> None:
    """Fill a head, and let it compute as config.json says. Raises DataError if its tensors do not fit, ConfigError."""
    family, of_text = part.read_as, kind == "ForSequenceClassification"
    for layer, stored_name in task_layers(family)[kind].items():
        for name, parameter in head.get_submodule(layer).named_parameters():
            tensor: Tensor | None = part.tensors.get(f"{stored_name}.{name}")
            if tensor is None or tensor.shape != parameter.shape:
                has = "is missing" if tensor is None else f"has the shape {tuple(tensor.shape)}"
                raise DataError(f"{part.path}: {stored_name}.{name} {has}, not {tuple(parameter.shape)}.")
            parameter.copy_(tensor)
    if family and of_text:
        pooling = family.pooling(Config(config, str(part.path / CONFIG)))
        head.activation, head.mean = pooling  # type: ignore[assignment]
