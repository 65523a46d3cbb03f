"""The generator of an earlier run: its weights, that they do not change, and missing weights."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import sketch
from electra_lab.assembly.experiment import check
from electra_lab.assembly.needs import workload
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.training.random import Streams
from registry.errors import CheckpointError, ConfigError, DataError, Interrupted, LabError
from tests.electra_lab.jobs.pretraining.tiny import assert_same, for_a_module, lines, lose_checkpoints, run, signalled
from tests.electra_lab.objectives.tiny import berts, gradients, sentences, total
from tests.helpers import line_of, write_experiment

TRAIN = "{steps: 4, batch_size: 4, micro_batch_size: 2, precision: fp32, log_every: 2}"
EARLIER = {
    "electra": {"discriminator": "{type: bert, dim: 16, depth: 1, heads: 2}"},
    "electra, tied": {"embedding": "{dim: 8, max_length: 16, tie: embeddings}"},
    "mlm": {
        "discriminator": "{type: bert, dim: 8, depth: 1, heads: 1}", "objective": "{type: mlm}", "generator": "null",
        "sampler": "null",
    },
}  # fmt: skip


def experiment(folder: Path, file: str, **sections: str) -> Path:
    settings = {
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        "embedding": "{dim: 8, max_length: 16, tie: none}",
        "train": TRAIN,
        "evaluate": "{every: 2, examples: 0}",
        "checkpoint": "{every: 1, keep: 2}",
    }
    return write_experiment(folder, file, **(settings | sections))


def earlier(folder: Path, kind: str = "electra") -> Path:
    return run(experiment(folder, "earlier.yaml", **EARLIER[kind]), folder / "earlier")


def frozen(folder: Path, **sections: str) -> Path:
    return experiment(folder, "frozen.yaml", **{"objective": "{type: frozen_generator, run: earlier}", **sections})


def part(path: Path, prefix: str, step: int = 4) -> dict[str, torch.Tensor]:
    saved = load_file(path / "checkpoints" / f"step-{step:08d}" / "state.safetensors")
    return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with for_a_module():
        earlier(folder)
        run(frozen(folder), folder / "run")
    return folder


def stopped_at(step: int, trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    source, stopped = shutil.copytree(trained / "earlier", folder / "earlier"), folder / "stopped"
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGINT, step)
        with pytest.raises(Interrupted):
            run(frozen(trained, objective=f"{{type: frozen_generator, run: {source}}}"), stopped)
    return source, stopped


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys() != set()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("kind", EARLIER)
def test_the_generator_is_that_of_the_earlier_run_from_beginning_to_end(trained, tmp_path: Path, kind: str) -> None:
    """For an mlm run it is the only network. Its moments and the run's other network are not used."""
    folder = trained if kind == "electra" else tmp_path
    if kind != "electra":
        earlier(folder, kind)
        run(frozen(folder), folder / "run")
    network = "discriminator" if kind == "mlm" else "generator"
    given, path = part(folder / "earlier", f"model.{network}."), folder / "run"
    for step in (3, 4):
        assert_equal(part(path, "model.generator.", step), given)
    assert {name.split(".")[1] for name in part(path, "optimizer.", 4)} == {"discriminator"}
    run_of = execute.reopen(path, "cpu")[1].run
    learning = [p for group in run_of.optimizer.param_groups for p in group["params"]]
    assert set(learning) == set(run_of.learner.objective.discriminator.parameters())
    trained = [record for record in lines(path) if record["split"] == "train"]
    assert len(trained) == 2
    for record in trained:
        assert [key for key in record if key.endswith("_loss")] == ["discriminator_loss"]
    start, first, second = (r for r in lines(path) if r["split"] == "validation")
    assert start["generator_loss"] == first["generator_loss"] == second["generator_loss"]
    assert first["discriminator_loss"] != second["discriminator_loss"]


def test_a_run_may_stop_and_go_on_even_if_the_earlier_run_has_moved_on(trained, tmp_path: Path, monkeypatch) -> None:
    """Bit for bit: after the start, the generator is loaded from the run's own checkpoint."""
    source, stopped = stopped_at(1, trained, tmp_path, monkeypatch)
    (source / "checkpoints" / "step-00000004" / "state.safetensors").write_bytes(b"other")  # now step 3 is its newest
    execute.resume(stopped, "cpu")
    assert_same(trained / "run", stopped)


