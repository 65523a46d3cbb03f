"""From a file to an experiment: its data, settings and rehearsal, and missing data."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.build import build, sketch
from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import Experiment, absent_data, assemble, check, parallelize, refuse_uneven
from electra_lab.config.load import load
from electra_lab.metrics import PRETRAINING, PretrainingMetrics
from registry.contracts.objective import ALONE, World
from registry.errors import ConfigError, DataError
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.electra_lab.training.tiny import experiment
from tests.helpers import line_of, write_experiment


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Data


def store_key(file: Path, *overrides: str) -> str:
    return open_data(load(file, list(overrides)), lambda _: None).key


def test_the_store_depends_on_everything_that_makes_it_and_on_nothing_else(tmp_path: Path) -> None:
    """On corpus, held-out share, split and tokenizer with their options; not on networks, seed or training."""
    file = write_experiment(tmp_path)
    (tmp_path / "more.txt").write_text("another document\n\nand one more")
    others = ("seed=3", "train.steps=9", "data.sequence_length=12", "sampler={type: argmax}", "discriminator.dim=32")
    makers = [f"data.{change}" for change in ("held_out=0.4", "overlap=0.2", "tokenizer_characters=1000",
                                                 "split=by_order")]  # fmt: skip
    makers += ["tokenizer.vocab_size=150", "tokenizer={type: bpe, vocab_size: 400}"]
    makers.append("corpus.paths=[corpus.txt, more.txt]")
    assert {store_key(file, override) for override in others} == {store_key(file)}
    assert len({store_key(file, override) for override in makers} - {store_key(file)}) == 7


SAMPLER = '''
from registry import samplers


@samplers.register("mine")
def mine(logits, rng, /):
    """Mine."""
    return logits.argmax(-1)
'''
CORPUS = '''
from registry import corpora


@corpora.register("mine")
class Mine:
    """Forty sentences."""

    def __init__(self, /):
        pass

    def __iter__(self):
        return iter(f"sentence number {n} of forty" for n in range(40))

    def fingerprint(self):
        return "forty"
'''


@pytest.mark.parametrize(
    ("source", "section", "value"),
    [
        (SAMPLER, "sampler", "{type: mine}"),
        (CORPUS, "corpus", "{type: mine}"),
        (CORPUS, "corpus", "{type: mixture, parts: [{corpus: {type: mine}}]}"),
    ],
)
def test_only_a_changed_plug_in_that_makes_data_tokenizes_again(tmp_path, source, section, value) -> None:
    keys = set()
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "mine.py").write_text(f"# {version}\n{source}")
        file = write_experiment(tmp_path / version, imports="[mine.py]", **{section: value})
        with for_a_module():  # as in a process that has not loaded the other version
            keys.add(store_key(file))
    assert len(keys) == (2 if section == "corpus" else 1)


def test_what_a_corpus_refuses_is_at_its_line_and_data_that_is_not_here_is_not_an_error_of_the_file(tmp_path) -> None:
    file = write_experiment(tmp_path)
    loaded = load(file)
    assert check(loaded) is None
    (tmp_path / "corpus.txt").unlink()
    absent = check(loaded)
    assert isinstance(absent, DataError)
    assert str(absent).startswith(f"{file}:{line_of('corpus')}: corpus: text_files: {tmp_path}/corpus.txt: ")
    with pytest.raises(DataError) as refused:
        open_data(loaded, lambda _: None)
    assert str(refused.value) == str(absent)
    (tmp_path / "mine.py").write_text(CORPUS.replace("        pass", "        raise ValueError('not today')"))
    file = write_experiment(tmp_path, corpus="{type: mine}\nimports: [mine.py]")
    with pytest.raises(ConfigError, match=f"^{file}:{line_of('corpus')}: corpus: mine refuses this: not today$"):
        check(load(file))


def test_absent_data_is_the_first_that_a_run_would_miss(tmp_path: Path) -> None:
    frozen = {"objective": "{type: frozen_generator, run: earlier}", "embedding": "{dim: 8, max_length: 16, tie: none}"}
    file = write_experiment(tmp_path, **frozen)
    loaded = load(file)
    absent = absent_data(loaded, sketch(loaded))
    assert "earlier: does not exist" in str(absent)
    (tmp_path / "corpus.txt").unlink()
    absent = absent_data(loaded, sketch(loaded))
    assert "no file matches" in str(absent)


def test_the_tokenizers_may_use_all_cores_unless_the_user_said_otherwise(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    store_key(write_experiment(tmp_path))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    store_key(tmp_path / "tiny.yaml")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


# Assembly


def test_an_experiment_holds_the_networks_that_it_trains(tmp_path: Path) -> None:
    made = experiment(tmp_path)
    objective: Any = made.run.learner.objective
    assert made.model is objective.discriminator
    assert made.run.learner.schedules.steps == made.settings.steps == 5
    assert made.run.step == made.run.tokens == 0
    assert made.settings.flops == build(load(tmp_path / "tiny.yaml"), made.vocabulary).flops
    total = sum(parameter.numel() for parameter in objective.parameters())
    own = made.parameters
    assert own["generator"] + own["discriminator"] - own["shared"] == own["total"] == total
    assert made.vocabulary.counts.sum() == len(made.store.train)
    for rows, split in ((made.train, "train"), (made.validation, "validation"), (made.test, "test")):
        assert rows.packing.tokens is getattr(made.store, split)
        assert rows.length == 16


def test_metrics_are_those_of_pre_training_or_the_objectives_own(tmp_path: Path) -> None:
    accumulator = experiment(tmp_path).accumulate({3})
    assert isinstance(accumulator, PretrainingMetrics)
    assert (accumulator.show, accumulator.metrics) == ({3}, PRETRAINING)
    (tmp_path / "mine.py").write_text(
        "from electra_lab.metrics import PretrainingMetrics\nfrom electra_lab.objectives.electra import Electra\n"
        "from electra_lab.testing import vocabulary\nfrom registry import objectives\n\n\n"
        "class Seen(PretrainingMetrics):\n    pass\n\n\n"
        "@objectives.register('mine')\nclass Mine(Electra):\n    'Mine.'\n\n"
        "    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /):\n"
        "        super().__init__(generator, discriminator, masking, sampler, vocabulary)\n\n"
        "    def accumulator(self, show):\n        return Seen(vocabulary(200), show)\n"
    )
    other = experiment(tmp_path, objective="{type: mine}\nimports: [mine.py]")
    assert type(other.accumulate({2, 1})).__name__ == "Seen"
    assert other.accumulate({2, 1}).show == {1, 2}


def test_a_rehearsal_of_two_rows_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[tuple[int, str]] = []
    from electra_lab.assembly import experiment as module

    original = module.rehearse

    def rehearse(learner: Any, entry: Any, batch: Any, *others: Any) -> None:
        rehearsed.append((len(batch), entry.name))
        original(learner, entry, batch, *others)

    monkeypatch.setattr(module, "rehearse", rehearse)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    made = experiment(tmp_path)
    assert rehearsed == [(2, "electra")]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in made.run.learner.objective.parameters())
    assert not made.run.optimizer.state
    monkeypatch.setattr(module, "rehearse", lambda *_: None)
    other = experiment(tmp_path)
    for one, two in zip(*(m.run.learner.objective.parameters() for m in (made, other)), strict=True):
        assert torch.equal(one, two)


def test_everything_moves_to_the_device(tmp_path: Path) -> None:
    """Checked with the meta device, which every torch has; only what is built before the rehearsal."""
    loaded = load(write_experiment(tmp_path))
    store = open_data(loaded, lambda _: None)
    seen: list[torch.device] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "electra_lab.assembly.experiment.rehearse",
            lambda learner, entry, batch, *_: seen.append(batch.tokens.device),
        )
        made: Experiment = assemble(loaded, store, torch.device("meta"))
    assert {p.device.type for p in made.run.learner.objective.parameters()} == {"meta"}
    assert {p.device.type for group in made.run.optimizer.param_groups for p in group["params"]} == {"meta"}
    assert made.vocabulary.is_special.device.type == "meta"
    assert [device.type for device in seen] == ["meta"]


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
