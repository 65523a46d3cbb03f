"""Scores, reduced to one per text; and pairs with byte-level tokenizers, compared with exports and transformers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

import electra_lab
from electra_lab.assembly.networks import OpenedModel
from electra_lab.data.texts import tokenize
from electra_lab.data.vocabulary import masks_take_words
from electra_lab.export.export import export
from electra_lab.inference.opening import load_pair as load
from electra_lab.inference.pair import Pair
from electra_lab.inference.scoring import percentile
from registry.errors import ConfigError
from tests.electra_lab.inference.test_pair import LONG, TEXTS, are_the_best, guesses, row
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


@torch.no_grad()
def odds(pair: Pair, ids: list[int]) -> list[float]:
    """The discriminator itself, on one row."""
    network: Any = pair.discriminator
    return network.replaced_logits(network.hidden(*row(pair, ids)))[0, 1:-1].tolist()


@torch.no_grad()
def surprise(pair: Pair, ids: list[int], masked: list[int], place: int) -> float:
    """The generator itself, on one row: the negative log-probability of the token at one of the masked places."""
    network: Any = pair.generator
    asked = [pair.vocabulary.mask_id if other in masked else id for other, id in enumerate(ids)]
    logits = network.token_logits(network.hidden(*row(pair, asked)), torch.tensor([[place + 1]]))
    return -float(logits[0, 0].log_softmax(-1)[ids[place]])


def test_detection_is_the_log_odds_reduced(pair: Pair) -> None:
    values = odds(pair, pair.tokenizer.encode(TEXTS[0]).ids)
    assert len({round(value, 6) for value in values}) > 2
    expected = {"mean": sum(values) / len(values), "max": max(values), "sum": sum(values)}
    for reduce, number in expected.items():
        found = pair.score(TEXTS[0], reduce=reduce)
        assert found.values == pytest.approx(values, abs=1e-5)
        assert found.score == pytest.approx(number, abs=1e-5)


@pytest.mark.parametrize("backbone", ["bert", "transformer"])
def test_energies_are_the_discriminators_in_a_run_and_in_its_export(tmp_path: Path, backbone: str) -> None:
    """The default of a pair trained by `electric`, in transformers' format and in the lab's own."""
    sections = {"objective": "{type: electric}", "generator": "{type: unigram}"}
    sections["discriminator"] = f"{{type: {backbone}, dim: 16, depth: 1, heads: 2}}"
    with for_a_module():
        trained = run(experiment(tmp_path, **sections), tmp_path / "run")
    of_run = load(trained, device="cpu")
    exported = export(trained, tmp_path / "out")
    network: Any = of_run.discriminator
    with torch.no_grad():
        ids = of_run.tokenizer.encode(TEXTS[0]).ids
        values = network.predict("energy", network.hidden(*row(of_run, ids)))[0, 1:-1].tolist()
    assert len({round(value, 6) for value in values}) > 2
    for pair in (of_run, load(tmp_path / "out", device="cpu")):
        for by in (None, "energy"):
            found = pair.score(TEXTS[0], by=by, reduce="sum")
            assert found.values == pytest.approx(values, abs=1e-5)
            assert found.score == pytest.approx(sum(values), abs=1e-4)
        assert not found.detects
        with pytest.raises(ConfigError, match="no detection head"):
            pair.score(TEXTS[0], by="detection")
    assert any("--by energy" in note for note in exported.networks[0].notes)


@pytest.mark.parametrize(("mask_prob", "passes"), [(None, 99), (0.3, 4), (0.25, 4), (1.0, 1)])
def test_likelihood_masks_every_token_once(pair: Pair, mask_prob: float | None, passes: int) -> None:
    ids = pair.tokenizer.encode(TEXTS[0]).ids
    places = range(len(ids))
    values = [surprise(pair, ids, [*places[place % passes :: passes]], place) for place in places]
    found = pair.score(["3 dogs", TEXTS[0], "sat"], by="likelihood", mask_prob=mask_prob)[1]
    assert found.values == pytest.approx(values, abs=1e-5)
    assert found.score == pytest.approx(sum(values) / len(values), abs=1e-5)


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of `electric` whose generator has learned to read text without masks, and its export."""
    folder = tmp_path_factory.mktemp("towers")
    sections = {"objective": "{type: electric}", "generator": "{type: two_towers, dim: 16, depth: 1, heads: 2}"}
    sections["train"] = "{steps: 30, batch_size: 8, precision: fp32, learning_rate: 0.05}"
    with for_a_module():
        made = run(experiment(folder, **sections), folder / "run")
        return made, export(made, folder / "exported").path


@pytest.mark.parametrize("mask_prob", [0.15, 0.5, None])
def test_towers_read_the_text_without_masks(towers: tuple[Path, Path], mask_prob: float | None) -> None:
    """They do not see the token that they predict. In a run, in its export, and in the exported generator alone."""
    ids = load(towers[0], device="cpu").tokenizer.encode(TEXTS[0]).ids
    for source in (*towers, towers[1] / "generator"):
        pair = load(source, device="cpu")
        values = [surprise(pair, ids, [], place) for place in range(len(ids))]
        masked = [surprise(pair, ids, [*range(len(ids))], place) for place in range(len(ids))]
        assert values != pytest.approx(masked, abs=0.05)
        found = pair.score(["3 dogs", TEXTS[0], "sat"], by="likelihood", mask_prob=mask_prob)[1]
        assert found.values == pytest.approx(values, abs=1e-5)