def test_a_damaged_checkpoint_stops_a_run_and_no_older_one_stands_in(trained: Path, tmp_path: Path) -> None:
    source = shutil.copytree(trained / "earlier", tmp_path / "earlier")
    file = frozen(trained, objective=f"{{type: frozen_generator, run: {source}}}")
    (source / "checkpoints" / "step-00000004" / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"objective\.run: .*step-00000004: .*Sound are those of the steps 2, 3;"):
        run(file, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    execute.resume(source, "cpu")  # the remedy
    run(file, tmp_path / "run", "train.steps=1")


OTHERS = {  # the section, the key at whose line the error stands, the sentence
    "generator": ("{scale: 0.5, ff_mult: 2.0}", "objective", r"objective\.run: .*ff_mult is 2\.0 here and 4\.0"),
    "embedding": ("{dim: 12, max_length: 16, tie: none}", "objective", r"objective\.run: .*dim is 12 here and 8"),
    "tokenizer": (
        "{type: wordpiece, vocab_size: 100}",
        "tokenizer",
        r"tokenizer\.vocab_size: is 100, but the run .*200",
    ),
    "data": ("{sequence_length: 16, held_out: 0.2}", "data", r"data\.held_out: is 0\.2, but the run .*, has 0\.3"),
}


@pytest.mark.parametrize("key", OTHERS)
def test_what_does_not_fit_the_earlier_run_is_refused_before_text_is_read(trained: Path, key: str) -> None:
    assert check(load(frozen(trained))) is None
    section, where, sentence = OTHERS[key]
    file = frozen(trained, **{key: section})
    place = rf"frozen\.yaml:{line_of(where, file.read_text())}: {sentence}"
    with pytest.raises(ConfigError, match=place):
        check(load(file))
    with pytest.raises(ConfigError, match=place):
        run(file, trained / "never")
    assert not (trained / "never").exists()


def test_other_text_in_the_same_files_is_refused_when_it_is_read(trained: Path, tmp_path: Path) -> None:
    (trained / "more.txt").write_text("another document\n")
    more = frozen(trained, corpus="{type: text_files, paths: [corpus.txt, more.txt]}")
    with pytest.raises(LabError, match=r"objective\.run: .*(has other tokens|was trained on other data)"):
        run(more, tmp_path / "never")
    file = frozen(trained)
    corpus, before = trained / "corpus.txt", (trained / "corpus.txt").read_text()
    try:
        corpus.write_text(before + "another document\n\n")
        with pytest.raises(LabError, match=r"objective\.run: .*(has other tokens|was trained on other data)"):
            run(file, tmp_path / "never")
    finally:
        corpus.write_text(before)
    assert not (tmp_path / "never").exists()


def test_without_the_earlier_run_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"objective\.run: {tmp_path}/earlier: does not exist"):
        run(frozen(tmp_path), tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_the_generator_gets_no_gradient_and_no_dropout(tmp_path: Path) -> None:
    """Not even after an evaluation, and nothing is kept for its backward pass. The loss is electra's second term."""
    objective, batch = berts("frozen_generator", dropout=0.5, run=tmp_path), sentences()
    for _ in range(2):
        objective.eval()
        objective.train()
        assert not any(module.training for module in objective.generator.modules())
        assert all(module.training for module in objective.discriminator.modules())
    kept: list[bool] = []
    objective.generator.backbone.register_forward_hook(lambda *call: kept.append(call[2].requires_grad))
    losses = objective(batch, Streams.of(0, 0, batch.example_ids))
    assert kept == [False]
    found = gradients(objective, total(losses))
    assert found.keys() == {f"discriminator.{name}" for name, _ in objective.discriminator.named_parameters()}
    joint = berts("electra", "none", dropout=0.5).eval()
    joint.load_state_dict(objective.state_dict())
    alone, paired = (o.eval()(batch, Streams.of(0, 0, batch.example_ids)) for o in (objective, joint))
    assert alone.terms.keys() == {"discriminator"}
    assert torch.equal(alone.terms["discriminator"].sum, paired.terms["discriminator"].sum)
    assert alone.terms["discriminator"].weight == paired.terms["discriminator"].weight == 50.0


def test_going_on_needs_the_earlier_run_only_before_the_first_checkpoint(trained, tmp_path: Path, monkeypatch) -> None:
    source, stopped = stopped_at(2, trained, tmp_path, monkeypatch)
    source.rename(tmp_path / "gone")
    execute.resume(stopped, "cpu")
    assert_equal(part(trained / "run", ""), part(stopped, ""))

    lose_checkpoints(stopped)
    with pytest.raises((DataError, CheckpointError), match="earlier"):
        execute.resume(stopped, "cpu")
    (tmp_path / "gone").rename(source)
    shutil.rmtree(source / "checkpoints" / "step-00000004")  # its newest checkpoint is now another
    with pytest.raises(DataError, match="the models that it starts from have changed since the run began"):
        execute.resume(stopped, "cpu")


def test_a_forecast_counts_no_moments_of_a_frozen_generator(trained: Path) -> None:
    loaded = load(frozen(trained))
    built = sketch(loaded)
    sizes, learning = count_parameters(built.networks), [*built.networks["discriminator"].parameters()]
    held = workload(loaded, built, "fp32").state_bytes()
    assert held == 4 * sizes["total"] + 8 * sizes["discriminator"] + 4 * len(learning)
