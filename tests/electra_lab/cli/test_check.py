"""electra-lab check of an ablation: its cells, without running any."""

from __future__ import annotations

import re
from pathlib import Path

from tests.electra_lab.cli.test_ablate_refusals import write


def test_check_lists_the_cells(lab, tmp_path: Path):
    path = write(tmp_path / "there", measure="[{type: fixed_corruption, seed: 99}, {type: pretraining}]",
                 launcher="{type: slurm}")  # fmt: skip
    code, out, err = lab("check", path)
    assert (code, err) == (0, "")
    assert list(Path.cwd().iterdir()) == []
    head, cells = out.split("\n\n")
    assert head.splitlines()[:4] == [
        "size: 2 variants x 2 seeds = 4 cells",
        "  base      tiny.yaml",
        "  baseline  generator.scale=0.5",
        "  quality   corruption_auc",
    ]
    assert "  measures  fixed_corruption: corruption_auc, " in head
    assert "            pretraining: discriminator_auc, " in head
    assert "  launcher  slurm" in head
    found = [re.fullmatch(r"  (\S.*\S) +seed (\d+) +([\w.=-]+)", line).groups() for line in cells.splitlines()]
    assert [(label.strip(), seed) for label, seed, _ in found] == [
        ("generator.scale=0.5", "0"), ("generator.scale=1.0", "0"), ("generator.scale=0.5", "1"),
        ("generator.scale=1.0", "1"), ("reference of fixed_corruption", "99"),
    ]  # fmt: skip
    assert len({id for *_, id in found}) == 5
    _, again, _ = lab("check", path, "--set", "train.batch_size=4")
    assert again.splitlines()[:4] == out.splitlines()[:4]
    assert again != out
