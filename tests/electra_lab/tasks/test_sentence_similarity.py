"""The similarity of sentences: cosines of transformers' states, scipy's correlations, and reports of cut texts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from transformers import AutoTokenizer, ElectraModel

from electra_lab.tasks.sentence_similarity import SentenceSimilarity
from registry import Pretrained, Results, TextExample
from registry.errors import ConfigError, DataError, DivergedError
from tests.electra_lab.tasks.judged import Given, given

PAIRS = [
    ("the cat sat on the mat", "the dogs sat on the mat and saw 3 cats"),
    ("zebras", "the cat number 7"),
    ("and saw, the", "mat"),
    ("the cat sat", "a cat sat"),
]
MEAN = {"constant_pearson": 0.0, "constant_spearman": 0.0}
LABELS = [3.2, 0.0, 1.0, 5]
EXAMPLES = []
for line, (texts, score) in enumerate(zip(PAIRS, LABELS, strict=True), 2):
    EXAMPLES.append(TextExample(*texts, score, str(line), f"sts.tsv:{line}"))


def cosines(found: Results) -> list[float]:
    return [prediction["prediction"] for prediction in found.predictions]


@torch.no_grad()
def by_transformers(folder: Path, pooling: str) -> list[float]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    network: Any = ElectraModel.from_pretrained(folder)
    vectors = []
    for text in (text for pair in PAIRS for text in pair):
        states = network.double()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(states[0] if pooling == "cls" else states[1:-1].mean(0))
    return torch.cosine_similarity(torch.stack(vectors[::2]), torch.stack(vectors[1::2])).tolist()


@pytest.mark.parametrize("network", ["discriminator", "generator"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_cosines_are_those_of_transformers_and_correlations_those_of_scipy(
    exported: tuple[Pretrained, Path], network: Any, pooling: Any
) -> None:
    model, folder = exported
    found = SentenceSimilarity(network=network, pooling=pooling)(EXAMPLES, model)
    assert cosines(found) == pytest.approx(by_transformers(folder / network, pooling), abs=1e-5)
    spearman, pearson = (correlation(cosines(found), LABELS).statistic for correlation in (spearmanr, pearsonr))
    assert found.metrics == pytest.approx({"spearman": spearman, "pearson": pearson, "cut_examples": 0.0, **MEAN})
    assert found.metrics.keys() == SentenceSimilarity.metrics.keys()
    for prediction, example in zip(found.predictions, EXAMPLES, strict=True):
        assert (prediction["id"], prediction["label"]) == (example.id, example.label)


def test_the_discriminator_is_taken_if_there_is_one(model: Pretrained) -> None:
    assert SentenceSimilarity()(EXAMPLES, model) == SentenceSimilarity(network="discriminator")(EXAMPLES, model)
    alone = replace(model, networks={"generator": model.networks["generator"]})
    assert SentenceSimilarity()(EXAMPLES, alone) == SentenceSimilarity(network="generator")(EXAMPLES, model)
    with pytest.raises(ConfigError, match=r"no discriminator. Write network: generator"):
        SentenceSimilarity(network="discriminator")(EXAMPLES, alone)


@pytest.mark.parametrize("backbone", ["model", "hashing"])
def test_the_size_of_the_batch_and_autocast_do_not_matter(backbone: str, request: pytest.FixtureRequest) -> None:
    model: Pretrained = request.getfixturevalue(backbone)
    expected = cosines(SentenceSimilarity()(EXAMPLES, model))
    with torch.autocast("cpu", torch.bfloat16):
        assert cosines(SentenceSimilarity()(EXAMPLES, model)) == expected
    for size in (1, 3, 100):
        found = SentenceSimilarity()(EXAMPLES, replace(model, batch_size=size))
        assert cosines(found) == pytest.approx(expected, abs=1e-6)


def test_long_texts_lose_their_ends_and_are_counted() -> None:
    """Three tokens and two special ones fit into five; either text of a pair may be too long."""
    network, pairs = Given(), [("abcz", "abc"), ("abc", "abcz"), ("abc", "ab"), ("abczz", "abcy")]
    examples = [TextExample(*pair, label) for label, pair in enumerate(pairs)]
    found = SentenceSimilarity()(examples, given(5, discriminator=network))
    assert cosines(found) == pytest.approx([1.0, 1.0, math.sqrt(2 / 3), 1.0])
    assert found.metrics["cut_examples"] == 3 / 4
    assert max(map(len, network.rows)) == 5
    # Equal cosines have no correlation.
    same = SentenceSimilarity()([TextExample("a", "a", float(i)) for i in range(4)], given(discriminator=network))
    assert cosines(same) == [1.0] * 4
    assert same.metrics == {"spearman": 0.0, "pearson": 0.0, "cut_examples": 0.0, **MEAN}


def test_cosines_by_hand() -> None:
    """States are one-hot: the mean of two tokens has the cosine 1/sqrt(2) with either."""
    network = Given()
    pairs = [TextExample("ab", "a"), TextExample("a", "b"), TextExample("ab", "ba")]
    found = SentenceSimilarity()(pairs, given(discriminator=network))
    assert cosines(found) == pytest.approx([math.sqrt(0.5), 0.0, 1.0])
    assert cosines(SentenceSimilarity(pooling="cls")(pairs, given(discriminator=network))) == [1.0] * 3
    assert found.metrics == {}
    assert "label" not in found.predictions[0]
    assert not network.recorded


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (TextExample("a", None, 1.0, place="a.tsv:3"), r"a.tsv:3: has one text, but sentence_similarity needs two"),
        (TextExample("a", "b", "same", place="a.tsv:3"), r"a.tsv:3: the label 'same' is not a number"),
        (TextExample("a", "b", math.nan, place="a.tsv:3"), r"a.tsv:3: the label is not a finite number"),
        (TextExample("a", "b", None, place="a.tsv:3"), r"a.tsv:3: has no label, but others have one"),
        (TextExample("a", " ", 2.0, place="a.tsv:3"), r"a.tsv:3: a text has no tokens"),
        (TextExample("", "b", 2.0, id="9"), r"pair 9: a text has no tokens"),
    ],
)
def test_examples_that_cannot_be_judged(example: TextExample, message: str) -> None:
    with pytest.raises(DataError, match=message):
        SentenceSimilarity()([TextExample("a", "b", 1.0), example], given(discriminator=Given()))
    with pytest.raises(DataError, match="no pairs"):
        SentenceSimilarity()([], given(discriminator=Given()))


def test_a_network_that_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Given, "hidden", lambda self, tokens, *_: torch.full((*tokens.shape, 30), math.nan))
    with pytest.raises(DivergedError, match="not finite"):
        SentenceSimilarity()([TextExample("a", "b", 1.0)], given(discriminator=Given()))
