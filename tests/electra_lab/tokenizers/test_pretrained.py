"""An existing tokenizer encodes like transformers with the same files, also with added tokens."""

import json
import random
import re
import shutil
import unicodedata
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from electra_lab.data.encoding import encode
from electra_lab.data.text_encoder import TextEncoder
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import special_ids
from electra_lab.tokenizers.bpe import bpe
from electra_lab.tokenizers.pretrained import read_tokenizer
from electra_lab.tokenizers.wordpiece import SPECIAL
from registry.errors import DataError

# Strings of all kinds, always the same

RANGES = [
    (0x20, 0x7E), (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF), (0x300, 0x36F),  # Latin, accents
    (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x621, 0x652), (0x905, 0x963), (0x995, 0x9E3), (0xE01, 0xE4E),
    (0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x3131, 0x318E), (0x3041, 0x30FF), (0xFF61, 0xFF9F),  # Korean, Japanese
    (0x4E00, 0x9FFF), (0xF900, 0xFAD9), (0x20000, 0x2A6DF), (0x1F300, 0x1FAFF), (0x2600, 0x27BF),  # Chinese, emoji
    (0x0, 0x1F), (0x7F, 0xA0), (0x2000, 0x206F), (0xFE00, 0xFE0F), (0xFFF0, 0xFFFD), (0xE000, 0xE0FF),  # control, ...
]  # fmt: skip
FAMILY = "\U0001f468\u200d\U0001f469\U0001f3fd\u200d\U0001f467"  # joined emoji


def texts(number: int = 500) -> list[str]:
    """Return strings of many scripts, composed and decomposed, with special tokens, very long words, and empty ones."""
    draw = random.Random(11)

    def word(low: int, high: int) -> str:
        return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8)))

    def part() -> str:
        kind = draw.random()
        if kind < 0.08:
            return draw.choice([*SPECIAL, "[MASK]s", "x[MASK]", "[mask]", "##a"])
        if kind < 0.12:
            return chr(draw.choice([0x61, 0xE9, 0xAC01, 0x4E2D])) * draw.randint(95, 130)
        return FAMILY if kind < 0.15 else word(*draw.choice(RANGES))

    made = ["", " ", "\t\n\r \u3000", "\u00ad", "e\u0301 \u00e9", "I\u0307 \u0130 \u1e9e", "\ud55c\uad6d\uc5b4", FAMILY]
    while len(made) < number:
        text = "".join(part() + draw.choice(["", " ", " ", "  ", "\n"]) for _ in range(draw.randint(1, 8)))
        form = draw.choice([None, "NFC", "NFD", "NFKC"])
        made.append(unicodedata.normalize(form, text) if form else text)
    return made


TEXTS = texts()


