"""Scores: the numbers of the networks themselves, reduced to one for each text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.export.export import export
from electra_lab.inference.pair import Pair, load
from electra_lab.inference.scoring import percentile
from registry.errors import ConfigError
from tests.electra_lab.inference.test_pair import LONG, TEXTS, row
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


@torch.no_grad()
def odds(pair: Pair, ids: list[int]) -> list[float]:
    """The discriminator itself, on one row."""
    network: Any = pair.discriminator
    return network.replaced_logits(network.hidden(*row(pair, ids)))[0, 1:-1].tolist()


@torch.no_grad()
def surprise(pair: Pair, ids: list[int], masked: list[int], place: int) -> float:
    """The generator itself, on one row: the negative log-probability of the token at a place, one of the masked."""
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
    """The default of a pair that `electric` has trained; in transformers' format and in the lab's own."""
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


def test_long_texts_are_scored_in_windows(pair: Pair) -> None:
    """14 tokens fit, neighbours share 3: the first window is asked for its first 13, the second for those up to 24."""
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
    alone = Pair("alone", pair.tokenizer, pair.vocabulary, pair.length, generator=pair.generator)
    assert alone.score("the cat").score == pytest.approx(pair.score("the cat", by="likelihood").score)
    for scorer, by in ((alone, "detection"), (pair, "energy")):
        with pytest.raises(ConfigError):
            scorer.score("the cat", by=by)


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