def test_towers_corrupt_as_in_training(towers: tuple[Path, Path]) -> None:
    pair, text = load(towers[0], device="cpu"), TEXTS[0]
    ids = pair.tokenizer.encode(text).ids
    found = pair.corrupt(text, mask_prob=0.5, top=3)
    assert len(found.candidates) > 3
    chances = guesses(pair, ids)
    for place, candidates in found.candidates.items():
        are_the_best(pair, candidates, chances[place])


def test_log_probabilities_do_not_depend_on_how_many_are_in_memory(pair: Pair, monkeypatch: Any) -> None:
    whole = pair.score(TEXTS, by="likelihood", mask_prob=0.9)
    monkeypatch.setattr("electra_lab.inference.scoring.PART", 3)
    for one, other in zip(whole, pair.score(TEXTS, by="likelihood", mask_prob=0.9), strict=True):
        assert one.values == pytest.approx(other.values, abs=1e-5)


def test_long_texts_are_scored_in_windows(pair: Pair) -> None:
    """14 tokens fit, windows share 3: tokens up to 13 come from the first window, up to 24 from the second."""
    ids = pair.tokenizer.encode(LONG).ids
    found = pair.score(LONG, by="likelihood", mask_prob=None).values
    assert len(found) == len(ids) > 24
    assert found[12] == pytest.approx(surprise(pair, ids[:14], [12], 12), abs=1e-5)
    assert found[13] == pytest.approx(surprise(pair, ids[11:25], [2], 2), abs=1e-5)
    assert pair.score(LONG).values[13] == pytest.approx(odds(pair, ids[11:25])[2], abs=1e-5)


def test_a_text_without_tokens_has_no_score(pair: Pair) -> None:
    for by in ("detection", "likelihood"):
        assert [found.score is None for found in pair.score(["", "dogs", " "], by=by)] == [True, False, True]
    assert pair.score([]) == []


def test_a_pair_without_a_discriminator_scores_by_likelihood(pair: Pair) -> None:
    alone = Pair(OpenedModel(pair.model, {"generator": pair.networks["generator"]}, pair.vocabulary, {}))
    assert alone.score("the cat").score == pytest.approx(pair.score("the cat", by="likelihood").score)
    for scorer, by in ((alone, "detection"), (pair, "energy")):
        with pytest.raises(ConfigError):
            scorer.score("the cat", by=by)


def test_nats_are_coloured_up_to_ten(pair: Pair) -> None:
    scored = pair.score("the cat", by="likelihood")
    found = replace(scored, score=0.0, values=[2.5] * len(scored.values), percentile=50.0, reference=12_345)
    first, *spans = found.spans()
    assert (first.text.split(), {span.strength for span in spans if span.note}) == (["0.000", "50.000"], {0.25})


def test_a_percentile_has_the_decimals_that_its_reference_can_tell(pair: Pair) -> None:
    """Only a score above all is shown as 100, not one that equals the highest."""
    found = pair.score("the cat")
    for reference, above, equal in ((1, "100", "50"), (9, "100", "94"), (99, "100", "99"), (999, "100.0", "99.9")):
        scores = [float(number) for number in range(reference)]
        for score, shown in ((float(reference), above), (scores[-1], equal)):
            first = next(replace(found, percentile=percentile(score, scores), reference=reference).spans())
            assert first.text.split()[1] == shown


def test_extreme_log_odds_are_shown(pair: Pair) -> None:
    found = pair.score("the cat")
    strengths = {-800.0: 0.0, 0.0: 0.5, 800.0: 1.0}
    for value, strength in strengths.items():
        shown = [span for span in replace(found, values=[value] * len(found.values)).spans() if span.note]
        assert {span.strength for span in shown} == {strength}