def words() -> list[str]:
    """Return a vocabulary of pieces of the strings in all of their forms; some characters are unknown.

    The special tokens are not the first five. Some tokens are line separators that do not end lines of a file.
    """
    draw = random.Random(7)
    forms = {*TEXTS, *map(str.lower, TEXTS)}
    forms |= {unicodedata.normalize("NFD", form) for form in forms}
    characters = sorted({c for form in forms for c in form if not c.isspace()} - {"\0"})
    kept = draw.sample(characters, len(characters) * 9 // 10)
    pieces = [form[i : i + 3] for form in sorted(forms) if (i := draw.randrange(len(form) + 1)) < len(form)]
    kept += [piece for piece in pieces if not re.search(r"\s|\0", piece)]
    scattered = ["[PAD]", "[unused0]", "\u2028", "\x85", "[CLS]", "[MASK]", "[unused1]", "[SEP]", "[UNK]"]
    return list(dict.fromkeys([*scattered, *kept, *(f"##{piece}" for piece in kept)]))


WORDS = words()


def write_words(file: Path, tokens: list[str] = WORDS, **settings: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="")
    if settings:
        (file.parent / "tokenizer_config.json").write_text(json.dumps(settings))
    return file


Encoded = list[tuple[list[int], list[tuple[int, int]]]]


def ours(tokenizer: Tokenizer) -> Encoded:
    return [(e.ids, e.offsets) for e in tokenizer.encode_batch(TEXTS, add_special_tokens=False)]


def theirs(tokenizer: Any, **options: Any) -> Encoded:
    made = tokenizer(TEXTS, add_special_tokens=False, return_offsets_mapping=True, verbose=False, **options)
    return list(zip(made["input_ids"], made["offset_mapping"], strict=True))


def assert_same(tokenizer: Tokenizer, other: Any) -> Encoded:
    """Check that ids, offsets, special tokens and names are those of transformers' tokenizer."""
    encoded = ours(tokenizer)
    assert encoded == theirs(other)
    special = {token: other.convert_tokens_to_ids(token) for token in other.all_special_tokens}
    assert {token: tokenizer.token_to_id(token) for token in SPECIAL} == special
    # A line of vocab.txt that consists of white space has no name there.
    entries = tokenizer.get_vocab().items() ^ other.get_vocab().items()
    assert not [name for name, _ in entries if name.strip()]
    return encoded


# vocab.txt


def test_a_vocab_txt_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast, ElectraTokenizerFast

    distinct = set()
    file = write_words(tmp_path / "vocab.txt")
    for lower, strip, chinese in product((True, False), (None, True, False), (True, False)):
        settings = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
        file.with_name("tokenizer_config.json").write_text(json.dumps(settings))
        kind = BertTokenizerFast if strip else ElectraTokenizerFast
        distinct.add(json.dumps(assert_same(read_tokenizer(tmp_path), kind.from_pretrained(tmp_path))))
        assert read_tokenizer(file).to_str() == read_tokenizer(tmp_path).to_str()
    assert len(distinct) == 8, "strip_accents: null follows do_lower_case; all other settings differ"


def test_without_settings_it_is_lower_case(tmp_path: Path) -> None:
    from transformers import ElectraTokenizerFast

    file = write_words(tmp_path / "any_name.txt")
    assert_same(read_tokenizer(file), ElectraTokenizerFast.from_pretrained(write_words(tmp_path / "vocab.txt").parent))
    write_words(file, model_max_length=512)
    assert read_tokenizer(file).normalizer.normalize_str("\u00c9A") == "ea"


def test_lines_end_as_on_every_system(tmp_path: Path) -> None:
    file = write_words(tmp_path / "vocab.txt")
    expected = read_tokenizer(file).get_vocab()
    assert expected["\u2028"] == 2
    assert sorted(expected, key=expected.__getitem__) == WORDS
    text = file.read_text(encoding="utf-8")
    for other in (
        text.removesuffix("\n"), text.replace("\n", "\r\n"), "\ufeff" + text, text.replace("[MASK]\n", "[MASK] \t\n"),
        text.replace("\n", "\r"), text + "\n", text.replace("\n", "\r\n") + "\r\n \t\r\n",
    ):  # fmt: skip
        file.write_text(other, encoding="utf-8", newline="")
        assert read_tokenizer(file).get_vocab() == expected


# tokenizer.json


def wordpiece() -> Any:
    """As transformers saves ELECTRA's: the mask token includes the space before it, with padding and truncation."""
    from transformers import BertTokenizerFast

    mask = AddedToken("[MASK]", lstrip=True, special=True)
    made = BertTokenizerFast({word: id for id, word in enumerate(WORDS)}, strip_accents=False, mask_token=mask)
    made.backend_tokenizer.enable_padding(length=9)
    made.backend_tokenizer.enable_truncation(3)
    return made


def byte_level_bpe() -> Any:
    return wrapped(bpe(TEXTS, vocab_size=900))


def unigram() -> Any:
    pieces = [(token, 0.0) for token in SPECIAL] + [(word, -len(word) / 3) for word in WORDS if word not in SPECIAL]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=1, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    names = zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(names))


