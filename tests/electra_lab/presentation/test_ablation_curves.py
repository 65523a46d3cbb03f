"""The learning curves of an ablation: what is plotted is what the cells recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from electra_lab.analysis.records import POINTS
from electra_lab.analysis.results import Results, read
from electra_lab.presentation import sweep_figures as figures
from electra_lab.presentation.charts import look
from tests.electra_lab.presentation.axes import Drawn, lines
from tests.electra_lab.presentation.test_ablation_figures import TWO, made

LOSS = "Generator loss, nats (validation text)"


def rewrite(results: Results, *records: dict[str, Any], only: str = "*") -> None:
    """Let cells have these records."""
    for folder in results.folder.glob(f"cells/{only}"):
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def train(step: int, flops: float, **values: float) -> dict[str, Any]:
    return {"step": step, "split": "train", "flops": flops, **values}


def validation(step: int, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": "validation", **values}


def test_a_curve_is_drawn_over_the_flops_of_its_steps(tmp_path: Path, drawn: Drawn) -> None:
    """Steps 10 and 20 cost 100 and 300 in one cell; step 15 lies half way between them. The test is in no curve."""
    results = made(tmp_path, TWO, seeds=(0,))
    rewrite(
        results, train(10, 100.0, generator_loss=9.0), validation(10, discriminator_auc=0.5, generator_loss=4.0),
        validation(15, discriminator_auc=0.6, generator_loss=3.0), train(20, 300.0, generator_loss=8.0),
        validation(20, discriminator_auc=None, generator_loss=2.0),
        {"step": 20, "split": "test", "tokens": 64, "discriminator_auc": 0.9, "generator_loss": 0.5}, only="v0-s0",
    )  # fmt: skip
    rewrite(
        results, train(10, 1000.0, generator_loss=7.0), validation(5, discriminator_auc=0.7),
        validation(10, discriminator_auc=0.8), only="v1-s0",
    )  # fmt: skip
    assert [each.caption for each in figures.curves(results)] == [LOSS, "Discriminator AUC (validation text)"]
    assert lines(drawn["curve-0"]) == [(look(0), [(100.0, 4.0), (200.0, 3.0), (300.0, 2.0)]), (look(1), [])]
    auc = drawn["curve-1"]
    assert lines(auc) == [(look(0), [(100.0, 0.5), (200.0, 0.6)]), (look(1), [(500.0, 0.7), (1000.0, 0.8)])]
    assert (auc.get_xlabel(), auc.xaxis.get_major_formatter()(2.5e15, 0)) == ("training FLOPs", "2.5P")


def test_a_metric_that_was_evaluated_once_is_drawn_on_training_text(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    both = validation(20, discriminator_auc=0.5, generator_loss=4.0)
    rewrite(results, train(10, 100.0, generator_loss=9.0), train(20, 200.0, generator_loss=8.0), both)
    assert [each.caption for each in figures.curves(results)] == ["Generator loss, nats (training text)"]
    assert lines(drawn["curve-0"])[1] == (look(1), [(100.0, 9.0), (200.0, 8.0)])


def test_a_model_that_predicts_tokens_is_not_in_the_picture_of_detection(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, {"electra": {}, "mlm": {}}, seeds=(0,))
    rows = [train(10, 100.0, discriminator_loss=0.5), train(20, 200.0, discriminator_loss=0.4)]
    tokens = {"discriminator_token_loss": 5.0, "discriminator_loss": 5.0}
    rewrite(results, *rows, only="v0-s0")
    rewrite(results, *(row | tokens for row in rows), only="v1-s0")
    captions = [f"Discriminator {loss}, nats (training text)" for loss in ("token loss", "loss")]
    assert [each.caption for each in figures.curves(results)] == captions
    assert lines(drawn["curve-1"]) == [(look(0), [(100.0, 0.5), (200.0, 0.4)]), (look(1), [])]
    assert lines(drawn["curve-0"]) == [(look(0), []), (look(1), [(100.0, 5.0), (200.0, 5.0)])]


def test_a_long_curve_keeps_its_ends(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    rewrite(results, *(train(n, 10.0 * n, generator_loss=float(n)) for n in range(1, 1000)))
    figures.curves(results)
    _, points = lines(drawn["curve-0"])[0]
    assert 100 < len(points) <= POINTS + 1
    assert (points[0], points[-1]) == ((10.0, 1.0), (9990.0, 999.0))
    assert all(x == 10 * y for x, y in points)


def test_the_leading_metric_comes_first_and_a_run_may_declare_its_own(tmp_path: Path, drawn: Drawn) -> None:
    results = made(tmp_path, TWO, seeds=(0,))
    metrics = {"word_loss": {"title": "word loss", "unit": "bits", "chart": True}, "plain": {"title": "plain"}}
    for file in results.folder.glob("cells/*/provenance.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"metrics": metrics}))
    others = {"plain": 1.0, "reference_auc": 0.5, "generator_loss": 1.0}
    rewrite(results, *(validation(n, word_loss=n / 8, **others) for n in (1, 2)), train(2, 20.0))
    captions = [picture.caption for picture in figures.curves(read(results.folder))]
    assert captions == ["reference_auc (validation text)", "Word loss, bits (validation text)"]
    assert lines(drawn["curve-1"])[0] == (look(0), [(10.0, 0.125), (20.0, 0.25)])
