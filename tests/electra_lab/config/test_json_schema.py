"""The JSON schema says what the validator says, but for arithmetic."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError

from electra_lab.config.ablation import is_ablation
from electra_lab.config.json_schema import COMPONENTS, Scaled, ablation_schema, experiment_schema
from electra_lab.config.load import load_plugins
from electra_lab.config.schema import Experiment, Sizes
from electra_lab.config.source import parse
from registry import ALL, backbones, discovery, generators, samplers
from registry.errors import PluginError
from registry.signature import Strict, validate
from tests.helpers import EXPERIMENT, ROOT

TINY: Any = parse(EXPERIMENT, "", Path()).plain()
# What json_schema.py says that it leaves to the validator.
ARITHMETIC = re.compile(
    r"heads do not divide dim|which do not divide it|is above embedding\.max_length|replace_prob \+ random_prob is"
    r"|must divide batch_size|leave none for the second|is no number that can change"
    r"|must be an integer, is -?[0-9]+\.0\.$"
)


class Inner(Strict):
    share: Annotated[float, Field(gt=0, le=1)]
    words: list[str] | None = None


class Plugged:
    """A backbone with an option that must be set, and one that holds others."""

    def __init__(
        self, dim, depth, heads, max_length, /, *, window: Annotated[int, Field(ge=2)], inner: Inner | None = None
    ):
        """Nothing."""


def bounded(logits, rng, /, *, edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.1):
    """A sampler with a bounded option."""


@pytest.fixture(scope="module")
def schema(plugged: None) -> dict[str, Any]:
    found, problems = experiment_schema()
    assert problems == []
    return found


@pytest.fixture(scope="module")
def accepts(schema: dict[str, Any]) -> Callable[[Any], bool]:
    return Draft202012Validator(schema).is_valid


def errors_of(values: dict[str, Any]) -> list[str]:
    """The validator's."""
    try:
        validate(Experiment, values)
    except ValidationError as error:
        return [e["msg"] for e in error.errors()]
    return []


def verdict(values: dict[str, Any]) -> bool | None:
    """The validator's; None where arithmetic has a say in it."""
    errors = errors_of(values)
    return None if any(ARITHMETIC.search(error) for error in errors) else not errors


def changed(start: dict[str, Any] = TINY, /, **changes: Any) -> dict[str, Any]:
    """`start` with `"train.steps"=5` and so on; a value of ... removes the key."""
    values = copy.deepcopy(start)
    for dotted, value in changes.items():
        section, _, key = dotted.rpartition(".")
        holder = values.setdefault(section, {}) if section else values
        if isinstance(holder, dict):
            holder.pop(key, None)
            holder |= {} if value is ... else {key: value}
    return values


def test_it_is_a_valid_schema_whose_references_lead_somewhere(schema: dict[str, Any]):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    references = set(re.findall(r"#/\$defs/([\w.]+)", str(schema)))
    assert references == set(schema["$defs"])  # and nothing is defined that nobody uses


def test_every_shipped_experiment_fits_as_it_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(discovery, "_loaded", {})
    files = sorted((ROOT / "experiments").rglob("*.yaml"))
    assert len(files) >= 3
    with ExitStack() as isolated:
        for each in ALL:
            isolated.enter_context(each.isolated())
        for file in files:
            load_plugins(file)
        schemas = [Draft202012Validator(each()[0]) for each in (experiment_schema, ablation_schema)]
    for file in files:
        accepts = schemas[is_ablation(file)].is_valid
        assert accepts(parse(file.read_text(encoding="utf-8"), str(file), file.parent).plain()), file


# Agreement: every key with values that could trip it, every bound, then combinations

