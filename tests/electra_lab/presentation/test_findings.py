"""The findings of a run: each metric's number under its title with its baselines, and the verdict."""

from typing import Any

import pytest

from electra_lab.analysis.records import GRADES, LEAST_RECALL, Level, titled
from electra_lab.metrics import PRETRAINING
from electra_lab.presentation.run_page import CLAIMS, OWN_TEXT, advice, findings, heading, own_task, verdicts
from electra_lab.storage.provenance import Provenance
from registry import Metric
from tests.electra_lab.storage.test_provenance import PROVENANCE

METRICS = {
    "auc": Metric("how well it ranks", "AUC", baselines=("chance", "rare")),
    "precision": Metric("share of alarms that are right", "precision"),
    "recall": Metric("share of replacements found", "recall"),
    "loss": Metric("what is minimized", unit="nats", higher_is_better=False, baselines=("entropy",)),
    "chance": Metric("", "always 'original'"),
    "rare": Metric("", "rare tokens"),
    "entropy": Metric("", "word frequencies"),
    "absent": Metric("not computed", "absent"),
}
RECORD = {"recall": 0.25, "auc": 0.75, "precision": 0.5, "loss": 2.0, "chance": 0.5, "rare": 0.625, "step": 9}


def test_metrics_come_in_the_order_of_their_declaration_each_with_its_own_number() -> None:
    assert [(finding.title, finding.value, finding.meaning) for finding in findings(RECORD, METRICS)] == [
        ("AUC", 0.75, "how well it ranks; always 'original' 0.500, rare tokens 0.625"),
        ("precision", 0.5, "share of alarms that are right"),
        ("recall", 0.25, "share of replacements found"),
        ("loss", 2.0, "what is minimized, in nats"),  # its baseline was not computed
    ]
    assert findings({"chance": 0.5, "auc_gain": 0.1}, METRICS) == []
    [found] = findings({"auc": None, "rare": None}, METRICS)
    assert (found.value, found.meaning) == (None, "how well it ranks; rare tokens -")


def test_what_has_no_title_is_called_by_its_name() -> None:
    metrics = {"skill": Metric("how well", baselines=("chance", "luck"), chart=True), "chance": Metric()}
    (found,) = findings({"skill": 0.7, "chance": 0.5, "luck": 0.6}, metrics)
    assert (found.title, found.meaning) == ("skill", "how well; chance 0.500, luck 0.600")
    assert heading(titled(metrics)["skill"]) == "Skill"
    assert list(titled(metrics)) == ["skill", "chance", "luck"]


AUC = {"discriminator_auc": 0.681, "unigram_auc": 0.525, "always_original_auc": 0.5}
LOSS = {"generator_mask_loss": 5.62, "unigram_mask_entropy": 6.41}


def judged(record: dict[str, Any], **keys: Any) -> list[str]:
    provenance = Provenance.model_validate(PROVENANCE | {"metrics": PRETRAINING} | keys)
    return [str(verdict) for verdict in verdicts(record | {"step": 9, "split": "test"}, provenance)]


