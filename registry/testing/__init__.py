"""The laws that every component obeys, as suites to subclass. A plug-in's whole test is three lines:

    from registry.testing import SamplerContract

    class TestMySampler(SamplerContract):
        name = "my_sampler"

Where there is a CUDA device the laws run on it too. Needs pytest, hypothesis and scipy.
"""

from registry.testing.backbones import BackboneContract
from registry.testing.common import (
    CLS,
    MASK,
    PAD,
    SEP,
    SIGNIFICANCE,
    UNK,
    batches,
    binomial_p,
    chi_square_p,
    count,
    on_each_device,
    random_numbers,
    vocabulary,
)
from registry.testing.launchers import LauncherContract
from registry.testing.masking import MaskingContract, assert_lawfully_masked
from registry.testing.measures import MeasureContract
from registry.testing.objectives import ObjectiveContract
from registry.testing.samplers import SamplerContract

__all__ = [
    "CLS",
    "MASK",
    "PAD",
    "SEP",
    "SIGNIFICANCE",
    "UNK",
    "BackboneContract",
    "LauncherContract",
    "MaskingContract",
    "MeasureContract",
    "ObjectiveContract",
    "SamplerContract",
    "assert_lawfully_masked",
    "batches",
    "binomial_p",
    "chi_square_p",
    "count",
    "on_each_device",
    "random_numbers",
    "vocabulary",
]
