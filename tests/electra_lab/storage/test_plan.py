"""plan.json: it is read back as written and consistent, and one of another format is never misread."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_lab.storage.ablation_folder import AblationFolder
from electra_lab.storage.plan import Cell, Plan, PlannedMeasure, PlannedVariant
from registry import Metric
from registry.errors import CheckpointError, ConfigError


def plan(**changes: Any) -> Plan:
    auc, loss = Metric("area", parts=("time",)), Metric("loss", unit="nats", higher_is_better=False)
    measure = {"metrics": {"auc": auc, "time": Metric(comparable=False)}, "references": {"one": "reference-1"}}
    values: dict[str, Any] = {
        "name": "sizes", "base": "tiny.yaml", "keys": ["x"], "baseline": "x=1", "seeds": [0, 1],
        "variants": [PlannedVariant(label=f"x={x}", changes={"x": x}, differs={"a.b": (None, [x])}) for x in (1, 2)],
        "measures": [
            PlannedMeasure(type="one", key="one-1", **measure),
            PlannedMeasure(type="two", key="two-1", metrics={"loss": loss}, options={"rows": 8}),
        ],
        "metric": "loss",
        "cells": [Cell(id=f"x{x}-s{s}", variant=f"x={x}", seed=s, steps=4, flops=1e9) for x in (1, 2) for s in (0, 1)],
    }  # fmt: skip
    return Plan(**values | changes)


def test_a_plan_reads_back_as_it_was_written() -> None:
    written = plan(imports=["/a.py"], budget={"flops": 1e18}, question="Größer?")
    read = Plan.model_validate(json.loads(written.model_dump_json()))
    assert read == written
    assert read.measures[1].metrics["loss"] == Metric("loss", unit="nats", higher_is_better=False)
    assert read.measures[0].metrics["auc"].parts == ("time",)
    assert read.variants[0].differs == {"a.b": (None, [1])}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.pop("variants"), "variants: Field required"),
        (lambda p: p.update(variants=[]), "variants: List should have at least 1 item"),
        (lambda p: p.update(measures=[]), "measures: List should have at least 1 item"),
        (lambda p: p.update(baseline="gone"), "gone is not one of the variants"),
        (lambda p: p["cells"][0].update(variant="gone"), "gone is not one of the variants"),
        (lambda p: p.update(metric="gone"), "gone is not a metric of any measure"),
        (lambda p: p["cells"][0].update(id="../../x"), "cells.0.id: String should match"),
        (lambda p: p["cells"][0].update(id=".."), "cells.0.id: String should match"),
        (lambda p: p["measures"][0].update(key="/etc"), "measures.0.key: String should match"),
        (lambda p: p["measures"][0].update(references={"a": "a/../b"}), "measures.0.references.a: String should match"),
        (lambda p: p.update(format=2), "format: Input should be 1"),
    ],
)
def test_a_damaged_plan_is_one_sentence_with_a_cure(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], reason: str
) -> None:
    change(values := json.loads(plan().model_dump_json()))
    (tmp_path / "plan.json").write_text(json.dumps(values))
    said = f"^{tmp_path}/plan.json: is damaged: {reason}[^\n]*\\. Remove it, and `electra-lab ablate` recreates it\\.$"
    with pytest.raises(CheckpointError, match=said):
        _ = AblationFolder(tmp_path).plan


@pytest.mark.parametrize("text", ["", "[1]", '{"format": "2"}'])
def test_a_file_that_is_not_a_plan_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=r"plan\.json: cannot be read \(No such file"):
        _ = AblationFolder(tmp_path).plan
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/plan.json: [^\n]*$"):
        _ = AblationFolder(tmp_path).plan


def test_the_leading_metric_comes_first_then_those_of_the_measures_in_order() -> None:
    assert list(plan().metrics) == ["loss", "auc", "time"]
    assert list(plan(metric="time").metrics) == ["time", "auc", "loss"]
    assert plan().metrics["loss"].higher_is_better is False


def test_references_are_named_once_and_in_order() -> None:
    kinds = [("a", {"x": "r2", "y": "r3"}), ("b", {}), ("c", {"x": "r1"}), ("d", {"x": "r2"})]
    measures = [PlannedMeasure(type=k, key=k, metrics={k: Metric()}, references=r) for k, r in kinds]
    assert plan(measures=measures, metric="a").references == ["r2", "r3", "r1"]
    assert plan().references == ["reference-1"]


@pytest.mark.parametrize(
    ("values", "numbers"),
    [((1, 2.5), {"a": 1.0, "b": 2.5}), ((1, "two"), {}), ((1, True), {}), ((1, None), {}), ((1.0, float("inf")), {})],
)
def test_a_key_has_numbers_if_every_variant_sets_one(values: tuple[Any, Any], numbers: dict[str, float]) -> None:
    variants = [PlannedVariant(label=label, changes={"x": value}) for label, value in zip("ab", values, strict=True)]
    assert plan(variants=variants, baseline="a", cells=[]).axis == numbers
    assert plan(variants=variants, baseline="a", cells=[], keys=["x", "y"]).axis == {}
    assert plan(variants=variants, baseline="a", cells=[], keys=[]).axis == {}


def test_a_plan_without_cells_is_not_another_ablation(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan(cells=[]).model_dump_json())
    AblationFolder(tmp_path).refuse_other({"a"})
    (tmp_path / "plan.json").write_text(plan().model_dump_json())
    with pytest.raises(ConfigError, match=r"holds another plan: its cell x1-s0 \(and 3 more\)"):
        AblationFolder(tmp_path).refuse_other({"a"})
    AblationFolder(tmp_path).refuse_other({"x1-s0", "x1-s1", "x2-s0", "x2-s1", "one more"})
