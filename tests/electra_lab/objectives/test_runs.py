"""Every shipped objective, and the plug-in's, in a tiny run: it can stop and resume, and it learns."""

import os
import signal
from functools import cache
from pathlib import Path

import pytest

from electra_lab.config.load import load
from electra_lab.corpora import docstrings
from electra_lab.jobs.pretraining import execute
from electra_lab.training import loop
from electra_lab.training.loop import Settings, splits_at
from registry import Document, Split, objectives
from registry.errors import Interrupted
from tests.electra_lab.jobs.pretraining.tiny import assert_same, lines, run, signalled
from tests.helpers import ROOT, write_experiment

FILES = sorted((ROOT / "experiments" / "objectives").glob("*.yaml"))
FILES.append(ROOT / "experiments" / "plugins" / "three_classes.yaml")  # with a head from a plug-in
STEPS, FIRST = 5, 2
# With rows in groups, and heads of a plug-in. By the laws, random numbers of every objective come from the step alone,
# and a batch may be split; test_sas.py resumes from every checkpoint with a memory.
QUICK = ("coco_lm", "three_classes")
NAMED = [pytest.param(f, id=f.stem, marks=[] if f.stem in QUICK else pytest.mark.slow) for f in FILES]


def overrides(folder: Path, file: Path, dropout: float) -> list[str]:
    """The file's own objective with everything else tiny; the first log line and evaluation cover both stages."""
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
    own = {
        "two_stage": {"objective.generator_steps": FIRST},
        "sas": {"data.sequence_length": 32},  # so few rows that some are read twice
        "teams": {"discriminator.depth": 2},  # with a layer above the branch, and one that is shared
        "three_classes": {"generator": "{type: transformer, scale: 0.5}"},
        "coco_lm": {"objective.group": 2},
        "frozen_generator": {"objective.run": folder / "earlier"},
    }
    return [f"{key}={value}" for key, value in (tiny | own.get(file.stem, {})).items()]


def settings(folder: Path, file: Path, dropout: float) -> list[str]:
    if file.stem == "frozen_generator":  # as its first line says
        mlm = file.with_name("mlm.yaml")
        run(mlm, folder / "earlier", *overrides(folder, mlm, dropout), "train.steps=1")
    return overrides(folder, file, dropout)


def test_every_objective_is_shipped() -> None:
    """And therefore run here; `electra` is used by all other experiments."""
    assert set(objectives.names()) - {"electra"} <= {load(file).config.objective.type for file in FILES}


@pytest.mark.parametrize("file", NAMED)
def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path: Path, monkeypatch, file: Path) -> None:
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


LEARNING = {file.stem: file for file in (ROOT / "experiments" / "objectives").glob("*.yaml")}
LEARNING["electra"] = ROOT / "experiments" / "transformer_small.yaml"
LEARNING["two_towers"] = LEARNING["electric"]

# By how many nats each loss must fall: at most half of the observed fall, and several times the spread of seeds.
FALLS = {
    "electra": {"generator": 1.0, "discriminator": 0.08}, "unigram": {"discriminator": 0.06},
    "electra_correct": {"generator": 0.7, "discriminator": 0.06, "discriminator_token": 0.6},
    "coco_lm": {"generator": 0.7, "discriminator": 0.07, "discriminator_token": 0.6, "contrast": 0.1},
    "electra_masked_only": {"generator": 1.0, "discriminator": 0.3}, "mlm": {"discriminator_token": 1.0},
    "replace_mlm": {"generator": 1.0, "discriminator_token": 0.8}, "mc_bert": {"generator": 1.0, "choice": 0.1},
    # Its token loss starts at 6.9 with the official weights; with plain normal ones it fell from 7.1, to the same 6.3.
    "all_tokens_mlm": {"generator": 1.0, "discriminator": 0.25, "discriminator_token": 0.25},
    "teams": {"generator": 1.0, "discriminator": 0.08, "choice": 0.1}, "adversarial": {"discriminator": 0.1},
    "two_stage": {"generator": 0.8, "discriminator": 0.08}, "electric": {"discriminator": 0.5}, "sas": {"mlm": 0.4},
    "two_towers": {"generator": 0.5, "discriminator": 0.03}, "frozen_generator": {"discriminator": 0.08},
    "amos": {"generator": 1.0, "discriminator": 0.08},
}  # fmt: skip
# The others, as slow tests, by `make test-all`
NAMES = [pytest.param(name, marks=[] if name == "electra" else pytest.mark.slow) for name in FALLS]
files = cache(docstrings.installed_files)


@pytest.fixture
def texts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides for everything except masking, sampler, objective and tying.

    The text is the documentation in every fortieth file: reading all takes a minute. It is tokenised once per session.
    """
    monkeypatch.setattr(docstrings, "installed_files", lambda: files()[::40])
    # Split by document: held-out modules would differ too much for the bounds above.
    monkeypatch.setattr(docstrings, "Document", lambda text, _: Document(text))
    session = tmp_path_factory.getbasetemp()
    store = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "store"
    return [
        "tokenizer={type: wordpiece, vocab_size: 500}",
        f"data={{sequence_length: 32, held_out: 0.04, store: {store}}}",
        "embedding.dim=16",
        "discriminator={type: transformer, dim: 32, depth: 1, heads: 2, rotary: true, dropout: 0.0}",
        "schedules={learning_rate: {type: warmup_linear, warmup_steps: 40}}",
        "train={steps: 150, batch_size: 16, precision: fp32, learning_rate: 6.0e-3}",
        "evaluate={every: 3, batch_size: 256, examples: 0}",  # Glorot's head learns the share of replacements at once
        "checkpoint={every: 150, keep: 1}",
    ]


@pytest.fixture
def _first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the evaluations between the first and the last, which are not checked."""

    def some(step: int, settings: Settings, *, tested: bool) -> list[Split]:
        return splits_at(step, settings, tested=tested) if step in (3, settings.steps) else []

    monkeypatch.setattr(loop, "splits_at", some)


def own(name: str, folder: Path, texts: list[str]) -> list[str]:
    if name == "frozen_generator":
        run(LEARNING["mlm"], folder / "earlier", *texts)
        return [f"objective.run={folder / 'earlier'}"]
    changes = {
        "two_stage": "objective.generator_steps=75",
        "teams": "discriminator.depth=2",
        "two_towers": "generator={type: two_towers, scale: 0.5}",
        "sas": "corpus.min_characters=80",  # long docstrings alone would be too little text
    }
    return [changes[name]] if name in changes else []


@pytest.mark.usefixtures("_first_and_last")
@pytest.mark.parametrize("name", NAMES)
def test_the_validation_loss_falls(tmp_path: Path, texts: list[str], name: str) -> None:
    assert LEARNING.keys() == FALLS.keys(), "every experiment needs bounds"
    path = run(LEARNING[name], tmp_path / "run", *texts, *own(name, tmp_path, texts))
    first, *_, last = (record for record in lines(path) if record["split"] == "validation")
    assert (first["step"], last["step"]) == (3, 150)
    fell = {loss: first[f"{loss}_loss"] - last[f"{loss}_loss"] for loss in FALLS[name]}
    assert all(fell[loss] > least for loss, least in FALLS[name].items()), fell
