"""Random numbers, the vocabulary, and batches.

Letters in shapes: B rows of a batch, T positions, K masked slots per row, V vocabulary size, D width, N = B * K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float32, Int
    from torch import Tensor


class Random(Protocol):
    """Random numbers as a pure function of (seed, step, purpose, example id)."""

    def uniform(self, rows: int, *shape: int) -> Float32[Tensor, " rows *shape"]:
        """Return numbers in the open interval (0, 1); each call gives fresh ones.

        `rows` must be a multiple m of the number of examples: row r belongs to example r // m.
        """

    def in_parts(self, some: int, rows: int, *shape: int) -> Iterator[Float32[Tensor, " some *shape"]]:
        """Yield the numbers of one call of `uniform`, `some` rows at a time, with the remaining rows last.

        On the CPU, the lab's implementation never holds all of them in memory.
        """
        return iter(self.uniform(rows, *shape).split(some))  # type: ignore[no-untyped-call]  # torch's


class Streams(Protocol):
    """The random numbers of one step: a Random for each purpose."""

    def __call__(self, purpose: str) -> Random: ...


@dataclass(frozen=True)
class Vocabulary:
    """The part of the tokenizer that components may see. Tensors live on the device of the batch."""

    size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]  # pad, cls, sep, mask; [UNK] is ordinary: it can be masked, as in the official code
    is_special: Bool[Tensor, " V"]
    ordinary_ids: Int[Tensor, " O"]  # every id that is not special
    word_start: Bool[Tensor, " V"]  # the token begins a word
    counts: Int[Tensor, " V"]  # occurrences of the token in the training split
    sentence_end: Bool[Tensor, " V"] | None = None  # the token ends a sentence; None if unknown


@dataclass(frozen=True)
class BatchSizes:
    """The rows of each step: `full`, after a warm-up from `start` that adds `increment` rows every `every` steps."""

    full: int
    start: int = 0  # 0 without a warm-up
    increment: int = 1
    every: int = 1

    @classmethod
    def of(cls, train: Mapping[str, Any]) -> BatchSizes:
        """Return those of a config's section `train`, as a file of a run holds it."""
        return cls(train["batch_size"], **(train.get("batch_warmup") or {}))

    @property
    def warmup(self) -> int:
        """The number of steps with fewer rows."""
        return self.every * -(-(self.full - self.start) // self.increment) if self.start else 0

    def at(self, step: int) -> int:
        """Return the rows of a step."""
        return self.start + step // self.every * self.increment if step < self.warmup else self.full

    def before(self, step: int) -> int:
        """Return the rows of all earlier steps."""
        early = min(step, self.warmup)
        times, rest = divmod(early, self.every)  # increments so far, and the steps since the last one
        added = self.increment * (self.every * times * (times - 1) // 2 + rest * times)
        return early * self.start + added + (step - early) * self.full


@dataclass(frozen=True)
class Batch:
    """Rows of the global batch."""

    tokens: Int[Tensor, "B T"]
    attention_mask: Bool[Tensor, "B T"]  # True at real tokens; padding may be on either side
    segments: Int[Tensor, "B T"]
    example_ids: Int[Tensor, " B"]  # each row's index in the global batch of this step
    # The document of its row that each position may attend to; None if rows are not split by document.
    attention_document_ids: Int[Tensor, "B T"] | None = None
    labels: Mapping[str, Tensor] = field(default_factory=dict)  # B rows each; in pre-training, of kept draws alone
    # The document of the split that each position is from, undefined at special tokens. Only in evaluation, and None if
    # the packing does not provide it.
    source_document_ids: Int[Tensor, "B T"] | None = None
    # Each row's number in the training text, the same in every epoch. None outside training, and if it is not known.
    row_ids: Int[Tensor, " B"] | None = None
    # How many documents attention separates in each row, and pieces of padding; on the CPU, wherever the batch is. None
    # if it is not known, or if a document of a row continues after another one. An objective that gives documents to a
    # network gives it rows with at most as many, without holes.
    document_counts: Int[Tensor, " B"] | None = None

    def __getitem__(self, rows: slice) -> Batch:
        attended, source = self.attention_document_ids, self.source_document_ids
        return Batch(
            self.tokens[rows],
            self.attention_mask[rows],
            self.segments[rows],
            self.example_ids[rows],
            None if attended is None else attended[rows],
            {name: label[rows] for name, label in self.labels.items()},
            None if source is None else source[rows],
            None if self.row_ids is None else self.row_ids[rows],
            None if self.document_counts is None else self.document_counts[rows],
        )

    def __len__(self) -> int:
        return self.tokens.shape[0]


class Batches(Protocol):
    """The data that training and evaluation read."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def training_batch(
        self, seed: int, step: int, size: int | BatchSizes, device: torch.device, *, part: slice = slice(None)
    ) -> Batch:
        """Return the rows `part` of the global batch of a step, which is a function of (seed, step, size) alone."""

    def in_order(self, size: int, device: torch.device, *, part: slice = slice(None)) -> Iterator[Batch]:
        """Yield every row once, `size` rows at a time; example ids do not depend on `size`.

        part  the numbers of the batches to yield; no others are read
        """

    def example_ids(self, places: Sequence[int]) -> list[int]:
        """Return the example ids of the rows at the given places of `in_order`."""
