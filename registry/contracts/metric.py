"""Metrics."""

from dataclasses import dataclass

SHARE, CORRELATION = (0.0, 1.0), (-1.0, 1.0)  # bounds


@dataclass(frozen=True)
class Metric:
    """A number that a component computes, declared under its name, for tables, charts and pages."""

    summary: str = ""  # a phrase that describes it
    title: str = ""  # the heading of its row or chart; "" stands for its name
    unit: str = ""  # such as "nats"
    higher_is_better: bool = True
    # False if each run is measured on its own task, such as the replacements of its own generator. A better number does
    # not mean a better model then, so reports call it only higher or lower.
    comparable: bool = True
    baselines: tuple[str, ...] = ()  # names of metrics to compare it with, which need no training
    # It is the mean of the metrics of these names, each against another reference. Reports show whether the order of
    # variants depends on the reference.
    parts: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None  # its least and greatest value, which intervals respect
    chart: bool = False  # shown as a curve over training
    brief: str = ""  # its name on the terminal during training; without one it is not shown there

    @property
    def direction(self) -> str:
        """The direction in words."""
        if not self.comparable:
            return "on each run's own task"
        return f"{'higher' if self.higher_is_better else 'lower'} is better"
