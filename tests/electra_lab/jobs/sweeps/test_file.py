"""An ablation file becomes cells, which are validated experiments with distinct labels of their variants."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_lab.config.load import Loaded, kind_of_file
from electra_lab.config.source import Value, mark_at, to_yaml
from electra_lab.jobs.sweeps.file import Ablation, load_ablation
from electra_lab.jobs.sweeps.plan import planned_variants
from electra_lab.jobs.sweeps.variants import Problems, short
from electra_lab.storage.provenance import flat
from registry import discovery
from registry.errors import ConfigError
from tests.helpers import write_experiment

SAFE = re.compile(r"[a-z0-9_][a-z0-9_.=+-]*-s[0-9]+-[0-9a-f]{10}")


def write(folder: Path, text: str = "", /, file: str = "size.yaml", **sections: Value) -> Path:
    """Write an ablation of the tiny experiment in `folder`; sections that are None are left out."""
    if not (folder / "tiny.yaml").exists():
        write_experiment(folder)
    start: dict[str, Value] = {
        "name": "size",
        "base": "tiny.yaml",
        "vary": {"generator.scale": [0.5, 1.0]},
        "seeds": [0],
    }
    found = {key: value for key, value in (start | sections).items() if value is not None}
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or to_yaml(found), encoding="utf-8")
    return path


def ablation(folder: Path, *overrides: str, **sections: Value) -> Ablation:
    return load_ablation(write(folder, **sections), overrides)


def labels(made: Ablation) -> list[str]:
    return [variant.label for variant in made.variants]


def ids(made: Ablation) -> dict[tuple[str, int], str]:
    return {(cell.variant, cell.seed): cell.id for cell in made.cells}


def values(loaded: Loaded) -> dict[str, Any]:
    """The filled-in config, with dotted keys."""
    return flat(loaded.config.model_dump(mode="json"))


def configs(made: Ablation) -> list[Any]:
    return [made.loaded[cell.id].config for cell in made.cells]


def differences(made: Ablation) -> dict[str, dict[str, tuple[Any, Any]]]:
    return {variant.label: variant.differs for variant in planned_variants(made)}


def test_a_list_of_values_is_a_variant_each_in_the_order_of_the_file(tmp_path: Path):
    made = ablation(tmp_path, vary={"generator.scale": [1.0, 0.5]}, seeds=[3, 1])
    assert labels(made) == ["generator.scale=1.0", "generator.scale=0.5"]
    assert [(cell.variant[-3:], cell.seed) for cell in made.cells] == [("1.0", 3), ("0.5", 3), ("1.0", 1), ("0.5", 1)]
    found = [(config.generator.sizes.dim, config.seed, config.name) for config in configs(made)]
    assert found == [(16, 3, "size"), (8, 3, "size"), (16, 1, "size"), (8, 1, "size")]
    assert [variant.changes for variant in made.variants] == [{"generator.scale": 1.0}, {"generator.scale": 0.5}]


def test_of_several_keys_all_combinations_are_run(tmp_path: Path):
    made = ablation(tmp_path, vary={"sampler.type": ["gumbel", "argmax"], "train.batch_size": [2, 4]})
    expected = [("gumbel", 2), ("gumbel", 4), ("argmax", 2), ("argmax", 4)]
    assert labels(made) == [f"sampler.type={sampler}, train.batch_size={size}" for sampler, size in expected]
    assert [(config.sampler.type, config.train.batch_size) for config in configs(made)] == expected


def test_named_changes_are_a_variant_each_and_may_be_none(tmp_path: Path):
    vary: Value = {"as it is": {}, "large & cold": {"generator.scale": 1.0, "sampler.temperature": 0.5}}
    made = ablation(tmp_path, vary=vary)
    assert labels(made) == ["as it is", "large & cold"]
    plain, large = (values(made.loaded[cell.id]) for cell in made.cells)
    assert {key for key in plain if plain[key] != large[key]} == {
        "generator.dim", "generator.heads", "sampler.temperature"
    }  # fmt: skip
    assert made.baseline == "as it is"


def test_set_holds_for_every_cell(tmp_path: Path):
    made = ablation(tmp_path, set={"train": {"batch_size": 4}, "embedding.dim": 4})
    for loaded in (made.base, *(made.loaded[cell.id] for cell in made.cells)):
        assert (loaded.config.train.batch_size, loaded.config.embedding.dim) == (4, 4)
        assert loaded.config.train.steps == 1


@pytest.mark.parametrize("budget", [{"steps": 7}, {"tokens": 500.0}, {"flops": 1e9}])
def test_a_budget_takes_the_place_of_the_bases(tmp_path: Path, budget: dict[str, float]):
    made = ablation(tmp_path, budget=budget)
    for loaded in (made.base, *(made.loaded[cell.id] for cell in made.cells)):
        spent = {name: getattr(loaded.config.train, name) for name in ("steps", "tokens", "flops")}
        assert {name: value for name, value in spent.items() if value is not None} == budget


@pytest.mark.parametrize("override", ["seeds=[3,4]", " seeds = [3, 4]"])
def test_an_override_of_a_key_of_ablations_changes_the_file_and_others_the_base(tmp_path: Path, override: str):
    made = ablation(tmp_path, override, "budget.tokens=500", "name=other", "train.batch_size=6", budget={"steps": 7})
    assert made.config.name == "other"
    assert [cell.seed for cell in made.cells] == [3, 3, 4, 4]
    for config in (made.base.config, *configs(made)):
        assert (config.train.tokens, config.train.steps, config.train.batch_size) == (500, None, 6)
    assert str(made.loaded[made.cells[0].id].marks["train", "batch_size"]) == "--set train.batch_size=6"


def test_a_variant_with_two_forms_of_a_size_is_refused(tmp_path: Path):
    for keys in (["generator.scale", "generator.dim"], ["generator.dim", "generator.scale"]):
        changes: Value = {key: {"generator.scale": 1.0, "generator.dim": 4}[key] for key in keys}
        with pytest.raises(ConfigError, match=r"generator\.scale: .* exclude each other"):
            ablation(tmp_path, vary={"both": changes})


def test_options_hold_whatever_the_order_of_keys(tmp_path: Path):
    """A new type drops the old type's options, but not those set next to it."""
    one = ablation(tmp_path, vary={"sampler.type": ["top_k", "gumbel"], "sampler.temperature": [2.0]})
    other = ablation(tmp_path, vary={"sampler.temperature": [2.0], "sampler.type": ["top_k", "gumbel"]})
    for made in (one, other):
        assert [config.sampler.keywords()["temperature"] for config in configs(made)] == [2.0, 2.0]
    assert [cell.id for cell in one.cells] == [cell.id for cell in other.cells]
    for order in (("sampler.temperature", "sampler.type"), ("sampler.type", "sampler.temperature")):
        put: Value = {key: {"sampler.temperature": 0.25, "sampler.type": "top_k"}[key] for key in order}
        assert ablation(tmp_path, set=put).base.config.sampler.keywords()["temperature"] == 0.25


