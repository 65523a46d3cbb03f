"""The Vocabulary of a tokenizer and its training tokens."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from registry import Vocabulary
from registry.contracts.data import LONGER, SPECIAL_TOKENS, UNKNOWN
from registry.errors import DataError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

# Ends of sentences: Latin, CJK, Arabic, Urdu, Devanagari, Armenian, Ethiopic, Myanmar, Khmer, Tibetan; line ends.
SENTENCE_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f\uff0e\uff61\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4\u0f0d\n")
BYTE_MARK = "\u0120"  # of a space, in byte-level tokenizers
JOINERS = "\u00ad\u200c\u200d\u2060"  # soft hyphen, zero-width non-joiner and joiner, word joiner


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens by role: pad, cls, sep, mask. Raises DataError if one is missing.

    A template that names the roles says which they are, as `pretrained` writes it; otherwise they have common names.
    """
    template = json.loads(tokenizer.post_processor.__getstate__()) if tokenizer.post_processor else {}
    roles = template.get("special_tokens", {})
    if roles.keys() == SPECIAL_TOKENS.keys():
        return {role: roles[role]["ids"][0] for role in SPECIAL_TOKENS}
    ids: dict[str, int] = {}
    missing = []
    for role, names in SPECIAL_TOKENS.items():
        id = token_id(tokenizer, names)
        if id is None:
            missing.append(" or ".join(names[:2]))
        else:
            ids[role] = id
    if missing:
        needs = "a token for padding, one for the beginning and one for the end of a text, and one for the mask"
        raise DataError(f"the tokenizer has no {', no '.join(missing)}. The lab needs {needs}.")
    return ids


def token_id(tokenizer: Tokenizer, names: Iterable[str]) -> int | None:
    """Return the id of the first of the names that the tokenizer has."""
    ids = map(tokenizer.token_to_id, names)
    return next((id for id in ids if id is not None), None)


def readable_token(tokenizer: Tokenizer, id: int) -> str:
    """Return a token as people can read it. A byte-level tokenizer writes each byte as a symbol: U+C11C as three.

    White space keeps its symbol, such as the U+0120 of a space. So do the bytes of what cannot be seen, or is a part of
    a letter.
    """
    from tokenizers import decoders

    token = tokenizer.id_to_token(id) or ""
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        return token
    text = tokenizer.decode([id], skip_special_tokens=False)
    if "\ufffd" in text or not all(character <= " " or character.isprintable() for character in text):
        return token
    return "".join(chr(256 + ord(character)) if character <= " " else character for character in text)


def make_vocabulary(tokenizer: Tokenizer, counts: torch.Tensor, device: torch.device) -> Vocabulary:
    """Return the vocabulary of a tokenizer; `counts` are training frequencies, Int[V].

    Raises DataError if the tokenizer lacks a special token.
    """
    import torch  # here, as the processes that encode shards need none

    size, ids = tokenizer.get_vocab_size(), special_ids(tokenizer)
    is_special = torch.zeros(size, dtype=torch.bool)
    is_special[list(ids.values())] = True
    # One by one: decoding a batch starts threads, and a process that is forked later would wait for them forever.
    texts = [tokenizer.decode([id], skip_special_tokens=False) for id in range(size)]
    begins = torch.tensor(_begin_words(tokenizer, texts))
    ends = torch.tensor([text.rstrip(" ").endswith(SENTENCE_ENDS) for text in texts])
    return Vocabulary(
        size=size,
        pad_id=ids["pad"],
        cls_id=ids["cls"],
        sep_id=ids["sep"],
        mask_id=ids["mask"],
        special_ids=tuple(sorted(ids.values())),
        is_special=is_special.to(device),
        ordinary_ids=(~is_special).nonzero().squeeze(1).to(device),
        word_start=(begins & ~is_special).to(device),
        counts=counts.to(device),
        sentence_end=(ends & ~is_special).to(device),
    )


def stand_in_vocabulary(size: int, device: torch.device | None = None) -> Vocabulary:
    """Return a vocabulary of a size, without words, for computations that depend only on shapes."""
    import torch

    ids = torch.arange(size, device=device)
    pad, cls, sep, mask = range(4)
    special = ids < 4
    return Vocabulary(
        size, pad, cls, sep, mask, (pad, cls, sep, mask), special, ids[4:], ~special, torch.ones_like(ids)
    )


