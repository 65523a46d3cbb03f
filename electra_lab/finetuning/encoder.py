"""The model's tokenizer, as tasks see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from electra_lab.data.vocabulary import word_mark
from electra_lab.inference.windows import trimmed
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
            tokens = zip(encoding.tokens, encoding.offsets, strict=True)
            offsets = [self.trimmed(text, token, at) for token, at in tokens]
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
            tokens = zip(_words(encoding), encoding.tokens, encoding.offsets, strict=True)
            offsets = [self._within(words[word], read[word], token, at) for word, token, at in tokens]
            found.append(Encoded(encoding.ids, offsets, _words(encoding)))
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

    def trimmed(self, text: str, token: str, at: tuple[int, int]) -> tuple[int, int]:
        return trimmed(text, *at, token == self._mark)

    def _within(self, word: str, read: str, token: str, at: tuple[int, int]) -> tuple[int, int]:
        """Return where a token of `read` is in the word, which differs from `read` in the spaces around it."""
        start, end = self.trimmed(read, token, at)
        begin = len(word) - len(word.lstrip())
        moved = begin - (len(read) - len(read.lstrip()))
        return max(start + moved, begin), max(end + moved, begin)


def _words(encoding: Encoding) -> list[int]:
    return cast("list[int]", encoding.word_ids)  # None at special tokens alone, which are left out


def _clean(text: str) -> str:
    """Replace lone surrogates, which have no bytes, by question marks, which keep the offsets."""
    return text.encode("utf-8", "replace").decode()