@pytest.mark.parametrize("wrong", [{"by": "entropy"}, {"reduce": "median"}, {"mask_prob": 0}, {"mask_prob": math.nan}])
def test_arguments_that_mean_nothing_are_refused(pair: Pair, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        pair.score("the cat", **wrong)


def test_a_percentile_counts_equal_scores_half() -> None:
    reference = [1.0, 2.0, 2.0, 4.0]
    assert [percentile(score, reference) for score in (0.0, 1.0, 2.0, 3.0, 5.0)] == [0.0, 12.5, 50.0, 75.0, 100.0]
    for rounding in (-1e-6, 1e-6):
        assert percentile(2.0 + rounding, reference) == 50.0
    assert [percentile(2.0 + gap, reference) for gap in (-1e-3, 1e-3)] == [25.0, 75.0]


MASKED = ["the [MASK] sat", "the cat [MASK]", "[MASK] caf\u00e9", "the[MASK] sat", "the cat"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair, Path]:
    """A run and its export. The learning rate is high, so that the generator knows some words."""
    folder = tmp_path_factory.mktemp("bytes")
    train = "{steps: 60, batch_size: 8, precision: fp32, learning_rate: 0.01}"
    with for_a_module():
        file = experiment(folder, tokenizer="{type: bpe, vocab_size: 400}", train=train, checkpoint="{every: 60}")
        made = run(file, folder / "run")
        exported = export(made, folder / "exported").path
    return electra_lab.load(made, device="cpu"), electra_lab.load(exported, device="cpu"), exported


@pytest.mark.parametrize("text", MASKED)
def test_a_run_its_export_and_transformers_read_the_same(pairs: tuple[Pair, Pair, Path], text: str) -> None:
    run, plain, exported = pairs
    [mine], [its] = (tokenize(pair.tokenizer, [text], with_masks=True) for pair in (run, plain))
    assert (mine.ids, mine.offsets) == (its.ids, its.offsets)
    theirs = AutoTokenizer.from_pretrained(exported / "generator")
    assert mine.ids == theirs(text, add_special_tokens=False)["input_ids"]
    if "[MASK]" in text:
        assert run.fill(text).filled == plain.fill(text).filled
        start, end = mine.offsets[mine.ids.index(run.vocabulary.mask_id)]
        assert text[start:end] == "[MASK]"


def test_no_byte_is_shown_as_a_glyph(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    for result in (pair.fill("the [MASK] sat on the [MASK]", top=50), pair.corrupt("the cat sat on a caf\u00e9")):
        for shown in (str(result), result._repr_html_().split("title=")[0]):
            assert "\u0120" not in shown
    for found in pair.corrupt(["the cat number five sat on the mat"] * 5, mask_prob=0.5):
        for i, written in found.written.items():
            assert written == pair.tokenizer.decode([pair.vocabulary.mask_id, pair.tokenizer.token_to_id(
                found.inputs[i])], skip_special_tokens=False).removeprefix("[MASK]")  # fmt: skip
        assert found.replaced == [i in found.written for i in range(len(found.tokens))]


def test_a_filled_text_has_one_space_between_words(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    found = pair.fill("the [MASK] sat", top=400)
    assert {candidate.written for candidate in found.candidates[0]} >= {" the", " cat", "a", "."}
    for best in found.candidates[0]:
        assert replace(found, candidates=[[best]]).filled == f"the{best.written} sat"


@pytest.mark.parametrize(
    ("options", "text", "tokens"),
    [
        ("{type: bytes}", "the [MASK] sat", ["t", "h", "e", "\u0120", "[MASK]", "\u0120", "s", "a", "t"]),
        ("{type: kmers, k: 2}", "AC [MASK] GT", ["AC", "[MASK]", "GT"]),
    ],
)
def test_a_space_that_no_token_implies_stays(options: str, text: str, tokens: list[str], tmp_path: Path) -> None:
    file = tmp_path / "letters.txt"
    file.write_text("".join(f"the cat sat ACGT{number} GATTACA\n\n" for number in range(60)))
    sections = {
        "corpus": f"{{type: text_files, paths: [{file}]}}",
        "data": f"{{sequence_length: 16, held_out: 0.3, overlap: 1.0, unknown: 1, store: {tmp_path}}}",
        "train": "{steps: 4, batch_size: 2}",
    }
    made = run(experiment(tmp_path, tokenizer=options, **sections), tmp_path / "run")
    pair = electra_lab.load(made, device="cpu")
    assert tokenize(pair.tokenizer, [text], with_masks=True)[0].tokens == tokens
    found = pair.fill(text, top=300)
    assert {candidate.written for candidate in found.candidates[0]} >= ({" ", "a"} if text[0] == "t" else {"A", "AC"})
    for best in found.candidates[0]:
        assert replace(found, candidates=[[best]]).filled == text.replace("[MASK]", best.written)


def test_the_first_letter_has_its_own_verdict(pairs: tuple[Pair, Pair, Path]) -> None:
    pair, *_ = pairs
    found = pair.detect("zebra sat")
    assert found.tokens[:2] == ["\u0120", "z"]
    assert found.offsets[:3] == [(0, 0), (0, 1), (1, 2)]
    shown = [span for span in found.spans() if span.text]
    assert (shown[0].text, shown[0].strength) == ("z", found.probabilities[1])
    assert pair.detect(" zebra").offsets[0] == (0, 1), "the space exists"


def test_pieces_of_sentences_too() -> None:
    """With Metaspace, as in SentencePiece."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "<unk>", "\u2581", "\u2581the", "\u2581sat", "z", "o"]
    tokenizer = Tokenizer(models.Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=4))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(words[:4])
    masks_take_words(tokenizer, "[MASK]")
    [masked] = tokenize(tokenizer, ["the [MASK] sat"], with_masks=True)
    assert masked.ids == [6, 3, 7]
    [zoo] = tokenize(tokenizer, ["zoo"])
    assert (zoo.tokens, zoo.offsets) == (["\u2581", "z", "o", "o"], [(0, 0), (0, 1), (1, 2), (2, 3)])
