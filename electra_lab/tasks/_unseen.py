"""Labels that no training example has, which count as errors."""

from collections.abc import Mapping, Sequence

from registry import Metric

IGNORED = -100  # such a label in a row, which the loss leaves out
UNSEEN_METRIC: Mapping[str, Metric] = {
    "unseen_labels": Metric("share of the labels that no training example has: errors", "unseen labels", "", False)
}


def unseen_share(unseen: Sequence[bool]) -> dict[str, float]:
    """Return the share of the labels that training has not seen, if there are any."""
    return {"unseen_labels": sum(unseen) / len(unseen)} if any(unseen) else {}
