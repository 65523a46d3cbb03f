"""Shared parts of the suites, and their lazy imports."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from scipy.stats import binomtest, chisquare

import registry
from electra_lab import testing
from electra_lab.testing import CLS, MASK, PAD, SEP, UNK, batches, binomial_p, chi_square_p, vocabulary
from electra_lab.testing.common import worst
from tests.helpers import python

pytest_plugins = "pytester"


def test_importing_the_package_loads_no_suite(tmp_path: Path) -> None:
    """Probes of launchers run in processes that must not load torch or pytest."""
    code = (
        "import json, sys, electra_lab.testing, electra_lab.testing.probes\n"
        "print(json.dumps(sorted({'torch', 'pytest', 'hypothesis'} & {*sys.modules})))"
    )
    done = python("-c", code, cwd=tmp_path)
    assert json.loads(done.stdout) == [], done.stderr


LAW = """
import itertools

from registry import schedules
from electra_lab.testing import ScheduleContract, vocabulary  # from two suites, one of which the other imports

COUNTER = itertools.count(1)


@schedules.register("moody")
def moody(step, steps, /):
    \"\"\"Another factor each time.\"\"\"
    return next(COUNTER)


class TestMoody(ScheduleContract):
    name = "moody"


class TestMoodyAgain(ScheduleContract):  # its suite is loaded by now
    name = "moody"
"""


@pytest.mark.slow  # a separate process; the last test here checks the same for every suite in this process
def test_a_law_that_fails_shows_its_values_in_a_suite_of_ones_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LAW)
    done = pytester.runpytest_subprocess(
        "-W", "error::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:randomly"
    )
    done.assert_outcomes(failed=2)
    done.stdout.re_match_lines([r".*E +(\| +)?(AssertionError: )?assert \d+ == \d+$"])
    assert "PytestAssertRewriteWarning" not in done.stdout.str()


def test_every_name_can_be_imported_and_no_other() -> None:
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'SamplerContrakt'"):
        _ = testing.SamplerContrakt
    suites = [name.removesuffix("Contract") for name in testing.__all__ if name.endswith("Contract")]
    contracts = {components.contract.removesuffix("Strategy").removeprefix("Any") for components in registry.ALL}
    assert contracts >= {*suites} != set()


def test_the_vocabulary_is_consistent() -> None:
    words = vocabulary(24)
    assert words.special_ids == (PAD, CLS, SEP, MASK)
    assert words.is_special.nonzero().flatten().tolist() == [PAD, CLS, SEP, MASK]
    assert words.ordinary_ids.tolist() == [UNK, *range(5, 24)]
    assert not words.word_start[words.is_special].any()
    assert words.word_start[5:].tolist() == [id % 3 != 0 for id in range(5, 24)]
    assert (words.counts.diff() <= 0).all()


@settings(deadline=None)
@given(batches(24))
def test_batches_are_of_every_shape(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, maskable = drawn
    assert tokens.shape == maskable.shape
    assert tokens.min() >= 0
    assert tokens.max() < 24
    assert not torch.isin(tokens[maskable], torch.tensor([PAD, CLS, SEP, MASK])).any()


def test_statistics_are_scipys() -> None:
    assert binomial_p(40, 100, 0.5) == binomtest(40, 100, 0.5).pvalue
    assert binomial_p(0, 10, -1e-9) == 1.0  # rounding of a share
    counts = torch.tensor([30.0, 50.0, 20.0])
    shares = torch.tensor([0.3, 0.4, 0.3])
    assert chi_square_p(counts, shares) == pytest.approx(chisquare([50, 30, 20], [40, 30, 30]).pvalue)


def test_rare_ids_are_pooled_into_bins_of_ten_or_more() -> None:
    """The most likely first; the rest joins the last bin."""
    shares = torch.tensor([0.5, 0.2, 0.1, 0.08, 0.06, 0.04, 0.02])
    counts = torch.tensor([20.0, 10, 4, 4, 4, 4, 4])
    bins = chisquare([20, 10, 8 + 8 + 4], [25, 10, 5 + 4 + 3 + 2 + 1])
    assert chi_square_p(counts, shares) == pytest.approx(bins.pvalue)
    assert chi_square_p(torch.tensor([5.0]), torch.tensor([1.0])) == 1.0


def test_the_place_of_the_largest_difference_is_named() -> None:
    found, expected = torch.zeros(2, 3), torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, -2.0]])
    assert worst(found, expected) == "they differ by 2 at [1, 2]: 0, -2"
    assert worst(torch.tensor(1.0), torch.tensor(1.25)) == "they differ by 0.25 at []: 1, 1.25"


@pytest.mark.parametrize("home", sorted(set(testing._HOME.values())))
def test_pytest_explains_the_assertions_of_every_suite(home: str) -> None:
    module = importlib.import_module(f"electra_lab.testing.{home}")
    assert hasattr(module, "@pytest_ar")  # added by pytest's assertion rewriting
