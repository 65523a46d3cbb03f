"""Every value of the printed config is followed by its origin, and the text is still a valid config."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.config.load import dump, load
from electra_lab.config.origins import dump_with_origins
from electra_lab.config.source import Loc, parse
from registry import Backbone, backbones
from registry.signature import Strict
from tests.helpers import experiment_text, line_of, write_experiment

OTHER = "as the discriminator, {discriminator}"
REFORMER = "{type: reformer, dim: 64, depth: 3, heads: 4, hashes: 7}"


def origins(path: Path, *overrides: str) -> dict[Loc, str]:
    text = dump_with_origins(load(path, overrides))
    lines = text.splitlines()
    marks = {loc: int(mark.place.split(":")[1]) for loc, mark in parse(text, "", Path()).marks() if loc}
    return {loc: lines[line - 1].partition("  # ")[2] for loc, line in marks.items()}


def test_a_value_names_the_line_that_wrote_it_a_set_a_parent_or_is_a_default(tmp_path: Path):
    parent = write_experiment(tmp_path, "base.yaml")
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\n\nname: child\ntrain: {steps: 9}\nsampler: {type: argmax}\n")
    found = origins(child, "train.batch_size=4", "optimizer.betas=[0.5, 0.6]")
    of_parent = ["corpus.type", "corpus.paths.0", "data.held_out", "masking.type", "train.precision"]
    of_parent.append("schedules.learning_rate.warmup_steps")
    expected = {key: f"{parent}:{line_of(key.split('.')[0])}" for key in of_parent}
    expected |= dict.fromkeys(["seed", "imports", "data.store", "masking.mask_prob", "optimizer.epsilon"], "default")
    expected |= {"name": f"{child}:3", "train.steps": f"{child}:4", "sampler.type": f"{child}:5"}
    expected |= {
        "train.batch_size": "--set train.batch_size=4",
        "optimizer.betas.1": "--set optimizer.betas=[0.5, 0.6]",
    }
    by_key = {".".join(map(str, loc)): origin for loc, origin in found.items()}
    assert {key: by_key[key] for key in expected} == expected
    assert "train.micro_batch_size" not in by_key


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        ("{scale: 0.5, dropout: 0}",
         {"type": OTHER, "dim": "scale, {generator}", "heads": "scale, {generator}", "depth": OTHER, "hashes": OTHER,
          "bucket_size": "as the discriminator, default", "dropout": "{generator}"}),
        ("{}", {"dim": "default scale 0.25", "heads": "default scale 0.25"}),
        ("{dim: 8}", {"dim": "{generator}", "heads": OTHER}), ("{heads: 8}", {"heads": "{generator}", "dim": OTHER}),
        ("{depth: 1}", {"depth": "{generator}", "dim": "default scale 0.25"}),
        ("{type: bert, scale: 0.5}",
         {"type": "{generator}", "dim": "scale, {generator}", "depth": OTHER, "dropout": "default"}),
        ("{type: reformer, scale: 0.5}", {"type": "{generator}", "hashes": OTHER}),
    ],
)  # fmt: skip
def test_options_that_a_generator_took_over_name_the_discriminator(tmp_path, generator, expected):
    path = write_experiment(tmp_path, discriminator=REFORMER, generator=generator)
    found = origins(path)
    places = {key: f"{path}:{line_of(key)}" for key in ("generator", "discriminator")}
    for key, origin in expected.items():
        assert found["generator", key] == origin.format(**places), key


class Inner(Strict):
    a: int = 1
    b: int = 2


class Nesting(Backbone):
    """A backbone with options that contain other components."""

    def __init__(self, dim, depth, heads, max_length, /, *, windows: list[int], taken: Inner, own: Inner):
        """Nothing."""


def test_a_list_or_mapping_is_taken_over_whole_or_not_at_all(tmp_path: Path):
    discriminator = """
  {type: nesting, dim: 16, depth: 1, heads: 2,
   windows: [4,
     5],
   taken: {a: 3},
   own: {a: 3, b: 3}}"""
    path = write_experiment(tmp_path, discriminator=discriminator, generator="{own: {a: 4}}")
    with backbones.isolated():
        backbones.register("nesting")(Nesting)
        found = {loc[1:]: origin for loc, origin in origins(path).items() if loc[0] == "generator"}
    first = line_of("discriminator")
    expected = {
        ("windows", 0): f"as the discriminator, {path}:{first + 2}",
        ("windows", 1): f"as the discriminator, {path}:{first + 3}",
        ("taken", "a"): f"as the discriminator, {path}:{first + 4}",
        ("taken", "b"): "as the discriminator, default", ("own", "a"): f"{path}:{first + 6}", ("own", "b"): "default",
    }  # fmt: skip
    assert {loc: found[loc] for loc in expected} == expected


def test_comments_are_aligned_but_for_long_lines(tmp_path: Path):
    folder = "long" * 20
    lines = dump_with_origins(load(write_experiment(tmp_path / folder))).splitlines()
    values = [line.rpartition("  # ")[0] for line in lines if "  # " in line]
    long = [value for value in values if folder in value]
    assert [value.endswith(("/corpus.txt", "/.store")) for value in long] == [True] * len(long)  # no trailing spaces
    longest = max(len(value.rstrip()) for value in values if value not in long)
    assert {len(value) for value in values if value not in long} == {longest}


PATHS = ["a # b", "a" * 70 + " " + "b" * 70, "ä b " * 30, "x\ny " * 20, "'", "1e5", "a: b", " "]
ODD = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.sampled_from([" 5", "5 # five", "\n  5"]),
        "name": st.sampled_from(["tiny", "'1e5'", "'010'", "'0x1f'", "'null'", "no", "1.2.3"]),
        "train": st.sampled_from(["{tokens: 900, steps: ~}", "{micro_batch_size: 1}", "{learning_rate: 1e-5}"]),
        "sampler": st.sampled_from(["{type: argmax}", "{temperature: 1e-5}"]),
        "corpus.paths": st.lists(st.sampled_from(PATHS), min_size=1, max_size=4).map(json.dumps),
        "corpus": st.just("{type: text_files, paths: [a],\n\n   documents: lines}"),
        "data.store": st.sampled_from(['"# no comment"', '"\\u2028\\x85x"', "'it''s " + "long " * 40 + "'"]),
        "generator": st.sampled_from(["{type: reformer}", "{dropout: 0}"]),
    },
)


@given(ODD)
@settings(max_examples=60, deadline=None)
def test_the_printed_text_is_the_config(tmp_path_factory: pytest.TempPathFactory, choices: dict[str, str]):
    folder = tmp_path_factory.mktemp("odd") / "a # b"
    loaded = load(write_experiment(folder), [f"{key}={value}" for key, value in choices.items()])
    printed = dump_with_origins(loaded)
    assert parse(printed, "", Path()).plain() == parse(dump(loaded.config), "", Path()).plain()
    again = folder / "runs/deep/again.yaml"
    again.parent.mkdir(parents=True)
    again.write_text(printed, encoding="utf-8")
    reloaded = load(again).config
    assert reloaded == loaded.config
    assert dump(reloaded) == dump(loaded.config)


def test_a_file_called_oddly_does_not_break_its_comment(tmp_path: Path):
    path = tmp_path / "two\nlines\x07: a # b.yaml"
    path.write_text(experiment_text())
    loaded = load(path)
    printed = dump_with_origins(loaded)
    assert parse(printed, "", Path()).plain() == parse(dump(loaded.config), "", Path()).plain()
    assert f"{tmp_path}/two lines : a # b.yaml:1\n" in printed
