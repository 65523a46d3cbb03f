"""Minimal pairs: each choice of the protocol is kept; scores equal those of minicons and of transformers."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.tasks.minimal_pairs import MinimalPairs, differing
from registry import PairExample, Pretrained
from registry.errors import ConfigError, DataError, DivergedError
from tests.electra_lab.tasks.judged import EXAMPLES, SENTENCES, Given, Letters, given, masked, scores, with_heads
from tests.helpers import peer


def example(good: str, bad: str, paradigm: str = "", field: str = "", place: str = "") -> PairExample:
    return PairExample(good, bad, paradigm, field, "7", place)


def logits(**letters: float) -> torch.Tensor:
    found = torch.zeros(30)
    for letter, value in letters.items():
        found[ord(letter) - 93] = value
    return found


def test_detection_sums_the_log_probability_of_original_over_the_tokens_of_the_sentence() -> None:
    replaced = logits(a=-2.0, b=1.0)
    replaced[:4] = 50.0  # special tokens, which do not count
    found = MinimalPairs()([example("aa", "ab")], given(discriminator=Given(replaced)))
    original = {"a": math.log(1 / (1 + math.exp(-2))), "b": math.log(1 / (1 + math.e))}
    [prediction] = found.predictions
    assert prediction["good_score"] == pytest.approx(2 * original["a"])
    assert prediction["bad_score"] == pytest.approx(original["a"] + original["b"])
    assert (prediction["prediction"], prediction["correct"], prediction["id"]) == ("good", True, "7")
    assert prediction["label"] == "good"
    assert prediction["certainty"] == pytest.approx(original["a"] - original["b"])


def test_energies_are_summed_as_negative_log_probabilities() -> None:
    """In one pass, without a sigmoid; `auto` finds the head."""
    model = with_heads(given(discriminator=Given(logits(a=2.0, b=3.5))), discriminator=("energy",))
    for score in ("auto", "energy"):
        [prediction] = MinimalPairs(score=score)([example("aa", "ab")], model).predictions
        assert (prediction["good_score"], prediction["bad_score"]) == (-4.0, -5.5)


def test_each_token_is_masked_in_turn() -> None:
    network = Given(guesses=logits(a=1.0))
    found = masked()([example("ab c", "b")], given(generator=network))
    total = math.log(29 + math.e)
    assert found.predictions[0]["good_score"] == pytest.approx(1 - 3 * total)
    assert found.predictions[0]["bad_score"] == pytest.approx(-total)
    assert found.predictions[0]["prediction"] == "bad"
    assert found.predictions[0]["correct"] is False
    assert sorted(network.rows) == sorted([[1, 3, 5, 6, 2], [1, 4, 3, 6, 2], [1, 4, 5, 3, 2], [1, 3, 2]])
    assert not network.recorded


def test_what_follows_in_the_word_is_masked_too() -> None:
    network = Given()
    masked(variant="within_word")([example("abc d", "d")], given(generator=network))
    words = [[1, 3, 3, 3, 7, 2], [1, 4, 3, 3, 7, 2], [1, 4, 5, 3, 7, 2], [1, 4, 5, 6, 3, 2]]
    assert sorted(network.rows) == sorted([*words, [1, 3, 2]])


def test_only_the_tokens_that_differ_are_asked_for() -> None:
    network, pair = Given(guesses=logits(b=2.0)), [example("a b c", "a d c")]
    [found] = masked(tokens="differing")(pair, given(generator=network)).predictions
    assert sorted(network.rows) == [[1, 4, 3, 6, 2]] * 2
    assert found["good_score"] - found["bad_score"] == pytest.approx(2.0)
    detector = given(discriminator=Given(logits(a=9.0, b=1.0, c=9.0)))
    [found] = MinimalPairs(tokens="differing")(pair, detector).predictions
    assert found["good_score"] == pytest.approx(math.log(1 / (1 + math.e)))
    assert found["bad_score"] == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    ("good", "bad", "ours", "theirs"),
    [
        ("a b c", "a d c", "b", "d"),
        ("cat sat", "cats sat", "cat", "cats"),  # words are not split
        ("a b c d", "a c b d", "bc", "cb"),  # words between two changes count
        ("a b c", "a c", "abc", "ac"),  # for insertions, the neighbours count in both
        ("b", "b a", "b", "ba"),
        ("a a a", "a a", "aa", "a"),
        ("a b b c", "a b c", "bbc", "bc"),
        ("ab c", "a bc", "abc", "abc"),  # the same letters in other words
        ("a", "b", "a", "b"),
    ],
)
def test_the_words_that_differ(good: str, bad: str, ours: str, theirs: str) -> None:
    read = Letters().texts([good, bad])
    letters = [text.replace(" ", "") for text in (good, bad)]
    found = differing(*read)
    assert [text[span.start : span.stop] for text, span in zip(letters, found, strict=True)] == [ours, theirs]


# Ties and accuracies


def test_a_tie_counts_one_half(model: Pretrained) -> None:
    """Sentences with equal tokens have exactly the same score."""
    pairs = [example("The cat sat", "the cat sat"), example("zebra", "zebra")]
    filler = [example(text, text + " dogs") for text in SENTENCES]
    for task in (MinimalPairs(), masked(tokens="differing")):
        for prediction in task([*pairs, *filler], model).predictions[:2]:
            assert (prediction["prediction"], prediction["correct"]) == (None, None)
            assert prediction["good_score"] == prediction["bad_score"]
        assert task(pairs, model).metrics["grammar_accuracy"] == 0.5


def test_a_sentence_that_occurs_twice_is_read_once() -> None:
    """Passes in different batches could differ in the last bit. Its pairs may need scores of different tokens."""
    networks = Given(logits(b=1.0)), Given(guesses=logits(a=3.0, b=1.0))
    pairs = [example("a b c", "a d c"), example("a b c", "e b c"), example("a b c", "a b c")]
    MinimalPairs()(pairs, given(discriminator=networks[0]))
    assert sorted(networks[0].rows) == [[1, 4, 5, 6, 2], [1, 4, 7, 6, 2], [1, 8, 5, 6, 2]]
    task = masked(tokens="differing")
    together = scores(task(pairs, given(generator=networks[1])))
    alone = [score for pair in pairs for score in scores(task([pair], given(generator=networks[1])))]
    assert together == alone
    assert together[0] != together[2]


GOOD, BAD, TIE = ("a", "b"), ("b", "a"), ("a", "a")  # for the detector below
DETECTOR = Given(logits(b=1.0))


def test_paradigms_count_the_same_and_pairs_do_in_the_other_number() -> None:
    groups = {("one", "x"): [GOOD] * 4, ("two", "x"): [GOOD, BAD, BAD, TIE], ("three", "y"): [BAD, TIE]}
    examples = [example(*pair, *group) for group, pairs in groups.items() for pair in pairs]
    found = MinimalPairs()(examples, given(discriminator=DETECTOR))
    assert found.metrics["grammar_accuracy"] == pytest.approx((1 + 1.5 / 4 + 0.5 / 2) / 3)
    assert found.metrics["grammar_pair_accuracy"] == pytest.approx((4 + 1.5 + 0.5) / 10)
    assert found.metrics["grammar_chance"] == 0.5
    assert found.metrics.keys() == MinimalPairs.metrics.keys()
    fields, paradigms = found.tables
    assert [row[:3] for row in fields.rows] == [["all", 3, 10], ["x", 2, 8], ["y", 1, 2]]
    assert [row[3] for row in fields.rows[1:]] == pytest.approx([(1 + 1.5 / 4) / 2, 0.25])
    assert fields.rows[0][3] == found.metrics["grammar_accuracy"]
    shown = [tuple(row[:5]) for row in paradigms.rows]
    assert shown == [("one", "x", 4, 1.0, 0), ("two", "x", 4, 0.375, 1), ("three", "y", 2, 0.25, 1)]
    assert {len(row) for row in paradigms.rows} == {len(paradigms.header)}
    assert {len(row) for row in fields.rows} == {len(fields.header)}


def test_preferring_the_shorter_sentence_is_a_baseline() -> None:
    pairs = [example("c", "aa", "p"), example("aa", "c", "q"), example("a", "b", "q"), example("a", "bb", "q")]
    found = MinimalPairs()(pairs, given(discriminator=Given(logits(a=-9.0, b=-9.0, c=9.0))))
    assert found.metrics["grammar_shorter_accuracy"] == pytest.approx((1 + (0 + 0.5 + 1) / 3) / 2)
    assert [row[5] for row in found.tables[1].rows] == [1.0, 0.5]
    assert [row[3] for row in found.tables[1].rows] == pytest.approx([0.0, (1 + 0.5 + 1) / 3])


# Which network and which score

BOTH = {"discriminator": Given(logits(b=1.0)), "generator": Given(guesses=logits(b=1.0))}  # they disagree


@pytest.mark.parametrize(
    ("options", "heads", "prediction"),
    [
        ({}, {}, "good"),
        ({"network": "generator"}, {}, "bad"),
        ({"score": "pseudo_likelihood"}, {}, "bad"),
        ({"variant": "within_word"}, {}, "bad"),
        ({}, {"discriminator": (), "generator": ("tokens",)}, "bad"),
        ({"score": "detection"}, {"discriminator": ("tokens",), "generator": ("replaced",)}, "tie"),
        ({}, {"discriminator": ("tokens",), "generator": ("tokens",)}, "tie"),
        ({"score": "pseudo_likelihood"}, {"discriminator": ("tokens", "replaced"), "generator": ("tokens",)}, "tie"),
        ({}, {"discriminator": ("tokens", "replaced")}, "good"),
    ],
)
def test_the_network_and_the_score(options: Any, heads: dict[str, tuple[str, ...]], prediction: str) -> None:
    """The discriminator detects the bad sentence, and its guesses are all equal; the generator guesses the bad one."""
    model = given(**BOTH)
    model = with_heads(model, **heads) if heads else model
    [found] = MinimalPairs(**options)([example(*GOOD)], model).predictions
    assert found["prediction"] == (None if prediction == "tie" else prediction)


@pytest.mark.parametrize(
    ("options", "networks", "message"),
    [
        ({"network": "generator", "score": "detection"}, BOTH, r"'replaced' in the generator.*generator has tok"),
        ({"score": "pseudo_likelihood"}, {"discriminator": Given()}, r"the head 'tokens', but.*discriminator has repl"),
        ({"network": "generator"}, {"discriminator": Given()}, r"'replaced' or 'energy' or 'tokens' in the generator"),
        ({"score": "energy"}, {"discriminator": Given()}, "'energy'"),
    ],
)
def test_a_head_that_is_not_there(options: Any, networks: dict[str, Given], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MinimalPairs(**options)([example(*GOOD)], given(**networks))
    for score in ("detection", "energy"):
        with pytest.raises(ConfigError, match=rf"within_word.*pseudo_likelihood.*{score}"):
            MinimalPairs(score=score, variant="within_word")  # type: ignore[arg-type]


# Pairs that cannot be judged


def test_pairs_are_never_cut() -> None:
    """Six tokens and two special ones fit into eight; either sentence may be too long."""
    pairs = [example("aaaaaa", "b", "p", "f", "a.jsonl:1"), example("a", "b" * 7, "p", "f", "a.jsonl:2"),
             example("a" * 8, "b", "p", "f", "a.jsonl:3"), example("a" * 7, "b", "q", "g", "a.jsonl:4")]  # fmt: skip
    model = given(8, discriminator=DETECTOR)
    message = r"^a.jsonl:2: a sentence has 9 tokens .* row has 8. 3 of 4 pairs .*longer: leave_out"
    with pytest.raises(DataError, match=message):
        MinimalPairs()(pairs, model)
    found = MinimalPairs(longer="leave_out")(pairs, model)
    assert found.metrics["grammar_left_out"] == 3
    assert found.metrics["grammar_accuracy"] == found.metrics["grammar_pair_accuracy"] == 0.0
    assert [prediction["prediction"] for prediction in found.predictions] == ["bad", None, None, None]
    assert [prediction["correct"] for prediction in found.predictions] == [False, None, None, None]
    assert [[row[0], row[2], row[-1]] for row in found.tables[1].rows] == [["p", 1, 2], ["q", 0, 1]]
    assert [row[:3] for row in found.tables[0].rows] == [["all", 1, 1], ["f", 1, 1]]
    with pytest.raises(DataError, match=r"a.jsonl:4: .*1 of 1 pairs .*Use a model"):
        MinimalPairs(longer="leave_out")(pairs[3:], model)


@pytest.mark.parametrize("sides", [("a", " "), ("", "a")])
def test_a_sentence_without_tokens_would_always_win(sides: tuple[str, str]) -> None:
    with pytest.raises(DataError, match=r"b.jsonl:5: a sentence has no tokens"):
        MinimalPairs()([example(*sides, place="b.jsonl:5")], given(discriminator=DETECTOR))
    with pytest.raises(DataError, match="no pairs"):
        MinimalPairs()([], given(discriminator=DETECTOR))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_has_diverged(value: float) -> None:
    network = Given(*[torch.full((30,), value)] * 2)
    for task, name in ((MinimalPairs(), "discriminator"), (masked(), "generator")):
        with pytest.raises(DivergedError, match="not finite"):
            task([example(*GOOD)], given(**{name: network}))


@pytest.fixture(scope="module")
def minicons() -> Iterator[Any]:
    """minicons, with a stand-in for a library that it imports for other purposes, if that is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("wonderwords") is None:
            stand_in = ModuleType("wonderwords")
            stand_in.__getattr__ = lambda name: None  # type: ignore[method-assign]
            patch.setitem(sys.modules, "wonderwords", stand_in)
        yield peer("minicons.scorer")