VALUES: list[Any] = [..., None, True, -1, 0, 1, 2, 0.5, 1.5, "", "bert", [], ["a"], [0.5, 0.5], [1], {}, {"share": 0.5}]
SECTIONS: dict[str, type[BaseModel]] = {
    key: field.annotation
    for key, field in Experiment.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
SIZES = {"dim": 16, "depth": 1, "heads": 2}
PLUGGED = {"type": "plugged", **SIZES, "window": 2}
STARTS = [
    TINY,
    changed(generator={}, discriminator={"type": "reformer", **SIZES}, sampler={"type": "bounded"}),
    changed(generator={"type": "bert"}, discriminator=PLUGGED),
    changed(generator={"type": "plugged", "window": 3}, masking={"type": "span"}, sampler={"type": "top_k"}),
    changed(generator={"scale": 1}, discriminator=PLUGGED | {"inner": {"share": 0.1}}, train={"tokens": 5e3}),
    changed(corpus={"type": "docstrings"}, tokenizer={"type": "bpe"}),
    changed(objective={"type": "mlm"}, generator=None, sampler=...),
    changed(generator={"type": "unigram", "power": 0.5}),
    changed(objective={"type": "two_stage", "generator_steps": 1}, train={"steps": 3}, **{"embedding.tie": "none"}),
]


def keys_of(values: dict[str, Any]) -> list[str]:
    """Every key that `values` may have, those of its components' options among them, and some that it may not."""
    found = [*Experiment.model_fields, "nmae"]
    for section, model in SECTIONS.items():
        found += [f"{section}.{key}" for key in (*model.model_fields, "type")]
    for section, of in COMPONENTS.items():
        name = (values.get(section) or {}).get("type", values["discriminator"]["type"])
        if name not in of.registry.names():  # a section that the objective does without, or no network
            name = of.registry.names()[0]
        models = [of.registry.get(name).schema, *([Sizes] if of.sized else []), *([Scaled] if of.scaled else [])]
        found += [f"{section}.{key}" for model in models for key in model.model_fields]
        found += [f"{section}.{key}" for key in ("type", "temperatur", "window", "scale")]
    return found


def test_every_key_is_judged_as_by_the_validator(accepts: Callable[[Any], bool]):
    verdicts: Counter[bool | None] = Counter()
    seen: set[str] = set()
    for start in STARTS:
        assert verdict(start), start
        for key in keys_of(start):
            written = f"{key} {start.get(key.split('.')[0])}"
            for value in VALUES if written not in seen else ():
                values = changed(start, **{key: value})
                expected = verdict(values)
                verdicts[expected] += 1
                assert expected is None or accepts(values) == expected, (key, value, start)
            seen.add(written)
    assert verdicts[True] > 300
    assert verdicts[False] > 1000
    assert verdicts[None] < 100, "too much is put down to arithmetic"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("seed", 2**63 - 1, 2**63),
        ("data.sequence_length", 8, 7),
        ("data.held_out", 1e-9, 0),
        ("data.held_out", 0.999, 1),
        ("embedding.dim", 65_536, 65_537),
        ("embedding.max_length", 1 << 24, (1 << 24) + 1),
        ("embedding.tie", "none", "some"),
        ("discriminator.depth", 1000, 1001),
        ("discriminator.dropout", 0, 1),
        ("generator.scale", 8, 8.5),
        ("generator.scale", 0.5, 0),
        ("tokenizer.vocab_size", 100, 99),
        ("masking.mask_prob", 1, 1.001),
        ("sampler.temperature", 1e-6, 9e-7),
        ("train.betas", [0, 0.999], [0, 1]),
        ("train.precision", "bf16", "fp16"),
        ("name", "a" * 64, "a" * 65),
        ("imports", ["../a.py"], "../a.py"),
    ],
)
def test_bounds_are_the_validators(accepts: Callable[[Any], bool], key: str, good: Any, bad: Any):
    for value, expected in ((good, True), (bad, False)):
        values = changed(**{key: value})
        assert (verdict(values), accepts(values)) == (expected, expected), value


PARENT = {key: value for key, value in TINY.items() if key not in COMPONENTS or not COMPONENTS[key].optional}


@pytest.mark.parametrize("extends", [False, True])
def test_combinations_are_judged_as_by_the_validator(accepts: Callable[[Any], bool], extends: bool):
    """With `extends` what is missing is no error, everything else is."""
    verdicts: Counter[bool] = Counter()

    @given(st.data())
    @settings(max_examples=300, deadline=None)
    def agree(data: st.DataObject):
        values = data.draw(st.sampled_from(STARTS))
        if extends and values["generator"] is not None and "type" not in values["generator"]:
            values = changed(values, **{"generator.type": values["discriminator"]["type"]})
        for section, of in data.draw(st.lists(st.sampled_from(list(COMPONENTS.items())), max_size=2)):
            name = data.draw(st.sampled_from(of.registry.names()))
            values = changed(values, **{section: {"type": name, **(SIZES if section == "discriminator" else {})}})
        changes = st.tuples(st.sampled_from(keys_of(values)), st.sampled_from(VALUES))
        for key, value in data.draw(st.lists(changes, max_size=2)):
            values = changed(values, **{key: value})
        errors = errors_of({**PARENT, **values} if extends else values)
        assume(not any(ARITHMETIC.search(error) for error in errors))
        if extends:
            sections = [values[section] for section in COMPONENTS if section in values]
            assume(all("type" in section for section in sections if isinstance(section, dict)))
            if "tie" not in str(values.get("embedding")):  # the parent's may be none
                assume(not any("may be shared" in error for error in errors))
            # Without one of these the validator gets no further.
            assume(not any(re.search("is required|none is set", error) for error in errors))
            values = {"extends": "parent.yaml", **values}
        verdicts[not errors] += 1
        assert accepts(values) == (not errors), (errors, values)

    agree()
    assert sum(verdicts.values()) >= 200
    assert min(verdicts[True], verdicts[False]) >= 50


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"train": {}, "corpus": {"type": "text_files"}, "discriminator": {"type": "bert", "depth": 2}},
        {"sampler": {"temperature": 2.0}, "generator": {"hashes": 2}},  # of which type, the parent knows
        {"generator": {}, "discriminator": {"type": "reformer"}},
        {"objective": {"type": "mlm"}, "generator": None, "sampler": None},
        {"objective": {"type": "two_stage", "generator_steps": 3}, "embedding": {"dim": 4}},
        {"train": {"tokens": 5, "steps": None}},
        {"discriminator": {"type": "plugged", "inner": {"words": ["a"]}}},
    ],
)
def test_a_file_that_extends_another_may_leave_out_anything(accepts: Callable[[Any], bool], values: dict[str, Any]):
    assert accepts({"extends": "parent.yaml"} | values)
    assert not accepts(values)


