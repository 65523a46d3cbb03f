"""Scheduled numbers reach their component at every step; evaluation has the last; code is compiled once."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble, check
from electra_lab.config.load import load
from electra_lab.jobs.pretraining import execute
from electra_lab.training.random import Streams
from registry import objectives
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import assert_same, lines
from tests.electra_lab.objectives.tiny import needs_of
from tests.helpers import write_experiment

NUMBERS = {
    "sampler.temperature": (3.0, 1.0), "masking.mask_prob": (0.5, 0.1), "objective.discriminator_weight": (0, 50),
}  # fmt: skip
STORE = "{sequence_length: 16, held_out: 0.3, store: store}"
TRAIN = "{steps: 11, batch_size: 2, precision: fp32}"
pytestmark = pytest.mark.usefixtures("no_report")


def scheduled(numbers: dict[str, tuple[float, float]]) -> str:
    """Return the section `schedules` on one line: a straight line for each number, no warm-up."""
    lines = {key: {"type": "linear", "start": a, "end": b} for key, (a, b) in numbers.items()}
    return json.dumps({"learning_rate": {"warmup_steps": 0}, **lines})


def experiment(folder: Path, **sections: str) -> Any:
    loaded = load(write_experiment(folder, **{"data": STORE, "train": TRAIN, **sections}))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu")), loaded


def test_each_number_reaches_its_component(tmp_path: Path) -> None:
    made, _ = experiment(tmp_path, schedules=scheduled(NUMBERS))
    objective: Any = made.run.learner.objective
    made.run.learner.at_step(0, 5)
    assert float(objective.sampler.options["temperature"]) == 2.0
    assert float(objective.masking.options["mask_prob"]) == pytest.approx(0.3)
    batch = made.train.training_batch(0, 5, 2, torch.device("cpu"))
    terms = objective.train()(batch, Streams.of(0, 5, batch.example_ids)).terms
    assert float(terms["discriminator"].weight) == 25.0
    maskable = [int(n) for n in (batch.attention_mask & ~made.vocabulary.is_special[batch.tokens]).sum(1)]
    assert int(terms["generator"].count) == sum(math.ceil(0.3 * n - 1e-9) for n in maskable)


@pytest.mark.parametrize("backbone", ["performer", pytest.param("reformer, bucket_size: 4", marks=pytest.mark.slow)])
def test_a_whole_experiment_with_schedules_is_compiled_once_into_one_graph(tmp_path: Path, backbone: str) -> None:
    """With new random features at every step; layers of the other backbones: tests/.../training/test_compilation.py."""
    discriminator = f"{{type: {backbone}, dim: 8, depth: 1, heads: 2}}"
    made, _ = experiment(tmp_path, discriminator=discriminator, schedules=scheduled(NUMBERS))
    assert_compiled_once(made, range(2))


# Objectives with their required options; two_stage in its second stage.
OPTIONS = {"two_stage": ", generator_steps: 1", "frozen_generator": ", run: earlier", "coco_lm": ", group: 2"}
# These share their parts with other objectives, which stay quick tests: electra (the experiment above), all_tokens_mlm
# (copies), teams (choices), amos (a generator that learns from the discriminator).
ALIKE = {
    "electra", "electra_masked_only", "two_stage", "frozen_generator", "mlm", "replace_mlm", "electra_correct",
    "mc_bert", "adversarial",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in objectives.names()]
)
def test_every_number_of_an_objective_is_compiled_once(tmp_path: Path, name: str) -> None:
    fields, needs = objectives.get(name).schema.model_fields, needs_of(name)
    numbers = {f"objective.{key}": (0.5, 0.1) for key, field in fields.items() if field.annotation is float}
    numbers["masking.mask_prob"] = (0.5, 0.1)
    generator = (
        "{type: two_towers, scale: 1.0}" if name == "electric" else "{scale: 0.5}" if needs.generator else "null"
    )
    loaded = load(
        write_experiment(
            tmp_path, data=STORE, train=TRAIN, schedules=scheduled(numbers),
            generator=generator,
            objective=f"{{type: {name}{OPTIONS.get(name, '')}}}",
            embedding=f"{{dim: 8, max_length: 16, tie: {'none' if name in OPTIONS else 'embeddings'}}}",
            discriminator=f"{{type: bert, dim: 8, depth: {1 + (name in ('amos', 'teams'))}, heads: 2}}",
            **{} if needs.sampler else {"sampler": "null"},
        )
    )  # fmt: skip
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"), restored=True)
    assert len(made.run.learner.schedules.numbers) == len(numbers)
    assert_compiled_once(made, range(1, 3))


def assert_compiled_once(made: Any, steps: range) -> None:
    """Check that there is one graph, and that every step has the same terms as uncompiled."""
    learner, objective = made.run.learner, made.run.learner.objective
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in steps:
            batch = made.train.training_batch(0, step, 2, torch.device("cpu"))
            terms = []
            for variant in (compiled, objective):
                learner.at_step(0, step)
                terms.append(variant(batch, Streams.of(0, step, batch.example_ids)).terms)
            found, expected = terms
            for name, term in expected.items():
                torch.testing.assert_close(found[name].sum, term.sum)
                assert found[name].count == term.count
                assert float(found[name].weight) == float(term.weight)


def test_a_run_with_schedules_resumes_bit_for_bit(tmp_path: Path) -> None:
    train = "{steps: 6, batch_size: 2, precision: fp32, log_every: 2}"
    file = write_experiment(tmp_path, train=train, schedules=scheduled(NUMBERS), data=STORE)
    whole = execute.run(file, ["checkpoint.every=3"], tmp_path / "whole", "cpu")
    parts = Path(shutil.copytree(whole, tmp_path / "parts"))
    for checkpoint in sorted((parts / "checkpoints").iterdir())[1:]:
        shutil.rmtree(checkpoint)
    execute.resume(parts, "cpu")
    assert_same(whole, parts)


def test_a_log_line_weighs_each_step_by_its_own_weight(tmp_path: Path) -> None:
    numbers = {"objective.discriminator_weight": (0, 50)}
    train = "{steps: 4, batch_size: 2, precision: fp32, log_every: "
    logged: dict[int, list[dict[str, Any]]] = {}
    for every in (1, 2):
        file = write_experiment(tmp_path, train=f"{train}{every}}}", schedules=scheduled(numbers), data=STORE)
        logged[every] = lines(execute.run(file, [], tmp_path / str(every), "cpu"), "train")
    for record, weight in zip(logged[1], (0, 50 / 3, 100 / 3, 50), strict=True):
        assert record["loss"] == pytest.approx(record["generator_loss"] + weight * record["discriminator_loss"])
    # Rows are full, so every step has the same number of tokens, and a mean of means is the mean.
    steps = [record["loss"] for record in logged[1]]
    means = [(steps[0] + steps[1]) / 2, (steps[2] + steps[3]) / 2]
    assert [record["loss"] for record in logged[2]] == pytest.approx(means, rel=0.01)


OTHER_NAMES = """
from electra_lab.objectives.electra import Electra
from registry import objectives


