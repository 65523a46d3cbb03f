"""Objectives: what the networks learn, the metrics that come with it, and the processes that share a run."""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from registry.contracts.data import Batch, BatchSizes, Streams
from registry.contracts.training import Heads, Metric, options_by_name

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor
    from torch.nn import Module
else:
    Module = object  # listing components must not import torch; see Objective


@dataclass(frozen=True)
class Term:
    """A mean as a (sum, count), so that the loop can divide by the count of the global batch: a term of a loss."""

    sum: Float[Tensor, ""] | Int[Tensor, ""]  # an integer only of a metric
    count: Int[Tensor, ""]
    weight: float | Float[Tensor, ""] = 1.0  # of a term in the loss


@dataclass(frozen=True)
class Detection:
    """The input and the output of a discriminator, for metrics."""

    inputs: Int[Tensor, "B T"]  # with the replacements in place
    replaced: Bool[Tensor, "B T"]  # the labels
    logits: Float[Tensor, "B T"]  # positive for "replaced"


@dataclass(frozen=True)
class Prediction:
    """The predictions of a masked language model, for metrics."""

    positions: Int[Tensor, "B K"]
    valid: Bool[Tensor, "B K"]  # the slots that count
    saw_mask: Bool[Tensor, "B K"]  # the network saw [MASK] there, not a token
    loss: Float[Tensor, "B K"]  # in nats
    correct: Bool[Tensor, "B K"]  # its most likely token is the original


@dataclass(frozen=True)
class Choice:
    """The candidates of a discriminator and its logits for them, for metrics."""

    positions: Int[Tensor, "B N"]
    valid: Bool[Tensor, "B N"]  # the slots that count
    candidates: Int[Tensor, "B N k"]  # token ids
    logits: Float[Tensor, "B N c"]  # of the candidates; if c is k + 1, the first is that of "none of them"
    answer: Int[Tensor, "B N"]  # the index of the right logit


@dataclass(frozen=True)
class Losses:
    """The result of an objective: named terms and, in eval mode, the input of its metrics."""

    terms: Mapping[str, Term]
    predictions: Mapping[str, Prediction] = field(default_factory=dict)  # by network, `generator` or `discriminator`
    detection: Detection | None = None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # of a task's head, B rows each
    metrics: Mapping[str, Term] = field(default_factory=dict)  # means, by names that the objective's `metrics` declares
    choice: Choice | None = None
    # In training, what the objective will remember of its rows: int64 tensors of B rows, by the names in `row_memory`.
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A test row as the discriminator saw it: token ids, and the probability of "replaced" at each."""

    originals: list[int]
    inputs: list[int]
    probabilities: list[float]


class Accumulator(Protocol):
    """The metrics of an evaluation, collected batch by batch.

    gains()  optional: {metric}_gain, _gain_low, _gain_high and _gain_documents for metrics that have baselines, all
             numbers; reports make a verdict of those that they know
    """

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that `values` may have, by name."""

    def update(self, batch: Batch, losses: Losses) -> None: ...

    def merge(self, other: Any) -> None:
        """Add the batches that another accumulator of this kind has seen."""

    def values(self) -> dict[str, float]:
        """Return the metrics of all batches seen so far."""

    def examples(self) -> list[Example]:
        """Return the rows that the accumulator shows as examples."""


