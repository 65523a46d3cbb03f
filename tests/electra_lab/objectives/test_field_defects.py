"""Two defects of the public packages that concern the networks themselves (B16, B18); the others: tests/.../interop."""

import math

import pytest
import torch

from electra_lab.testing import ObjectiveContract
from electra_lab.training.random import Streams
from registry import Batch, objectives
from tests.electra_lab.objectives.tiny import REQUIRED


def built(name: str):
    suite = ObjectiveContract()
    suite.name, suite.options, suite.depths = (
        name,
        REQUIRED.get(name, {}),
        (4, 2),
    )  # for exits, and a layer above a branch
    return suite.build().train()


def batch(rows: int = 4, length: int = 20) -> Batch:
    tokens = torch.randint(5, ObjectiveContract.size, (rows, length), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(rows))


@pytest.mark.parametrize("name", sorted({*objectives.names()} - {"all_tokens_mlm", "electric", "mc_bert"}))
def test_b16_vocabulary_logits_exist_at_the_masked_positions_alone(name: str) -> None:
    objective, given, shapes = built(name), batch(), []
    for part in objective.modules():
        if type(part).__name__ == "TokenHead":
            part.register_forward_hook(lambda _, __, logits: shapes.append(tuple(logits.shape)))
    objective(given, Streams(0, 0, given.example_ids))
    assert set(shapes) == {(4, math.ceil(0.15 * 20), ObjectiveContract.size)}


def test_b18_the_whole_objective_compiles_to_one_graph() -> None:
    """And to the same loss: no indexing by data, no wait for the device, no new code for another step. This is a first
    stage; second stages and all other objectives, as an experiment assembles them:
    tests/electra_lab/assembly/test_schedules.py."""
    objective, given = built("two_stage"), batch()
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(2):
            rng = Streams(0, step, given.example_ids)
            found, expected = compiled(given, rng).terms, objective(given, Streams(0, step, given.example_ids)).terms
            for term in expected:
                torch.testing.assert_close(found[term].sum, expected[term].sum)
                assert found[term].count == expected[term].count