@objectives.register("renamed")
class Renamed(Electra):
    \"\"\"Keeps its parts under other names.\"\"\"

    def __init__(self, generator, discriminator, masking, sampler, vocabulary, /, *, weight: float = 1.0) -> None:
        super().__init__(generator, discriminator, masking, sampler, vocabulary, generator_weight=weight)
        self.strategy, self.draws = self.masking, self.sampler
        del self.masking, self.sampler

    def forward(self, batch, rng):
        self.masking, self.sampler = self.strategy, self.draws
        try:
            return super().forward(batch, rng)
        finally:
            del self.masking, self.sampler

    def counts(self, batch, rng):
        self.masking = self.strategy
        try:
            return super().counts(batch, rng)
        finally:
            del self.masking
"""


def test_a_plug_in_may_keep_its_parts_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "renamed.py").write_text(OTHER_NAMES)
    numbers = {"sampler.temperature": (3.0, 1.0), "masking.mask_prob": (0.5, 0.2)}
    sections = {
        "objective": "{type: renamed}\nimports: [renamed.py]",
        "train": "{steps: 2, batch_size: 2}",
        "schedules": scheduled(numbers),
    }
    made, loaded = experiment(tmp_path, **sections)
    assert check(loaded) is None
    made.run.learner.at_step(0, 0)
    assert float(made.run.learner.objective.draws.options["temperature"]) == 3.0
    assert float(made.run.learner.objective.strategy.options["mask_prob"]) == 0.5
    # A number that it does not keep under its option's name cannot be scheduled; check refuses it, not only run.
    numbers = {"objective.weight": (1.0, 2.0)}
    sections["schedules"] = scheduled(numbers)
    with pytest.raises(ConfigError, match=r"objective\.weight: cannot be scheduled: renamed keeps no number"):
        check(load(write_experiment(tmp_path, **sections)))