def test_schedules_and_whole_components_may_vary(tmp_path: Path):
    key = "schedules.sampler.temperature"
    made = ablation(tmp_path, vary={key: [{"type": "linear", "start": 2.0, "end": t} for t in (0.5, 1.0)]})
    assert labels(made) == [f"{key}=linear(start=2.0, end=0.5)", f"{key}=linear(start=2.0, end=1.0)"]
    made = ablation(tmp_path, vary={"sampler": [{"type": "argmax"}, {"type": "top_k", "k": 3}]})
    assert labels(made) == ["sampler=argmax", "sampler=top_k(k=3)"]


def test_marks_lead_to_the_file_that_wrote_a_value(tmp_path: Path):
    path = write(tmp_path, "name: size\nbase: tiny.yaml\nset: {embedding.dim: 4}\nseeds:\n- 5\n"
                 "budget: {steps: 3}\nvary:\n  generator.scale:\n  - 0.5\n  - 1.0\n")  # fmt: skip
    made = load_ablation(path)
    marks = made.loaded[made.cells[1].id].marks
    lines = {("name",): 1, ("embedding", "dim"): 3, ("seed",): 5, ("train", "steps"): 6, ("generator", "scale"): 10}
    assert {loc: str(marks[loc]) for loc in lines} == {loc: f"{path}:{line}" for loc, line in lines.items()}
    assert str(marks["sampler", "type"]) == f"{tmp_path}/tiny.yaml:9"
    assert str(mark_at(made.marks, ("measure",))) == f"{path}:1"  # not written: the nearest part around it