@dataclass(frozen=True)
class Needs:
    """The inputs that an objective asks for. A key of the experiment that it does not need is refused."""

    generator: bool = True
    sampler: bool = True
    heads: Heads = ("replaced",)  # of the discriminator
    generator_heads: Heads = ("tokens",)

    @property
    def all_heads(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The name and the options of each head of either network."""
        return [*options_by_name(self.heads).items(), *options_by_name(self.generator_heads).items()]

    @staticmethod
    def of(objective: Any, options: Mapping[str, Any]) -> Needs:
        """Return the needs of an objective with these options."""
        needs: Needs = objective.needs(options) if callable(objective.needs) else objective.needs
        return needs


@dataclass(frozen=True)
class Setup:
    """The parts of an experiment that may conflict with an objective."""

    generator: Literal["network", "fixed"] | None  # "fixed" learns nothing
    tie: str  # embedding.tie, as YAML has it
    unbiased: bool | None  # the sampler draws from the generator's softmax at every step; None without a sampler
    steps: int | None  # of training; None while a budget has not been turned into steps
    starts: frozenset[str] = frozenset()  # the networks whose weights `init` names
    separates: bool = False  # a row may hold several documents, each of which sees only itself
    generator_is_masked_lm: bool = False  # its prediction at a position does not depend on the token there


FULL = BatchSizes(1)  # every batch is full


@dataclass(frozen=True)
class Flops:
    """The cost of training: `per_step`, of a cycle its average, but for the `first` steps, which cost `at_first` each.

    batches  numbers of rows of the steps; both prices are for a full batch
    """

    per_step: int
    first: int = 0
    at_first: int = 0
    batches: BatchSizes = FULL

    def total(self, steps: int) -> int:
        rows, early = self.batches.before(steps), self.batches.before(min(steps, self.first))
        return (early * self.at_first + (rows - early) * self.per_step) // self.batches.full

    def steps(self, budget: float) -> int:
        """Return the number of steps that `budget` pays for."""
        return bisect_right(range(sys.maxsize), budget, key=self.total) - 1


class Price(Protocol):
    """The FLOPs that a network takes in one step, over the global batch."""

    def __call__(
        self,
        network: Literal["generator", "discriminator"],
        *,
        learns: bool = True,
        everywhere: bool = False,
        share: float = 1.0,
        heads: Collection[str] | None = None,
    ) -> int:
        """Return the FLOPs of a forward pass and, if the network learns, of a backward pass.

        everywhere  True for vocabulary logits at every position instead of the masked ones only
        share       share of each row that is read
        heads       names of the heads that are read, by default all
        """


class Objective(Module):
    """The root module, which owns the networks. Registered as a class derived from this one and from nn.Module:

        class Mine(Objective, nn.Module):
            def __init__(self, generator, discriminator, masking, sampler, vocabulary, /, *, <options>)
            def forward(self, batch, rng: Streams) -> Losses
            def counts(self, batch, rng: Streams)

    `discriminator` is the model that remains. All other members have defaults:

    needs             Needs of the objective, or a static method from the options to them: parts not needed are None
    detection_term    name of the term that is the plain binary cross-entropy of `Losses.detection`; None without one.
                      An option that weights tokens sets it to None, in `__post_init__`
    detection_labels  label that the discriminator predicts for each token: "replaced", or "masked", which also
                      holds for draws that equal the original
    trains_generator  terms that reach the generator; those whose names begin with "generator" always do. A law holds
                      for all others
    group             number of consecutive rows of a batch that a loss couples; the lab refuses batches and
                      micro-batches that are not multiples of it
    metrics           Metric for each name in `Losses.metrics`
    row_memory        tensors with a row for each training row, by name; in checkpoints, but not in models. The lab
                      writes `Losses.memory` into it after each step that was taken, on all ranks; if a row is in the
                      batch twice, the later one counts. Compiled code only reads it
    """

    needs: ClassVar[Any] = Needs()
    detection_term: str | None = "discriminator"
    detection_labels: ClassVar[Literal["replaced", "masked"]] = "replaced"
    trains_generator: Collection[str] = ()
    group: int = 1
    metrics: Mapping[str, Metric] = MappingProxyType({})
    row_memory: Mapping[str, Tensor] = MappingProxyType({})

    @abstractmethod
    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """Return the divisors of the terms, without a network. All steps have all terms, absent ones with count 0."""

    def at_step(self, seed: int, step: int) -> None:
        """Prepare for a step, the only place where an objective may change over time."""

    def accumulator(self, show: Collection[int]) -> Accumulator | None:
        """Return an accumulator of metrics; None for those of `predictions`, `detection`, `choice` and `metrics`.

        show  indices of rows to return as examples
        """
        return None

    @classmethod
    def conflicts(cls, setup: Setup, options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        """Return (key, sentence) for everything in the Setup that does not go with this objective."""
        return ()

    def flops(self, price: Price) -> Flops:
        """Return the cost of training; by default both networks learn at every step."""
        return Flops(price("generator") + price("discriminator"))

    def allocate(self, rows: int, length: int, slots: int, device: torch.device) -> None:
        """Create `row_memory` before training.

        rows    number of rows of the training data
        length  number of tokens of a row
        slots   number K of slots of such a row
        """

    def earlier_runs(self) -> Mapping[str, Path]:
        """Return the run directories whose weights the objective starts from, by the name of its network."""
        return {}


Evaluated: TypeAlias = "tuple[Batch, Losses]"  # a batch of an evaluation, and the objective's result


class World:
    """One process alone, for which nothing needs to be exchanged; electra_lab.parallel.group.Group is for several.

    Every method but `part` is a meeting: all ranks must call the same ones in the same order.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """This is rank 0, which writes, prints and does alone what must be done once."""
        return self.rank == 0

    def part(self, rows: int) -> slice:
        """Return this rank's rows of a global batch; `rows` is a multiple of the number of ranks."""
        share = rows // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks, on the device, without waiting for it."""
        return dict(scalars)

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, in the order of ranks; each gives a tensor of the same shape."""
        return rows

    def synchronize(self, module: Module, wanted: bool) -> None:
        """Set whether the next backward pass through `module` sums the gradients over all ranks."""

    def gathered(self, module: Module) -> AbstractContextManager[None]:
        """Gather all of the module's parameters on every rank inside the block, which then needs no exchange."""
        return nullcontext()

    def in_turn(self, results: Iterator[Evaluated]) -> Iterator[Evaluated]:
        """Yield the items of all ranks in turn, one of each at a time; only rank 0 receives them."""
        return results

    def once(self, work: Callable[[], str]) -> str:
        """Return the result of `work`, which rank 0 does while the others wait, for days if necessary."""
        return work()

    def agreed(self, number: int) -> int:
        """Return the largest number that a rank gave in the previous call, the same on all ranks.

        The previous call, so that the exchange overlaps with the device's work. With one process it is the number
        itself.
        """
        return number

    def wait(self) -> None:
        """Wait until all ranks are here, for days if necessary."""


ALONE = World()