def gained(name: str, gain: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    interval = {} if low is None else {f"{name}_gain_low": low, f"{name}_gain_high": high}
    return {f"{name}_gain": gain, **interval, f"{name}_gain_documents": 1453}


DETECTS = AUC | gained("discriminator_auc", 0.156, 0.149, 0.163)


def test_what_was_learned() -> None:
    assert judged(DETECTS | LOSS | gained("generator_mask_loss", 0.79, 0.751, 0.829)) == [
        "The discriminator has learned to detect replacements better than its baselines: AUC 0.681 against 0.525 "
        "(rare-token detector); gain +0.156, 95% interval +0.149 to +0.163 over 1,453 documents.",
        "The generator has learned more than word frequencies: loss at [MASK] 5.620 against 6.410 "
        "(word frequencies alone); gain +0.790, 95% interval +0.751 to +0.829 over 1,453 documents.",
    ]
    mine = {"discriminator_token_mask_loss": 5.0, "unigram_mask_entropy": 6.0}
    [said] = judged(mine | gained("discriminator_token_mask_loss", 1.0, 0.9, 1.1))
    assert said.startswith("The discriminator has learned more than word frequencies: loss at [MASK] 5.000 against 6.0")
    # Failures to learn come first.
    first, second = judged(DETECTS | LOSS | gained("generator_mask_loss", 0.0, -0.01, 0.01))
    assert first.startswith("The generator has not learned")
    assert second.startswith("The discriminator has learned")


@pytest.mark.parametrize(
    ("gain", "low", "high", "level"),
    [
        (0.2, 0.05, 0.35, "learned"), (0.134, 0.001, 0.3, "learned"), (0.132, 0.1, 0.15, "begun"),
        (0.053, 0.001, 0.1, "begun"), (0.052, 0.05, 0.054, "hardly"), (0.01, 0.0, 0.02, "unseen"),
        (-0.01, -0.03, 0.01, "unseen"), (0.01, -0.01, 0.052, "unseen"), (0.01, -0.01, 0.053, "unknown"),
        (0.2, float("nan"), 0.3, "unknown"),
        (0.2, -0.1, 0.5, "unknown"), (0.2, None, None, "unknown"), (-0.01, -0.02, 0.0, "not"),
        (-0.1, -0.15, -0.05, "not"),
    ],
)  # fmt: skip
def test_the_interval_decides_the_level(gain: float, low: float | None, high: float | None, level: Level) -> None:
    """From 0.525, .05225 is 11% of the way to 1 and .133 is 28%. No sentence claims equality."""
    assert GRADES["detection"] == (0.11, 0.28)
    [said] = judged(AUC | gained("discriminator_auc", gain, low, high))
    claim = CLAIMS[level].format("discriminator", "to detect replacements better than its baselines")
    assert said.startswith(f"{claim}: AUC 0.681 against 0.525 (rare-token detector); gain {gain:+.3f}")
    assert ("% of the way to 1)" in said) == (level in ("hardly", "begun"))
    assert said.endswith("too few documents for an interval." if low is None else "over 1,453 documents.")


@pytest.mark.parametrize(
    ("gain", "degree"),
    [(0.31, "hardly learned"), (0.33, "begun to learn"), (0.63, "begun to learn"), (0.65, "learned")],
)
def test_a_loss_has_grades_of_its_own(gain: float, degree: str) -> None:
    """Of 6.41 nats a twentieth is 0.3205, and a tenth 0.641."""
    [said] = judged(LOSS | gained("generator_mask_loss", gain, 0.01, 0.9))
    assert said.startswith(f"The generator has {degree} more than word frequencies: ")
    assert (f"({gain / 6.41:.1%} of the way to 0)" in said) == (degree != "learned")


@pytest.mark.parametrize(("recall", "degree"), [(0.0, "begun to learn"), (0.049, "begun to learn"), (0.05, "learned")])
def test_a_discriminator_without_detections_has_not_learned(recall: float, degree: str) -> None:
    assert LEAST_RECALL == 0.05
    [said] = judged(DETECTS | {"discriminator_recall": recall})
    assert said.startswith(f"The discriminator has {degree} to detect")
    assert f"it finds {recall:.1%} of the replacements" in said
    hardly = AUC | {"discriminator_recall": recall} | gained("discriminator_auc", 0.02, 0.01, 0.03)
    assert judged(hardly)[0].startswith("The discriminator has hardly learned")


def test_the_better_baseline_is_named_and_rows_are_called_rows() -> None:
    rows = {name.replace("documents", "rows"): v for name, v in gained("discriminator_auc", 0.1, 0.0, 0.2).items()}
    assert judged(AUC | rows)[0].endswith("over 1,453 rows.")
    [said] = judged(AUC | {"unigram_auc": 0.48} | gained("discriminator_auc", 0.181, 0.17, 0.19))
    assert "AUC 0.681 against 0.500 (always 'original'); gain +0.181" in said


def test_what_cannot_be_judged_is_not() -> None:
    """A generator that cannot learn, a run without gains, and a run that declares other metrics."""
    record = LOSS | gained("generator_mask_loss", 0.0, -0.01, 0.01)
    assert [len(judged(record, parameters={"generator": size, "discriminator": 9})) for size in (0, 1)] == [0, 1]
    assert judged(AUC | LOSS) == []
    assert judged(AUC | {"discriminator_auc": None, "discriminator_auc_gain": None}) == []
    given = ({"word_auc": Metric()}, {"discriminator_auc": Metric()}, {})
    assert [len(judged(DETECTS, metrics=metrics)) for metrics in given] == [0, 0, 0]


def test_advice_is_for_those_who_need_it() -> None:
    provenance = Provenance.model_validate(PROVENANCE | {"metrics": PRETRAINING})
    gains = [gained("discriminator_auc", gain, gain - 0.02, gain + 0.02) for gain in (0.06, 0.05)]
    good, bad = (verdicts(AUC | gain, provenance) for gain in gains)
    assert advice([]) == advice(good) == ""
    assert advice(bad) == advice(good + bad) == OWN_TEXT
    assert "docs/own-text.md" in OWN_TEXT


def test_numbers_that_do_not_compare_runs_are_marked() -> None:
    found = findings(AUC | LOSS | {"discriminator_recall": 0.1}, PRETRAINING)
    assert [finding.meaning.endswith("; not comparable between runs") for finding in found] == [False, True, True]
    assert own_task(AUC | LOSS, PRETRAINING) != own_task(LOSS, PRETRAINING) == ""
