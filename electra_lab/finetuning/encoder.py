"""The model's tokenizer, as tasks see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from electra_lab.data.vocabulary import word_mark
from electra_lab.inference.windows import places
from registry import Encoded, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


class TextEncoder:
    """A registry.contracts.task.Encoder around a tokenizer. The name of a special token is text like any other."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._tokenizer = vocabulary, tokenizer
        self._mark = word_mark(tokenizer)

    def texts(self, texts: Sequence[str]) -> list[Encoded]:
        """Split texts into tokens; a word is what the tokenizer never joins with its neighbours."""
        found = []
        for text, encoding in zip(texts, self._encodings([_clean(text) for text in texts]), strict=True):
            offsets = places(text, encoding.tokens, encoding.offsets, self._mark)
            found.append(Encoded(encoding.ids, offsets, _words(encoding)))
        return found

    def words(self, sentences: Sequence[Sequence[str]]) -> list[Encoded]:
        """Split words into tokens, each by itself; offsets are within the word. A word may have no token.

        A word has the tokens that it has in a text, where there is a space before it unless it is the first. Some
        tokenizers see that space, and of these some put one before the first word too.
        """
        found = []
        spaced = [[self._spaced(word, place) for place, word in enumerate(words)] for words in sentences]
        encodings = self._encodings([[_clean(word) for word in words] for words in spaced], words=True)
        for words, read, encoding in zip(sentences, spaced, encodings, strict=True):
            numbers, tokens = _words(encoding), list(zip(encoding.tokens, encoding.offsets, strict=True))
            offsets: list[tuple[int, int]] = []
            for word, group in groupby(zip(numbers, tokens, strict=True), lambda pair: pair[0]):
                offsets += self._within(words[word], read[word], [token for _, token in group])
            found.append(Encoded(encoding.ids, offsets, numbers))
        return found

    def _spaced(self, word: str, place: int) -> str:
        bare = word.strip()
        return f" {bare}" if self._mark and bare and place else bare

    def _encodings(self, inputs: Sequence[str] | Sequence[Sequence[str]], *, words: bool = False) -> list[Encoding]:
        before, self._tokenizer.encode_special_tokens = self._tokenizer.encode_special_tokens, True
        try:
            return self._tokenizer.encode_batch(inputs, is_pretokenized=words, add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = before

    def _within(self, word: str, read: str, tokens: list[tuple[str, tuple[int, int]]]) -> Iterator[tuple[int, int]]:
        """Yield where the tokens of `read` are in the word, which differs from `read` in the spaces around it."""
        names, offsets = zip(*tokens, strict=True)
        begin = len(word) - len(word.lstrip())
        moved = begin - (len(read) - len(read.lstrip()))
        for start, end in places(read, names, offsets, self._mark):
            yield max(start + moved, begin), max(end + moved, begin)


def _words(encoding: Encoding) -> list[int]:
    return cast("list[int]", encoding.word_ids)  # None at special tokens alone, which are left out


def _clean(text: str) -> str:
    """Replace lone surrogates, which have no bytes, by question marks, which keep the offsets."""
    return text.encode("utf-8", "replace").decode()