@pytest.mark.parametrize("make", [wordpiece, byte_level_bpe, unigram])
def test_a_tokenizer_json_is_read_as_transformers_reads_it(make: Callable[[], Any], tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    make().save_pretrained(tmp_path)
    other = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    encoded = assert_same(read_tokenizer(tmp_path), other)
    assert ours(read_tokenizer(tmp_path / "tokenizer.json")) == encoded
    shutil.move(tmp_path / "tokenizer.json", tmp_path / "other.json")
    read = read_tokenizer(tmp_path / "other.json")
    assert ours(read) == encoded
    # As the lab reads documents: the name of a special token is text.
    read.encode_special_tokens = True
    assert ours(read) == theirs(other, split_special_tokens=True) != encoded


def test_it_neither_pads_nor_truncates(tmp_path: Path) -> None:
    wordpiece().save_pretrained(tmp_path)
    saved = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert {len(encoding) for encoding in saved.encode_batch(TEXTS)} == {9}
    expected = ours(read_tokenizer(tmp_path))
    lengths = {len(ids) for ids, _ in expected}
    assert 0 in lengths
    assert max(lengths) > 100
    # From a folder with both files, tokenizer.json is read.
    write_words(tmp_path / "vocab.txt", [*SPECIAL, "a"], do_lower_case=False)
    assert ours(read_tokenizer(tmp_path)) == expected


def test_special_tokens_may_have_other_names(tmp_path: Path) -> None:
    """For example those of RoBERTa, whose model needs no unknown token, as it knows all bytes."""
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE({name: id for id, name in enumerate([*names, "a", "b"])}, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = read_tokenizer(tmp_path)
    assert special_ids(read) == {"pad": 1, "cls": 0, "sep": 2, "mask": 4}
    assert {token.content for token in read.get_added_tokens_decoder().values() if token.special} == set(names)
    names.remove("<unk>")
    without = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, []))
    without.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path).token_to_id("<unk>") is None


