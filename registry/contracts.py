"""What crosses the border between the lab and a component: Protocols and frozen values, with shapes.

Letters: B rows of a batch, T positions, K masked slots a row, V vocabulary, D width, N = B * K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float32, Float64, Int
    from tokenizers import Tokenizer
    from torch import Tensor, nn


class Random(Protocol):
    """Random numbers as a pure function of (seed, step, purpose, index of the example in the global batch)."""

    def uniform(self, rows: int, *shape: int) -> Float32[Tensor, "rows *shape"]:
        """Numbers in the open interval (0, 1); each call gives fresh ones.

        `rows` is a multiple m of the examples: row r belongs to example r // m.
        """
        ...


@dataclass(frozen=True)
class Vocabulary:
    """What components may know of the tokenizer. Tensors live on the device of the batch.

    special_ids  pad, cls, sep, mask; [UNK] is an ordinary token, it can be masked (as in google-research/electra)
    is_special   Bool[V]
    ordinary_ids Int[V - specials]: every id that is not special
    word_start   Bool[V]: the token begins a word
    counts       Int[V]: how often the token occurs in the training split
    """

    size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    is_special: Bool[Tensor, "V"]
    ordinary_ids: Int[Tensor, "O"]
    word_start: Bool[Tensor, "V"]
    counts: Int[Tensor, "V"]


@dataclass(frozen=True)
class Batch:
    """Rows of the global batch.

    tokens Int[B T], mask Bool[B T] (True = real token, right or left padded), segments Int[B T],
    examples Int[B]: each row's index in the global batch of this step.
    """

    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"]
    examples: Int[Tensor, "B"]

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(self.tokens[rows], self.mask[rows], self.segments[rows], self.examples[rows])

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True)
class Masked:
    """What a masking strategy returns.

    inputs Int[B T] for the generator; positions Int[B K] of the predicted tokens, distinct within a row where valid;
    valid Bool[B K] says which slots count.
    """

    inputs: Int[Tensor, "B T"]
    positions: Int[Tensor, "B K"]
    valid: Bool[Tensor, "B K"]


@dataclass(frozen=True)
class Term:
    """One term of a loss as a (sum, count), so that the loop can divide by the count of the global batch."""

    sum: Float[Tensor, ""]
    count: Int[Tensor, ""]
    weight: float | Float[Tensor, ""]


@dataclass(frozen=True)
class Detection:
    """What a discriminator was shown and what it said, for metrics.

    inputs Int[B T] with the replacements in place; replaced Bool[B T], the labels; logits Float[B T].
    """

    inputs: Int[Tensor, "B T"]
    replaced: Bool[Tensor, "B T"]
    logits: Float[Tensor, "B T"]


@dataclass(frozen=True)
class Prediction:
    """What a masked language model was asked and what it said, for metrics.

    positions Int[B K], valid Bool[B K], hidden Bool[B K] (it saw [MASK] there, not a token), loss Float[B K] in nats,
    correct Bool[B K] (its most likely token is right).
    """

    positions: Int[Tensor, "B K"]
    valid: Bool[Tensor, "B K"]
    hidden: Bool[Tensor, "B K"]
    loss: Float[Tensor, "B K"]
    correct: Bool[Tensor, "B K"]


@dataclass(frozen=True)
class Losses:
    """An objective's result: named terms, and what evaluation measures.

    predictions  by network, `generator` or `discriminator`: what it said of the masked tokens
    """

    terms: Mapping[str, Term]
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    detection: Detection | None = None


@runtime_checkable
class Backbone(Protocol):
    """An encoder; the lab owns embeddings, padding, heads. Registered as a class, an nn.Module:

        __init__(self, dim, depth, heads, max_length, /, *, <options>)

    layers           the modules of each depth
    length_multiple  the lab pads T up to a multiple of it
    positions        "lab": the lab adds learned positions; "own": the backbone knows positions itself
    flops(length)    floating point operations of the matrix products of one forward pass over one row, 2 a
                     multiply-add; may be left out, then the lab counts them with torch
    """

    layers: nn.ModuleList | list[nn.Module]
    length_multiple: int
    positions: str

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """mask True = real token. What padding holds must not change real positions."""
        ...

    def at_step(self, seed: int, step: int) -> None:
        """The only place where a backbone may change over time; in eval its output is a function of the input."""
        ...


class MaskingStrategy(Protocol):
    """Choose what the generator has to predict, and what it sees there instead.

    Every row has K = ceil(mask_prob * T - 1e-9) slots. A mask_prob that follows a schedule arrives as a Float64[""], so
    that compiled code is not compiled anew; then any number of slots will do, those that count first.
    """

    def __call__(
        self,
        tokens: Int[Tensor, "B T"],
        maskable: Bool[Tensor, "B T"],
        vocabulary: Vocabulary,
        rng: Random,
        /,
        *,
        mask_prob: float | Float64[Tensor, ""],
        replace_prob: float,
        random_prob: float,
    ) -> Masked: ...


class Sampler(Protocol):
    """Draw one token a row. The lab casts logits to float32 and puts special ids at -inf before it calls."""

    def __call__(self, logits: Float32[Tensor, "N V"], rng: Random, /) -> Int[Tensor, "N"]: ...


class Network(Protocol):
    """What an objective sees of a network; `dim` is the width D of its states."""

    dim: int

    def hidden(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], segments: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]: ...

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]: ...

    def replaced_logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]: ...


class Generator(Protocol):
    """A generator that learns nothing, in the place of a network. Registered as a class, an nn.Module:

    __init__(self, vocabulary, /, *, <options>)

    What an objective needs of a generator network, and its `dim`.
    """

    dim: int

    def hidden(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], segments: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]: ...

    def token_logits(self, hidden: Float[Tensor, "B T D"], positions: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]: ...


class Schedule(Protocol):
    """A number that changes while training."""

    def __call__(self, progress: float, /, **options: Any) -> float:
        """`progress` goes from 0 at the first step to 1 at the last."""
        ...


class Streams(Protocol):
    """The random numbers of one step: a Random for each purpose."""

    def __call__(self, purpose: str) -> Random: ...


@dataclass(frozen=True)
class Needs:
    """What an objective is handed. A key of the experiment that it does not need is refused.

    generator    a generator network beside the network under study
    head         of the network under study: `replaced` for detection, `tokens` for vocabulary logits
    everywhere   the network under study predicts tokens at every position, not only at the masked ones
    sampler      a sampler
    unbiased     it must draw from the generator's own softmax
    learning     the generator must be a network
    untied       the two networks may share no parameter
    first_stage  the option that holds the number of steps of a first stage, which must be fewer than all
    frozen       the option that holds the run directory whose generator is loaded, and never trained
    """

    generator: bool = True
    head: Literal["replaced", "tokens"] = "replaced"
    everywhere: bool = False
    sampler: bool = True
    unbiased: bool = False
    learning: bool = False
    untied: bool = False
    first_stage: str | None = None
    frozen: str | None = None


class Objective(Protocol):
    """The root module that owns both networks. Registered as a class, an nn.Module:

    __init__(self, generator, discriminator, masking, sampler, vocabulary, /, *, <options>)

    `needs`, a Needs, says what of this is there; the rest is None. `discriminator` is the network under study.
    A method at_step(seed, step), as backbones have, is called before every step if there is one.
    """

    needs: Needs

    def forward(self, batch: Batch, rng: Streams) -> Losses: ...

    def counts(self, batch: Batch, rng: Streams) -> Mapping[str, Int[Tensor, ""]]:
        """The counts of the terms, found without running a network: what micro-batches are divided by."""
        ...


class Corpus(Protocol):
    """Text. Registered as a class: __init__(self, /, *, <options>)."""

    def __iter__(self) -> Iterator[str]:
        """The documents, in an order that depends on the content alone."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the documents change; cheaper than reading them where that is possible."""
        ...


