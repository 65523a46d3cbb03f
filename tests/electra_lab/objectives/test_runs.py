"""Every objective that is shipped, and that of the plug-in, made tiny and run: it may stop and resume, and be split."""

import signal
from pathlib import Path

import pytest
import torch

from electra_lab.assembly.experiment import assemble, open_data
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.training.step import training_step
from registry import objectives
from registry.errors import Interrupted
from tests.electra_lab.jobs.pretraining.tiny import assert_same, lines, run, signalled
from tests.helpers import ROOT, write_experiment

FILES = sorted((ROOT / "experiments" / "objectives").glob("*.yaml"))
FILES.append(ROOT / "experiments" / "plugins" / "three_classes.yaml")  # with a head from a plug-in
STEPS, FIRST = 5, 2
# With parts of their own that learn or remember, and rows in groups. The laws, which hold for every objective, say that
# its random numbers come from the step alone, and that a batch may be split; files of its own run the others again.
QUICK = ("amos", "coco_lm", "sas", "three_classes")
NAMED = [pytest.param(f, id=f.stem, marks=[] if f.stem in QUICK else pytest.mark.slow) for f in FILES]


def overrides(folder: Path, file: Path, dropout: float) -> list[str]:
    """The file's own objective with everything else tiny; the first log line and evaluation meet both of two stages."""
    write_experiment(folder)
    tiny = {
        "corpus": f"{{type: text_files, paths: [{folder}/corpus.txt]}}",
        "tokenizer": "{type: wordpiece, vocab_size: 200}",
        "data": f"{{sequence_length: 16, held_out: 0.3, store: {folder}/store}}",
        "embedding.dim": 8,
        "embedding.dropout": dropout,
        "discriminator": f"{{type: transformer, dim: 16, depth: 1, heads: 2, dropout: {dropout}}}",
        "schedules": "{learning_rate: {type: warmup_linear, warmup_steps: 0}}",
        "train": f"{{steps: {STEPS}, batch_size: 4, micro_batch_size: 2, precision: fp32, "
        "learning_rate: 1.0e-2, log_every: 3}",
        "evaluate": f"{{every: {FIRST}, examples: 0}}",
        "checkpoint": "{every: 2, keep: 9}",
    }
    if file.stem == "two_stage":
        tiny["objective.generator_steps"] = FIRST
    if file.stem == "sas":  # so few rows that some are visited twice
        tiny["data"] = tiny["data"].replace("16", "32")
    if file.stem == "teams":  # with a layer above the branch, and one that is shared
        tiny["discriminator"] = tiny["discriminator"].replace("depth: 1", "depth: 2")
    if file.stem == "three_classes":
        tiny["generator"] = "{type: transformer, scale: 0.5}"
    if file.stem == "coco_lm":
        tiny["objective.group"] = 2
    if file.stem == "frozen_generator":
        tiny["objective.run"] = folder / "earlier"
    return [f"{key}={value}" for key, value in tiny.items()]


def settings(folder: Path, file: Path, dropout: float) -> list[str]:
    if file.stem == "frozen_generator":  # as its first line says
        mlm = file.with_name("mlm.yaml")
        run(mlm, folder / "earlier", *overrides(folder, mlm, dropout), "train.steps=1")
    return overrides(folder, file, dropout)


def test_every_objective_is_shipped() -> None:
    """Hence run here; `electra` is what all the other experiments use."""
    assert set(objectives.names()) - {"electra"} <= {load(file).config.objective.type for file in FILES}


@pytest.mark.parametrize("file", NAMED)
def test_stopped_and_resumed_is_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    """With dropout, in the middle of a log line; the same numbers twice, in records, weights and moments."""
    given = settings(tmp_path, file, 0.1)
    whole, stopped = run(file, tmp_path / "whole", *given), tmp_path / "stopped"
    with monkeypatch.context() as patched:
        signalled(patched, signal.SIGINT, FIRST)
        with pytest.raises(Interrupted):
            run(file, stopped, *given)
    execute.resume(stopped, "cpu")
    assert_same(whole, stopped)
    before = [(0, "validation")] if file.stem == "frozen_generator" else []  # its generator was loaded
    assert [(r["step"], r["split"]) for r in lines(whole)] == [
        *before, (2, "validation"), (3, "train"), (4, "validation"), (5, "train"), (5, "validation"), (5, "test"),
    ]  # fmt: skip


@pytest.mark.parametrize("file", NAMED)
def test_micro_batches_change_no_loss(tmp_path: Path, file: Path) -> None:
    """Every term of every step and the gradient's norm, from the same weights; without dropout."""
    loaded = load(file, settings(tmp_path, file, 0.0))
    made = [assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu")) for _ in range(2)]
    for each in made:
        each.run.learner.objective.train()
    for step in range(FIRST + 2):
        made[1].run.learner.objective.load_state_dict(made[0].run.learner.objective.state_dict())
        whole, split = (
            training_step(
                each.run.learner, each.run.optimizer, each.train.training_batch(0, step, 4, each.device),
                seed=0, step=step, rate=0.1, clip_norm=1.0, micro_batch_size=size, precision="fp32",
            )
            for each, size in zip(made, (4, made[0].run.learner.group), strict=True)
        )  # fmt: skip
        assert whole.sums.keys() == split.sums.keys()
        for name in whole.sums:
            assert int(whole.counts[name]) == int(split.counts[name])
            torch.testing.assert_close(whole.sums[name], split.sums[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(whole.gradient_norm, split.gradient_norm, rtol=1e-4, atol=1e-6)
