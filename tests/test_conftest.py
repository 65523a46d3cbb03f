"""The suite's own hooks."""

from __future__ import annotations

import runpy
import signal

import pytest

from tests.helpers import ROOT

pytest_plugins = "pytester"

SKIPPED = """
import pytest

no_device = pytest.mark.skipif(True, reason="there is no CUDA device here")

@pytest.mark.cuda
@no_device
def test_one(): ...

@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, no_device])])
def test_two(device): ...

@pytest.mark.cuda
def test_inside():
    pytest.skip("there is no CUDA device here")

def test_of_another_kind():
    pytest.skip("for another reason")
"""
PLUGINS = """
import sys
import types

sys.modules["of_no_use"] = types.ModuleType("of_no_use")


def test_that_leaves_a_plug_in_and_removes_another_module():
    del sys.modules["of_no_use"]
    sys.modules["electra_lab_plugin_left"] = types.ModuleType("electra_lab_plugin_left")


def test_after_it():
    assert "electra_lab_plugin_left" not in sys.modules
"""


def test_plug_ins_end_with_their_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLUGINS)
    pytester.makeconftest("from tests.conftest import _plugins_end_with_their_test")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_missing_devices_take_one_line_of_the_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SKIPPED)
    pytester.makeconftest("from tests.conftest import pytest_runtest_makereport")
    pytester.makeini("[pytest]\nmarkers = cuda")
    done = pytester.runpytest_inprocess("-ra", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, skipped=4)
    lines = [line for line in done.outlines if line.startswith("SKIPPED")]
    assert len(lines) == 2
    assert "SKIPPED [3] tests on CUDA: there is no CUDA device here" in lines


def test_ctrl_c_works_in_a_suite_that_a_background_shell_started() -> None:
    """POSIX shells ignore SIGINT in commands started with `&`, and child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        runpy.run_path(str(ROOT / "tests" / "conftest.py"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