class TokenizerTrainer(Protocol):
    """Train a tokenizer on documents; it must know [PAD], [UNK], [CLS], [SEP] and [MASK]."""

    def __call__(self, documents: Iterable[str], /, **options: Any) -> Tokenizer: ...


@dataclass(frozen=True)
class Outcome:
    """What became of a piece of work.

    done       it is finished, now or before
    failed     `error` says why; the same again would fail again
    lost       `error` says why: the process died, the disk was full; it may work the next time
    preempted  it was asked to stop, and saved what it had
    elsewhere  another process is at it
    """

    status: Literal["done", "failed", "lost", "preempted", "elsewhere"]
    error: str = ""


class Launcher(Protocol):
    """Runs independent pieces of work, each given as (folder, id), on this machine or others that see the folder.

    Registered as a generator function: launcher(work, folder, ids, /, *, workers, threads, <options>)
    """

    def __call__(
        self,
        work: Callable[[str, str], Outcome],
        folder: str,
        ids: Sequence[str],
        /,
        *,
        workers: int,
        threads: int,
    ) -> Iterator[tuple[str, Outcome]]:
        """Call work(folder, id) once for each id, in other processes, at most `workers` at a time, and yield what came
        of each as soon as it comes. `work` is a module's function or a functools.partial of one. Without ids it
        yields nothing, and raises ConfigError if what it needs is not here.

        A process that dies is a `lost` piece, an exception of `work` a `failed` one; the others go on. Closing the
        iterator (or Ctrl-C, or SIGTERM) asks what runs to stop and waits for it.
        """
        ...


@dataclass(frozen=True)
class Trained:
    """A finished run, as measures see it.

    network     the network under study, in eval mode, with the weights of the end
    detects     it says which tokens were replaced; else it predicts tokens
    held_out    held_out(n) gives the whole held-out split, n rows at a time, in the same order always
    train       the same of the text that it was trained on
    metrics     the last held-out record of its metrics.jsonl
    """

    network: Network
    detects: bool
    held_out: Callable[[int], Iterable[Batch]]
    train: Callable[[int], Iterable[Batch]]
    vocabulary: Vocabulary
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Quantity:
    """A number that a measure gives.

    summary           what it is, in one sentence
    higher_is_better  which way is good
    own_task          each cell is measured on a task of its own, such as the replacements of its own generator; then a
                      better number is no better network, and reports call it higher or lower only
    """

    summary: str
    higher_is_better: bool = True
    own_task: bool = False


class Measure(Protocol):
    """What the cells of an ablation are compared by. Registered as a class: __init__(self, /, *, <options>).

    quantities  by name; the first is the one that matters most. A run that has no such number leaves it out
    same_rows   the cells must read the same rows: equal corpus, tokenizer and data
    """

    quantities: Mapping[str, Quantity]
    same_rows: bool

    def reference(self, base: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Sections of the base's filled-in config written anew, to make one more experiment, which is trained for this
        measure alone; None if it needs none."""
        ...

    def prepare(self, run: Trained, reference: Trained | None, folder: Path) -> None:
        """Make what all cells share and write it into `folder`. Called once, with any one of the cells."""
        ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        """Its numbers of a run; no gradient is recorded, autocast is on where the run had it."""
        ...
