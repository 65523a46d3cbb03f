"""Unigram, as SentencePiece, T5 and XLM-R use it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from electra_lab.tokenizers.wordpiece import SPECIAL, count_characters
from registry import tokenizers
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DIGITS = 6  # of a token's log-probability


@tokenizers.register("unigram")
def unigram(
    documents: Iterable[str],
    /,
    *,
    vocab_size: Annotated[int, Field(ge=100, le=1 << 24)] = 32_000,
    lowercase: bool = False,
) -> Tokenizer:
    """Unigram language model (Kudo 2018), trained on the training split; also for languages without spaces.

    Training takes much longer than for `wordpiece` and `bpe`. White space becomes one space, and none at the ends of a
    document, as in SentencePiece.

    vocab_size  largest number of tokens; a small corpus gives fewer
    lowercase   lower-case first
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])]
    # A space at the beginning is the mark that each text has there.
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    # Each character is a token, as are the mark of a space and the special tokens.
    needed = len(count_characters(documents, tokenizer.normalizer)) + 1 + len(SPECIAL)
    if needed > vocab_size:
        reason = f"the characters of the text need {needed:,} tokens, but tokenizer.vocab_size is {vocab_size:,}"
        raise DataError(f"{reason}. Raise it, or choose another tokenizer, such as `bpe`.")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    # The library adds numbers in the order of a hash map, which differs between processes, and with it the last digits
    # of the scores and the order of the tokens.
    model = json.loads(tokenizer.to_str())["model"]
    special, others = model["vocab"][: len(SPECIAL)], model["vocab"][len(SPECIAL) :]
    rounded = [(token, round(score, DIGITS)) for token, score in others]
    rounded.sort(key=lambda pair: (-pair[1], pair[0]))
    tokenizer.model = models.Unigram([*map(tuple, special), *rounded], model["unk_id"], model["byte_fallback"])
    return tokenizer
