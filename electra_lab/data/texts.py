"""Texts as batches of tokens."""

from __future__ import annotations

import re
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from unicodedata import category, normalize

import torch

from electra_lab.data.encoding import SpecialNames, unknown_characters
from electra_lab.data.vocabulary import kmers_of, replacements, unknown_id, word_mark
from electra_lab.storage.files import tokenizer_failures
from registry import Batch, Vocabulary
from registry.errors import DataError, Stopped, UnknownText

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")
More = Callable[[float], bool]  # see inference.pair.Pair.stream
CHUNK = 64  # batches whose texts a stream holds at once, if they have no more characters than this:
CHARACTERS = 1 << 18  # their tokens and results take about a hundred megabytes
PATIENCE = 0.2  # seconds that a text waits for others of its batch
MUCH = 0.1  # share of a text whose unknown characters are pointed out
JOINERS = "\u200c\u200d"


@dataclass(frozen=True)
class Tokenized:
    """A text's tokens, without special ones."""

    text: str
    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]  # of each token in the text, in characters
    words: Sequence[int | None] = ()  # the number of each token's word; None for special tokens
    unknown: float = 0.0  # share of the characters, white space left out, that are read as the unknown token

    def replaced(self, new: Mapping[int, int]) -> Tokenized:
        """Return a copy with other ids at some places."""
        return replace(self, ids=[new.get(i, id) for i, id in enumerate(self.ids)])


@dataclass(frozen=True)
class Window:
    """A part of a text that the network reads at once."""

    text: int  # number of the text
    first: int  # number of its first token here
    length: int
    keep: range  # the tokens of the text whose results are taken from this window: those far from its ends

    @property
    def inside(self) -> slice:
        """The positions in the row, which begins with [CLS], of the tokens whose results count."""
        return slice(self.keep.start - self.first + 1, self.keep.stop - self.first + 1)


@tokenizer_failures()
def tokenize(tokenizer: Tokenizer, texts: Sequence[str], *, with_masks: bool = False) -> list[Tokenized]:
    """Split texts into tokens, with offsets as `places` returns them. Raises DataError.

    Warns of a text of which more than a tenth is unknown.

    with_masks  True if "[MASK]" in a text is the special token, not characters
    """
    before, tokenizer.encode_special_tokens = tokenizer.encode_special_tokens, not with_masks
    special, mark, tokenized = SpecialNames(tokenizer), word_mark(tokenizer), list[Tokenized]()
    replaced = [pattern for pattern, name in replacements(tokenizer) if name in ("<address>", "<hex>", "<number>")]
    k, unknown = kmers_of(tokenizer), unknown_id(tokenizer)
    try:
        # A lone surrogate has no bytes; a question mark in its place keeps the offsets.
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        kmers = [as_kmers(text, k, special.names if with_masks else None) if k else None for text in clean]
        clean = [text if written is None else written for text, written in zip(clean, kmers, strict=True)]
        if len(clean) == 1:  # each thread of `encode_batch` would keep the memory of a long text
            encodings = [tokenizer.encode(clean[0], add_special_tokens=False)]
        else:
            encodings = tokenizer.encode_batch(clean, add_special_tokens=False)
        for text, written, encoding, of_kmers in zip(texts, clean, encodings, kmers, strict=True):
            read, spaces = written, list[int]()
            if not with_masks and special.are_in(read, encoding.ids):
                read, spaces = special.spelled(read)
                encoding = tokenizer.encode(read, add_special_tokens=False)
            offsets = without(spaces, places(read, encoding.tokens, encoding.offsets, mark))
            if replaced:
                offsets = _whole_matches(written, offsets, replaced)
            if k and of_kmers is not None:
                offsets = _in_sequence(text, k, offsets)
            number = unknown_characters(text, encoding.ids, offsets, unknown)
            share = number / max(1, len("".join(text.split())))
            if share > MUCH:
                reason = f"{share:.0%} of {text!r:.40} is unknown to the tokenizer, so an answer about it means little"
                cure = "Write it as the text that the model was trained on"
                warnings.warn(f"{reason}. {cure}.", UnknownText, stacklevel=4)
            tokenized.append(Tokenized(text, encoding.ids, encoding.tokens, offsets, encoding.word_ids, share))
    finally:
        tokenizer.encode_special_tokens = before
    return tokenized


def as_kmers(text: str, k: int, masks: re.Pattern[str] | None = None) -> str | None:
    """Return the overlapping k-mers of a sequence as `fasta` writes them, None if a text has them. Raises DataError."""
    if masks and masks.search(text):
        if any(as_kmers(piece, k) for piece in masks.split(text)):
            cure = f"Write {k}-mers with spaces between them, and the mask in the place of one"
            raise DataError(f"{text!r:.60}: a mask stands for one of the overlapping {k}-mers that are read. {cure}.")
        return None
    words = text.split()
    letters = "".join(words)
    if len(letters) < k or all(len(word) == k for word in words):
        return None
    return " ".join(letters[at : at + k] for at in range(len(letters) - k + 1))


