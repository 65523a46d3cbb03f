"""Numbers that change while training: where they arrive, what evaluation sees, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from electra_lab.assemble import assemble, check, open_data
from electra_lab.config.load import dump, load
from electra_lab.runs import execute
from electra_lab.training.guards import GuardedMasking, GuardedSampler
from electra_lab.training.random import Streams
from electra_lab.training.scheduled import Number, Scheduled
from electra_lab.training.step import prepare
from registry import Masked, masking_strategies, objectives, samplers, schedules
from registry.errors import BadResult, ConfigError
from registry.testing import binomial_p, vocabulary
from tests.helpers import write_experiment

BUCKETS = {"reformer": ", bucket_size: 4"}
HOT = "{sampler.temperature: {type: linear, start: 3.0, end: 1.0}}"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("linear", {"start": 2.0, "end": 1.0}, [2.0, 1.75, 1.5, 1.0]),
        ("linear", {"start": 0.0, "end": 1.0, "until": 0.5}, [0.0, 0.5, 1.0, 1.0]),
        ("cosine", {"start": 1.0, "end": 0.0}, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0]),
        ("cosine", {"start": 1.0, "end": 3.0, "until": 0.5}, [1.0, 2.0, 3.0, 3.0]),
    ],
)
def test_by_hand(name: str, options: dict[str, float], expected: list[float]) -> None:
    at = partial(schedules.get(name).component, **options)
    assert [at(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(expected)


def test_the_first_step_has_the_start_the_last_the_end_and_evaluation_always_the_end() -> None:
    got: list[float] = []
    scheduled = Scheduled([Number(lambda progress: 10 * progress, lambda number: got.append(float(number)))], steps=5)
    for step in range(5):
        scheduled.at_step(0, step)
    assert got == [0.0, 2.5, 5.0, 7.5, 10.0]
    scheduled.at_step(0, 1)
    scheduled.eval()
    scheduled.train()
    assert got[5:] == [2.5, 10.0, 2.5]
    one = Scheduled([Number(lambda progress: progress, lambda number: got.append(float(number)))], steps=1)
    one.at_step(0, 0)
    assert got[-1] == 0.0


def test_numbers_arrive_as_tensors_and_compiled_code_is_compiled_once() -> None:
    held: dict[str, Any] = {}
    scheduled = Scheduled([Number(lambda progress: 1 + progress, partial(held.__setitem__, "heat"))], steps=4)

    compiled = torch.compile(lambda x: x / held["heat"], backend="eager", fullgraph=True)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(4):
            scheduled.at_step(0, step)
            assert isinstance(held["heat"], Tensor)
            assert float(compiled(torch.tensor(6.0))) == pytest.approx(6 / (1 + step / 3))


def masked(now: float, largest: float) -> Any:
    guard = GuardedMasking(masking_strategies.get("replace_prob"), largest, mask_prob=now, replace_prob=1.0)
    tokens = torch.full((64, 40), 7)
    return guard(
        tokens, torch.ones_like(tokens, dtype=torch.bool), vocabulary(20), Streams(0, 0, torch.arange(64))("m")
    )


def test_a_changing_mask_prob_keeps_the_shapes_and_the_law() -> None:
    """As many slots as the largest needs, of which exactly count(mask_prob) are valid, in distinct places."""
    for now, number in ((0.1, 4), (0.3, 12), (0.5, 20), (0.6, 20)):
        found = masked(torch.tensor(now, dtype=torch.float64), 0.5)
        assert found.positions.shape == found.valid.shape == (64, 20)
        assert found.valid.sum(1).tolist() == [number] * 64
        chosen = [len(set(row[keep].tolist())) for row, keep in zip(found.positions, found.valid, strict=True)]
        assert chosen == [number] * 64
        assert int((found.inputs != 7).sum()) == 64 * number


@pytest.mark.parametrize("name", masking_strategies.names())
def test_a_changing_mask_prob_is_compiled_once_into_one_graph(name: str) -> None:
    entry = masking_strategies.get(name)
    guard = GuardedMasking(entry, 0.5, mask_prob=0.5, replace_prob=0.7, random_prob=0.1)
    tokens, words = torch.arange(5, 125).view(4, 30) % 50, vocabulary(50)
    maskable = ~words.is_special[tokens]

    def numbers() -> Any:
        return Streams(0, 0, torch.arange(4))("masking")

    torch._dynamo.reset()
    compiled = torch.compile(guard, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for now in (0.5, 0.3, 0.1):
            guard.options["mask_prob"] = torch.tensor(now, dtype=torch.float64)
            found = compiled(tokens, maskable, words, numbers())
            expected = entry.component(
                tokens, maskable, words, numbers(), mask_prob=now, replace_prob=0.7, random_prob=0.1
            )
            assert found.positions.shape == (4, 15)
            assert torch.equal(found.inputs, expected.inputs)
            assert int(found.valid.sum()) == int(expected.valid.sum()) > 0


def test_slots_that_count_must_not_stand_behind_the_last_one() -> None:
    def late(*arguments: Any, **options: Any) -> Masked:
        found: Masked = masking_strategies.get("replace_prob").component(*arguments, **options)
        return replace(found, positions=found.positions.flip(1), valid=found.valid.flip(1))

    entry = replace(masking_strategies.get("replace_prob"), component=late)
    guard = GuardedMasking(entry, 0.5, mask_prob=torch.tensor(0.2, dtype=torch.float64))
    tokens = torch.full((2, 10), 7)
    with pytest.raises(BadResult, match="returned slots that count behind the first 5, all that there are"):
        guard(tokens, tokens == 7, vocabulary(20), Streams(0, 0, torch.arange(2))("m"))


def scheduled(numbers: dict[str, tuple[float, float]]) -> str:
    return yaml.dump({"schedules": {k: {"type": "linear", "start": a, "end": b} for k, (a, b) in numbers.items()}})


def experiment(folder: Path, **sections: str) -> Any:
    loaded = load(write_experiment(folder, **{"data": "{sequence_length: 16, held_out: 0.3, store: store}"} | sections))
    return assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu")), loaded


def test_each_number_reaches_its_component(tmp_path: Path) -> None:
    numbers = {
        "sampler.temperature": (3.0, 1.0),
        "masking.mask_prob": (0.5, 0.1),
        "objective.discriminator_weight": (0, 50),
    }
    made, _ = experiment(tmp_path, train=f"{{steps: 11, batch_size: 2, warmup_steps: 0}}\n{scheduled(numbers)}")
    objective = made.run.objective
    for module in objective.modules():
        if callable(at_step := getattr(module, "at_step", None)):
            at_step(0, 5)
    assert float(objective.sampler.options["temperature"]) == 2.0
    assert float(objective.masking.options["mask_prob"]) == pytest.approx(0.3)
    assert float(objective.discriminator_weight) == 25.0
    batch = made.train.training_batch(0, 5, 2, torch.device("cpu"))
    terms = objective.train()(batch, Streams(0, 5, batch.examples)).terms
    assert float(terms["discriminator"].weight) == 25.0
    maskable = [int(n) for n in (batch.mask & ~made.vocabulary.is_special[batch.tokens]).sum(1)]
    assert int(terms["generator"].count) == sum(math.ceil(0.3 * n - 1e-9) for n in maskable)


@pytest.mark.parametrize("backbone", ["bert", "transformer", "performer", "reformer"])
def test_a_whole_experiment_with_schedules_is_compiled_once_into_one_graph(tmp_path: Path, backbone: str) -> None:
    """As it is assembled, with all its guards."""
    numbers = {
        "sampler.temperature": (3.0, 1.0),
        "masking.mask_prob": (0.5, 0.1),
        "objective.discriminator_weight": (1, 50),
    }
    made, _ = experiment(
        tmp_path,
        discriminator=f"{{type: {backbone}, dim: 8, depth: 1, heads: 2{BUCKETS.get(backbone, '')}}}",
        train=f"{{steps: 11, batch_size: 2, warmup_steps: 0}}\n{scheduled(numbers)}",
    )
    assert_compiled_once(made, range(3))


# Objectives with the options that they must be given; two_stage in its second stage.
OPTIONS = {"two_stage": ", generator_steps: 1", "frozen_generator": ", run: earlier"}


def numbers_of(section: str, name: str, registry: Any) -> dict[str, tuple[float, float]]:
    """Every number of a component that may follow a schedule, with two values that all of them take."""
    fields = registry.get(name).schema.model_fields
    return {f"{section}.{key}": (0.5, 0.1) for key, field in fields.items() if field.annotation is float}


@pytest.mark.parametrize("name", objectives.names())
def test_every_number_of_an_objective_is_compiled_once(tmp_path: Path, name: str) -> None:
    needs = objectives.get(name).component.needs
    numbers = numbers_of("objective", name, objectives) | {"masking.mask_prob": (0.5, 0.1)}
    loaded = load(
        write_experiment(
            tmp_path,
            data="{sequence_length: 16, held_out: 0.3, store: store}",
            embedding=f"{{dim: 8, max_length: 16, tie: {'none' if needs.untied else 'embeddings'}}}",
            discriminator="{type: bert, dim: 8, depth: 1, heads: 2}",
            objective=f"{{type: {name}{OPTIONS.get(name, '')}}}",
            train=f"{{steps: 11, batch_size: 2, warmup_steps: 0}}\n{scheduled(numbers)}",
            **{} if needs.generator else {"generator": "null"},
            **{} if needs.sampler else {"sampler": "null"},
        )
    )
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"), restored=True)
    assert len(made.run.objective.schedules.numbers) == len(numbers)
    assert_compiled_once(made, range(1, 4))


@pytest.mark.parametrize("name", [name for name in samplers.names() if numbers_of("sampler", name, samplers)])
def test_every_number_of_a_sampler_is_compiled_once(name: str) -> None:
    numbers, entry, logits = numbers_of("sampler", name, samplers), samplers.get(name), torch.randn(8, 20)
    guard = GuardedSampler(entry)

    def at(step: int) -> Any:
        return Streams(0, step, torch.arange(8))("sampling")

    torch._dynamo.reset()
    compiled = torch.compile(guard, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step, now in enumerate((0.5, 0.3, 0.1)):
            for key in numbers:
                guard.options[key.split(".")[1]] = torch.tensor(now, dtype=torch.float64)
            expected = entry.component(logits, at(step), **dict.fromkeys(guard.options, now))
            assert torch.equal(compiled(logits, at(step)), expected)


def assert_compiled_once(made: Any, steps: range) -> None:
    """Into one graph, and every step has the terms that it has when it is not compiled."""
    objective = made.run.objective
    torch._dynamo.reset()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in steps:
            batch = made.train.training_batch(0, step, 2, torch.device("cpu"))
            found, expected = (each(step, batch) for each in (terms_of(compiled), terms_of(objective)))
            for name, term in expected.items():
                torch.testing.assert_close(found[name].sum, term.sum)
                assert found[name].count == term.count
                assert float(found[name].weight) == float(term.weight)


def terms_of(objective: Any) -> Any:
    def at(step: int, batch: Any) -> Any:
        prepare(objective, 0, step)
        return objective(batch, Streams(0, step, batch.examples)).terms

    return at


def test_a_hot_sampler_draws_at_its_temperature(tmp_path: Path) -> None:
    made, _ = experiment(tmp_path, train=f"{{steps: 3, batch_size: 2, warmup_steps: 0}}\nschedules: {HOT}")
    objective, logits = made.run.objective, torch.zeros(4000, 6)
    logits[:, 5] = math.log(9.0)
    objective.schedules.at_step(0, 0)
    drawn = objective.sampler(logits, Streams(0, 0, torch.arange(4000))("sampling"))
    hot = 9 ** (1 / 3)
    assert binomial_p(int((drawn == 5).sum()), 4000, hot / (hot + 5)) > 1e-6


def test_a_run_with_schedules_resumes_bit_for_bit(tmp_path: Path) -> None:
    train = "{steps: 6, batch_size: 2, warmup_steps: 0, precision: fp32, log_every: 2}"
    numbers = {
        "sampler.temperature": (3.0, 1.0),
        "masking.mask_prob": (0.5, 0.2),
        "objective.generator_weight": (1.0, 0.5),
    }
    data = "{sequence_length: 16, held_out: 0.3, store: store}"
    sections = {"train": f"{train}\n{scheduled(numbers)}", "data": data}
    file = write_experiment(tmp_path, **sections)
    whole = execute.run(file, ["checkpoint.every=3"], tmp_path / "whole", "cpu")
    parts = execute.run(file, ["checkpoint.every=3"], tmp_path / "parts", "cpu")
    for checkpoint in sorted((parts / "checkpoints").iterdir())[1:]:
        for file_ in checkpoint.iterdir():
            file_.unlink()
        checkpoint.rmdir()
    execute.resume(parts, "cpu")

    def lines(path: Path) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in r.items() if "second" not in k} for r in records]

    assert lines(whole) == lines(parts)
    state = "checkpoints/step-00000006/state.safetensors"
    assert (whole / state).read_bytes() == (parts / state).read_bytes()


@pytest.mark.parametrize(
    ("schedules", "reason"),
    [
        ("{sampler.temprature: {type: linear, start: 1.0, end: 2.0}}",
         "schedules.sampler.temprature: is no number that can change. Did you mean 'sampler.temperature'? Known: "
         "masking.mask_prob, objective.discriminator_smoothing, "),
        ("{masking.replace_prob: {type: linear, start: 1.0, end: 0.0}}",
         "schedules.masking.replace_prob: is no number that can change."),
        ("{train.learning_rate: {type: linear, start: 1.0, end: 0.0}}",
         "schedules.train.learning_rate: is no number that can change."),
        ("{masking.mask_prob: {type: linear, start: 0.5, end: 1.5}}",
         "schedules.masking.mask_prob: at 75% of training masking.mask_prob must be less than or equal to 1, is 1.25."),
        ("{sampler.temperature: {type: linear, start: 0.0, end: 1.0}}",
         "schedules.sampler.temperature: at 0% of training sampler.temperature must be greater than or equal to "),
        ("{sampler.temperature: {type: lineer, start: 0.5, end: 1.0}}",
         "schedules.sampler.temperature.type: no schedule is called 'lineer'. Did you mean 'linear'?"),
        ("{sampler.temperature: {type: linear, start: 0.5}}", "schedules.sampler.temperature.end: is required."),
        ("{sampler.temperature: 2.0}", "schedules.sampler.temperature: must be a mapping such as"),
    ],
)  # fmt: skip
def test_what_cannot_change_is_refused_at_its_line(tmp_path: Path, schedules: str, reason: str) -> None:
    file = write_experiment(tmp_path, train=f"{{steps: 3}}\nschedules: {schedules}")
    with pytest.raises(ConfigError) as refused:
        check(load(file))
    assert str(refused.value).startswith(f"{file}:12: {reason}")


def test_a_config_with_schedules_is_read_back(tmp_path: Path) -> None:
    loaded = load(write_experiment(tmp_path, train=f"{{steps: 3}}\nschedules: {HOT}"))
    again = tmp_path / "again.yaml"
    again.write_text(dump(loaded.config))
    assert load(again).config == loaded.config


def test_a_log_line_weighs_each_step_by_its_own_weight(tmp_path: Path) -> None:
    numbers = {"objective.discriminator_weight": (0, 50)}
    train = "{steps: 4, batch_size: 2, warmup_steps: 0, precision: fp32, log_every: "
    data = "{sequence_length: 16, held_out: 0.3, store: store}"
    logged: dict[int, list[dict[str, Any]]] = {}
    for every in (1, 4):
        file = write_experiment(tmp_path, train=f"{train}{every}}}\n{scheduled(numbers)}", data=data)
        metrics = execute.run(file, [], tmp_path / str(every), "cpu") / "metrics.jsonl"
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        logged[every] = [record for record in records if record["split"] == "train"]
    for record, weight in zip(logged[1], (0, 50 / 3, 100 / 3, 50), strict=True):
        assert record["loss"] == pytest.approx(record["generator_loss"] + weight * record["discriminator_loss"])
    # Rows are full, so every step has as many tokens and means of means are means.
    assert logged[4][0]["loss"] == pytest.approx(sum(record["loss"] for record in logged[1]) / 4, rel=0.01)


def test_a_schedule_may_be_set_from_the_command_line(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, train="{steps: 3}")
    whole = "schedules.sampler.temperature={type: linear, start: 3.0, end: 1.0}"
    config = load(file, [whole, "schedules.sampler.temperature.start=2.0"]).config
    assert config.schedules["sampler.temperature"].keywords() == {"start": 2.0, "end": 1.0, "until": 1.0}
    with pytest.raises(ConfigError, match=r"^--set schedules\.sampler=1: schedules\.sampler: "):
        load(file, ["schedules.sampler=1"])


OTHER_NAMES = """
from electra_lab.objectives.electra import Electra
from registry import Needs, objectives