class ArrayTokens:
    """A registry.contracts.data.Tokens of documents in memory, passed without their [SEP].

    sep  id of [SEP], by default that of the tokenizers that the lab trains, and of `electra_lab.testing`
    """

    def __init__(self, texts: Sequence[Sequence[int]], sep: int = 3) -> None:
        self.stream = np.array(list(chain.from_iterable((*text, sep) for text in texts)), dtype=np.uint32)
        self.lengths = np.array([len(text) + 1 for text in texts], dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.stream)

    def read(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.stream[places].astype(np.int64)


def word_mark(tokenizer: Tokenizer) -> str | None:
    """Return the mark that replaces the space before a word in its first token; None for tokenizers without one."""
    settings = json.loads(tokenizer.to_str())
    parts = [settings["decoder"], settings["pre_tokenizer"]]
    while parts:
        part = parts.pop(0) or {}
        match part.get("type"):
            case "Sequence":
                parts = [*part.get("decoders", []), *part.get("pretokenizers", []), *parts]
            case "ByteLevel":
                return BYTE_MARK
            case "Metaspace":
                return str(part["replacement"])
            case "Replace" if part["content"] == " ":  # the decoder of Llama's tokenizer
                return str(part["pattern"].get("String"))
    return None


def replacements(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return the regular expressions that the tokenizer replaces first, with their replacements, in its order."""
    steps = [json.loads(tokenizer.normalizer.__getstate__())] if tokenizer.normalizer else []
    if steps and steps[0]["type"] == "Sequence":
        steps = steps[0]["normalizers"]
    return [(step["pattern"].get("Regex", ""), step["content"]) for step in steps if step["type"] == "Replace"]


def with_changes(tokenizer: Tokenizer, changes: Mapping[str, str]) -> Tokenizer:
    """Let a tokenizer first change text as its corpus does; see registry.contracts.Corpus."""
    from tokenizers import Regex, normalizers

    if changes:
        steps: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in changes.items()]
        others: Any = tokenizer.normalizer
        several = isinstance(tokenizer.normalizer, normalizers.Sequence)
        steps += others if several else filter(None, [others])
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def kmers_of(tokenizer: Tokenizer) -> int | None:
    """Return the length of the overlapping k-mers that the tokenizer reads, None for any other text."""
    for pattern, text in replacements(tokenizer)[:1]:
        digits = "".join(filter(str.isdigit, pattern))
        if text == "?" and pattern == LONGER.format(digits):
            return int(digits) - 1
    return None


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token for unknown text, None for a tokenizer that has none."""
    name = getattr(tokenizer.model, "unk_token", None)
    return token_id(tokenizer, (name,) if name else UNKNOWN)


def spaces_stay(tokenizer: Tokenizer) -> bool:
    """Return True if no token stands for a word and the space before it: spaces are tokens, or only separate them."""
    mark = word_mark(tokenizer)
    if mark is None:
        decoder = json.loads(tokenizer.to_str())["decoder"]
        return decoder is not None and decoder["type"] == "Fuse"
    return not any(name != mark and name.startswith(mark) for name in tokenizer.get_vocab())


def masks_take_words(tokenizer: Tokenizer, mask: str) -> None:
    """Let a mask in a text replace a word as in training: with the space before it, if words include that."""
    from tokenizers import AddedToken

    lstrip = word_mark(tokenizer) is not None and not spaces_stay(tokenizer)
    tokenizer.add_special_tokens([AddedToken(mask, special=True, normalized=False, lstrip=lstrip)])


def for_words(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that reads words, each by itself, as in a text after a space, also at the beginning.

    Byte-level tokenizers without `add_prefix_space` would read them as parts of the word before.
    """
    from tokenizers import Tokenizer, pre_tokenizers

    mark, normalizer, splitter = word_mark(tokenizer), tokenizer.normalizer, tokenizer.pre_tokenizer
    text = normalizer.normalize_str("a") if normalizer else "a"
    first = splitter.pre_tokenize_str(text)[:1] if splitter else [(text, (0, 1))]
    if mark is None or any(piece.startswith(mark) for piece, _ in first):
        return tokenizer
    spaced = Tokenizer.from_str(tokenizer.to_str())
    space = pre_tokenizers.Metaspace(" " if mark == BYTE_MARK else mark, prepend_scheme="always", split=False)
    spaced.pre_tokenizer = pre_tokenizers.Sequence([space, *([splitter] if splitter else [])])
    return spaced


def _begin_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[bool]:
    """Return True for each token that begins a word; `texts` are those of the tokens.

    WordPiece marks tokens that continue a word (`##`), byte-level BPE and Unigram those that begin one (`\u0120`,
    `\u2581`). Tokens without such a mark continue a word if they begin with a letter, a digit or a combining mark, or
    within a character; all others stand alone.
    """
    mark = word_mark(tokenizer)
    names = [tokenizer.id_to_token(id) or "" for id in range(tokenizer.get_vocab_size())]
    if mark is None:
        model_prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
        # A list of words has no prefix: `##` is text there.
        prefixes = tuple(filter(None, [model_prefix, getattr(tokenizer.decoder, "prefix", None)]))
        return [not name.startswith(prefixes) for name in names]
    return [name.startswith(mark) or not _continues(text) for name, text in zip(names, texts, strict=True)]


def _continues(text: str) -> bool:
    """Return True if a text without a space before it continues a word; U+FFFD is a part of a character."""
    first = text[:1]
    return not first or first == "\ufffd" or unicodedata.category(first)[0] in "LMN" or first in JOINERS
