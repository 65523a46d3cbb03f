"""The curves of a run's page: their points, names, marks and scale."""

from __future__ import annotations

import pytest

from electra_lab.presentation.charts import LEAST_SPAN, SERIES, SOFT
from electra_lab.storage.run_directory import RunDirectory
from tests.electra_lab.presentation.axes import Drawn, overlaps
from tests.electra_lab.presentation.test_run_page import page, rewrite, train, validation

TRAIN, VALIDATION = SERIES[0], SERIES[1]


def plotted(drawn: Drawn, name: str) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Return colour and points of each line by its label, which the legend has too."""
    axes = drawn[name]
    found = {str(line.get_label()): (line.get_color(), [tuple(p) for p in line.get_xydata()]) for line in axes.lines}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found)
    return found


def test_a_chart_shows_training_and_validation_and_the_baselines_over_steps(
    directory: RunDirectory, drawn: Drawn
) -> None:
    first = {"generator_loss": 7.0, "unigram_entropy": 6.0, "discriminator_auc": 0.6, "unigram_auc": 0.55}
    second = {"generator_loss": 5.0, "unigram_entropy": 6.5, "discriminator_auc": 0.7, "unigram_auc": 0.56}
    rewrite(directory, train(10, generator_loss=9.0), train(20, generator_loss=8.0),
            validation(20, always_original_auc=0.5, **first), train(30, generator_loss=None),
            validation(40, always_original_auc=0.5, **second))  # fmt: skip
    captions = [each.text for each in page(directory).all("figcaption")]
    assert captions == ["Generator loss, nats", "Discriminator AUC"]
    assert drawn.keys() == {"discriminator_auc", "generator_loss"}
    assert plotted(drawn, "generator_loss") == {
        "training": (TRAIN, [(10, 9.0), (20, 8.0)]),
        "validation": (VALIDATION, [(20, 7.0), (40, 5.0)]),
        "word frequencies alone": (SOFT, [(20, 6.0), (40, 6.5)]),
    }
    assert plotted(drawn, "discriminator_auc") == {
        "validation": (VALIDATION, [(20, 0.6), (40, 0.7)]),
        "always 'original'": (SOFT, [(20, 0.5), (40, 0.5)]),
        "rare-token detector": (SOFT, [(20, 0.55), (40, 0.56)]),
    }
    axes = drawn["discriminator_auc"]
    assert axes.get_xlabel() == "step"
    validated, *baselines = (line.get_linestyle() for line in axes.lines)
    assert validated == "-"
    assert len({validated, *baselines}) == 3  # two baselines in one colour differ in their dashes
    assert all(line.get_marker() != "None" for line in axes.lines)  # few points: one could hide on a line


def test_the_legend_covers_no_curve(directory: RunDirectory, drawn: Drawn) -> None:
    records = []
    for step, value in enumerate((0.5, 0.9, 0.5, 0.9)):
        baselines = {"always_original_auc": 0.5, "unigram_auc": 0.6, "unigram_entropy": value}
        both = {"discriminator_auc": 1.4 - value, "generator_loss": 1 - value}
        records += [train(step, discriminator_auc=value, generator_loss=value), validation(step, **both, **baselines)]
    rewrite(directory, *records)
    page(directory)
    assert {name: overlaps(axes) for name, axes in drawn.items()} == {"discriminator_auc": [], "generator_loss": []}


def test_a_long_curve_has_no_markers_and_one_evaluation_no_chart(directory: RunDirectory, drawn: Drawn) -> None:
    rewrite(directory, *(train(n, generator_loss=float(n)) for n in range(1, 21)))
    page(directory)
    assert [line.get_marker() for line in drawn["generator_loss"].lines] == ["None"]
    once = {"discriminator_auc": 0.6, "always_original_auc": 0.5, "discriminator_loss": 0.4}
    both = train(10, generator_loss=9.0, discriminator_loss=0.5), train(20, generator_loss=8.0)
    rewrite(directory, *both, validation(20, generator_loss=7.0, **once))
    # Of the generator's loss the training text has two points.
    assert [each.text for each in page(directory).all("figcaption")] == ["Generator loss, nats"]
    assert drawn.keys() == {"generator_loss"}


@pytest.mark.parametrize(("low", "high"), [(0.7, 0.7), (0.7, 0.701), (100.0, 100.5), (-3.0, -2.99)])
def test_a_small_change_does_not_fill_the_chart(directory: RunDirectory, drawn: Drawn, low: float, high: float) -> None:
    """The vertical axis spans at least 2% of the values, with the curve in its middle."""
    rewrite(directory, validation(1, discriminator_auc=low), validation(2, discriminator_auc=high))
    page(directory)
    bottom, top = drawn["discriminator_auc"].get_ylim()
    assert top - bottom == pytest.approx(LEAST_SPAN * max(abs(low), abs(high)))
    assert (top + bottom) / 2 == pytest.approx((low + high) / 2)
