"""SentencePiece's .model files, read without its library: protobuf messages of sentencepiece_model.proto."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from registry.contracts.tokenizer import SPECIAL_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

MARK = "\u2581"  # stands for a space
NORMAL, UNKNOWN, USER = 1, 2, 4  # types of pieces; the others are control pieces, unused ones and bytes
UNIGRAM, BPE = 1, 2
SIZES = {1: 8, 5: 4}  # bytes of a value, by its wire type
NAMES = set(chain.from_iterable(SPECIAL_TOKENS.values()))


class Piece(NamedTuple):
    text: str
    score: float
    type: int

    @property
    def in_texts(self) -> bool:
        """Whether it is found in texts. Control pieces are not, nor is what is called like a special token."""
        return self.type == NORMAL or (self.type == USER and self.text not in NAMES)


def tokenizer_of(content: bytes) -> Tokenizer:
    """Return the tokenizer of a .model, which gives each piece its id. Raises ValueError."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers

    message = _fields(content)
    pieces = [_piece(piece) for piece in message.get(1, [])]
    trainer, normalizer = (_fields(_last(message, number, b"")) for number in (2, 3))
    kind, has_bytes = _last(trainer, 3, UNIGRAM), bool(_last(trainer, 35, 0))
    prefix = bool(_last(normalizer, 3, 1))
    unknown = [id for id, piece in enumerate(pieces) if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"it has {len(unknown)} pieces for unknown text, not one")
    if kind not in (UNIGRAM, BPE):
        raise ValueError("it is neither Unigram nor BPE")
    if _last(trainer, 24, 0) or not _last(normalizer, 5, 1):
        raise ValueError("it does not mark the beginnings of words")

    build = _unigram if kind == UNIGRAM else _bpe
    tokenizer = Tokenizer(build(pieces, unknown[0], has_bytes))
    tokenizer.normalizer = _normalizer(_last(normalizer, 2, b""), prefix, bool(_last(normalizer, 4, 1)))
    # Words are split, which is faster, unless a piece may reach into the next one.
    split = any(piece.text == MARK for piece in pieces)
    split = split and not any(MARK in piece.text[1:] for piece in pieces if piece.in_texts)
    words = pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=split)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*_apart(pieces), words]) if kind == UNIGRAM else words
    spaces, first = decoders.Replace(MARK, " "), [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *first])
    if kind == BPE:
        symbols = [piece.text for piece in pieces if piece.type == USER and piece.in_texts]
        tokenizer.add_tokens([AddedToken(symbol, normalized=False) for symbol in symbols])
    return tokenizer


def _normalizer(charsmap: bytes, prefix: bool, squeeze: bool) -> Normalizer:
    from tokenizers import Regex, normalizers

    # Spaces alone: other white space was mapped to them, or stays. A space before the first word is its prefix, so that
    # a word has the same tokens alone and in a text.
    dropped = [r" (?= )", rf"[ {MARK}]+\z"] if squeeze else []
    if prefix:
        dropped.insert(0, r"\A +" if squeeze else r"\A ")
    steps: list[Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    steps += [normalizers.Replace(Regex("|".join(dropped)), "")] if dropped else []
    steps += [normalizers.Prepend(MARK)] if prefix else []
    return normalizers.Sequence([*steps, normalizers.Replace(" ", MARK)])


def _unigram(pieces: Sequence[Piece], unknown: int, has_bytes: bool) -> Model:
    from tokenizers import models

    # The library knows no types. What is not found in texts loses against any other way to split them; user-defined
    # symbols have the best score, 0.
    never = -1000 * (1 + max(abs(piece.score) for piece in pieces))
    vocabulary = [(piece.text, piece.score if piece.in_texts else never) for piece in pieces]
    return models.Unigram(vocabulary, unknown, has_bytes)


def _apart(pieces: Sequence[Piece]) -> list[PreTokenizer]:
    """Return the pre-tokenizer that splits the names of other pieces at unknown characters, which loses less."""
    from tokenizers import Regex, pre_tokenizers

    known = {piece.text for piece in pieces if piece.in_texts}
    parts = []
    for name in [piece.text for piece in pieces if not piece.in_texts]:
        cut = next((place for place, character in enumerate(name, 1) if character not in known), 0)
        cut = min(cut, len(name) - 1)
        if cut:
            parts.append(f"{re.escape(name[:cut])}(?={re.escape(name[cut:])})")
    return [pre_tokenizers.Split(Regex("|".join(parts)), "merged_with_previous")] if parts else []


def _bpe(pieces: Sequence[Piece], unknown: int, has_bytes: bool) -> Model:
    from tokenizers import models

    normal = {piece.text: piece.score for piece in pieces if piece.type == NORMAL}
    merges = []
    for text in sorted(normal, key=normal.__getitem__, reverse=True):  # of equal scores, in the order of the file
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        merges += [(left, right) for left, right in halves if left in normal and right in normal]
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    name = pieces[unknown].text
    return models.BPE(ids, merges, unk_token=name, fuse_unk=True, byte_fallback=has_bytes)


def _piece(message: bytes) -> Piece:
    fields = _fields(message)
    piece = Piece(str(_last(fields, 1, b""), "utf-8"), _last(fields, 2, 0.0), _last(fields, 3, NORMAL))
    if not piece.text or not math.isfinite(piece.score):
        raise ValueError("a piece has no text or no score")
    return piece


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    """Return the value of a field; of several the last counts."""
    return fields.get(number, [default])[-1]


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of each field: numbers, floats of 4 bytes, or bytes. Raises ValueError."""
    values: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(message, place)
        elif wire == 2 or wire in SIZES:
            size, place = _varint(message, place) if wire == 2 else (SIZES[wire], place)
            value, place = message[place : place + size], place + size
            if place > len(message):
                raise ValueError("it ends within a field")
            value = struct.unpack("<f", value)[0] if wire == 5 else value
        else:
            raise ValueError(f"byte {place - 1} does not begin a field")
        values.setdefault(key >> 3, []).append(value)
    return values


def _varint(message: bytes, place: int) -> tuple[Any, int]:
    """Return a number, 7 bits of it in each byte and the lowest first, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if place == len(message):
            raise ValueError("it ends within a number")
        number, place = number | (message[place] & 127) << shift, place + 1
        if message[place - 1] < 128:
            return number, place
    raise ValueError(f"the number before byte {place} is too long")