def test_cells_of_one_seed_differ_in_what_varies_alone(tmp_path: Path):
    made = ablation(tmp_path, vary={"sampler.temperature": [0.5, 1.0, 2.0]}, seeds=[0, 1])
    for seed in (0, 1):
        first, *others = [values(made.loaded[cell.id]) for cell in made.cells if cell.seed == seed]
        for other in others:
            assert {key for key in first if first[key] != other[key]} == {"sampler.temperature"}
    for label in labels(made):
        first, second = (values(made.loaded[cell.id]) for cell in made.cells if cell.variant == label)
        assert {key for key in first if first[key] != second[key]} == {"seed"}


def test_differences_are_to_the_chosen_baseline_without_name_seed_and_budget(tmp_path: Path):
    vary: Value = {"a": {"sampler.temperature": 0.5}, "b": {"train.steps": 3, "generator": None, "sampler": None,
                   "objective": {"type": "mlm"}, "embedding.tie": "none"}}  # fmt: skip
    made = ablation(tmp_path, vary=vary, seeds=[3, 4], baseline="b")
    found = differences(made)["a"]
    assert differences(made)["b"] == {}
    assert found["train.steps"] == (3, 1)
    assert found["generator.dim"] == (None, 8)
    assert "generator" not in found  # null on one side: its keys show the difference
    assert all(before != after for before, after in found.values())
    assert found["sampler.temperature"] == (None, 0.5)
    assert found["objective.type"] == ("mlm", "electra")
    assert not {"name", "seed"} & found.keys()
    made = ablation(tmp_path, vary={"generator.scale": [0.5, 1.0]}, budget={"flops": 1e9}, seeds=[3])
    assert differences(made)["generator.scale=1.0"].keys() == {"generator.dim", "generator.heads"}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "generator.scale=0.5"),  # the base's value
        ({"vary": {"generator.scale": [1.0, 0.5]}}, "generator.scale=0.5"),
        ({"set": {"generator.scale": 1.0}}, "generator.scale=1.0"),
        ({"vary": {"generator.scale": [1.0, 2.0]}}, "generator.scale=1.0"),  # the first, as the base is none of them
        ({"baseline": "generator.scale=1.0"}, "generator.scale=1.0"),
        ({"vary": {"a": {"train.batch_size": 4}, "b": {}}}, "b"),
        ({"vary": {"a": {"train.batch_size": 4}, "b": {}}, "baseline": "a"}, "a"),
        ({"seeds": [3, 4]}, "generator.scale=0.5"),  # the base's own seed does not matter
    ],
)
def test_the_baseline(tmp_path: Path, sections: dict[str, Value], expected: str):
    assert ablation(tmp_path, **sections).baseline == expected