def _in_sequence(text: str, k: int, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the places in a sequence of its k-mers: that of the first letter, of the last k-mer those of all."""
    letters = [at for at, character in enumerate(text) if not character.isspace()]
    firsts = [min(start // (k + 1), len(letters) - k) for start, _ in offsets]
    ends = [at + 1 for at in letters[: len(letters) - k]] + [letters[-1] + 1]
    return [(letters[first], ends[first]) for first in firsts]


def _whole_matches(text: str, offsets: Iterable[tuple[int, int]], patterns: Sequence[str]) -> list[tuple[int, int]]:
    """Return offsets in which a token that begins with a replaced part of the text covers all of it.

    The library gives such a part the place of its last character alone. Of matches that overlap, those of the first
    pattern were replaced.
    """
    from tokenizers import Regex, pre_tokenizers

    begins = dict[int, int]()  # of each match, by the place of its last character
    taken = bytearray(len(text))
    for pattern in patterns:  # by the library's expressions: Python may know fewer digits and letters
        matches = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        for _, (start, end) in matches.pre_tokenize_str(text):
            if not any(taken[start:end]):
                begins[end - 1] = start
                taken[start:end] = b"\1" * (end - start)
    return [(begins.get(start, start), end) for start, end in offsets]


def without(spaces: Sequence[int], offsets: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return offsets in a text without the characters at the places `spaces`."""
    return [(start - bisect_left(spaces, start), end - bisect_left(spaces, end)) for start, end in offsets]


def places(
    text: str, tokens: Sequence[str], offsets: Sequence[tuple[int, int]], mark: str | None
) -> list[tuple[int, int]]:
    """Return the offsets of tokens in a text as it was written.

    They leave out spaces, which some tokenizers count to the token that follows. A space that the tokenizer itself has
    put before a word is nowhere in the text. Combining marks that the tokenizer dropped, or joined with their letter,
    belong to the token before them; at the beginning of a word, to the one after them.

    offsets  from the tokenizer
    mark     as `word_mark` returns it
    """
    trimmed = [_trimmed(text, *at, token == mark) for token, at in zip(tokens, offsets, strict=True)]
    dropped = bytearray(b"\1") * len(text)
    for start, end in trimmed:
        dropped[start:end] = bytes(end - start)
    return [_whole(text, *at, dropped) for at in trimmed]


def _trimmed(text: str, start: int, end: int, space: bool) -> tuple[int, int]:
    inside = text[start:end]
    if not inside.strip():
        return start, end
    return (start, start) if space else (end - len(inside.lstrip()), start + len(inside.rstrip()))


def _whole(text: str, start: int, end: int, dropped: bytearray) -> tuple[int, int]:
    """Return the offsets of a token with the dropped characters that belong to it."""
    while text[start:end].strip() and end < len(text) and dropped[end] and _belongs(text[start:end], text[end]):
        end += 1
    first = start
    while first and dropped[first - 1] and _combines(text[first - 1]):
        first -= 1
    if first and not text[first - 1].isspace():
        return start, end
    return first, first if start == end else end


def _belongs(before: str, character: str) -> bool:
    """Return whether a dropped character belongs to the text before it.

    Combining marks do, joiners after them (in Indic scripts, after a virama), and what NFKC joins with a letter, such
    as the later letters of a Korean syllable.
    """
    if character in JOINERS:
        return _combines(before[-1])
    return _combines(character) or len(normalize("NFKC", before + character)) <= len(normalize("NFKC", before))


def _combines(character: str) -> bool:
    return category(normalize("NFKC", character)[0]).startswith("M")


def windows(texts: Sequence[Tokenized], length: int) -> list[Window]:
    """Cover every text; a window holds `length` tokens with [CLS] and [SEP]. Neighbours overlap by a quarter."""
    room, covering = length - 2, list[Window]()
    overlap = room // 4
    for number, text in enumerate(texts):
        total, first, done = len(text.ids), 0, 0
        while done < total:
            end = min(first + room, total)
            upto = total if end == total else end - overlap // 2
            covering.append(Window(number, first, end - first, range(done, upto)))
            done, first = upto, end - overlap
    return covering


def batches(
    texts: Sequence[Tokenized], covering: Sequence[Window], size: int, vocabulary: Vocabulary, device: torch.device
) -> Iterator[tuple[list[Window], Batch]]:
    """Yield the windows in batches, those of similar length together, so that little is padded."""
    ordered = sorted(covering, key=lambda window: -window.length)
    for start in range(0, len(ordered), size):
        chosen = ordered[start : start + size]
        tokens = torch.full((len(chosen), chosen[0].length + 2), vocabulary.pad_id)
        real = torch.zeros_like(tokens, dtype=torch.bool)
        for row, window in enumerate(chosen):
            inside = texts[window.text].ids[window.first : window.first + window.length]
            tokens[row, : window.length + 2] = torch.tensor([vocabulary.cls_id, *inside, vocabulary.sep_id])
            real[row, : window.length + 2] = True
        tokens = tokens.to(device)
        numbers = torch.arange(len(chosen), device=device)
        yield chosen, Batch(tokens, real.to(device), torch.zeros_like(tokens), numbers)


def chunks(texts: Iterable[T], batch_size: int, more: More | None) -> Iterator[list[T]]:
    """Yield the texts in lists that end at CHUNK batches, or at the text that makes CHARACTERS full.

    With `more`, also at PATIENCE after the first text, or when a batch is full and no other text is there.
    """
    chunk, characters, until = list[T](), 0, 0.0
    try:
        for text in texts:
            if not chunk:
                until = time.monotonic() + PATIENCE
            chunk.append(text)
            characters += len(text if isinstance(text, str) else repr(text))
            is_full = len(chunk) == CHUNK * batch_size or characters >= CHARACTERS
            if is_full or (more and (time.monotonic() > until or not more(until if len(chunk) < batch_size else 0))):
                yield chunk
                chunk, characters = [], 0
    except (DataError, Stopped):
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
