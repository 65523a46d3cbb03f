"""Text and batches: random numbers, the vocabulary, batches, corpora, tokenizers, packings.

Letters in shapes: B rows of a batch, T positions, K masked slots per row, V vocabulary size, D width, N = B * K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Bool, Float32, Int
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from torch import Tensor

    IndexArray = NDArray[np.int64]


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
    # At most how many documents attention separates in each row, and pieces of padding; without documents, at most how
    # many pieces of text and padding. On the CPU, wherever the batch is. None if it is not known, if a document of a
    # row continues after another one, or if there are neither. An objective that gives documents to a network gives it
    # rows with at most as many, without holes.
    document_counts: Int[Tensor, " B"] | None = None
    full: bool = False  # the host knows that no row has padding

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
            self.full,
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

        part  numbers of the batches to yield; no others are read
        """

    def example_ids(self, places: Sequence[int]) -> list[int]:
        """Return the example ids of the rows at some places of `in_order`."""


Split = Literal["train", "validation", "test"]
Unit = Literal["records", "lines", "bytes", "ends of files"]  # the size of an end is unknown

LONGEST = 1_000_000  # characters; longer documents are cut at a space to bound memory
LONGER = r"(?<!\S)\S{{{},}}"  # the regular expression of words that are too long for k-mers; see `Corpus`


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its use.

    key      documents with the same key are in the same split, which depends on the key alone; by default the text
    split    split, if the corpus decides it
    again    True for a repetition, which gives the text more weight in training; held-out text is never repeated
    removed  True if an option of the corpus removed a part of the text; `prepare` counts these documents
    begins   True for the first part of a record, such as a sequence; `prepare` counts these, too
    """

    text: str
    key: str | None = None
    split: Split | None = None
    again: bool = False
    removed: bool = False
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A piece of the source that cannot be read, and that the user chose to skip."""

    place: str  # file and line
    reason: str
    number: int = 1  # number of skipped units
    unit: Unit = "records"


class Corpus(Protocol):
    """A source of text. Registered as a class: __init__(self, /, *, <options>).

    A corpus that reads files may have a method `files`, which returns the files that it reads and the other files in
    its folders, as two lists; `prepare` shows both. One that changes text, such as lower case, may have a method
    `changes`, which returns replacements by regular expression, in order: {"a": "A"}. They become a part of the
    tokenizer, so that text in use is changed too. {LONGER.format(k + 1): "?"} stands for overlapping k-mers.
    """

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        """Yield the documents, in an order that depends on the content alone.

        A string is a document with itself as its key. Raises DataError for a source that cannot be read, or that has
        changed since `fingerprint` returned its hash.
        """

    def fingerprint(self) -> str:
        """Return a hash of the content, which changes whenever the documents change. Raises DataError."""


def pieces(text: str) -> list[str]:
    """Return a text as documents without white space around them: one, several if it is too long, or none."""
    documents, rest = cut(text)
    rest = rest.rstrip()
    return [*documents, rest] if rest else documents


def cut(text: str) -> tuple[list[str], str]:
    """Cut documents of at most LONGEST characters off a text that may go on, at white space if there is some.

    The rest has at most LONGEST characters.
    """
    documents = []
    while len(text := text.lstrip()) > LONGEST:
        head = text[: LONGEST + 1]
        words = head.rsplit(None, 1)
        end = LONGEST if head[-1].isspace() or len(words) == 1 else len(words[0])
        documents.append(head[:end].rstrip())
        text = text[end:]
    return documents, text


# The special tokens that a tokenizer needs, as BERT, RoBERTa, T5, GPT-2 and similar models call them; the first that it
# has is used. A token for unknown text is optional, as byte-level tokenizers have no unknown text.
SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>", "<mask_1>"),
}
# The files of a folder that are tokenizers; the first that is there is read.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
UNKNOWN = ("[UNK]", "<unk>", "<|unk|>")


class TokenizerTrainer(Protocol):
    """Train a tokenizer on documents. It must have the SPECIAL_TOKENS.

    Registered as a function. `@tokenizers.register(name, trained=False)` declares that it ignores the documents. Then
    the lab also calls it without documents: to check its options before a corpus is read, to find the size of the
    vocabulary, and to identify the token store by the content of the tokenizer instead of its options.
    """

    def __call__(self, documents: Iterable[str], /, *args: Any, **options: Any) -> Tokenizer: ...


class Tokens(Protocol):
    """The tokens of a split: consecutive documents, each followed by [SEP]."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """The number of tokens of each document, [SEP] included: at least 2."""

    def read(self, places: IndexArray) -> IndexArray:
        """Return the tokens at the places, in the shape of `places`."""


@dataclass(frozen=True)
class Packed:
    """Rows of tokens; numpy arrays."""

    tokens: IndexArray  # [B T]
    attention_mask: NDArray[np.bool_]  # [B T], True at real tokens
    segments: IndexArray  # [B T], 0 or 1
    # [B T], a number for each document of a row, -1 at padding; only if attention must separate documents
    documents: IndexArray | None = None


class Packing(Protocol):
    """A mapping of documents to rows of a fixed length. Registered as a class:

        __init__(self, tokens, length, vocabulary, /, *, <options>)

    `tokens` is a Tokens, `length` the number of tokens in a row, `vocabulary` a Vocabulary. Every token of every
    document is in exactly one row, in order; [CLS] and [SEP] may be added.

    lengths(rows)  optional: the number of real tokens in each row, which come first, without reading any; for packings
                   with rows that are not full, so that rows of similar lengths can be grouped
    source_document_ids(rows)  optional: the number of the document that each position is from, Int[B T], undefined at
                   positions that the packing added. Only evaluation reads it, for intervals over documents; without it
                   they are over rows

    `@packings.register(name, separates_documents=True)` declares that rows carry `documents`, so that the networks must
    separate them; it may be a function of the options. `crosses_documents` declares that a row may hold more than one.
    """

    def __len__(self) -> int:
        """Return the number of rows."""

    def rows(self, rows: IndexArray, /) -> Packed:
        """Return the rows of some numbers, a function of the numbers alone. Called for every batch."""

    def __init__(self, *args: Any, **options: Any) -> None: ...
