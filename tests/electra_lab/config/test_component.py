"""Components in a config: their sizes, the generator, schedules."""

import math
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, create_model

from electra_lab.config.load import load
from electra_lab.config.sections import (
    DEFAULT_SCALE,
    Of,
    _nearest,
    default,
    rate_of,
    rate_problem,
    scaled_generator,
    value_of,
)
from registry import backbones, generators, launchers, samplers, schedules
from registry.component import Component, loadable
from registry.errors import PluginError
from registry.signature import Strict, validate
from tests.electra_lab.config.test_load import only_problem, problems
from tests.helpers import line_of, write_experiment


def read(of: Of, value: Any) -> Component | None:
    """Return `value` as validated by a field with this mark."""
    model = create_model("Holder", __base__=Strict, held=(Annotated[Component | None, of], Field(None)))
    return validate(model, {"held": value}).held


def refusal(of: Of, value: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as refused:
        read(of, value)
    return [(".".join(map(str, error["loc"])), error["msg"]) for error in refused.value.errors()]


def test_a_sized_component_has_sizes_in_addition_to_its_options() -> None:
    found: Any = read(Of(backbones, sized=True), {"type": "bert", "dropout": 0, "heads": 2, "dim": 8, "depth": 1})
    assert found.sizes.model_dump() == {"dim": 8, "depth": 1, "heads": 2}
    assert "dim" not in found.keywords()
    assert list(found.dump()) == ["type", "dim", "depth", "heads", "ff_mult", "dropout"]


def test_all_errors_of_sizes_and_options_come_at_once() -> None:
    wrong = {"type": "bert", "dim": 0, "depth": "two", "droput": 0.1, "ff_mult": -1}
    found = dict(refusal(Of(backbones, sized=True), wrong))
    assert set(found) == {"held.dim", "held.depth", "held.heads", "held.droput", "held.ff_mult"}
    assert found["held.droput"].endswith("Known: depth, dim, dropout, ff_mult, heads.")


def test_a_second_registry_without_sizes() -> None:
    of = Of(backbones, sized=True, also=generators)
    found: Any = read(of, {"type": "unigram", "power": 0.5})
    assert (found.sizes, found.keywords()) == (None, {"power": 0.5})
    assert refusal(of, {"type": "unigram", "dim": 8}) == [("held.dim", "unknown parameter. Known: power.")]


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        (None, "held", "must be a mapping such as {type: argmax}."), ([1], "held", "must be a mapping such as "),
        ({}, "held.type", "is required: "), ({"type": None}, "held.type", "is required: "),
        ({"type": 3}, "held.type", "must "),
    ],
)  # fmt: skip
def test_a_mapping_with_a_type_must_be_written(value: Any, key: str, reason: str) -> None:
    ((found, sentence),) = refusal(Of(samplers), value)
    assert found == key
    assert sentence.startswith(reason)
    assert read(Of(samplers, optional=True), None) is None


def test_a_default_type() -> None:
    of = Of(launchers, default="local")
    assert read(of, {"workers": 3}).dump() == {**default(launchers, "local").dump(), "workers": 3}
    assert read(of, {"type": "slurm"}).type == "slurm"


def test_only_what_can_be_loaded_is_loadable(monkeypatch: pytest.MonkeyPatch) -> None:
    load = samplers.get

    def get(name: str) -> Any:
        if name == "gumbel":
            raise PluginError("no luck.")
        return load(name)

    whole = [entry.name for entry in loadable(samplers)]
    assert whole == samplers.names()
    monkeypatch.setattr(samplers, "get", get)
    assert [entry.name for entry in loadable(samplers)] == [name for name in whole if name != "gumbel"]


