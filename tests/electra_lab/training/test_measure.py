"""The fastest way, by a clock of our own."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from electra_lab.training import measure
from electra_lab.training.measure import fastest, seconds_of


def test_ways_take_turns_and_the_least_time_counts_but_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], list[str]()
    durations = {"slow": iter([1.0, 5.0, 7.0, 6.0]), "fast": iter([0.5, 3.0, 2.0, 4.0])}
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def way(name: str) -> None:
        calls.append(name)
        now[0] += next(durations[name])

    found = seconds_of({name: partial(way, name) for name in durations}, torch.device("cpu"))
    assert calls == ["slow", "fast"] * 4
    assert found == {"slow": 5.0, "fast": 2.0}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"first": 1.0, "second": 0.96}, "first"),  # a small difference
        ({"first": 1.0, "second": 0.94}, "second"),
        ({"first": 1.0, "second": 0.9, "third": 0.88}, "second"),
        ({"first": 1.0, "second": 0.96, "third": 0.94}, "third"),
        ({"only": 3.0}, "only"),
    ],
)
def test_another_way_must_be_clearly_faster(seconds: dict[str, float], expected: str) -> None:
    assert fastest(seconds) == expected
