"""The learning rate of google-research/electra, step by step."""

from __future__ import annotations

import pytest

from electra_lab.schedules.warmup_linear import warmup_linear


def polynomial_decay(step: int, steps: int) -> float:
    """tf.train.polynomial_decay to zero with power 1."""
    return 1.0 * (1 - min(step, steps) / steps) ** 1.0 + 0.0


def warmup(step: int, warmup_steps: int) -> float:
    """The factor of google-research/electra's optimization.py, which is 0 at its first step."""
    return min(1.0, step / warmup_steps)


@pytest.mark.parametrize(("steps", "warmup_steps"), [(20, 6), (20, 20), (20, 1), (1, 1), (7, 3)])
def test_every_step_of_a_run(steps: int, warmup_steps: int) -> None:
    """Decay times warm-up. The warm-up is one step ahead, so that the first step is not lost."""
    rates = [warmup_linear(step, steps, warmup_steps=warmup_steps) for step in range(steps)]
    assert rates == pytest.approx(
        [polynomial_decay(step, steps) * warmup(step + 1, warmup_steps) for step in range(steps)], abs=1e-15
    )
    assert rates[0] == pytest.approx(1 / warmup_steps)
    assert rates[-1] > 0


def test_both_at_once_and_not_one_after_the_other() -> None:
    """The decay begins with the run, so that the peak of 1 is never reached."""
    rates = [warmup_linear(step, 10, warmup_steps=5) for step in range(10)]
    assert rates == pytest.approx([0.2, 0.36, 0.48, 0.56, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_without_a_warm_up_the_rate_only_falls() -> None:
    assert [warmup_linear(step, 4, warmup_steps=0) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_warm_up_that_does_not_fit_is_refused() -> None:
    assert warmup_linear(0, 5, warmup_steps=5) == 0.2
    with pytest.raises(ValueError, match=r"a warm-up of 10,000 steps does not fit into 1,500 steps\. Lower schedules"):
        warmup_linear(0, 1500)
    for step in range(3):
        with pytest.raises(ValueError, match="a warm-up of 4 steps does not fit into 3 steps"):
            warmup_linear(step, 3, warmup_steps=4)


@pytest.mark.parametrize(("share", "warmup_steps"), [(0.3, 6), (0.0, 0), (1.0, 20), (0.01, 0), (0.06, 1)])
def test_a_share_of_the_steps_counts_instead_of_their_number(share: float, warmup_steps: int) -> None:
    rates = [warmup_linear(step, 20, warmup_steps=10_000, warmup_share=share) for step in range(20)]
    assert rates == [warmup_linear(step, 20, warmup_steps=warmup_steps) for step in range(20)]