def test_paths_hold_from_the_file_that_wrote_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_experiment(tmp_path / "bases")
    write_experiment(tmp_path / "bases", "other.yaml", seed="0", train="{steps: 2, batch_size: 2}")
    vary: Value = {"one": {"corpus.paths": ["a.txt"]}, "two": {}}
    parent = write(tmp_path / "small", base="../bases/tiny.yaml", vary=vary, measure=[{"type": "pretraining"}],
                   set={"data.store": "kept"}, seeds=[0, 1])  # fmt: skip
    child = tmp_path / "full/deep/size.yaml"
    child.parent.mkdir(parents=True)
    child.write_text("extends: ../../small/size.yaml\nvary: {two: {corpus.paths: [b.txt]}}\nseeds: [7]\n")
    monkeypatch.chdir(tmp_path / "full")
    made = load_ablation(Path("deep/size.yaml"))
    assert [cell.seed for cell in made.cells] == [7, 7]
    paths = [config.corpus.keywords()["paths"] for config in configs(made)]
    assert paths == [[tmp_path / "small/a.txt"], [tmp_path / "full/deep/b.txt"]]
    assert {config.data.store for config in configs(made)} == {tmp_path / "small/kept"}
    assert made.base.config.corpus.keywords()["paths"] == [tmp_path / "bases/corpus.txt"]
    assert [kind_of_file(file) for file in (child, parent)] == ["ablation"] * 2
    assert kind_of_file(tmp_path / "bases/tiny.yaml") == "experiment"

    child.write_text("extends: ../../small/size.yaml\nbase: ../../bases/other.yaml\nbudget: {steps: 5}\n")
    made = load_ablation(child)
    assert made.base.config.train.steps == 5
    assert str(made.base.marks["seed",]) == f"{tmp_path}/bases/other.yaml:13"


PLUGIN = """\
from registry import Metric, {what}


@{what}.register("{name}")
{code}
"""
SAMPLER = 'def mine(logits, rng, /, *, heat: float = 1.0):\n    """A sampler."""'
MEASURE = '''class Mine:
    """A measure."""
    metrics = {"luck": Metric("Luck.")}
    same_rows = False
    def __init__(self, /): ...
    def references(self, base): return {}
'''


def test_a_cell_imports_what_it_is_made_of_and_no_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "_loaded", {})
    sampler, measure = tmp_path / "plugs/sampler.py", tmp_path / "plugs/measure.py"
    sampler.parent.mkdir()
    sampler.write_text(PLUGIN.format(what="samplers", name="mine", code=SAMPLER))
    measure.write_text(PLUGIN.format(what="measures", name="lucky", code=MEASURE))
    made = ablation(tmp_path / "there", imports=["../plugs/sampler.py", "../plugs/measure.py"],
                    vary={"sampler.type": ["gumbel", "mine"]}, measure=[{"type": "lucky"}], metric="luck")  # fmt: skip
    assert [plugin.file for plugin in made.plugins] == [sampler, measure]
    for cell in made.cells:
        assert made.loaded[cell.id].config.imports == [sampler]
        assert [plugin.file for plugin in made.loaded[cell.id].plugins] == [sampler]
    # If the base imports it too, it is imported once.
    write_experiment(tmp_path / "there", imports="[../plugs/sampler.py]")
    again = ablation(tmp_path / "there", imports=["../plugs/sampler.py"], vary={"sampler.type": ["gumbel", "mine"]})
    assert again.base.config.imports == [sampler]
    assert ids(again) == ids(made)


