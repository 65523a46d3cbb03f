"""Keys of an experiment that moved, that do not fit together, and numbers that change during training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.config.problems import MOVED
from electra_lab.config.schema import ExperimentConfig
from registry import schedules
from registry.errors import ConfigError
from tests.electra_lab.config.test_load import only_problem, problems
from tests.helpers import line_of, write_experiment


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("warmup_steps", "100", "schedules.learning_rate.warmup_steps"),
        ("weight_decay", "0.01", "optimizer.weight_decay"),
        ("betas", "[0.9, 0.999]", "optimizer.betas"),
        ("epsilon", "1.0e-6", "optimizer.epsilon"),
    ],
)
def test_a_key_that_moved_is_refused_at_its_line_with_its_new_place(tmp_path, key, value, place) -> None:
    path = write_experiment(tmp_path, train=f"\n  steps: 1\n  {key}: {value}\n  batch_size: 2")
    line = line_of("train") + 2
    assert only_problem(path) == f"{path}:{line}: train.{key}: has moved: write it as {place}."


def test_only_keys_that_do_not_exist_moved() -> None:
    for section, *key in MOVED:
        model = ExperimentConfig.model_fields.get(section)
        assert model is None or key[0] not in model.annotation.model_fields


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, train="{steps: 1e3, batch_size: 2.0}")
    overrides = ["discriminator.depth=2.0", "generator.depth=3e0", "schedules.learning_rate.warmup_steps=1e2"]
    config = load(path, overrides).config
    depths = config.discriminator.sizes.depth, config.generator.sizes.depth
    warmup = config.schedules["learning_rate"].keywords()["warmup_steps"]
    found = (config.train.steps, config.train.batch_size, *depths, warmup)
    assert found == (1000, 2, 2, 3, 100)
    assert {type(number) for number in found} == {int}
    assert only_problem(path, "train.steps=1000.5").endswith("train.steps: must be an integer, is 1000.5.")
    text = only_problem(path, "train.steps=1e30")
    assert text.endswith("train.steps: must be an integer, is 1e+30.")


BUDGETS = {
    "steps: 5": "", "tokens: 160": " (train.tokens buys 5 steps.)", "flops: 5.2e6": " (train.flops buys 5 steps.)",
}  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_warm_up_longer_than_the_run_is_refused_with_the_cure(tmp_path: Path, budget: str) -> None:
    """A step has 2 x 16 tokens, and takes 1.02144e6 FLOPs."""
    train = f"{{{budget}, batch_size: 2}}"
    fits = write_experiment(tmp_path, train=train, schedules="{learning_rate: {warmup_steps: 5}}")
    assert check(load(fits)) is None
    for schedule, number in (("{learning_rate: {warmup_steps: 6}}", "6"), ("{}", "10,000")):
        path = write_experiment(tmp_path, train=train, schedules=schedule)
        place = f"^{path}:{line_of('schedules')}: schedules.learning_rate: "
        with pytest.raises(ConfigError, match=f"{place}.* {number} steps .* 5 steps. .*{re.escape(BUDGETS[budget])}$"):
            check(load(path))


# Schedules


LINEAR = "{type: linear, start: 0.5, end: 0.25}"


def test_the_default_schedule_of_the_learning_rate_is_googles(tmp_path: Path) -> None:
    config = load(write_experiment(tmp_path, train="{steps: 1e6}", schedules="{}")).config
    rate = config.schedules["learning_rate"]
    assert (rate.type, rate.keywords()) == ("warmup_linear", {"warmup_steps": 10_000, "warmup_share": None})
    path = tmp_path / "without.yaml"
    text = (tmp_path / "tiny.yaml").read_text()
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("schedules")))
    assert load(path).config.schedules == config.schedules


def test_options_alone_are_those_of_the_default_schedule(tmp_path: Path) -> None:
    text = f"{{sampler.temperature: {LINEAR}, learning_rate: {{warmup_steps: 1}}}}"
    found = load(write_experiment(tmp_path, schedules=text)).config.schedules
    assert list(found) == ["learning_rate", "sampler.temperature"]
    assert found["learning_rate"].dump() == {"type": "warmup_linear", "warmup_steps": 1, "warmup_share": None}


@pytest.mark.parametrize(
    ("rate", "step", "factor"),
    [
        ("{type: linear, start: 1, end: -1}", 50, "-0.010101"),
        ("{type: cosine, start: -0.5, end: 1}", 0, "-0.5"),
        ("{type: linear, start: 0, end: -1}", 25, "-0.252525"),
    ],
)
def test_a_learning_rate_below_zero_is_refused(tmp_path: Path, rate: str, step: int, factor: str) -> None:
    path = write_experiment(tmp_path, schedules=f"{{learning_rate: {rate}}}", train="{steps: 100}")
    reason = f"gives the factor {factor} at step {step}; it must be 0 or more."
    assert only_problem(path) == f"{path}:{line_of('schedules')}: schedules.learning_rate: {reason}"


@pytest.mark.parametrize("key", ["sampler.temperature", "masking.mask_prob", "objective.discriminator_weight"])
def test_a_schedule_of_the_learning_rate_is_refused_for_another_number(tmp_path: Path, key: str) -> None:
    path = write_experiment(
        tmp_path, schedules=f"{{{key}: {{type: warmup_linear}}, learning_rate: {{warmup_steps: 0}}}}"
    )
    reason = f"schedules.{key}.type: warmup_linear can schedule only the learning rate."
    assert only_problem(path) == f"{path}:{line_of('schedules')}: {reason}"


RATE = "learning_rate: {type: warmup_linear, warmup_steps: 0}"


def scheduled(tmp_path: Path, key: str, schedule: str = LINEAR) -> Path:
    return write_experiment(tmp_path, schedules=f"{{{key}: {schedule}, {RATE}}}")


@pytest.mark.parametrize(
    "key",
    ["train.learning_rate", "masking.replace_prob", "sampler.k", "discriminator.dropout", "seed", "objective.type"],
)
def test_a_key_that_cannot_be_scheduled_is_refused_with_those_that_can(tmp_path: Path, key: str) -> None:
    problem = only_problem(scheduled(tmp_path, key))
    assert f"schedules.{key}: cannot be scheduled." in problem
    known = problem.split("Known: ")[1].rstrip(".").split(", ")
    assert {
        "learning_rate",
        "masking.mask_prob",
        "sampler.temperature",
        "objective.generator_weight",
        "train.generator_rate",
    } <= {*known}
    assert key not in known
    for other in known:
        if other != "learning_rate":
            load(scheduled(tmp_path, other))


@pytest.mark.parametrize(
    ("key", "schedule", "reason"),
    [
        ("masking.mask_prob", "{type: linear, start: 0.5, end: 1.5}", "at 75% of training masking.mask_prob must"),
        ("masking.mask_prob", "{type: linear, start: 0, end: 1}", "at 0% of training masking.mask_prob must be gr"),
        ("sampler.temperature", "{type: cosine, start: 1, end: 0}", "at 100% of training sampler.temperature must"),
        ("train.generator_rate", "{type: exponential, start: 1, end: -1, rate: 3}", "at 25% of training train.generat"),
        ("sampler.temperature", "{type: linear, start: 1, end: -1, until: 0.25}", "at 25% of training sampler.temp"),
    ],
)
def test_a_schedule_that_leaves_the_bounds_of_its_number_is_refused(tmp_path, key, schedule, reason) -> None:
    assert f"schedules.{key}: {reason}" in only_problem(scheduled(tmp_path, key, schedule))


def test_a_plug_in_schedule_of_either_kind(tmp_path: Path) -> None:
    def steady(progress, /, *, number: float = 1.0):
        """Always the same."""
        return number

    def only_long(step, steps, /):
        """Half, in a long run."""
        if steps < 10:
            raise ValueError("too short. Train for 10 steps or more.")
        return 0.5

    with schedules.isolated():
        schedules.register("steady")(steady)
        schedules.register("only_long")(only_long)
        path = scheduled(tmp_path, "sampler.temperature", "{type: steady, number: 2.0}")
        assert check(load(path, ["schedules.learning_rate={type: steady}"])) is None
        assert check(load(path, ["schedules.learning_rate={type: only_long}", "train.steps=10"])) is None
        place = "--set schedules.learning_rate={type: only_long}: schedules.learning_rate"
        wrong = only_problem(path, "schedules.learning_rate={type: only_long}")
        assert wrong == f"{place}: too short. Train for 10 steps or more."


# Parts that need each other


def test_a_missing_generator_hides_what_would_follow_from_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, generator="null", objective="{type: two_stage, generator_steps: 9}")
    assert [line.split(": ")[1] for line in problems(path)] == ["generator"]


def test_milestones_are_the_first_steps_that_reach_their_tokens(tmp_path: Path) -> None:
    """A step of the tiny experiment reads 2 x 16 tokens."""
    for tokens, steps in (("[1]", [0, 1]), ("[32, 33, 64.5]", [0, 1, 2, 3]), ("[320, 32]", [0, 1, 10])):
        path = write_experiment(
            tmp_path, train="{steps: 10, batch_size: 2}", checkpoint=f"{{milestones: {{tokens: {tokens}}}}}"
        )
        assert load(path).config.milestones == steps
    assert load(write_experiment(tmp_path)).config.milestones == []


def test_a_milestone_that_is_never_reached_is_refused(tmp_path: Path) -> None:
    milestones = "{milestones: {tokens: [320, 321]}}"
    bought = " (train.tokens buys 10 steps.)"
    for train, end in (("{steps: 10, batch_size: 2}", ""), ("{tokens: 320, batch_size: 2}", bought)):
        path = write_experiment(tmp_path, train=train, checkpoint=milestones)
        place = f"^{path}:{len(path.read_text().splitlines())}: checkpoint.milestones.tokens: "
        with pytest.raises(ConfigError, match=f"{place}352 tokens are never .* after 320.{re.escape(end)}$"):
            check(load(path))
