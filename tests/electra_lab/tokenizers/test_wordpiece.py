"""WordPiece: the same vocabulary always, and no special tokens but the five."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.tokenizers import wordpiece as module
from electra_lab.tokenizers.wordpiece import SPECIAL, wordpiece
from tests.helpers import python

# Many pairs are equally frequent, so that ties have to be broken.
DOCUMENTS = [f"{a}{b}{c} {c}{b} the quick brown fox" for a in "abcdef" for b in "ghijkl" for c in "mnopqr"]
LETTERS = "abcdefghijklmnopqrtuwx"

SCRIPT = """
import json
from tests.electra_lab.tokenizers.test_wordpiece import DOCUMENTS
from electra_lab.tokenizers.wordpiece import wordpiece
print(json.dumps(wordpiece(DOCUMENTS, vocab_size=110).get_vocab(), sort_keys=True))
"""


def test_the_same_vocabulary_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = wordpiece(DOCUMENTS, vocab_size=110).get_vocab()
    assert len(expected) == 110
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        done = python("-c", SCRIPT, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected


def test_the_special_tokens_come_first_and_are_the_only_ones() -> None:
    tokenizer = wordpiece(DOCUMENTS, vocab_size=180)
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3, 4]
    added = tokenizer.get_added_tokens_decoder()
    assert {id: token.content for id, token in added.items()} == dict(enumerate(SPECIAL))
    assert all(token.special for token in added.values())
    pieces = [tokenizer.token_to_id(token) for token in ("##a", "##m")]
    assert None not in pieces
    assert tokenizer.decode(pieces, skip_special_tokens=True), "a continuing piece was taken for a special token"
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))


TOKENIZER = wordpiece(DOCUMENTS, vocab_size=180)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(LETTERS, min_size=1, max_size=20), min_size=1, max_size=6).map(" ".join))
def test_words_of_known_letters_come_back(text: str) -> None:
    encoded = TOKENIZER.encode(text, add_special_tokens=False)
    assert "[UNK]" not in encoded.tokens
    assert TOKENIZER.decode(encoded.ids) == text


def test_case_and_accents() -> None:
    documents = ["Über Cats CATS cats über"] * 5
    lower, kept = (wordpiece(documents, vocab_size=100, lowercase=value) for value in (True, False))
    assert lower.encode("Über CATS").tokens == lower.encode("uber cats").tokens
    assert kept.decode(kept.encode("Über CATS cats").ids) == "Über CATS cats"
    assert kept.encode("CATS").ids != kept.encode("cats").ids


@pytest.mark.parametrize("vocab_size", [100, 115, 130])
def test_the_vocabulary_is_at_most_as_large_as_asked(vocab_size: int) -> None:
    assert wordpiece(DOCUMENTS, vocab_size=vocab_size).get_vocab_size() == vocab_size
    assert wordpiece(DOCUMENTS[:1], vocab_size=vocab_size).get_vocab_size() < 100


def test_many_characters_do_not_exceed_it_either() -> None:
    """Each takes two places, so of some 300 the 47 most frequent are kept."""
    many = ["".join(chr(0x3B1 + n) if n < 20 else chr(0xAC00 + n) for n in range(300)), "abc abc abc"]
    tokenizer = wordpiece(many, vocab_size=100)
    assert tokenizer.get_vocab_size() <= 100
    assert "[UNK]" not in tokenizer.encode("cab").tokens


def test_unknown_characters() -> None:
    assert TOKENIZER.encode("fox 你 fox", add_special_tokens=False).tokens.count("[UNK]") == 1
    assert "[UNK]" not in TOKENIZER.encode("a" * 100, add_special_tokens=False).tokens
    assert TOKENIZER.encode("a" * 101, add_special_tokens=False).tokens == ["[UNK]"]
    assert TOKENIZER.encode("[UNK]", add_special_tokens=False).tokens == ["[UNK]"]


def test_the_alphabet_is_the_most_frequent_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ALPHABET", 3)
    tokenizer = wordpiece(["aaaa bbb ccc d"] * 3, vocab_size=100)
    letters = {token for token in tokenizer.get_vocab() if len(token) == 1}
    assert letters == {"a", "b", "c"}
    assert tokenizer.encode("abc").tokens != ["[UNK]"]
    assert tokenizer.encode("d").tokens == ["[UNK]"]


def test_a_pair_must_be_frequent_enough() -> None:
    documents = ["rare common common common"]
    once, thrice = (wordpiece(documents, vocab_size=200, min_frequency=n).get_vocab() for n in (1, 3))
    assert {"rare", "common"} <= once.keys()
    assert "common" in thrice
    assert "rare" not in thrice
