"""Unigram reads white space as SentencePiece does, and says how many tokens the characters of a text need."""

import pytest

from electra_lab.tokenizers.unigram import unigram
from registry.errors import DataError

WORDS = [f"word{n} of\u00a0line\n\tand   more{n}\r\nat the end \n" for n in range(60)]


def test_white_space_is_one_space_and_none_at_the_ends() -> None:
    tokenizer = unigram(WORDS, vocab_size=150)
    assert not [piece for piece in tokenizer.get_vocab() if any(character.isspace() for character in piece)]
    for text in (*WORDS, "\u2028more1", " \n", "\tword5\u3000", "  at  the"):
        (found, expected) = (tokenizer.encode(written).tokens for written in (text, " ".join(text.split())))
        assert found == expected


def test_the_vocabulary_holds_all_characters() -> None:
    """Each is a token, as are the mark of a space and five special tokens."""
    characters = "".join(chr(0x4E00 + number) for number in range(100))
    documents = [f"{characters}\n{characters}"] * 2
    assert unigram(documents, vocab_size=106).get_vocab_size() == 106
    with pytest.raises(DataError, match=r"\b106\b.*\b105\b"):
        unigram(documents, vocab_size=105)
