"""Whole words and spans: which tokens go together, and how the count is kept."""

from __future__ import annotations

import pytest
import torch

from electra_lab.data.vocabulary import make_vocabulary
from registry import tokenizers
from tests.electra_lab.masking.strategies import words_of

TEXT = ["the unbelievable transformers are transforming un##usual words, aren't they? " * 3] * 20


def unigram():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="[UNK]", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


TRAINED = {
    "wordpiece": lambda: tokenizers.get("wordpiece").component(TEXT, vocab_size=60),
    "bpe": lambda: tokenizers.get("bpe").component(TEXT, vocab_size=300),
    "unigram": unigram,
}


@pytest.mark.parametrize("kind", TRAINED)
def test_words_are_told_by_each_kind_of_vocabulary(kind: str) -> None:
    """The pieces from one beginning to the next spell the words of the text."""
    tokenizer = TRAINED[kind]()
    text = "the transformers are transforming words , they are"
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    words = make_vocabulary(tokenizer, torch.zeros(tokenizer.get_vocab_size(), dtype=torch.int64), torch.device("cpu"))
    found = words_of(ids[0].tolist(), [True] * ids.shape[1], words)
    spelt = [tokenizer.decode(ids[0, word].tolist()).strip() for word in found]
    assert [w for w in spelt if w] == text.split()
    assert ids.shape[1] > len(found), "the text has words of several pieces"
