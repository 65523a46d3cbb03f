"""The laws that every component obeys, as suites to subclass. A plug-in is tested in three lines:

    from electra_lab.testing import SamplerContract

    class TestMySampler(SamplerContract):
        name = "my_sampler"

If there is a CUDA device, the laws run on it too. Needs pytest, hypothesis and scipy.
"""

import sys
from importlib import import_module
from typing import Any

_HOME = {
    "BackboneContract": "backbones",
    "CorpusContract": "corpora",
    "DatasetContract": "datasets",
    "HeadContract": "heads",
    "LauncherContract": "launchers",
    "MaskingContract": "masking",
    "MeasureContract": "measures",
    "ObjectiveContract": "objectives",
    "OptimizerContract": "optimizers",
    "PackingContract": "packings",
    "SamplerContract": "samplers",
    "ScheduleContract": "schedules",
    "TaskContract": "tasks",
    "TrackerContract": "trackers",
    "ArrayTokens": "packings",
    "assert_lawfully_masked": "masking",
    **dict.fromkeys(
        ("CLS", "MASK", "PAD", "SEP", "SIGNIFICANCE", "UNK", "batches", "binomial_p", "chi_square_p", "count",
         "on_each_device", "random_numbers", "vocabulary"), "common"
    ),
}  # fmt: skip
__all__ = list(_HOME)


if "pytest" in sys.modules:
    import pytest

    # Before the first import of a suite, so that failing laws show their values.
    pytest.register_assert_rewrite(*{f"{__name__}.{home}" for home in _HOME.values()})


def __getattr__(name: str) -> Any:
    """Import suites lazily: the probes of launchers must load neither torch nor pytest."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
