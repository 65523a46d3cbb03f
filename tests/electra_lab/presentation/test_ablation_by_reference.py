"""Variant x reference on an ablation's page, in table.md and in the last lines on the terminal."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from electra_lab.analysis.results import read
from electra_lab.presentation.sweep_page import by_reference, write_report
from electra_lab.presentation.sweep_summary import closing
from tests.electra_lab.presentation.synthetic import SCALES, add_references, leave_out_pictures, write_folder
from tests.electra_lab.presentation.test_ablation_tables import markdown
from tests.pages import Page

pytestmark = pytest.mark.usefixtures("plain")
PARTS = ["auc_small", "auc_large", "auc_unigram"]
VARIANTS = {"base": {}, "x": {"x": 1}, "y": {"x": 2}}
NUMBERS = np.random.default_rng(0).normal(0.7, 0.002, (3, 3, 5))
NUMBERS[0, 1] += 0.03  # x is better by the small generator
NUMBERS[2, 1] -= 0.02  # and worse by word frequencies


def made(folder: Path, metric: str = "auc", seeds: int = 5) -> Path:
    written = write_folder(folder, VARIANTS, range(seeds))
    add_references(written, lambda i, v, seed: float(NUMBERS[i, v, seed]), metric)
    write_report(written)
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        return made(tmp_path_factory.mktemp("references"))


def test_each_variant_has_its_mean_and_its_difference_by_each_reference(folder: Path) -> None:
    titles, *cells = Page(folder / "report.html").table("auc by reference")
    assert titles == ["variant", "reference", "mean", "difference"]
    assert markdown(folder)["auc by reference"][4 : 4 + len(cells)] == cells
    for (v, i), (label, part, mean, difference) in zip(product(range(3), range(3)), cells, strict=True):
        assert (label, part) == ([*VARIANTS][v], PARTS[i])
        values, base = NUMBERS[i, v], NUMBERS[i, 0]
        low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
        assert mean == f"{values.mean():.4f} ± {(high - low) / 2:.4f}"
        low, high = stats.ttest_rel(values, base).confidence_interval(0.95) if v else (0, 0)
        assert difference == (f"{(values - base).mean():+.4f} [{low:+.4f}, {high:+.4f}]" if v else "baseline")


def test_contrasts_of_references_are_listed_with_holms_p(folder: Path) -> None:
    titles, *rows = Page(folder / "report.html").table("Contrasts of auc")
    assert titles == ["variant", "references", "contrast", "Holm p"]
    deltas, pairs = NUMBERS - NUMBERS[:, :1], [(0, 1), (0, 2), (1, 2)]
    claimed = read(folder).comparisons.contrasts(PARTS).values()
    for row, d, ((i, j), v) in zip(rows, claimed, product(pairs, (1, 2)), strict=True):
        test = stats.ttest_rel(deltas[i, v], deltas[j, v])
        low, high = test.confidence_interval(0.95)
        assert row[:2] == [[*VARIANTS][v], f"{PARTS[i]} - {PARTS[j]}"]
        assert row[2].endswith(f" [{low:+.4f}, {high:+.4f}]")
        assert d.holm >= min(1, float(test.pvalue) / 0.2)
        assert row[3] == ("< 0.001" if d.holm < 0.001 else f"{d.holm:.2f}" if d.holm >= 0.0995 else f"{d.holm:.3f}")
    assert float(rows[2][2].split()[0]) == pytest.approx(0.05, abs=0.004)


def test_the_sentences_are_in_the_verdict_the_section_and_on_the_terminal(folder: Path) -> None:
    [found] = by_reference(read(folder))
    assert found.sentences[0].startswith("The differences to the baseline depend on the reference: that of ")
    page, text = Page(folder / "report.html").text, (folder / "table.md").read_text().replace("\\", "")
    for sentence in found.sentences:
        assert [said.count(sentence) for said in (page, text, closing(folder))] == [2, 2, 1]
    sections = text.split("## auc by reference\n\n")[1].split("\n\n")
    assert sections[0] == " ".join(found.sentences)
    assert [len(section.splitlines()) for section in sections[1:]] == [2 + 9, 2 + 6]


def test_where_another_metric_leads_the_verdict_is_about_that_one(tmp_path: Path) -> None:
    folder = made(tmp_path, metric="reference_auc")
    page = Page(folder / "report.html").text
    assert page.count("depend on the reference: that") == 1
    assert page.index("auc by reference") < page.index("depend on the reference: that")
    assert "depend on the reference" not in closing(folder)


def test_one_seed_says_that_nothing_can_be_tested(tmp_path: Path) -> None:
    folder = made(tmp_path, seeds=1)
    assert "cannot be tested (one seed: no interval)." in closing(folder)
    *_, last = Page(folder / "report.html").table("Contrasts of auc")
    assert (last[3], "[" in last[2]) == ("-", False)


def test_an_ablation_without_references_has_no_such_section(tmp_path: Path) -> None:
    write_report(write_folder(tmp_path, SCALES, (0, 1, 2), ["generator.scale"]))
    assert by_reference(read(tmp_path)) == []
    assert not any("by reference" in (tmp_path / name).read_text() for name in ("report.html", "table.md"))