@pytest.mark.parametrize(("variant", "theirs"), [("salazar", "original"), ("within_word", "within_word_l2r")])
def test_pseudo_log_likelihood_is_that_of_minicons(
    exported: tuple[Pretrained, Path], minicons: Any, variant: Any, theirs: str
) -> None:
    model, folder = exported
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "generator")
    network = ElectraForMaskedLM.from_pretrained(folder / "generator")
    scorer = minicons.MaskedLMScorer(network, "cpu", tokenizer=tokenizer)
    read = tokenizer(SENTENCES, padding=True)  # minicons would use a method that transformers 5 does not have
    expected = scorer.sequence_score(read, reduction=lambda terms: terms.sum(0).item(), PLL_metric=theirs)
    found = masked(variant=variant)(EXAMPLES, model)
    assert scores(found) == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 10


@torch.no_grad()
def test_detection_is_that_of_transformers(exported: tuple[Pretrained, Path]) -> None:
    model, folder = exported
    network = ElectraForPreTraining.from_pretrained(folder / "discriminator").double()
    tokenizer = AutoTokenizer.from_pretrained(folder / "discriminator")
    expected = []
    for sentence in SENTENCES:
        logits = network(**tokenizer(sentence, return_tensors="pt")).logits[0, 1:-1]
        expected.append((1 - logits.sigmoid()).log().sum().item())
    assert scores(MinimalPairs()(EXAMPLES, model)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("task", [MinimalPairs(), masked(), masked(variant="within_word", tokens="differing")])
def test_the_size_of_the_batch_and_autocast_do_not_matter(
    model: Pretrained, hashing: Pretrained, task: MinimalPairs
) -> None:
    for judge in (model, hashing):
        expected = scores(task(EXAMPLES, judge))
        with torch.autocast("cpu", torch.bfloat16):
            assert scores(task(EXAMPLES, judge)) == expected
        for size in (1, 3, 100):
            assert scores(task(EXAMPLES, replace(judge, batch_size=size))) == pytest.approx(expected, abs=2e-5)
