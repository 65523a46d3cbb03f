"""What several processes cannot share is refused at the line that asks for it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.build import sketch
from electra_lab.assembly.parallelize import parallelize, refuse_uneven
from electra_lab.config.load import load
from electra_lab.parallel.world import ALONE, World
from registry.errors import ConfigError
from tests.helpers import line_of, write_experiment

CPU = torch.device("cpu")
TRAIN = "{steps: 1, batch_size: 6, parallel: fsdp}"


def several(number: int) -> Any:
    world = World()
    world.size = number
    return world


def test_a_batch_must_be_divided_evenly(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, train=TRAIN)
    for number in (1, 2, 3, 6):
        refuse_uneven(load(file), several(number))
    with pytest.raises(ConfigError, match=f"^{file}:{line_of('train')}: train.batch_size: 6 rows .* 4 processes"):
        refuse_uneven(load(file), several(4))


REVERSIBLE = "{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4, reversible: true}"
TIED = {"embedding": "{dim: 16, max_length: 32, tie: {layers: 1}}", "generator": "{scale: 1.0}"}


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"discriminator": REVERSIBLE}, r"reversible layers\. Use ddp, or rever"),
        (TIED, "layers that two networks share"),
    ],
)
def test_what_fsdp_cannot_divide_is_refused(tmp_path: Path, sections: dict[str, str], reason: str) -> None:
    loaded = load(write_experiment(tmp_path, train=TRAIN, **sections))
    with pytest.raises(ConfigError, match=rf"train\.parallel: fsdp cannot divide {reason}"):
        parallelize(loaded, sketch(loaded), several(2), CPU, partly=False)


def test_one_process_shares_nothing(tmp_path: Path) -> None:
    loaded = load(write_experiment(tmp_path, train=TRAIN))
    built = sketch(loaded)
    parallelize(loaded, built, ALONE, CPU, partly=False)
    assert built.learner.module is built.learner.objective
    assert built.learner.world is ALONE


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "stable_adamw"])
def test_optimizers_that_need_whole_parameters_are_refused_with_fsdp(tmp_path: Path, optimizer: str) -> None:
    chosen = f"{{type: {optimizer}}}"
    load(write_experiment(tmp_path, optimizer=chosen))
    reason = f"optimizer.type: {optimizer} needs whole parameters. Use adamw, or train.parallel: ddp."
    with pytest.raises(ConfigError, match=reason):
        load(write_experiment(tmp_path, optimizer=chosen, train=TRAIN))
    for able in ("adamw", "adamw_no_bias_correction"):
        load(write_experiment(tmp_path, optimizer=f"{{type: {able}}}", train=TRAIN))
