"""SentencePiece models split text as the sentencepiece library does; `make_sentencepiece` has written its results."""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pydoc_data.topics import topics
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from electra_lab.data.encoding import encode
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.pretrained.writing import write_tokenizer
from electra_lab.tokenizers.pretrained import read_tokenizer
from registry.errors import DataError
from tests.electra_lab.tokenizers.make_sentencepiece import DEBERTA, FOLDER, MODELS, SYMBOLS, trained

EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
TEXTS, DEBERTA_MODEL = EXPECTED["texts"], FOLDER / "deberta.model"


def read(path: Path) -> Any:
    tokenizer = read_tokenizer(path)
    tokenizer.encode_special_tokens = True
    counts = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64)
    return SimpleNamespace(tokenizer=tokenizer, vocabulary=make_vocabulary(tokenizer, counts, torch.device("cpu")))


def ids(tokenizer: Tokenizer, texts: list[str] = TEXTS) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = read(FOLDER / f"{request.param}.model")
    made.expected, made.name = EXPECTED[request.param], request.param
    return made


def test_texts_have_the_ids_and_places_of_the_library(made: Any) -> None:
    for text, expected, found in zip(TEXTS, made.expected["ids"], ids(made.tokenizer), strict=True):
        assert found == expected, text
    for text, ends, found in zip(TEXTS, made.expected["ends"], tokenize(made.tokenizer, TEXTS), strict=False):
        pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        assert [text[start:end].strip() for start, end in found.offsets] == [piece.strip() for piece in pieces]


def test_names_of_special_tokens_are_text(made: Any) -> None:
    vocabulary, tokenizer = made.vocabulary, made.tokenizer
    names = [tokenizer.id_to_token(id) for id in vocabulary.special_ids]
    assert len(set(vocabulary.special_ids)) == 4
    texts = [f"a {name} b{name}" for name in names]
    assert not set(vocabulary.special_ids) & {id for row in ids(tokenizer, texts) for id in row}
    assert not set(vocabulary.special_ids) & set(encode(tokenizer, texts, "uint16")[0].tolist())


def test_words_begin_where_they_do(made: Any) -> None:
    words = ["training", "of", "unbelievable", "generators", "naïve", "zyx"]
    first, both = ids(made.tokenizer, ["of", " ".join(["of", *words])])
    row = both[len(first) :]  # after a space, which some models see before the first word of a text, too
    encoder = TextEncoder(made.tokenizer, made.vocabulary)
    assert len(row) > len(words)
    assert int(made.vocabulary.word_start[row].sum()) == len(words)
    found = encoder.words([words])[0]
    assert found.ids == row
    for number, word in enumerate(words):
        places = [at for at, its in zip(found.offsets, found.words, strict=True) if its == number]
        assert "".join(word[start:end] for start, end in sorted(set(places))) == word


