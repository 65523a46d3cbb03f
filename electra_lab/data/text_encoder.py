"""The model's tokenizer, as tasks see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, cast

from electra_lab.data.encoding import SpecialNames
from electra_lab.data.texts import places, tokenize, without
from electra_lab.data.vocabulary import for_words, word_mark
from electra_lab.storage.files import tokenizer_failures
from registry import Encoded, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


class TextEncoder:
    """A registry.contracts.tasks.Encoder around a tokenizer. The name of a special token is text like any other."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._tokenizer = vocabulary, tokenizer
        self._mark, self._special = word_mark(tokenizer), SpecialNames(tokenizer)

    def texts(self, texts: Sequence[str]) -> list[Encoded]:
        """Split texts into tokens; a word is a piece of text that the tokenizer never joins with its neighbours."""
        tokenized = tokenize(self._tokenizer, texts)
        left = (self._tokenizer.truncation or {}).get("direction") == "left"
        return [Encoded(text.ids, text.offsets, cast("list[int]", text.words), left) for text in tokenized]

    def words(self, sentences: Sequence[Sequence[str]]) -> list[Encoded]:
        """Split words into tokens, each by itself; offsets are within the word. A word may have no token.

        A word, the first one too, has the tokens that it has in a text after a space, see `for_words`.
        """
        encoded = []
        bare = [[*map(_bare, words)] for words in sentences]
        for words, read, encoding in zip(sentences, bare, self._encodings(bare), strict=True):
            # Names of special tokens are spelled with spaces, so that they are text.
            spaces: list[list[int]] = [[] for _ in words]
            if self._special.are_in(" ".join(read), encoding.ids):
                spelled = [self._special.spelled(word) for word in read]
                read, spaces = [word for word, _ in spelled], [places for _, places in spelled]
                encoding = self._encodings([read])[0]
            # Offsets, word by word.
            numbers = cast("list[int]", encoding.word_ids)  # None at special tokens alone, which are left out
            tokens = zip(encoding.tokens, encoding.offsets, strict=True)
            offsets: list[tuple[int, int]] = []
            for word, group in groupby(zip(numbers, tokens, strict=True), lambda pair: pair[0]):
                offsets += self._within(words[word], read[word], spaces[word], [token for _, token in group])
            encoded.append(Encoded(encoding.ids, offsets, numbers))
        return encoded

    @cached_property
    def _of_words(self) -> Tokenizer:
        return for_words(self._tokenizer)

    @tokenizer_failures()
    def _encodings(self, sentences: Sequence[Sequence[str]]) -> list[Encoding]:
        before, self._of_words.encode_special_tokens = self._of_words.encode_special_tokens, True
        try:
            return self._of_words.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False)
        finally:
            self._of_words.encode_special_tokens = before

    def _within(
        self, word: str, read: str, spaces: list[int], tokens: list[tuple[str, tuple[int, int]]]
    ) -> Iterator[tuple[int, int]]:
        """Yield where the tokens of `read` are in the word, which may have spaces around it.

        spaces  the places in `read` of further spaces, which the word is without
        """
        names, offsets = zip(*tokens, strict=True)
        begin = len(word) - len(word.lstrip())
        for start, end in without(spaces, places(read, names, offsets, self._mark)):
            yield start + begin, end + begin


def _bare(word: str) -> str:
    # A lone surrogate has no bytes; a question mark in its place keeps the offsets.
    return word.encode("utf-8", "replace").decode().strip()