def test_problems_of_the_base_and_of_variants_come_together(tmp_path: Path):
    write_experiment(tmp_path, masking="{type: replace_prob, mask_prob: 1.5}")
    path = write(tmp_path, vary={"generator.scale": [0.5, 9.0], "train.batch_size": [2, 0]}, baseline="none")
    with pytest.raises(ConfigError) as refused:
        load_ablation(path)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"{tmp_path}/tiny.yaml:8: masking.mask_prob: must be less than or equal to 1, is 1.5."
    assert [line.split(": ", 1)[1][:40] for line in lines[1:]] == [
        "train.batch_size: must be greater than 0",
        "generator.scale: must be a number above ",
        "baseline: no variant is called 'none'. K",
    ]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1, "1"), (1.0, "1.0"), (0.125, "0.125"), (1e-4, "0.0001"), (1e-6, "1e-06"), (1e12, "1e+12"),
        (0.123456789, "0.123456789"), (1.0e9, "1e+09"), (True, "true"), (None, "null"), ("null", '"null"'),
        ("1", '"1"'), ("1e4", '"1e4"'), ("true", '"true"'), ("", '""'), ("bert", "bert"), ("../a b.txt", "../a b.txt"),
        ("a\nb", '"a\\nb"'), ("a, b=2", '"a, b=2"'), ("---", '"---"'), (" a", '" a"'), ("größe", "größe"),
        ([0.9, 0.999], "[0.9, 0.999]"), ([], "[]"), ({}, "{}"), ({"type": "argmax"}, "argmax"),
        ({"type": "top_k", "k": 3}, "top_k(k=3)"), ({"steps": None}, "(steps=null)"),
    ],
)  # fmt: skip
def test_a_value_in_a_label(value: Any, label: str):
    assert short(value) == label


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.recursive(
    SCALARS,
    lambda tree: (
        st.lists(tree, max_size=3)
        | st.dictionaries(st.text(string.ascii_lowercase) | st.just("type"), tree, max_size=3)
    ),
    max_leaves=5,
)


@given(TREES, TREES)
@settings(max_examples=200, deadline=None)
def test_different_values_have_different_labels(one: Any, other: Any):
    assert short(one).isprintable()
    if sorted(repr(one)) != sorted(repr(other)):  # keys in another order are the same mapping
        assert short(one) != short(other)


def test_what_is_wrong_with_several_variants_is_reported_once():
    found = Problems()
    for variant in "abcde":
        found.add(ConfigError("f.yaml:3: x: is bad."), variant)
    found.add("f.yaml:4: y: is bad.", "a")
    found.add("f.yaml:9: z: is bad of all.")
    found.add("f.yaml:9: z: is bad of all.", "b")
    with pytest.raises(ConfigError) as refused:
        found.refuse()
    assert str(refused.value).splitlines() == [
        "f.yaml:3: x: is bad. (in the variants a; b; c and 2 more)",
        "f.yaml:4: y: is bad. (in the variant a)",
        "f.yaml:9: z: is bad of all.",
    ]


@pytest.mark.parametrize(
    ("vary", "beyond"),
    [
        ("{base: {}, other: {masking.type: whole_word}}", {"masking.mask_prob"}),
        ("{base: {}, other: {masking: {type: whole_word}}}", {"masking.mask_prob"}),
        ("{base: {}, other: {masking: {type: whole_word, mask_prob: 0.2}}}", set()),
        ("{base: {}, other: {masking: {type: whole_word, mask_prob: 0.3}}}", set()),
        ("{generator.scale: [0.5, 1.0]}", set()),  # it is replaced by widths and heads, which are listed
        ("{base: {masking.mask_prob: 0.2}, other: {train.learning_rate: 1.0e-3}}", set()),  # the baseline's change
        ("{base: {masking.type: whole_word}, other: {}}", {"masking.mask_prob"}),
        ("{base: {}, other: {discriminator.depth: 3, train.learning_rate: 1.0e-3}}", {"generator.depth"}),
    ],
)
def test_what_no_change_names_is_known(tmp_path: Path, vary: str, beyond: set[str]) -> None:
    write_experiment(tmp_path, masking="{type: replace_prob, mask_prob: 0.3}")
    file = tmp_path / "sizes.yaml"
    baseline = "" if "scale" in vary else "baseline: base\n"
    file.write_text(f"name: sizes\nbase: tiny.yaml\nvary: {vary}\nseeds: [0]\n{baseline}")
    variants = planned_variants(load_ablation(file))
    assert [set(variant.beyond) for variant in variants] == [set(), beyond]
    assert all(set(variant.beyond) <= variant.differs.keys() for variant in variants)
