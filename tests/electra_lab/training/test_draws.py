"""Draws that are kept on disk: the same training, bit for bit, whatever a killed process has left behind."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.build import sketch
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, assemble, parallelize
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining.execute import kept_draws
from electra_lab.objectives.frozen_generator import FrozenGenerator
from electra_lab.parallel.session import ALONE, World
from electra_lab.training.draws import Draws
from electra_lab.training.loop import batch_of
from electra_lab.training.random import Streams
from registry.errors import ConfigError, DataError, Interrupted
from tests.electra_lab.jobs.pretraining.tiny import assert_same, run, signalled
from tests.electra_lab.objectives.test_frozen_generator import earlier, frozen

KEPT = "{type: frozen_generator, run: earlier, cache: kept}"
# More than two epochs; a falling temperature, dropout in both networks, micro-batches.
HOT = "{sampler.temperature: {type: exponential, start: 2.0, end: 1.0, rate: 3.0}, learning_rate: {warmup_steps: 2}}"
TRAIN = "{steps: 8, batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 2}"
pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draws")
    earlier(folder)
    return folder


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    run(frozen(home, train=TRAIN, schedules=HOT), home / "plain")
    run(file(home), home / "first")
    return home


def file(folder: Path, **sections: str) -> Path:
    return frozen(folder, **{"objective": KEPT, "train": TRAIN, "schedules": HOT, **sections})


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    drawn: list[int] = []
    before = FrozenGenerator.draws

    def counting(self: Any, batch: Any, rng: Any) -> Any:
        drawn.append(len(batch))
        return before(self, batch, rng)

    monkeypatch.setattr(FrozenGenerator, "draws", counting)
    return drawn


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "kept").glob("*.draws"))


def test_training_is_the_same_with_and_without_it(trained: Path, tmp_path: Path, forwards: list[int]) -> None:
    """The first run draws; later ones, also with another loss weight and rate, do not need to."""
    assert_same(trained / "plain", trained / "first")
    (found,) = kept(trained)
    rows, slots = 8 * 4, 3  # ceil(.15 * 16)
    assert found.stat().st_size == rows * slots * 2
    run(file(trained), tmp_path / "second")
    assert_same(trained / "plain", tmp_path / "second")
    run(file(trained), tmp_path / "third", "objective.discriminator_weight=9.0", "train.learning_rate=0.1")
    assert forwards == []
    assert kept(trained) == [found]


def test_what_is_missing_is_drawn_again(trained: Path, tmp_path: Path, forwards: list[int]) -> None:
    """A row torn in the first step, an invalid id in the third, and the second half of the file."""
    (found,) = kept(trained)
    whole = found.read_bytes()
    torn = whole[:8] + b"\0\0" + whole[10:50] + b"\xff\xff" + whole[52:]
    found.write_bytes(torn[: len(whole) // 2 + 1])
    run(file(trained), tmp_path / "run")
    assert_same(trained / "plain", tmp_path / "run")
    assert sum(forwards) == 4 + 4 + 16
    assert found.read_bytes() == whole


def test_a_run_that_stops_goes_on(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in kept(trained):
        path.unlink()
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGINT, 3)
        with pytest.raises(Interrupted):
            run(file(trained), tmp_path / "stopped")
    execute.resume(tmp_path / "stopped", "cpu")
    assert_same(trained / "plain", tmp_path / "stopped")


OTHERS = ["seed=1", "masking.mask_prob=0.3", "sampler.type=nucleus", "train.batch_size=2", "train.steps=4",
          "train.micro_batch_size=4", "objective.disallow_correct=true"]  # fmt: skip
# Settings of both, and changes that make no difference.
SAME = [
    (["generator={dim: 8, depth: 1, heads: 1}"], ["discriminator.depth=2"]),
    ([], ["train.learning_rate=0.1", "train.clip_norm=9.0", "objective.discriminator_weight=1.0"]),
    ([], ["evaluate.every=1", "checkpoint.every=3"]),
]


def made(home: Path, *changes: str, **sections: str) -> Experiment:
    loaded = load(file(home, **sections), list(changes))
    assembled = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"), restored=True)
    assembled.run.draws = kept_draws(loaded, assembled)
    return assembled


def identity(home: Path, *changes: str, **sections: str) -> Any:
    draws = made(home, *changes, **sections).run.draws
    assert draws is not None
    return draws.identity


@pytest.mark.parametrize("change", OTHERS)
def test_draws_that_would_differ_have_another_file(home: Path, change: str) -> None:
    assert identity(home) != identity(home, change)


@pytest.mark.parametrize(("both", "changes"), SAME)
def test_draws_that_would_not_differ_have_the_same_file(home: Path, both: list[str], changes: list[str]) -> None:
    assert identity(home, *both) == identity(home, *both, *changes)


def test_schedules_of_masks_and_draws_count_and_with_them_the_steps(home: Path) -> None:
    slower = HOT.replace("3.0", "1.0")
    assert identity(home) != identity(home, schedules=slower)
    steady = "{learning_rate: {warmup_steps: 2}}"
    assert identity(home, schedules=steady) == identity(home, "train.steps=4", schedules=steady)


def test_another_generator_has_another_file(tmp_path: Path) -> None:
    weights = torch.nn.Linear(2, 2)
    draws = [Draws(tmp_path / "kept", {"seed": 0}, 3, 30) for _ in range(2)]
    draws[0]._open(weights)
    weights.bias.data[1] += 1e-3
    draws[1]._open(weights)
    assert len(kept(tmp_path)) == 2


@pytest.mark.parametrize(("size", "bytes_"), [(65_535, 2), (65_536, 4)])
def test_every_id_is_kept(tmp_path: Path, size: int, bytes_: int) -> None:
    """Also for rows that were cut to their tokens and have fewer slots."""
    draws, weights = Draws(tmp_path / "kept", {}, 3, size), torch.nn.Linear(1, 1)
    file, ids = draws._open(weights), torch.tensor([[0, size - 1], [size - 1, 5]]).numpy()
    draws._write(file, 7, ids)
    assert draws.row_bytes == 3 * bytes_
    assert draws._read(file, 6, 2) is None
    assert draws._read(file, 8, 2) is None
    other = Draws(tmp_path / "kept", {}, 3, size)  # as in another process, which sees it at once
    for reader in (draws, other):
        found: Any = reader._read(reader._open(weights), 7, 2)
        assert found[:, :2].tolist() == ids.tolist()


def test_a_folder_that_cannot_be_used_is_said(home: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(DataError, match=r"kept: the draws cannot be kept there \(File exists\)\. Make room"):
        run(file(home), tmp_path / "run", f"objective.cache={tmp_path / 'kept'}")


class Two(World):
    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


def test_each_process_keeps_and_reads_its_own_rows(home: Path, tmp_path: Path, forwards: list[int]) -> None:
    hotter = "{sampler.temperature: {type: linear, start: 0.05, end: 90.0}, learning_rate: {warmup_steps: 2}}"
    experiment = made(home, f"objective.cache={tmp_path / 'kept'}", schedules=hotter)
    run, settings, cpu = experiment.run, experiment.settings, torch.device("cpu")
    objective: Any = run.learner.objective.train()
    for parameter in objective.generator.parameters():
        parameter.data *= 8  # so that the temperature matters
    run.learner.at_step(settings.seed, 0)
    parts = []
    for rank in (1, 0):
        run.learner.world = Two(rank)
        parts.insert(0, batch_of(3, run, settings, experiment.train, cpu).labels["draws"])
    run.learner.world = ALONE
    together = batch_of(3, run, settings, experiment.train, cpu)
    assert forwards == [2, 2]
    assert torch.equal(together.labels["draws"], torch.cat(parts))
    run.learner.at_step(settings.seed, 3)
    expected = objective.draws(together, Streams(settings.seed, 3, together.example_ids))
    assert torch.equal(together.labels["draws"], expected)
    run.offset = 1  # after a rollback
    assert batch_of(3, run, settings, experiment.train, cpu).labels == {}


def test_fsdp_is_refused(home: Path) -> None:
    loaded, built = load(file(home), ["train.parallel=fsdp"]), sketch(load(file(home)))
    with pytest.raises(ConfigError, match=r"objective\.cache: fsdp divides the generator"):
        parallelize(loaded, built, Two(0), torch.device("cpu"), partly=False)
