"""For all tests: explained assertions of laws, plug-ins that do not leak into the next test, short summaries, forks."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import registry
from registry import discovery
from tests import shapes
from tests.scorecard.hooks import SVG
from tests.scorecard.lab import Lab, compiled_shim

# Folders and files of the tests that check pictures.
LOOKED_AT = frozenset({"presentation", "test_report_looks.py", "test_benchmarks.py"})
_drawing: dict[str, Any] = {}

# A shell that starts the suite in the background ignores Ctrl-C for it, and so would the runs that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _plugins_end_with_their_test() -> Iterator[None]:
    loaded = dict(discovery._loaded)
    with ExitStack() as stack:
        for components in registry.ALL:
            stack.enter_context(components.isolated())
        yield
    discovery._loaded.clear()
    discovery._loaded.update(loaded)
    for name in [name for name in sys.modules if name.startswith("electra_lab_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no charts of a run."""
    report = "electra_lab.jobs.pretraining.execute.write_report"
    monkeypatch.setattr(report, lambda directory, *_: directory.path / "report.html")


@pytest.fixture(autouse=True)
def _compilation_stays_on() -> Iterator[None]:
    """If a test left it off, later tests in the process would silently run uncompiled."""
    yield
    frames = sys.modules.get("torch._dynamo.eval_frame")
    assert frames is None or frames._stance.stance == "default"


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for() -> Iterator[None]:
    """No test can cut the power, and waiting for disks takes a third of the time of tests that train.

    Tests of flushing patch fsync themselves; other processes flush as usual.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Commands of the lab in processes forked from one that has imported everything: for tests that do not depend on
    how the interpreter starts, which takes seconds."""
    folder = tmp_path_factory.mktemp("forks")
    served = Lab(compiled_shim(folder), folder)
    yield served
    served.close()


@pytest.fixture(scope="session", autouse=True)
def _absent_devices_have_no_seed() -> Iterator[None]:
    """torch.manual_seed would format the whole stack three times, for devices that might be used later."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.accelerator.is_available():
            for device in (torch.cuda, torch.xpu, torch.mtia):
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _dry_runs_are_short() -> Iterator[None]:
    """A dry run times thirty steps and thirty batches of each split; in tests, two of each are enough."""
    from electra_lab.planning import forecast

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "TRIES", forecast.FEWEST)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more worker than cores: some tests wait for processes that they have started."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


# Imports and collection create millions of objects, which live for the whole session. Scanning them for garbage would
# take a fifth of that time, and 4% of the time of the tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the slow tests to `make test-all`."""
    if "ELECTRA_LAB_ALL" not in os.environ:
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(tryfirst=True)  # before fixtures, some of which train
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the first calls of each test, and draw pictures only for tests that check them: they take most of the time
    of a tiny run."""
    shapes.calls.clear()
    looked_at = LOOKED_AT.intersection(item.path.parts)
    if figures := sys.modules.get("matplotlib.figure"):
        savefig = _drawing.setdefault("savefig", figures.Figure.savefig)
        figures.Figure.savefig = savefig if looked_at else lambda self, stream, **_: stream.write(SVG)
    if charts := sys.modules.get("electra_lab.presentation.pages"):
        curves = _drawing.setdefault("curves", charts.curves)
        charts.curves = curves if looked_at else lambda name, title, *_: charts.Chart(title, SVG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report all tests that lack a CUDA device on one line of the summary, with their number."""
    report = yield
    if report.skipped and item.get_closest_marker("cuda") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        report.longrepr = ("tests on CUDA", None, reason)  # a file without a line number
    return report


shapes.install()
