"""The declaration of a metric."""

from registry import Metric


def test_the_direction_in_words() -> None:
    assert Metric().direction == "higher is better"
    assert Metric(higher_is_better=False).direction == "lower is better"
    assert Metric(higher_is_better=False, comparable=False).direction == "on each run's own task"
