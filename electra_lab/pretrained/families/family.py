"""A family of transformers' encoders that the lab reads into one of its backbones, and writes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.model.network import STANDARD_DEVIATION
from electra_lab.pretrained.families.names import Names
from registry import Task
from registry.errors import ConfigError

if TYPE_CHECKING:
    from electra_lab.pretrained.trained_model import Part

LARGEST = 1 << 24  # of a size, so that a damaged one is refused before memory is asked for
MOST_LAYERS = 1_000  # as in an experiment
Activation = Callable[[Tensor], Tensor]
Sections = tuple[dict[str, Any], dict[str, Any], int]  # backbone, embedding, size of the vocabulary


@dataclass(frozen=True)
class Config:
    """A config.json that is read key by key. Errors begin with its place."""

    values: Mapping[str, Any]
    place: str

    def refuse_others(self, fixed: Mapping[str, Any], backbone: str) -> None:
        """Raise ConfigError if a key says that the model computes otherwise than the backbone. A key may be absent."""
        for key, expected in fixed.items():
            value = self.values.get(key, expected)
            if value != expected:
                raise ConfigError(
                    f"{self.place}: {key} is {value!r}, but the lab's `{backbone}` computes with {expected!r}."
                )

    def size(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1 on. Raises ConfigError."""
        size, most = self.values.get(key, default), MOST_LAYERS if key == "num_hidden_layers" else LARGEST
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
            raise ConfigError(f"{self.place}: {key} is {size!r}; it must be a whole number from 1 to {most:,}.")
        return size

    def rate(self, key: str, default: float) -> float:
        """Return a rate of dropout. Raises ConfigError."""
        rate = self.values.get(key, default)
        if not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ConfigError(f"{self.place}: {key} is {rate!r}; it must be at least 0 and below 1.")
        return float(rate)

    def shape(self) -> dict[str, Any]:
        """Return the sizes that all backbones have: dim, depth, heads. Raises ConfigError."""
        dim, depth, heads = (self.size(f) for f in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        if dim % heads:
            raise ConfigError(f"{self.place}: num_attention_heads {heads} does not divide hidden_size {dim}.")
        return {"dim": dim, "depth": depth, "heads": heads}


def most_task_layers(dense: str, out: str) -> Mapping[str, Mapping[str, str]]:
    """Return the layers of tasks, by class, as most families have them.

    dense, out  names of the layers in the class for texts
    """
    return {
        "ForSequenceClassification": {"dense": dense, "out": out},
        "ForTokenClassification": {"out": "classifier"},
        "ForQuestionAnswering": {"span": "qa_outputs"},
    }


# The layers of tasks, by class: their names in the lab's own classes.
TASK_LAYERS: Mapping[str, Mapping[str, str]] = {
    "ForSequenceClassification": {"dense": "classifier.1", "out": "classifier.4"},
    "ForTokenClassification": {"out": "classifier.1"},
    "ForQuestionAnswering": {"span": "qa_outputs"},
}


class Family(ABC):
    """The classes of transformers for one backbone of the lab.

    model_type  value in config.json
    backbone    the lab's name of the encoder
    prefix      beginning of the names of its classes
    classes     endings of the classes, by head; without any, a network is written as an encoder alone
    beyond      switches of the backbone that its classes lack: with one on, a network is exported in the lab's format
    task_layers names of the layers of tasks: by class, and there by module of the task's head
    dropouts    the keys of config.json for the dropout in these classes
    """

    model_type: str
    backbone: ClassVar[str]
    prefix: str
    classes: ClassVar[Mapping[str, str]]
    beyond: ClassVar[tuple[str, ...]] = ()
    task_layers: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    dropouts: ClassVar[Sequence[str]] = ("classifier_dropout",)

    @abstractmethod
    def names(self, head: str) -> Names:
        """Return the names in the class for a head, '' for the encoder alone."""

    def detects(self, config: Mapping[str, Any]) -> bool:
        """Return True if a class that tasks have, too, is that of a discriminator."""
        return False

    def head_of(self, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> str:
        """Return the head on which the meaning of the names in a file depends."""
        return ""

    @abstractmethod
    def read(self, config: Config) -> Sections:
        """Return the sections of an experiment that describe the model. Raises ConfigError if none can."""

    def common(self, part: "Part") -> dict[str, Any]:
        """Return the keys of config.json that most families have."""
        return {
            "hidden_size": part.backbone["dim"],
            "num_hidden_layers": part.backbone["depth"],
            "num_attention_heads": part.backbone["heads"],
            "intermediate_size": part.tensors["backbone.layers.0.contract.weight"].shape[1],
            "max_position_embeddings": part.embedding["max_length"],
            "initializer_range": STANDARD_DEVIATION,
            "tie_word_embeddings": True,
        }

    def with_pad(self, part: "Part", pad: int) -> "Part":
        """Return the network for another padding token."""
        return part

    @abstractmethod
    def write(
        self, backbone: Mapping[str, Any], embedding: Mapping[str, Any], ids: Mapping[str, int], head: str
    ) -> dict[str, Any]:
        """Return the keys of config.json for these sections.

        ids   ids of special tokens, by role
        head  head that decides the class
        """

    def writes(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> bool:
        """Return True if the family has such a model."""
        return not self.lacking(backbone)

    def lacking(self, backbone: Mapping[str, Any]) -> list[str]:
        """Return the options of the backbone that are on and that transformers' classes lack."""
        return [option for option in self.beyond if backbone.get(option)]

    def limits(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> list[str]:
        """Return sentences on the limits of config.json."""
        return []

    def pooling(self, config: Config) -> tuple[Activation, bool]:
        """Return the activation after the layer `dense` of the class for texts, and whether it reads the mean state.

        Otherwise it reads the state of [CLS]. Raises ConfigError if the lab has no such class.
        """
        return F.gelu, False

    def shown_by(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return options of the backbone that the tensors show, under our names, and config.json does not."""
        return {}

    def tensors_in(self, tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
        """Return the tensors of a file in the lab's form, under our names."""
        return tensors

    def tensors_out(self, tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
        """Return tensors under transformers' names in the form of its class."""
        return tensors


def task_layers(family: Family | None) -> Mapping[str, Mapping[str, str]]:
    """Return, by class, the names of the layers of tasks in a family, or in the lab's own classes."""
    return family.task_layers if family else TASK_LAYERS


def prepare(task: Task, family: Family | None) -> None:
    """Tell a task that asks for them the layers of the class that its fine-tuned models may become."""
    if kind := task.exports_as:
        task.layers = tuple(task_layers(family).get(kind, {}) or TASK_LAYERS.get(kind, {}))


def task_class(
    family: Family | None, kind: str | None, head: nn.Module
) -> tuple[Family | None, Mapping[str, str]] | None:
    """Return the family, None for the lab's own, whose class of a task has exactly the layers of a head.

    With it come the names of the layers there. None if no class has these layers.
    """
    layers = {name.rpartition(".")[0] for name, _ in head.named_parameters()}
    for owner in (family if family and family.classes else None, None):
        places = task_layers(owner).get(kind or "", {})
        if places and places.keys() == layers:
            return owner, places
    return None
