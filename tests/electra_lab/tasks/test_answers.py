"""The best span of a window, by trying all of them."""

import numpy as np
import pytest

from electra_lab.tasks._spans import Read, Span, independent_span, joint_span
from electra_lab.tasks._windows import Window
from registry import Encoded

TEXT = Encoded([], [], [])
LONGEST = 3


def read(window: Window, begin: int = 3) -> Read:
    return Read(TEXT, window, begin, False)


def test_independent_tries_all_spans() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        first, size, begin = (int(draw.integers(*each)) for each in ((0, 9), (1, 8), (2, 5)))
        cuts = sorted(draw.integers(0, size + 1, 2).tolist())
        window = Window(first, first + size, range(first + cuts[0], first + cuts[1]))
        start, end = draw.normal(size=(2, begin + size + 1)).astype(np.float32)
        start[:begin] = end[:begin] = start[-1] = end[-1] = 99.0  # the question and [SEP]
        found = independent_span(read(window, begin), {"start": start, "end": end}, LONGEST)
        spans = {
            (one, other): float(start[begin + one - first]) + float(end[begin + other - first])
            for one in window.best
            for other in range(one, min(one + LONGEST, window.end))
        }
        if not spans:
            assert found is None
            continue
        best = max(spans, key=spans.__getitem__)
        assert found is not None
        assert (found.first, found.last) == best
        assert found.score == pytest.approx(spans[best])


def test_the_probability_is_that_of_start_and_end() -> None:
    start, end = np.log([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    found = independent_span(read(Window(0, 2, range(2)), 1), {"start": start + 3, "end": end - 2}, LONGEST)
    assert found == Span(pytest.approx(np.log(0.3 * 0.25) + 1), pytest.approx(0.3 * 0.25), 1, 1)


def joint(score: list[float], first: list[int], last: list[int]) -> dict[str, np.ndarray]:
    return {"score": np.array(score), "first": np.array(first, np.float32), "last": np.array(last, np.float32)}


def test_joint_takes_the_best_that_begins_in_its_own_part() -> None:
    output = joint([-1.0, -2.0, -3.0, -4.0], [3, 11, 5, 6], [4, 12, 9, 6])  # tokens 10, 18, 12 and 13
    assert joint_span(read(Window(10, 20, range(12, 18))), output) == Span(-3.0, pytest.approx(np.exp(-3)), 12, 16)
    window = read(Window(0, 4, range(4)))
    assert joint_span(window, joint([-np.inf, -np.inf], [3, 4], [3, 4])) is None
    assert joint_span(window, joint([-1.0], [0], [3])) is None
