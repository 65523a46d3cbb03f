"""SentencePiece's .model files as tokenizers of the tokenizers library, with the same ids for the same text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from registry.contracts.data import SPECIAL_TOKENS
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

Piece = Any  # with a text `piece`, a score and a type
MARK = "\u2581"  # stands for a space
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4  # types of pieces; the others are unused ones and bytes
UNIGRAM, WORD = 1, 3  # types of models; the others are BPE and characters, which is BPE without merges
LONGEST = 4096  # characters of a piece; at a million the library overflows its stack
MARKS = r"\p{M}\uff9e\uff9f"  # combining marks, and two characters that become such
APART, BORDER, HIDDEN = "\U0010fffe", "\U0010ffff", 0x100000  # characters that are in no text


def tokenizer_of(content: bytes) -> Tokenizer:
    """Return the tokenizer of a .model, which gives each piece its id. Raises DataError, or an error of protobuf."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    message = _message(content)
    pieces, trainer, normalizer = message.pieces, message.trainer_spec, message.normalizer_spec
    if any(not 0 < len(piece.piece) <= LONGEST or not math.isfinite(piece.score) for piece in pieces):
        raise DataError("has a piece without a score, without a text, or with one that is too long. Copy it again.")
    unknown = [id for id, piece in enumerate(pieces) if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise DataError(f"has {len(unknown)} pieces for unknown text, not one. Copy it again.")
    if trainer.model_type == WORD:
        raise DataError("is a model of type word. Train one of type unigram, bpe or char.")
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise DataError("does not mark the beginnings of words. Train one that does.")
    if normalizer.name == "user_defined":
        raise DataError("has custom normalization rules. Train one with named rules, such as nmt_nfkc.")
    # User-defined symbols that the lab uses as special tokens are not found in texts.
    texts = {piece.piece for piece in pieces}
    roles = set[str]()
    for names in SPECIAL_TOKENS.values():
        roles.update([name for name in names if name in texts][:1])
    for piece in pieces:
        if piece.type == USER and piece.piece in roles:
            piece.type = CONTROL

    of_unigram, prefix = trainer.model_type == UNIGRAM, normalizer.add_dummy_prefix
    symbols = sorted((piece.piece for piece in pieces if piece.type == USER), key=len, reverse=True)
    if of_unigram:
        scored = [(piece.piece, piece.score) for piece in pieces]
        tokenizer = Tokenizer(models.Unigram(scored, unknown[0], trainer.byte_fallback))
    else:
        tokenizer = Tokenizer(_bpe(pieces, unknown[0], trainer.byte_fallback))
    squeeze = normalizer.remove_extra_whitespaces
    tokenizer.normalizer = _normalizer(normalizer.precompiled_charsmap, prefix, squeeze, symbols)
    # Words are split, which is faster, unless a piece may reach into the next one.
    split = MARK in texts and not any(MARK in piece.piece[1:] for piece in pieces if _in_texts(piece))
    steps: list[PreTokenizer] = [pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=split)]
    if symbols and not of_unigram:  # each is a word, and a word that is a piece is found at once
        steps.insert(0, pre_tokenizers.Split(Regex("|".join(map(re.escape, symbols))), "isolated"))
    others = [piece.piece for piece in pieces if not _in_texts(piece) and len(piece.piece) > 1]
    if others:
        steps.append(pre_tokenizers.Split(Regex(_cut(others, texts.difference(others))), "merged_with_previous"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    spaces, first = decoders.Replace(MARK, " "), [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *first])
    return tokenizer


def _message(content: bytes) -> Any:
    try:
        from transformers.convert_slow_tokenizer import import_protobuf

        messages = import_protobuf()
    except ImportError:
        cure = "Install it: pip install 'electra-lab[hugging-face]', or save a tokenizer.json next to it."
        raise DataError(f"needs the library protobuf. {cure}") from None
    return messages.ModelProto.FromString(content)


def _in_texts(piece: Piece) -> bool:
    return piece.type in (NORMAL, USER)


def _normalizer(charsmap: bytes, prefix: bool, squeeze: bool, symbols: Sequence[str]) -> Normalizer:
    from tokenizers import Regex, normalizers

    steps = _mapped(charsmap) if charsmap else []
    # Spaces alone: other white space was mapped to them, or stays.
    dropped = [r"\A +", r" (?= )", rf"[ {MARK}]+\z"] if squeeze else []
    steps.append(normalizers.Replace(Regex("|".join([BORDER, *dropped])), ""))
    # User-defined symbols are not normalized: others stand for those that would change.
    changed = [symbol for symbol in symbols if normalizers.Sequence(steps).normalize_str(symbol) != symbol]
    hidden = [normalizers.Replace(symbol, chr(HIDDEN + at)) for at, symbol in enumerate(changed)]
    shown = [normalizers.Replace(chr(HIDDEN + at), symbol) for at, symbol in enumerate(changed)]
    first = [normalizers.Prepend(MARK)] if prefix else []
    return normalizers.Sequence([*hidden, *steps, *first, *shown, normalizers.Replace(" ", MARK)])


def _mapped(charsmap: bytes) -> list[Normalizer]:
    """Return steps that replace characters by a table and compose them, as all tables with a name do.

    The library looks up a letter with its marks, and of these loses those that the table lacks. So characters are set
    apart before, and composed afterwards. SentencePiece composes only what was side by side, in this order.
    """
    from tokenizers import Regex, normalizers

    lookup = normalizers.Precompiled(charsmap)
    apart = [normalizers.Replace(Regex(r"(?=[^\x00-\x7f]|\n)\Y"), APART), lookup, normalizers.Replace(APART, "")]
    # Borders: after characters that became none or several, and between marks that are side by side in no normal form.
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    results = lookup.normalize_str(APART.join(characters)).split(APART)
    several = [re.escape(character) for character, result in zip(characters, results, strict=True) if len(result) != 1]
    before = defaultdict[str, str](str)
    for character in characters:
        for first, second in pairwise(unicodedata.normalize("NFD", character)):
            if unicodedata.category(first)[0] == "M" and first not in before[second]:
                before[second] += first
    borders = [f"(?<=[{''.join(several)}])(?=[{MARKS}\u1160-\u11ff])"]
    borders += [f"(?<=[{MARKS}])(?=[{MARKS}])(?![{''.join(before)}])"]
    borders += [f"(?<=[{MARKS}])(?<![{firsts}])(?={second})" for second, firsts in before.items()]
    return [normalizers.Replace(Regex("|".join(borders)), BORDER), *apart, normalizers.NFC()]


def _cut(names: Sequence[str], texts: set[str]) -> str:
    """Return a regular expression that splits the names of pieces that are not in texts, where no piece goes on."""
    inside = set(chain.from_iterable(map(pairwise, texts)))
    parts = []
    for name in names:
        places = [at for at, pair in enumerate(pairwise(name), 1) if pair not in inside]
        # Unknown characters side by side are one token.
        at = next((at for at in places if not texts.isdisjoint(name[at - 1 : at + 1])), 1)
        parts.append(f"{re.escape(name[:at])}(?={re.escape(name[at:])})")
    return "|".join(parts)


def _bpe(pieces: Sequence[Piece], unknown: int, has_bytes: bool) -> Model:
    from tokenizers import models

    normal = {piece.piece: piece.score for piece in pieces if piece.type == NORMAL}
    merges = []
    for text in sorted(normal, key=normal.__getitem__, reverse=True):  # of equal scores, in the order of the file
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        merges += [(left, right) for left, right in halves if left in normal and right in normal]
    ids = {piece.piece: id for id, piece in enumerate(pieces)}
    symbols = any(piece.type == USER for piece in pieces)
    options = {"fuse_unk": True, "byte_fallback": has_bytes, "ignore_merges": symbols}
    return models.BPE(ids, merges, unk_token=pieces[unknown].piece, **options)
