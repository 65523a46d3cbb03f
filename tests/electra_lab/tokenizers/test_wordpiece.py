"""WordPiece: always the same vocabulary, and only the five special tokens."""

import hashlib
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from electra_lab.tokenizers import wordpiece as module
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.wordpiece import SPECIAL, wordpiece
from tests.helpers import python

# Many pairs are equally frequent, so that ties have to be broken.
DOCUMENTS = [f"{a}{b}{c} {c}{b} the quick brown fox" for a in "abcdef" for b in "ghijkl" for c in "mnopqr"]

SCRIPT = "from tests.electra_lab.tokenizers.test_wordpiece import trained; print(trained())"


def trained() -> list[str]:
    made = wordpiece(DOCUMENTS, vocab_size=110), bpe(DOCUMENTS, vocab_size=400)
    return [hashlib.sha256(tokenizer.to_str().encode()).hexdigest() for tokenizer in made]


def test_the_same_tokenizers_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")  # this process has a random one
    done = python("-c", SCRIPT, cwd=tmp_path)
    assert done.stdout.strip() == str(trained()), done.stderr


def test_the_special_tokens_come_first_and_are_the_only_ones() -> None:
    tokenizer = wordpiece(DOCUMENTS, vocab_size=180)
    added = tokenizer.get_added_tokens_decoder()
    assert {id: token.content for id, token in added.items()} == dict(enumerate(SPECIAL))
    assert all(token.special for token in added.values())
    pieces = [tokenizer.token_to_id(token) for token in ("##a", "##m")]
    assert None not in pieces
    assert tokenizer.decode(pieces, skip_special_tokens=True), "a continuing piece was taken for a special token"
    assert sorted(tokenizer.get_vocab().values()) == list(range(tokenizer.get_vocab_size()))


TOKENIZER = wordpiece(DOCUMENTS, vocab_size=180)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
def test_accents_are_stripped_as_lowercase_or_as_written(lowercase: bool, strip: bool | None) -> None:
    documents = ["Cafe\u0301 caf\u00e9 Cafe cafe"] * 5
    tokenizer = wordpiece(documents, vocab_size=100, lowercase=lowercase, strip_accents=strip)
    texts = "Cafe", "caf\u00e9", "cafe\u0301", "cafe"
    cased, composed, decomposed, plain = (tokenizer.encode(text).ids for text in texts)
    assert composed == decomposed, "a letter gives the same text in any composition"
    assert (composed == plain) == (lowercase if strip is None else strip)
    assert (cased == plain) == lowercase


KOREAN = ["한국어 위키백과는 누구나 편집할 수 있는 백과사전입니다", "값이 싼 닭을 삶았다", "각갂갃 ㅋㅋㅋ"] * 3
KOREAN += ["서울 한국 서울 한국"] * 3
SYLLABLES = sorted({c for text in KOREAN for c in text if "가" <= c <= "힣"})


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"strip_accents": False}, {"chinese_characters": False}])
def test_korean_is_syllables_and_never_parts_of_them(options: dict[str, bool]) -> None:
    tokenizer = wordpiece(KOREAN, vocab_size=300, **options)
    assert {name.removeprefix("##") for name in tokenizer.get_vocab()} >= {*SYLLABLES, "한국", "서울", "ㅋ"}
    assert not [name for name in tokenizer.get_vocab() if re.search("[\u1100-\u11ff]", name)]
    for text in KOREAN:
        encoded = tokenizer.encode(text)
        assert tokenizer.decode(encoded.ids) == text
        assert tokenizer.encode(unicodedata.normalize("NFD", text)).ids == encoded.ids
        assert "".join(text[a:b] for a, b in encoded.offsets) == text.replace(" ", "")


KOREAN_TOKENIZER = wordpiece(KOREAN, vocab_size=300)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(SYLLABLES, min_size=1, max_size=20), min_size=1, max_size=6).map(" ".join))
def test_words_of_known_syllables_come_back(text: str) -> None:
    encoded = KOREAN_TOKENIZER.encode(text)
    assert KOREAN_TOKENIZER.decode(encoded.ids) == text
    lengths = [len(token.removeprefix("##")) for token in encoded.tokens]
    assert [end - start for start, end in encoded.offsets] == lengths


LATIN = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2C60, 0x2C7F), (0xA720, 0xA7CA)
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.one_of([st.characters(min_codepoint=a, max_codepoint=b) for a, b in LATIN])))
def test_latin_script_is_as_bert_has_it(text: str) -> None:
    bert = normalizers.BertNormalizer(lowercase=True)
    assert TOKENIZER.normalizer.normalize_str(text) == bert.normalize_str(text)


@pytest.mark.parametrize("separate", [True, False])
def test_chinese_characters_are_words_of_their_own_or_not(separate: bool) -> None:
    tokenizer = wordpiece(["中文 维基"] * 5, vocab_size=100, chinese_characters=separate)
    assert tokenizer.encode("中文").tokens == (["中", "文"] if separate else ["中文"])


@pytest.mark.parametrize("vocab_size", [100, 115, 130])
def test_the_vocabulary_is_at_most_as_large_as_asked(vocab_size: int) -> None:
    assert wordpiece(DOCUMENTS, vocab_size=vocab_size).get_vocab_size() == vocab_size
    assert wordpiece(DOCUMENTS[:1], vocab_size=vocab_size).get_vocab_size() < 100
    # Each character takes two places, so of some 300 the 47 most frequent are kept.
    many = ["".join(chr(0x3B1 + n) if n < 20 else chr(0xAC00 + n) for n in range(300)), "abc abc abc"]
    tokenizer = wordpiece(many, vocab_size=100)
    assert tokenizer.get_vocab_size() <= 100
    assert "[UNK]" not in tokenizer.encode("cab").tokens


@pytest.mark.parametrize(
    ("text", "unknown"), [("fox 你 fox", 1), ("a" * 100, 0), ("a" * 101, 1), ("[UNK]", 1), ("fox", 0)]
)
def test_unknown_characters(text: str, unknown: int) -> None:
    assert TOKENIZER.encode(text, add_special_tokens=False).tokens.count("[UNK]") == unknown


def test_the_alphabet_is_the_most_frequent_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ALPHABET", 3)
    tokenizer = wordpiece(["aaaa bbb ccc d"] * 3, vocab_size=100)
    assert {token for token in tokenizer.get_vocab() if len(token) == 1} == {"a", "b", "c"}
    assert tokenizer.encode("abc").tokens != ["[UNK]"]
    assert tokenizer.encode("d").tokens == ["[UNK]"]
