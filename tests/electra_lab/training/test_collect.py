"""The outputs of rows, batch by batch and from several processes, as a task receives them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from electra_lab.training.collect import Collected
from registry import Batch, Losses, Results, Row


class Keeping:
    """A task that keeps what it is given."""

    metrics: ClassVar[dict[str, Any]] = {}

    def results(self, examples: Any, rows: Any, outputs: Any) -> Results:
        self.given = outputs
        return Results({}, [{"id": example, "prediction": 0} for example in examples])


def test_each_example_has_the_outputs_of_its_rows_without_padding() -> None:
    """Rows come in any order, longest first here; an output of a row that is as long as the batch is kept whole."""
    task = Keeping()
    rows = [[Row([7] * size, [0] * size, {}) for size in sizes] for sizes in ([3], [5, 2], [4])]
    halves = [Collected(task, ["a", "b", "c"], rows, {"tags"}) for _ in range(2)]  # type: ignore[arg-type]
    for collected, numbers in zip(halves, ([1, 3], [0, 2]), strict=True):
        ids, tokens = torch.tensor(numbers), torch.zeros(2, 6, dtype=torch.long)
        numbered = 10 * ids.unsqueeze(1) + torch.arange(6)
        collected.update(
            Batch(tokens, tokens == 0, tokens, ids), Losses({}, outputs={"tags": numbered, "row": numbered})
        )
    halves[0].merge(halves[1])
    assert halves[0].values() == {}
    found = [[each["tags"].tolist() for each in outputs] for outputs in task.given]
    assert found == [[[0, 1, 2]], [[10, 11, 12, 13, 14], [20, 21]], [[30, 31, 32, 33]]]
    assert {len(each["row"]) for outputs in task.given for each in outputs} == {6}
