"""Keys of an experiment that do not fit together, and numbers that change during training."""

import json
import re
from pathlib import Path

import pytest
import yaml

from electra_lab.assembly.experiment import check
from electra_lab.config.load import dump, load
from registry import schedules
from registry.errors import ConfigError
from tests.electra_lab.config.test_load import only_problem
from tests.helpers import line_of, write_experiment


def test_a_whole_number_may_be_written_as_a_float(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, train="{steps: 1e3, batch_size: 2.0}")
    overrides = ["discriminator.depth=2.0", "generator.depth=3e0", "schedules.learning_rate.warmup_steps=1e2"]
    config = load(path, overrides).config
    depths = config.discriminator.sizes.depth, config.generator.sizes.depth
    warmup = config.schedules["learning_rate"].keywords()["warmup_steps"]
    found = (config.train.steps, config.train.batch_size, *depths, warmup)
    assert found == (1000, 2, 2, 3, 100)
    assert {type(number) for number in found} == {int}
    # Where any number is allowed, it keeps its type, which matters to transformers; also if another one is refused.
    written = {"hidden_dropout_prob": 0.0, "vocab_size": 30, "rope": {"theta": 1e4, "steps": [1, 2.0]}}
    network = {"type": "hugging_face", "model_type": "esm", "dim": 16, "depth": 1.0, "heads": 2, "config": written}
    config = load(path, [f"discriminator={json.dumps(network)}"]).config
    for copy in (config, load(yaml.safe_load(dump(config))).config):
        assert repr(copy.discriminator.keywords()["config"]) == repr(written)
    assert only_problem(path, "train.steps=1000.5").endswith("train.steps: must be an integer, is 1000.5.")
    text = only_problem(path, "train.steps=1e30")
    assert text.endswith("train.steps: must be an integer, is 1e+30.")


@pytest.mark.parametrize(
    ("budget", "cure"),
    [("steps: 5", ""), ("tokens: 160", r" \(train.tokens buys 5 steps.\)"),
     ("flops: 5.2e6", r" \(train.flops buys 5 steps.\)")],
)  # fmt: skip
def test_a_warm_up_longer_than_the_run_is_refused_with_the_cure(tmp_path: Path, budget: str, cure: str) -> None:
    """A step has 2 x 16 tokens, and takes 1.02144e6 FLOPs."""
    train = f"{{{budget}, batch_size: 2}}"
    fits = write_experiment(tmp_path, train=train, schedules="{learning_rate: {warmup_steps: 5}}")
    assert check(load(fits)) is None
    for schedule, number in (("{learning_rate: {warmup_steps: 6}}", "6"), ("{}", "10,000")):
        path = write_experiment(tmp_path, train=train, schedules=schedule)
        place = f"^{path}:{line_of('schedules')}: schedules.learning_rate: "
        with pytest.raises(ConfigError, match=f"{place}.* {number} steps .* 5 steps. .*{cure}$"):
            check(load(path))


def test_rows_have_at_most_512_tokens_by_default(tmp_path: Path) -> None:
    assert load(write_experiment(tmp_path, embedding="{dim: 8}")).config.embedding.max_length == 512


# Schedules


LINEAR = "{type: linear, start: 0.5, end: 0.25}"


def test_the_default_schedule_of_the_learning_rate_is_googles_also_for_options_alone(tmp_path: Path) -> None:
    config = load(write_experiment(tmp_path, train="{steps: 1e6}", schedules="{}")).config
    default = {"type": "warmup_linear", "warmup_steps": 10_000, "warmup_share": None}
    assert config.schedules["learning_rate"].dump() == default
    path = tmp_path / "without.yaml"
    path.write_text(re.sub("(?m)^schedules.*\n", "", (tmp_path / "tiny.yaml").read_text()))
    assert load(path).config.schedules == config.schedules
    text = f"{{sampler.temperature: {LINEAR}, learning_rate: {{warmup_steps: 1}}}}"
    found = load(write_experiment(tmp_path, schedules=text)).config.schedules
    assert list(found) == ["learning_rate", "sampler.temperature"]
    assert found["learning_rate"].dump() == default | {"warmup_steps": 1}


def test_a_learning_rate_below_zero_is_refused(tmp_path: Path) -> None:
    rate = "{learning_rate: {type: linear, start: 1, end: -1}}"
    path = write_experiment(tmp_path, schedules=rate, train="{steps: 100}")
    reason = "gives the factor -0.010101 at step 50; it must be 0 or more."
    assert only_problem(path) == f"{path}:{line_of('schedules')}: schedules.learning_rate: {reason}"


RATE = "learning_rate: {type: warmup_linear, warmup_steps: 0}"


def scheduled(tmp_path: Path, key: str, schedule: str = LINEAR) -> Path:
    return write_experiment(tmp_path, schedules=f"{{{key}: {schedule}, {RATE}}}")


def test_a_schedule_of_the_learning_rate_is_refused_for_another_number(tmp_path: Path) -> None:
    path = scheduled(tmp_path, "sampler.temperature", "{type: warmup_linear}")
    reason = "schedules.sampler.temperature.type: warmup_linear can schedule only the learning rate."
    assert only_problem(path) == f"{path}:{line_of('schedules')}: {reason}"


@pytest.mark.parametrize("key", ["train.learning_rate", "masking.replace_prob", "sampler.k", "seed", "objective.type"])
def test_a_key_that_cannot_be_scheduled_is_refused_with_those_that_can(tmp_path: Path, key: str) -> None:
    problem = only_problem(scheduled(tmp_path, key))
    assert f"schedules.{key}: cannot be scheduled." in problem
    known = problem.split("Known: ")[1].rstrip(".").split(", ")
    assert {"learning_rate", "masking.mask_prob", "sampler.temperature", "objective.generator_weight"} <= {*known}
    assert key not in known
    for other in {*known} - {"learning_rate"}:
        load(scheduled(tmp_path, other))


@pytest.mark.parametrize(
    ("key", "schedule", "percent"),
    [
        ("masking.mask_prob", "{type: linear, start: 0.5, end: 1.5}", 75),
        ("masking.mask_prob", "{type: linear, start: 0, end: 1}", 0),
        ("sampler.temperature", "{type: cosine, start: 1, end: 0}", 100),
        ("train.generator_rate", "{type: exponential, start: 1, end: -1, rate: 3}", 25),
        ("sampler.temperature", "{type: linear, start: 1, end: -1, until: 0.25}", 25),
    ],
)
def test_a_schedule_that_leaves_the_bounds_of_its_number_is_refused(tmp_path, key, schedule, percent) -> None:
    said = only_problem(scheduled(tmp_path, key, schedule))
    assert f"schedules.{key}: at {percent}% of training {key} must" in said


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
    bought = r" \(train.tokens buys 10 steps.\)"
    for train, end in (("{steps: 10, batch_size: 2}", ""), ("{tokens: 320, batch_size: 2}", bought)):
        path = write_experiment(tmp_path, train=train, checkpoint=milestones)
        place = f"^{path}:{len(path.read_text().splitlines())}: checkpoint.milestones.tokens: "
        with pytest.raises(ConfigError, match=f"{place}352 tokens are never .* after 320.{end}$"):
            check(load(path))