def test_exports_have_the_same_ids_in_transformers(made: Any, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path, made.tokenizer, 128)
    plain = [text for text, row in zip(TEXTS, ids(made.tokenizer), strict=True) if not set("<[") & set(text) and row]
    for kind in ("electra", "deberta-v2", "modernbert"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        assert theirs(plain, add_special_tokens=False)["input_ids"] == ids(made.tokenizer, plain)
        assert theirs.mask_token_id == made.vocabulary.mask_id


@pytest.mark.parametrize("name", ["spm.model", "sentencepiece.bpe.model", "tokenizer.model"])
def test_a_folder_adds_tokens_after_the_pieces(name: str, tmp_path: Path) -> None:
    shutil.copy(DEBERTA_MODEL, tmp_path / name)
    size = read_tokenizer(tmp_path).get_vocab_size()
    assert read_tokenizer(tmp_path).token_to_id("[MASK]") == size - 1 == 500, "as in DeBERTa: after all pieces"
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": 500, "[MASK]": 501}))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "vocab_type": "spm"}')
    found = read_tokenizer(tmp_path)
    assert [found.token_to_id(token) for token in ("[ENT]", "[MASK]", "[PAD]", "[UNK]")] == [500, 501, 0, 3]
    assert 500 in found.encode("x[ENT]y").ids
    assert ids(found, ["THE RUN"]) == ids(read_tokenizer(DEBERTA_MODEL), ["the run"])
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert ids(read_tokenizer(tmp_path), ["THE RUN"]) == ids(read_tokenizer(DEBERTA_MODEL), ["THE RUN"])


def cut(start: int, end: int | None, *more: bytes) -> bytes:
    return b"".join((DEBERTA_MODEL.read_bytes()[start:end], *more))


WRONG = {
    "empty": b"",
    "cut": cut(0, -100),
    "cut in a piece": cut(0, None, b"\x0a\x20\x0a\x01a"),
    "a pointer of git": b"version https://git-lfs.github.com/spec/v1\n",
    "no unknown piece": cut(0, 0, b"\x0a\x03\x0a\x01a"),
    "a piece of 1 MB": cut(0, None, b"\x0a\x84\x80\x40\x0a\x80\x80\x40" + b"a" * (1 << 20)),
    "a table that is cut": cut(0, None, b"\x1a\x0c\x12\x0a\x04\0\0\0\0\0\0\xff\xff\xff"),
    "not UTF-8": cut(0, None, b"\x0a\x03\x0a\x01\xff"),
    "no number": cut(0, None, b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f"),
    "a text for a number": cut(0, None, b"\x0a\x02\x08\x01"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_a_model_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(WRONG[name])
    with pytest.raises(DataError, match=r"spm.model: "):
        read_tokenizer(tmp_path)


UNSUPPORTED = {
    "type word": (b"\x12\x02\x18\x03", "word"),
    "marks after words": (b"\x12\x03\xc0\x01\x01", "beginnings of words"),
    "rules of its own": (b"\x1a\x0e\x0a\x0cuser_defined", "rules"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_whole_models_of_other_kinds_are_refused_with_the_cure(name: str, tmp_path: Path) -> None:
    added, word = UNSUPPORTED[name]
    (tmp_path / "spm.model").write_bytes(cut(0, None, added))
    with pytest.raises(DataError, match=rf"spm.model: .*\b{word}\b.*Train one") as caught:
        read_tokenizer(tmp_path)
    assert "save_pretrained" not in str(caught.value), "transformers cannot read it either"


def test_without_protobuf_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.convert_slow_tokenizer", None)
    with pytest.raises(DataError, match=r"deberta.model: .*pip install 'electra-lab\[hugging-face\]'"):
        read_tokenizer(DEBERTA_MODEL)


def test_damage_is_never_a_traceback(tmp_path: Path) -> None:
    draw, content = random.Random(0), DEBERTA_MODEL.read_bytes()
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "spm.model").write_bytes(damaged)
        with suppress(DataError):
            read_tokenizer(tmp_path).encode("the run")


@pytest.mark.parametrize(("file", "key"), [("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class")])
def test_models_with_other_ids_are_refused(file: str, key: str, tmp_path: Path) -> None:
    shutil.copy(DEBERTA_MODEL, tmp_path / "sentencepiece.bpe.model")
    (tmp_path / file).write_text(json.dumps({key: "XLMRobertaTokenizer" if "class" in key else "xlm-roberta"}))
    with pytest.raises(DataError, match=r"does not have the ids of XLMRoberta|does not have the ids of xlm-roberta"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("options", [{"model_type": "unigram", **DEBERTA}, {"model_type": "unigram", **SYMBOLS},
                                     {"model_type": "bpe"}])  # fmt: skip
def test_of_a_thousand_lines_one_differs_at_most(options: dict[str, Any], tmp_path: Path) -> None:
    """Where two splits are tied, which the library decides by the rounding of its sums."""
    library = pytest.importorskip("sentencepiece")
    lines = sorted({line.strip() for text in topics.values() for line in text.splitlines()})
    path = tmp_path / "spm.model"
    path.write_bytes(trained(lines[::3], tmp_path, vocab_size=2000, normalization_rule_name="nmt_nfkc", **options))
    expected = library.SentencePieceProcessor(model_file=str(path)).encode(lines)
    found = ids(read(path).tokenizer, lines)
    assert sum(mine != theirs for mine, theirs in zip(found, expected, strict=True)) <= len(lines) / 1000
