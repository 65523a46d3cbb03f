"""Tokenizers of other sequences than prose: characters, bytes, words of a log, k-mers, ids."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import special_ids
from electra_lab.tokenizers.ids import Special
from registry import tokenizers
from registry.errors import DataError

LOG = "2024 error at 0x1fAb from 10.0.0.1:8080 user=bob42 id deadbeef01 took 12.5 ms by fe80::1:2 or a0:b1:c2:d3:e4:f5"
TEXTS = [LOG, "ACGT acgtn", "Ünï cödé 😀 \n\t x", "5 7 10"]
SPECIAL = {"pad": 0, "unk": 1, "cls": 3, "sep": 2, "mask": 11}
MADE: dict[str, dict[str, Any]] = {
    "characters": {},
    "bytes": {},
    "words": {"classes": ["numbers", "hex", "addresses"], "min_frequency": 1},
    "kmers": {"k": 3},
    "ids": {"vocab_size": 12, "special": Special(**SPECIAL)},
}


def made(name: str, texts: list[str] = TEXTS, **options: Any) -> Tokenizer:
    tokenizer: Tokenizer = tokenizers.get(name).component(texts, **{**MADE[name], **options})
    return tokenizer


@pytest.fixture(scope="module")
def all_of_them() -> dict[str, Tokenizer]:
    return {name: made(name) for name in MADE}


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(TEXTS))
@example(text="0\U000116d0 12:\U000116d1")  # digits that Python 3.11 does not know
def test_offsets_cover_what_is_read(all_of_them: dict[str, Tokenizer], text: str) -> None:
    for name, tokenizer in all_of_them.items():
        (found,) = tokenize(tokenizer, [text])
        covered, last = "", (0, 0)
        for start, end in found.offsets:
            assert (start, end) == last or start >= last[1], (name, text)
            covered += text[start:end] if (start, end) != last else ""
            last = (start, end)
        if name in ("characters", "bytes"):
            assert covered == text, name
        elif name in ("words", "ids"):
            assert "".join(covered.split()) == "".join(text.split()), name


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_bytes_lose_nothing(all_of_them: dict[str, Tokenizer], text: str) -> None:
    encoded = all_of_them["bytes"].encode(text)
    assert len(encoded.ids) == len(text.encode())
    assert all_of_them["bytes"].decode(encoded.ids, skip_special_tokens=False) == text
    assert all_of_them["bytes"].get_vocab_size() == 261


def test_the_alphabet_is_the_most_frequent_characters_or_the_given_ones() -> None:
    learned = made("characters", ["aab b", "bcA"], vocab_size=8)
    assert sorted(learned.get_vocab().keys() - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) == [" ", "a", "b"]
    assert [learned.id_to_token(id) for id in learned.encode("ab\nA").ids] == ["a", "b", "[UNK]", "[UNK]"]
    assert "\n" in made("characters", ["a\nb"]).get_vocab()
    assert "\n" not in made("characters", ["a", "b"]).get_vocab()  # documents are counted together
    with pytest.raises(DataError, match="3"):
        made("characters", ["aab"], min_frequency=3)
    given = made("characters", ["xyz"], alphabet="TGCA")
    assert given.encode("ACx").tokens == ["A", "C", "[UNK]"]
    with pytest.raises(ValueError, match="9"):
        made("characters", [], alphabet="ACGT", vocab_size=8)


def test_words_reduce_what_differs_in_every_line() -> None:
    tokenizer = made("words")
    (found,) = tokenize(tokenizer, [LOG])
    pieces = [LOG[start:end] for start, end in found.offsets]
    replaced = {piece: token for token, piece in zip(found.tokens, pieces, strict=True) if token != piece}
    assert replaced == {
        "2024": "<number>", "0x1fAb": "<hex>", "10.0.0.1:8080": "<address>", "deadbeef01": "<hex>",
        "12.5": "<number>", "fe80::1:2": "<address>", "a0:b1:c2:d3:e4:f5": "<address>",
    }  # fmt: skip
    assert "bob42" in found.tokens  # a number within a word belongs to the word
    plain = made("words", classes=[])
    assert "2024" in plain.encode(LOG).tokens
    # A class that is not requested stays; the numbers in it are reduced if numbers are requested.
    assert "0x1fAb" in made("words", classes=["numbers"]).encode(LOG).tokens


def test_times_are_no_addresses() -> None:
    tokenizer = made("words", ["at 12:34:56 :: std::x ::1 2001:db8:0:0:0:0:0:1"])
    assert tokenizer.encode("12:34:56").tokens == ["<number>", ":", "<number>", ":", "<number>"]
    addresses = tokenizer.encode(":: std::x ::1 2001:db8:0:0:0:0:0:1").tokens
    assert addresses == [":", ":", "std", ":", ":", "x", "<address>", "<address>"]


def test_a_word_with_a_number_in_it_covers_all_of_it() -> None:
    text = "id=200 12=x (10.0.0.1) 512, 777"
    [found] = tokenize(made("words", ["id=200 12=x (10.0.0.1)"], pattern=r"\S+"), [text])
    pieces = [text[start:end] for start, end in found.offsets]
    assert pieces == ["id=200", "12", "=x", "(10.0.0.1)", "512", ",", "777"]
    [unknown] = tokenize(made("words", ["a b"], classes=["numbers"]), [text])
    assert [text[start:end] for start, end in unknown.offsets][-1] == "777"


def test_the_name_of_a_special_token_is_the_characters_that_it_has() -> None:
    """Also where other characters are unknown; there is no token for a missing space."""
    tokenizer = made("characters", ["AC [MASK]"[:3]])
    (found,) = tokenize(tokenizer, ["[MASK]A"])
    assert found.tokens == ["[UNK]", "[UNK]", "A", "[UNK]", "[UNK]", "[UNK]", "A"]
    assert [end - start for start, end in found.offsets] == [1] * 7
    (written,) = tokenize(made("words", ["a [MASK] b"], pattern=r"\S+"), ["a [MASK]"])
    assert tokenizer.token_to_id("[MASK]") not in written.ids


def test_words_of_another_pattern() -> None:
    fields = made("words", ["a;b c;d"], pattern="[^;]+", classes=[])
    assert fields.encode("d;b c").tokens == ["d", "b c"]
    assert made("words", ["a a b"], min_frequency=2, classes=[]).encode("a b").tokens == ["a", "[UNK]"]
    with pytest.raises(DataError, match="nothing-like-it"):
        made("words", pattern="nothing-like-it", classes=[])
    with pytest.raises(ValidationError):
        tokenizers.get("words").schema.model_validate({"type": "words", "pattern": "("})


def test_kmers_are_side_by_side_and_may_be_separated_before() -> None:
    tokenizer = made("kmers")
    assert tokenizer.encode("acgtACNGTAC R").tokens == ["ACG", "TAC", "N", "GTA", "C", "[UNK]"]
    assert tokenizer.encode("ACG CGT GTA").tokens == ["ACG", "CGT", "GTA"]
    assert tokenizer.encode("ACGnnacR").tokens == ["ACG", "N", "N", "A", "C", "[UNK]"]
    of_codes = made("kmers", k=2, alphabet="hpH", other="x")  # both cases are letters: neither is read as the other
    assert of_codes.encode("hPHx").tokens == ["hp", "H", "x"]
    assert of_codes.encode("XHh").tokens == ["x", "Hh"]
    assert tokenizer.get_vocab_size() == 5 + 4**3 + 4 + 1
    assert made("kmers", k=1).encode("ACN").tokens == ["A", "C", "N"]
    with pytest.raises(ValueError, match="13-mers"):
        made("kmers", k=13)


def test_ids_are_their_numbers() -> None:
    tokenizer = made("ids")
    assert tokenizer.encode("5 10 4").ids == [5, 10, 4]
    assert special_ids(tokenizer) == {role: id for role, id in SPECIAL.items() if role != "unk"}
    assert tokenizer.token_to_id("[UNK]") == SPECIAL["unk"]
    assert tokenizer.get_vocab_size() == 12
    assert tokenizer.encode("11 12").ids == [1, 1]  # a special id, and one that is too large
    for mask in (12, 0):
        with pytest.raises(ValueError, match="12"):
            made("ids", special=Special(**{**SPECIAL, "mask": mask}))


@pytest.mark.parametrize("name", MADE)
def test_transformers_reads_the_same_ids(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = made(name)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).ids
