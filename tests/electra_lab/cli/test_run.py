"""`run`: what goes to standard output and what does not, and a dry run that writes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.electra_lab.cli.conftest import CPU
from tests.electra_lab.jobs.pretraining.tiny import experiment

SHORT = {"train": "{steps: 3, batch_size: 2, precision: fp32}", "evaluate": "{examples: 1}"}
LOUD = '''
from registry import samplers

print("loaded")


@samplers.register("loud")
def loud(logits, rng, /):
    """Prints."""
    print("drawing")
    return logits.argmax(-1)
'''
pytestmark = pytest.mark.usefixtures("no_report")


def test_the_answer_is_the_run_directory_alone_whatever_a_plug_in_prints(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    file = experiment(tmp_path, sampler="{type: loud}\nimports: [loud.py]", **SHORT)
    code, out, err = lab("run", file, "--set", "train.steps=4", "--set", "seed=9")
    assert code == 0
    assert re.fullmatch(r"runs/tiny/\d{8}-\d{6}-[0-9a-f]{4}\n", out)
    assert {"loaded", "drawing"} <= set(err.splitlines())
    path = tmp_path / "here" / out.strip()
    config = (path / "config.yaml").read_text()
    assert re.search(r"^seed: 9$", config, re.MULTILINE)
    assert re.search(r"^  steps: 4$", config, re.MULTILINE)
    assert (path / "source.yaml").read_text() == file.read_text()
    assert (path / "checkpoints" / "step-00000004").is_dir()


def test_what_is_said_at_the_beginning_and_at_the_end(lab: Any, tmp_path: Path) -> None:
    _, _, err = lab("run", experiment(tmp_path / "there", **SHORT), "--out", tmp_path / "run", *CPU)
    assert f"tiny: 3 steps of 2 x 16 tokens on cpu, fp32, into {tmp_path / 'run'}\n" in err
    for key, room, name in (("discriminator", "backbones", "bert"), ("sampler", "samplers", "gumbel"),
                            ("optimizer", "optimizers", "adamw"), ("objective", "objectives", "electra")):  # fmt: skip
        assert re.search(rf"^  {key} +{name} +\S*{room}/{name}\.py:\d+", err, re.MULTILINE), key
    assert re.search(r"^step +3  train .* tokens/s$", err, re.MULTILINE)
    assert re.search(r"^step +3  (validation|test) .* AUC 0\.\d{3}$", err, re.MULTILINE)
    assert "after step 3, on test text" in err
    assert re.search(rf"trained in \S+ s; report {tmp_path / 'run'}/report\.html$", err.rstrip())


def test_a_dry_run_answers_on_standard_output_and_writes_nothing(lab: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path / "there", **SHORT)
    code, out, err = lab("run", file, "--dry-run", "--set", "train.steps=7", *CPU)
    assert (code, out.splitlines()[0], err) == (0, "tiny: 7 steps of 2 x 16 tokens", "")
    assert not list((tmp_path / "here").iterdir())
    assert not (tmp_path / "there" / "store").exists()
