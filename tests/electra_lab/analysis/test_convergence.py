"""Reports name the variants that were still learning at the end: curves of known shapes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_lab.analysis.convergence import late_gain
from electra_lab.analysis.results import read
from tests.electra_lab.presentation.synthetic import SCALES, write_folder

pytestmark = pytest.mark.usefixtures("plain")
LABELS = list(SCALES)
AUC, LOSS = "discriminator_auc_gain", "discriminator_token_mask_loss_gain"
Gain = Callable[[float], float]  # of the fraction of training
EVALUATED = [0.1 * i for i in range(1, 11)]


def with_gains(folder: Path, gains: dict[str, Gain], name: str = AUC, at: list[float] = EVALUATED) -> Path:
    """Give the cells of each variant, or a cell by its id, validation records with these gains, all of 600 steps."""
    for cell in read(folder).cells:
        gain = gains.get(cell.plan.id) or gains.get(cell.plan.variant)
        file = cell.run.path / "metrics.jsonl"
        if gain is None or not file.is_file():
            continue
        kept = [r for line in file.read_text().splitlines() if (r := json.loads(line))["split"] != "validation"]
        kept += [{"step": round(600 * t), "split": "validation", name: gain(t)} for t in at]
        file.write_text("".join(json.dumps(r) + "\n" for r in kept))
    return folder


@pytest.mark.parametrize("name", [AUC, LOSS])
def test_the_share_is_what_the_last_third_added(tmp_path: Path, name: str) -> None:
    curves: list[Gain] = [lambda t: t, lambda t: 2 * t**2, lambda t: 1 - (1 - t) ** 2, lambda t: min(t, 0.5)]
    # At 2/3 of training, between the evaluations at 60 and 70 %.
    expected = [1 / 3, 1 - (0.36 + 0.49 * 2) / 3, 1 - (0.84 + 0.91 * 2) / 3, 0.0]
    folder = with_gains(write_folder(tmp_path, SCALES, (0, 1)), dict(zip(LABELS, curves, strict=True)), name)
    found = [late_gain(read(folder).of(label)) for label in LABELS]
    assert found == pytest.approx(expected)


def test_the_share_is_that_of_the_mean_gain_of_trained_cells(tmp_path: Path) -> None:
    """A seed that gained twice as much counts twice; cells that have not finished training do not count."""
    folder = write_folder(tmp_path, SCALES, (0, 1, 2), state={"v0-s2": "unfinished"})
    with_gains(folder, {"v0-s0": lambda t: 2 * min(t, 0.6), "v0-s1": lambda t: 0.6 * (t == 1), "v0-s2": lambda t: t**4})
    assert late_gain(read(folder).of(LABELS[0])) == pytest.approx(0.6 / (1.2 + 0.6))


FLAT: list[tuple[Gain, list[float]]] = [
    (lambda t: -t, EVALUATED),
    (lambda t: 0.0, EVALUATED),
    *[(lambda t: t, at) for at in ([], [1.0], [0.7, 1.0])],
]


@pytest.mark.parametrize(("gain", "at"), FLAT)
def test_without_a_gain_or_an_evaluation_before_the_last_third_there_is_no_share(
    tmp_path: Path, gain: Gain, at: list[float]
) -> None:
    folder = with_gains(write_folder(tmp_path, SCALES, (0,)), {LABELS[0]: gain}, at=at)
    assert late_gain(read(folder).of(LABELS[0])) is None
