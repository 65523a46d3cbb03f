"""The generator's sizes and options come from the discriminator, scaled."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.config.generator import DEFAULT_SCALE, _nearest, scaled_generator
from electra_lab.config.load import load
from tests.electra_lab.config.test_load import only_problem, problems
from tests.helpers import line_of, write_experiment

REFORMER = "{type: reformer, dim: 64, depth: 3, heads: 4, hashes: 7}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{scale: 0.5, bucket_size: 2}", ("reformer", 32, 3, 2, 7, 2)),
        ("{}", ("reformer", 16, 3, 1, 7, 64)),  # a quarter, as in google-research/electra
        ("{depth: 1, scale: 1}", ("reformer", 64, 1, 4, 7, 64)),
        ("{type: bert, scale: 0.5}", ("bert", 32, 3, 2, None, None)),  # another type takes over sizes alone
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
