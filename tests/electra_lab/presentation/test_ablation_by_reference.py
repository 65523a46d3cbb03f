"""Whether a comparison depends on the reference: against scipy, by simulation, in sentences and on the page."""

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.analysis.comparisons import Parts, compare
from electra_lab.analysis.results import read
from electra_lab.presentation import references
from electra_lab.presentation.sweep_page import by_reference, write_report
from electra_lab.presentation.sweep_summary import closing
from tests.electra_lab.analysis.tiny import LARGE, SMALL, WORDS, parts, simulated
from tests.electra_lab.presentation.synthetic import SCALES, add_references, leave_out_pictures, write_folder
from tests.electra_lab.presentation.test_ablation_tables import markdown
from tests.pages import Page

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


def test_where_another_metric_leads_the_verdict_is_about_that_one(tmp_path: Path, plain: None) -> None:
    folder = made(tmp_path, metric="reference_auc")
    page = Page(folder / "report.html").text
    assert page.count("depend on the reference: that") == 1
    assert page.index("auc by reference") < page.index("depend on the reference: that")
    assert "depend on the reference" not in closing(folder)


def test_one_seed_says_that_nothing_can_be_tested(tmp_path: Path, plain: None) -> None:
    folder = made(tmp_path, seeds=1)
    assert closing(folder).count("cannot be tested (one seed: no interval).") == 2
    *_, last = Page(folder / "report.html").table("Contrasts of auc")
    assert (last[3], "[" in last[2]) == ("-", False)


def test_an_ablation_without_references_has_no_such_section(tmp_path: Path, plain: None) -> None:
    write_report(write_folder(tmp_path, SCALES, (0, 1, 2), ["generator.scale"]))
    assert by_reference(read(tmp_path)) == []
    assert not any("by reference" in (tmp_path / name).read_text() for name in ("report.html", "table.md"))


def sentences(values: Parts, baseline: str, higher: bool = True) -> list[str]:
    return references.sentences(values, compare(values, "", baseline, [list(values)]), baseline, higher)


def said(table: Mapping[str, Mapping[str, list[float]]], baseline: str = "base", higher: bool = True) -> list[str]:
    named: Parts = {}
    for name, values in table.items():
        named[name] = {label: dict(enumerate(scores)) for label, scores in values.items()}
    return sentences(named, baseline, higher)


LUCK = [0.60, 0.65, 0.71, 0.58, 0.66]


def around(mean: float, step: float = 0.0002) -> list[float]:
    """Return LUCK plus roughly `mean`."""
    return [luck + mean + step * (i % 3) for i, luck in enumerate(LUCK)]


def test_a_difference_that_turns_round() -> None:
    words = {"base": around(0.1, 0.0), "x": around(0.05, 0.0001), "y": around(0.1, 0.0003)}
    found = said({SMALL: {"base": LUCK, "x": around(0.01), "y": around(0.0)}, WORDS: words})
    assert len(found) == 2
    assert "that of x (+0.0102 by auc_small, -0.0499 by auc_unigram, p < 0.001). x is distinguishably" in found[0]
    assert found[0].endswith("by one reference and worse by another.")
    assert found[1].endswith("not the same by every reference: x by auc_small; y by auc_unigram.")


def test_a_difference_that_only_changes_its_size() -> None:
    found = said({
        SMALL: {"base": LUCK, "whole words": around(0.01)},
        LARGE: {"base": LUCK, "whole words": around(0.02, 0.0001)},
        WORDS: {"base": LUCK, "whole words": around(0.05, 0.0003)},
    })  # fmt: skip
    assert len(found) == 2
    # The two references that differ most.
    assert found[0].endswith('that of "whole words" (+0.0102 by auc_small, +0.0502 by auc_unigram, p < 0.001).')
    assert found[1] == '"whole words" has the best mean by every reference.'
    lower = said({part: {"base": LUCK, "x": around(by)} for part, by in ((SMALL, 0.01), (WORDS, 0.05))}, higher=False)
    assert lower[1] == "base has the best mean by every reference."


def test_no_difference_that_can_be_distinguished() -> None:
    noisy = [0.60, 0.66, 0.71, 0.59, 0.66]
    found = said({SMALL: {"base": LUCK, "x": noisy}, WORDS: {"base": LUCK, "x": around(0.003)}})
    p = stats.ttest_1samp(np.subtract(noisy, LUCK) - np.subtract(around(0.003), LUCK), 0).pvalue
    assert found[0].startswith("No difference to the baseline is distinguishably larger or smaller by one reference")
    assert found[0].endswith(f" (smallest p = {p:.2f}).")
    assert found[1:] == ["x has the best mean by every reference."]


def test_what_cannot_be_tested_says_why() -> None:
    once = said({SMALL: {"base": [0.6], "x": [0.7]}, WORDS: {"base": [0.6], "x": [0.5]}})
    assert once[0].endswith("cannot be tested (one seed: no interval).")
    assert once[1].endswith("not the same by every reference: x by auc_small; base by auc_unigram.")
    same = said({SMALL: {"base": [0.6, 0.7], "x": [0.7, 0.8]}, WORDS: {"base": [0.6, 0.7], "x": [0.5, 0.6]}})
    assert "cannot be tested (the same difference with every seed: no interval)." in same[0]
    [apart] = sentences({part: {"base": {0: 0.5}, "x": {1: 0.6}} for part in (SMALL, WORDS)}, "base")
    assert apart.endswith("cannot be tested (no seed in common).")


def test_of_one_reference_or_one_variant_nothing_is_said() -> None:
    alone: dict[str, list[float]] = {"base": LUCK, "x": []}
    assert said({}) == said({SMALL: {"base": LUCK, "x": LUCK}}) == said({SMALL: alone, WORDS: alone}) == []
    assert said({SMALL: {"base": LUCK, "x": LUCK}, WORDS: {"base": [], "x": []}}) == []


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 6), st.sampled_from([0.0, 0.05]), st.booleans(),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5)), max_size=8),
)  # fmt: skip
def test_no_more_is_claimed_than_the_corrected_tests_allow(
    seed: int, variants: int, seeds: int, planted: float, higher: bool, lost: set[tuple[int, int, int]]
) -> None:
    values = parts(simulated(np.random.default_rng(seed), variants, seeds, planted))
    for r, v, s in lost:
        values[(SMALL, LARGE, WORDS)[r]].get(f"v{v}", {}).pop(s, None)
    words = " ".join(sentences(values, "v0", higher))
    found = compare(values, "", "v0", [list(values)]).contrasts(list(values))
    clear = {label for (label, *_), d in found.items() if d.distinguishable}
    assert set(re.findall(r"(v\d) \([+-]", words)) == clear
    assert ("depend on the reference: that" in words) == bool(clear)
    assert set(re.findall(r"(v\d) is distinguishably better than", words)) <= clear
    assert not re.search(r"\b(nan|inf|None)\b", words)
