"""The declaration of a metric."""

from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from registry import Metric


def test_the_direction_in_words() -> None:
    assert Metric().direction == "higher is better"
    assert Metric(higher_is_better=False).direction == "lower is better"
    assert Metric(higher_is_better=False, comparable=False).direction == "on each run's own task"


@pytest.mark.parametrize("own", [True, False])
def test_the_former_name_is_read_in_plug_ins_and_files_and_not_written(own: bool) -> None:
    metric = Metric(own_task=own)
    assert metric.comparable != own
    assert TypeAdapter(Metric).validate_python({"own_task": own}) == replace(metric, title="") == metric
    assert "own_task" not in asdict(metric)
    assert not replace(metric, comparable=False).comparable