@objectives.register("renamed")
class Renamed(Electra):
    \"\"\"Keeps what it is handed under other names.\"\"\"

    needs = Needs({needs})

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
    (tmp_path / "renamed.py").write_text(OTHER_NAMES.replace("{needs}", ""))
    numbers = {"sampler.temperature": (3.0, 1.0), "masking.mask_prob": (0.5, 0.2)}
    sections = {
        "objective": "{type: renamed}\nimports: [renamed.py]",
        "train": f"{{steps: 2, batch_size: 2, warmup_steps: 0}}\n{scheduled(numbers)}",
    }
    made, loaded = experiment(tmp_path, **sections)
    assert check(loaded) is None
    made.run.objective.schedules.at_step(0, 0)
    assert float(made.run.objective.draws.options["temperature"]) == 3.0
    assert float(made.run.objective.strategy.options["mask_prob"]) == 0.5
    # A number that it does not keep under its option's name cannot reach it; check says so, not only run.
    numbers = {"objective.weight": (1.0, 2.0)}
    sections["train"] = f"{{steps: 2, batch_size: 2, warmup_steps: 0}}\n{scheduled(numbers)}"
    with pytest.raises(ConfigError, match=r"schedules\.objective\.weight: renamed keeps no number of that name"):
        check(load(write_experiment(tmp_path, **sections)))


def test_needs_that_name_no_option_are_refused(tmp_path: Path) -> None:
    (tmp_path / "renamed.py").write_text(OTHER_NAMES.replace("{needs}", 'first_stage="warmup"'))
    file = write_experiment(tmp_path, objective="{type: renamed}\nimports: [renamed.py]")
    with pytest.raises(
        ConfigError, match=r"renamed\.py:\d+: renamed needs its option 'warmup', which it does not have"
    ):
        load(file)
