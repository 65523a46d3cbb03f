"""Whole words and spans: tokens that belong together, the count, and the positions and lengths of spans."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.masking.span import _lengths
from electra_lab.testing import SIGNIFICANCE, batches, count, vocabulary
from electra_lab.training.random import Streams
from registry import tokenizers
from tests.electra_lab.masking.strategies import masked, words_of

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


@settings(max_examples=150, deadline=None)
@given(
    batch=batches(24), mask_prob=st.sampled_from([0.15, 0.3, 0.6, 1.0]), longest=st.integers(1, 5),
    kind=st.sampled_from(["geometric", "uniform"]), step=st.integers(0, 1000),
)  # fmt: skip
def test_words_are_masked_whole_or_up_to_the_end_of_the_last_span(batch, mask_prob, longest, kind, step: int) -> None:
    words, (tokens, maskable) = vocabulary(24), batch
    whole = masked("whole_word", tokens, maskable, words, step, mask_prob=mask_prob)
    spans = masked("span", tokens, maskable, words, step, mask_prob=mask_prob, length=kind, longest=longest)
    for row in range(len(tokens)):
        all_words = words_of(tokens[row].tolist(), maskable[row].tolist(), words)
        most = count(mask_prob, int(maskable[row].sum()))
        # Whole words
        chosen = set(whole.positions[row][whole.valid[row]].tolist())
        taken = [word for word in all_words if set(word) <= chosen]
        if chosen != {place for word in taken for place in word}:
            assert len(chosen) == 1
            assert all(len(word) > most for word in all_words), "a word was torn although one fitted"
        left_out = [word for word in all_words if not set(word) & chosen]
        if taken:
            assert all(len(word) > most - len(chosen) for word in left_out), "a word that fits was left out"
        # Spans
        chosen = set(spans.positions[row][spans.valid[row]].tolist())
        assert len(chosen) == most
        torn = [word for word in all_words if 0 < len(set(word) & chosen) < len(word)]
        assert len(torn) <= 1, "only the last span may be cut"
        assert all(set(word[: len(set(word) & chosen)]) <= chosen for word in torn), "a span is cut at its end"


def test_spans_cluster_where_single_tokens_do_not() -> None:
    """Neighbours of masked tokens are masked more often than by chance."""
    tokens = torch.full((300, 100), 7)  # 7 begins a word, so each token is a word

    def neighbours(name: str, **options: object) -> float:
        result = masked(name, tokens, tokens > 0, vocabulary(24), **options)
        chosen = (tokens < 0).scatter(1, result.positions, result.valid)
        return float((chosen[:, 1:] & chosen[:, :-1]).sum() / chosen[:, :-1].sum())

    assert neighbours("replace_prob") == pytest.approx(0.15, abs=0.03)
    assert neighbours("span") > 0.5
    assert neighbours("span", length="uniform", longest=1) == pytest.approx(0.15, abs=0.03)
    assert neighbours("span", stop_prob=1.0) == pytest.approx(0.15, abs=0.03)
    assert neighbours("span", length="uniform", stop_prob=1.0) > 0.5, "uniform lengths do not use stop_prob"


def test_spans_end_where_something_may_not_be_masked() -> None:
    """A span before a special token does not continue after it: the next span begins anywhere."""
    tokens = torch.full((4000, 21), 7)
    maskable = torch.ones_like(tokens, dtype=torch.bool)
    maskable[:, 10] = False
    # 3 of 20, in one span if there is room.
    result = masked("span", tokens, maskable, vocabulary(24), longest=1000, stop_prob=0.001)
    chosen = torch.zeros_like(maskable).scatter(1, result.positions, result.valid)
    assert chosen[:, 7][chosen[:, 6] & ~chosen[:, 5]].float().mean() > 0.8
    assert chosen[:, 11][chosen[:, 9] & ~chosen[:, 8]].float().mean() < 0.2


def test_lengths_follow_their_distributions() -> None:
    """SpanBERT's clipped geometric distribution (mean 3.8 words), and the uniform one."""
    uniform = Streams.of(0, 0, torch.arange(200))("law").uniform(200, 200)
    drawn = _lengths(uniform, "geometric", 10, 0.2).flatten().tolist()
    shares = torch.tensor([0.2 * 0.8**n for n in range(10)], dtype=torch.float64)
    assert sum(drawn) / len(drawn) == pytest.approx(3.8, abs=0.05)
    counts = Counter(drawn)
    assert set(counts) == set(range(1, 11))
    expected = (shares / shares.sum() * len(drawn)).tolist()
    assert stats.chisquare([counts[n] for n in range(1, 11)], expected).pvalue > SIGNIFICANCE
    flat = Counter(_lengths(uniform, "uniform", 4, 0.2).flatten().tolist())
    assert set(flat) == {1, 2, 3, 4}
    assert stats.chisquare([flat[n] for n in range(1, 5)]).pvalue > SIGNIFICANCE