@pytest.mark.parametrize(
    "values",
    [
        {"extends": 3},
        {"extends": ["a.yaml"]},
        {"sampel": {}},
        {"train": {"stesp": 3}},
        {"train": {"steps": "many"}},
        {"train": {"tokens": 5, "steps": 5}},
        {"sampler": {"type": "gumbel", "temprature": 2.0}},
        {"sampler": {"type": "gumbl"}},
        {"objective": {"type": "electra"}, "sampler": None},
        {"objective": {"type": "mlm"}, "generator": {"scale": 0.5}},
        {"objective": {"type": "two_stage", "generator_steps": 3}, "embedding": {"tie": "all"}},
        {"objective": {"type": "adversarial"}, "generator": {"type": "unigram"}},
        {"generator": {"type": "uniform", "power": 1.0}},
        {"masking": None},
        {"discriminator": {"type": "plugged", "inner": {"share": 2}}},
        {"discriminator": {"type": "bert", "hashes": 2}},
        {"generator": {"type": "bert", "dim": "wide"}},
        {"generator": {"scale": 0.5, "heads": 2}},
    ],
)
def test_a_file_that_extends_another_may_write_nothing_wrong(accepts: Callable[[Any], bool], values: dict[str, Any]):
    assert not accepts({"extends": "parent.yaml"} | values)


def test_only_a_mapping_is_an_experiment(accepts: Callable[[Any], bool]):
    assert not any(map(accepts, [None, [], "extends", ["extends"], 3]))


# What editors show


def test_components_have_names_summaries_and_defaults(schema: dict[str, Any]):
    definitions = schema["$defs"]
    kind = definitions["complete.Experiment"]["properties"]["sampler"]["properties"]["type"]
    assert (
        dict(zip(kind["enum"], kind["enumDescriptions"], strict=True))["bounded"] == "A sampler with a bounded option."
    )
    assert kind["enum"] == samplers.names()
    complete = definitions["complete.sampler_bounded"]
    assert complete["description"] == "A sampler with a bounded option."
    assert complete["properties"]["edge"] == {
        "type": "number",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 0.5,
        "default": 0.1,
    }
    assert "extends" in definitions["complete.Experiment"]["properties"]
    assert "sequence_length <= embedding.max_length" in schema["description"]


def test_what_is_taken_over_has_no_default(schema: dict[str, Any]):
    inherits = "|".join(backbones.names())
    pattern = rf"partial|complete\.generator_({inherits})$"
    taken_over = [found for name, found in schema["$defs"].items() if re.match(pattern, name)]
    assert len(taken_over) > 20
    assert "'default'" not in str(taken_over)


def test_an_option_that_json_cannot_say_is_left_to_the_validator():
    def calling(logits, rng, /, *, call: Callable[[], int], edge: float = 0.5):
        """A sampler that cannot be set from YAML."""

    with samplers.isolated():
        samplers.register("calling")(calling)
        definition = experiment_schema()[0]["$defs"]["complete.sampler_calling"]
    assert definition["properties"]["call"] == {}
    assert definition["required"] == ["call", "type"]


def test_a_component_that_cannot_be_loaded_is_left_out_and_told_once(monkeypatch: pytest.MonkeyPatch):
    load = backbones.get

    def get(name: str):
        if name == "broken":
            raise PluginError("broken 1.0 cannot be loaded: no luck.")
        return load(name)

    names = backbones.names()
    monkeypatch.setattr(backbones, "names", lambda: ["broken", *names])
    monkeypatch.setattr(backbones, "get", get)
    found, problems = experiment_schema()
    assert problems == ["backbone 'broken' is left out: broken 1.0 cannot be loaded: no luck."]
    assert Draft202012Validator(found).is_valid(TINY)
    for key, expected in (("discriminator", names), ("generator", names + generators.names())):
        assert found["$defs"]["complete.Experiment"]["properties"][key]["properties"]["type"]["enum"] == expected
