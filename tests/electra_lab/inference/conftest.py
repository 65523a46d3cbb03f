"""A pair trained for a few steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from electra_lab.inference.opening import load_pair as load
from electra_lab.inference.pair import Pair
from tests.electra_lab.inference.tuned import tuned  # noqa: F401
from tests.electra_lab.jobs.pretraining.tiny import experiment, for_a_module, run


class OtherRounding(TorchFunctionMode):
    """Sums the products of linear layers in an order that depends on the number of rows, as some processors do."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and not torch.compiler.is_compiling() and not torch.jit.is_tracing():
            x, weight, *bias = args
            order = torch.arange(x.shape[-1]).roll(x.shape[:-1].numel())
            args = x[..., order], weight[:, order], *bias
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _numbers_of_other_batches_are_rounded_otherwise() -> Iterator[None]:
    """A test that expects the same floats of a text alone and among others fails on every machine, not on some."""
    with OtherRounding():
        yield


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    with for_a_module():
        return run(experiment(folder), folder / "run")


@pytest.fixture(scope="session")
def pair(run_directory: Path) -> Pair:
    return load(run_directory, device="cpu")
