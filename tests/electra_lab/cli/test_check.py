"""electra-lab check: notes and errors, the cells of an ablation; nothing is written."""

import re
from pathlib import Path

from tests.electra_lab.cli.conftest import Lab
from tests.helpers import write_experiment

ABLATION = """\
name: size
base: tiny.yaml
vary: {generator.scale: [0.5, 1.0]}
seeds: [0, 1]
measure: [{type: fixed_corruption, seed: 99}, {type: pretraining}]
launcher: {type: slurm}
"""


def test_absent_data_is_a_note(lab: Lab, tmp_path: Path) -> None:
    file = write_experiment(tmp_path / "there")
    (file.parent / "corpus.txt").unlink()
    code, out, note = lab("check", file)
    sentence = f"{file}:2: corpus: text_files: {file.parent}/corpus.txt: no file matches."
    assert (code, out.split("  ")[0], note) == (0, "name: tiny", f"note: {sentence} A run would stop there.\n")


def test_an_unknown_metric_of_the_best_checkpoint_is_found_before_data_is_read(lab: Lab, tmp_path: Path):
    file = write_experiment(tmp_path / "there")
    err = lab.fails(2, "check", file, "--set", "checkpoint.best=discriminator_acu")
    assert "checkpoint.best" in err
    assert "Did you mean 'discriminator_auc'?" in err
    assert lab("check", file, "--set", "checkpoint.best=discriminator_auc")[0] == 0


def test_the_cells_of_an_ablation_are_listed(lab: Lab, tmp_path: Path):
    path = write_experiment(tmp_path / "there").with_name("size.yaml")
    path.write_text(ABLATION)
    code, out, err = lab("check", path)
    assert (code, err, list(Path.cwd().iterdir())) == (0, "", [])
    head, differences, cells = out.split("\n\n")
    assert head.splitlines()[:4] == [
        "size: 2 variants x 2 seeds = 4 cells",
        "  base      tiny.yaml",
        "  baseline  generator.scale=0.5",
        "  metric    corruption_auc",
    ]
    assert "  measures  fixed_corruption: corruption_auc, " in head
    assert "            pretraining: generator_mask_loss, " in head
    assert "  launcher  slurm" in head
    assert differences.splitlines() == [
        "  differences to the baseline, generator.scale=0.5:",
        "  generator.scale=1.0:  generator.dim 8 -> 16; generator.heads 1 -> 2",
    ]
    found = [re.fullmatch(r"  (\S.*\S) +seed (\d+|-) +([\w.=-]+)", line).groups() for line in cells.splitlines()]
    small, large = "generator.scale=0.5", "generator.scale=1.0"
    assert [(label.strip(), seed) for label, seed, _ in found] == [
        (small, "0"), (large, "0"), (small, "1"), (large, "1"),
        ("reference of fixed_corruption (small)", "-"), ("reference of fixed_corruption (large)", "-"),
    ]  # fmt: skip
    assert len({id for *_, id in found}) == 6
    _, again, _ = lab("check", path, "--set", "train.batch_size=4")
    assert again.splitlines()[:4] == out.splitlines()[:4]
    assert again != out