REFORMER = "{type: reformer, dim: 64, depth: 3, heads: 4, hashes: 7}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{scale: 0.5, bucket_size: 2}", ("reformer", 32, 3, 2, 7, 2)),
        ("{}", ("reformer", 16, 3, 1, 7, 64)),  # a quarter, as in google-research/electra
        ("{depth: 1, scale: 1}", ("reformer", 64, 1, 4, 7, 64)),
        ("{type: bert, scale: 0.5}", ("bert", 32, 3, 2, None, None)),  # another type inherits sizes only
        ("{dim: 20}", ("reformer", 20, 3, 4, 7, 64)),
        ("{heads: 8}", ("reformer", 64, 3, 8, 7, 64)),
    ],
)
def test_a_generator_takes_over_sizes_and_options_and_scales(tmp_path: Path, text: str, expected: tuple[Any, ...]):
    found = load(write_experiment(tmp_path, discriminator=REFORMER, generator=text)).config.generator.dump()
    assert tuple(map(found.get, ("type", "dim", "depth", "heads", "hashes", "bucket_size"))) == expected


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("{scale: 0.5, dim: 8}", "generator.scale", "scale and dim exclude each other; keep one of them."),
        ("{scale: 0}", "generator.scale", "must be a number above 0 and at most 8."),
        ("{scale: half}", "generator.scale", "must be a number above 0 and at most 8."),
        ("{dim: 9}", "generator.heads", "2 heads do not divide dim 9."),
        ("{type: bort}", "generator.type", "no backbone is called 'bort'. Did you mean 'bert'?"),
        ("[1]", "generator", "must be a mapping such as {type: bert}."),
    ],
)
def test_a_bad_generator_is_reported_at_its_line(tmp_path: Path, text: str, key: str, reason: str):
    path = write_experiment(tmp_path, generator=text)
    assert only_problem(path).startswith(f"{path}:{line_of('generator')}: {key}: {reason}")


def test_a_scale_that_does_not_divide_names_one_that_does(tmp_path: Path):
    sections = {"discriminator": "{type: bert, dim: 96, depth: 1, heads: 8}", "generator": "{scale: 0.4}"}
    path = write_experiment(tmp_path, **sections)
    problem = only_problem(path)
    assert problem.startswith(f"{path}:{line_of('generator')}: generator.scale: scale 0.4 gives dim 38 and 3 heads")
    named = re.fullmatch(r".*The nearest scale that works is ([0-9.e-]+)\.", problem)
    assert named
    config = load(path, [f"generator.scale={named[1]}"]).config
    assert config.generator.sizes.dim % config.generator.sizes.heads == 0


@given(st.integers(1, 16), st.integers(1, 64), st.floats(0.001, 8))
@settings(max_examples=60, deadline=None)
def test_the_nearest_scale_works_as_it_is_printed(heads: int, width: int, scale: float):
    discriminator = {"type": "bert", "dim": heads * width, "depth": 1, "heads": heads}
    printed = float(f"{_nearest(scale, discriminator):g}")
    got = scaled_generator({"scale": printed}, discriminator)
    assert got["dim"] >= 1
    assert got["dim"] % got["heads"] == 0


def test_a_broken_discriminator_does_not_hide_the_generators_own_errors(tmp_path: Path):
    path = write_experiment(tmp_path, discriminator="{type: bart}", generator="{type: bert, scale: 0.5, dropuot: 0}")
    first, second = problems(path)
    assert ": discriminator.type: no backbone is called 'bart'. Did you mean 'bert'?" in first
    assert ": generator.dropuot: unknown parameter. Did you mean 'dropout'?" in second


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from([None, 0.25, 0.5, 1.0, 2.0]), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_sizes_follow_the_rule_of_the_paper(heads: int, width: int, scale: float | None, depth: int):
    heads, dim = 4 * heads, 4 * heads * 4 * width
    values = {} if scale is None else {"scale": scale}
    discriminator = {"type": "bert", "dim": dim, "depth": depth, "heads": heads, "dropout": 0.3}
    factor = DEFAULT_SCALE if scale is None else scale
    sizes = {"dim": dim * factor, "heads": heads * factor}
    assert scaled_generator(values, discriminator) == discriminator | sizes


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        ("{scale: 0.5}", "{type: reformer, dim: 20}", (20, 4)), ("{scale: 0.5}", "{heads: 8}", (64, 8)),
        ("{dim: 20, heads: 2}", "{scale: 0.5}", (32, 2)), ("{dim: 20, heads: 2}", "{dim: 40}", (40, 2)),
        ("{scale: 0.5}", "{scale: null, dim: 20}", (20, 4)),
    ],
)  # fmt: skip
def test_a_childs_sizes_replace_its_parents_in_the_other_form(tmp_path, parent, child, expected):
    path = write_experiment(tmp_path, discriminator=REFORMER, generator=parent)
    (tmp_path / "child.yaml").write_text(f"extends: {path.name}\ngenerator: {child}\n")
    for loaded in (load(tmp_path / "child.yaml"), load(path, [f"generator={child}"])):
        found = loaded.config.generator.sizes
        assert (found.dim, found.heads) == expected