def test_the_five_are_special_whatever_the_file_says(tmp_path: Path) -> None:
    """The file's settings of special tokens are kept."""
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    tokenizer.add_tokens(["[CLS]", "two words"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = read_tokenizer(tmp_path)
    added = {token.content: token for token in read.get_added_tokens_decoder().values()}
    assert {name for name, token in added.items() if token.special} == set(SPECIAL)
    assert added["[MASK]"].lstrip
    assert read.encode("two words [CLS]").tokens == ["two words", "[CLS]"]
    read.encode_special_tokens = True
    assert not set(special_ids(read).values()) & set(read.encode(" ".join(SPECIAL)).ids)


def test_merges_are_not_dropped_at_random(tmp_path: Path) -> None:
    names = {name: id for id, name in enumerate([*SPECIAL, "a", "b", "ab"])}
    Tokenizer(models.BPE(names, [("a", "b")], unk_token="[UNK]", dropout=0.5)).save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path).encode("ab" * 99).tokens == ["ab"] * 99


SLOW, LONG = "(x+x+)+y", "x" * 60  # the library panics where an expression backtracks for long


@pytest.mark.parametrize("use", [
    lambda tokenizer: encode(tokenizer, [LONG], "uint16"),
    lambda tokenizer: tokenize(tokenizer, [LONG]),
    lambda tokenizer: TextEncoder(tokenizer, SimpleNamespace()).words([["a", LONG]]),
])  # fmt: skip
def test_panics_on_a_text_are_errors_of_the_data(use: Callable[[Tokenizer], Any], tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": SLOW}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json_with(lambda content: content.update(pre_tokenizer=split)))
    with pytest.raises(DataError, match="retry-limit"):
        use(read_tokenizer(tmp_path))


# Unusable tokenizers


def json_with(change: Callable[[dict[str, Any]], Any]) -> str:
    tokenizer = Tokenizer(models.WordPiece({t: id for id, t in enumerate([*SPECIAL, "a", "b"])}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(SPECIAL)
    content = json.loads(tokenizer.to_str())
    change(content)
    return json.dumps(content)


def lines(*tokens: str) -> str:
    return "\n".join((*SPECIAL, *tokens)) + "\n"


def unigram_with(names: list[str], **options: Any) -> str:
    model = {"type": "Unigram", "vocab": [[name, 0.0] for name in (*SPECIAL, *names)], **options}
    return json_with(lambda content: content.update(model=model))


BAD_TABLE = {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAB////"}
BAD_SPLITTER = {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
STRIP = {"type": "Strip", "content": "a", "start": 9, "stop": 9}
BAD_DECODER = {"pre_tokenizer": {"type": "Whitespace"}, "decoder": STRIP}
TOO_LONG = "tokenizer.json: has a token of more than 4096"
FAILS = "tokenizer.json: fails on a short text (...). Save the tokenizer again"
NEEDED, SAVE, UNUSED = "The lab needs tokens for padding", "Save the tokenizer again", "Replace it by a token"
WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    "missing": ({}, "none", "none: cannot be read (No such file or directory). Name a file or folder"),
    "a folder without either": ({"config.json": "{}"}, "", f": has neither tokenizer.json, vocab.txt, ... {SAVE}"),
    "a damaged JSON": ({"tokenizer.json": '{"version": '}, "", f"tokenizer.json: is not a tokenizer (EOF ...). {SAVE}"),
    "another JSON": ({"tokenizer.json": "{}"}, "", f"tokenizer.json: is not a tokenizer (Model missing. ...). {SAVE}"),
    "bytes": ({"vocab.txt": "\udcff"}, "", f"vocab.txt: byte 0 is not UTF-8. {SAVE}"),
    "a repeated line": ({"vocab.txt": lines("a", "b", "a")}, "", "vocab.txt:8: the line repeats 'a' of line 6."),
    "an empty line": ({"vocab.txt": lines("a", "", "b")}, "", f"vocab.txt:7: the line is empty. {UNUSED}"),
    "an empty file": ({"vocab.txt": ""}, "", f"vocab.txt:1: the line is empty. {UNUSED}"),
    "no [MASK]": ({"vocab.txt": lines().replace("[MASK]", "m")}, "", f"vocab.txt: lacks [MASK] or <mask>. {NEEDED}"),
    "no [UNK]": ({"vocab.txt": lines().replace("[UNK]", "u")}, "vocab.txt", f"vocab.txt: lacks [UNK]. {NEEDED}"),
    "neither": ({"tokenizer.json": json_with(lambda t: (t["model"]["vocab"].pop("[CLS]"), t["added_tokens"].pop(2),
                 t["model"]["vocab"].pop("[SEP]"), t["added_tokens"].pop(2)))}, "tokenizer.json",
                f"tokenizer.json: lacks [CLS] or <s>, [SEP] or </s>. {NEEDED}"),
    "an unknown token that the words lack": ({"tokenizer.json": json_with(lambda t: t["model"].update(unk_token="u"))},
                                             "", f"tokenizer.json: lacks u. {NEEDED}"),
    "a gap": ({"tokenizer.json": json_with(lambda t: t["model"]["vocab"].update(b=9))}, "",
              f"tokenizer.json: its ids are not 0 to 6, one per token. {SAVE}"),
    "a piece of 1 MB": ({"tokenizer.json": unigram_with(["a" * (1 << 20)], unk_id=1)}, "", TOO_LONG),
    "an unknown character without a token": ({"tokenizer.json": unigram_with(["a"], unk_id=None)}, "", FAILS),
    "a table that panics when it is read": ({"tokenizer.json": json_with(lambda t: t.update(normalizer=BAD_TABLE))}, "",
                                            "tokenizer.json: is not a tokenizer (...)."),
    "a splitter that panics": ({"tokenizer.json": json_with(lambda t: t.update(BAD_SPLITTER))}, "", FAILS),
    "a decoder that panics": ({"tokenizer.json": json_with(lambda t: t.update(BAD_DECODER))}, "", FAILS),
    "settings that are not JSON": ({"vocab.txt": lines(), "tokenizer_config.json": "{"}, "",
                                   "tokenizer_config.json: Invalid JSON: ... Correct it, or use a tokenizer.json."),
    "a setting of another type": ({"vocab.txt": lines(), "tokenizer_config.json": '{"do_lower_case": "no"}'}, "",
                                  "tokenizer_config.json: do_lower_case: Input should be a valid boolean. Correct it"),
    "words by other rules": ({"vocab.txt": lines(), "tokenizer_config.json": '{"word_tokenizer_type": "mecab"}'}, "",
                             "tokenizer_config.json: word_tokenizer_type: Input should be 'basic'. Correct it"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_used_is_refused_with_its_place_and_a_cure(name: str, tmp_path: Path) -> None:
    files, path, sentence = WRONG[name]
    for file, text in files.items():
        (tmp_path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as refused:
        read_tokenizer(tmp_path / path)
    said = str(refused.value).removeprefix(str(tmp_path)).removeprefix("/")
    assert re.match(re.escape(sentence).replace(r"\.\.\.", ".*"), said), said


BEFORE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "ent", "[", "]"]
SIZE = len(BEFORE)
OPTIONS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
WITH_ADDED = ["the [ENT1] cats", "[ent1]the[ENT2] cat", "[ENT1][ENT2]", "the [ENT 1]", "  [ENT2]  cat", "cat"]


def folder(path: Path, added: dict[str, int] | None = None, **settings: Any) -> Path:
    (path / "vocab.txt").write_text("\n".join(BEFORE) + "\n")
    (path / "config.json").write_text('{"model_type": "electra"}')
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ElectraTokenizer"} | settings))
    if added is not None:
        (path / "added_tokens.json").write_text(json.dumps(added))
    return path


def decoder(**options: Any) -> dict[str, Any]:
    names = {0: "[PAD]", SIZE: "[ENT1]", SIZE + 1: "[ENT2]"}
    return {str(id): {"content": name, **OPTIONS, **(options if id >= SIZE else {})} for id, name in names.items()}


@pytest.mark.parametrize(
    ("added", "settings"),
    [
        ({"[ENT2]": SIZE + 1, "[ENT1]": SIZE}, {}),
        (None, {"added_tokens_decoder": decoder()}),
        (None, {"added_tokens_decoder": decoder(special=False, normalized=True)}),
        (None, {"added_tokens_decoder": decoder(lstrip=True, rstrip=True)}),
        ({"[ENT1]": SIZE, "[ENT2]": SIZE + 1}, {"added_tokens_decoder": decoder(single_word=True)}),
        ({}, {}),
    ],
)
def test_added_tokens_are_those_of_transformers(
    tmp_path: Path, added: dict[str, int] | None, settings: dict[str, Any]
) -> None:
    path = folder(tmp_path, added, **settings)
    ours, theirs = read_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_vocab_size() == SIZE + (2 if added or settings else 0)
    for text in WITH_ADDED:
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("added_tokens.json", {"[ENT1]": SIZE + 4}, f"id {SIZE + 4} of the added token '[ENT1]' is not the next one."),
        ("added_tokens.json", {"the": SIZE}, f"the id {SIZE} of the added token 'the' is not the next one."),
        ("added_tokens.json", {"[ENT1]": 4}, "id 4 is that of '[MASK]', not of the added token '[ENT1]'."),
        ("added_tokens.json", {"[ENT1]": "x"}, "added_tokens.json: [ENT1]: Input should be a valid integer"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "added_tokens_decoder: x: "),
    ],
)
def test_added_tokens_that_cannot_be_are_a_sentence(tmp_path: Path, file: str, content: object, said: str) -> None:
    folder(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(DataError, match=re.escape(said)):
        read_tokenizer(tmp_path)
