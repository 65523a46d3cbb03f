"""Laws of schedules."""

import math

from hypothesis import given
from hypothesis import strategies as st

from electra_lab.testing.common import Contract, law
from registry import schedules


class ScheduleContract(Contract):
    """Laws of schedules."""

    registry = schedules

    @law
    @given(progress=st.floats(0, 1), steps=st.integers(1, 10**7), share=st.floats(0, 1))
    def test_numbers_are_finite_and_the_same_each_time(self, progress: float, steps: int, share: float) -> None:
        """A factor of the learning rate is also 0 or more, at every step of a training that it accepts."""
        if self.entry.lead == ("progress",):
            value = self.component()(progress)
            assert math.isfinite(value), f"{value} at {progress}"
            assert self.component()(progress) == value
            return
        step = min(int(share * steps), steps - 1)
        try:
            factor = self.component()(step, steps)
        except ValueError:  # it refuses so few steps
            return
        assert math.isfinite(factor), f"{factor} at step {step} of {steps}"
        assert factor >= 0, f"{factor} at step {step} of {steps}"
        assert self.component()(step, steps) == factor