def test_a_child_that_writes_both_forms_is_blamed_at_its_own_line(tmp_path: Path):
    path = write_experiment(tmp_path, generator="{scale: 0.5}")
    (tmp_path / "child.yaml").write_text(f"extends: {path.name}\nseed: 3\ngenerator: {{dim: 8, scale: 0.25}}\n")
    assert only_problem(tmp_path / "child.yaml").startswith(f"{tmp_path / 'child.yaml'}:3: generator.scale: ")


def schedule(name: str, **options: float) -> Component:
    return Component(name, validate(schedules.get(name).schema, options))


def test_a_number_by_progress() -> None:
    linear = schedule("linear", start=2.0, end=1.0, until=0.5)
    assert [value_of(linear)(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [2.0, 1.5, 1.0, 1.0]
    cosine = schedule("cosine", start=1.0, end=0.0)
    assert [value_of(cosine)(p) for p in (0.0, 1 / 3, 0.5, 1.0)] == pytest.approx([1.0, 0.75, 0.5, 0.0])


def test_a_factor_by_step() -> None:
    linear = schedule("linear", start=1.0, end=0.0)
    assert [rate_of(linear)(step, 5) for step in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
    assert rate_of(linear)(0, 1) == 1.0
    warmup = schedule("warmup_linear", warmup_steps=2)
    assert [rate_of(warmup)(step, 4) for step in range(4)] == pytest.approx([0.5, 0.75, 0.5, 0.25])


def test_a_factor_that_cannot_lead_the_learning_rate_is_named() -> None:
    assert rate_problem(schedule("linear", start=1.0, end=0.0), 10) is None
    assert rate_problem(schedule("warmup_linear", warmup_steps=10), 10) is None
    reason = rate_problem(schedule("warmup_linear", warmup_steps=11), 10)
    assert "11 steps does not fit into 10 steps." in reason
    assert "to 1." in reason
    assert rate_problem(schedule("linear", start=1.0, end=-1.0, until=1e-9), 2000) is not None
    assert rate_problem(schedule("cosine", start=-0.5, end=1.0), 10).startswith("gives the factor -0.5 at step 0; ")
    assert " -0.252525 at step 25; " in rate_problem(schedule("linear", start=0.0, end=-1.0), 100)
    assert rate_problem(schedule("cosine", start=0.0, end=-1.0), 1) is None
    assert rate_problem(schedule("linear", start=1999.0, end=-1.0), 2000) is not None
    reason = "gives the factor -1 at step 1,999; it must be 0 or more."
    assert rate_problem(schedule("linear", start=1998.0, end=-1.0), 2000) == reason


@pytest.mark.parametrize("number", [math.nan, math.inf, -0.1])
def test_a_factor_must_be_finite(number: float) -> None:
    def odd(progress, /):
        """Odd at the end."""
        return number if progress == 1 else 1.0

    with schedules.isolated():
        schedules.register("odd")(odd)
        assert rate_problem(schedule("odd"), 8) == f"gives the factor {number:g} at step 7; it must be 0 or more."
