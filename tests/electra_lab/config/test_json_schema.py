"""The JSON schema accepts everything that `check` accepts, and refuses values that are wrong by themselves."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, ValidationError, create_model

from electra_lab.config.ablation import AblationConfig
from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.json_schema import file_schema
from electra_lab.config.load import kind_of_file, load_plugins
from electra_lab.config.schema import ExperimentConfig
from electra_lab.config.sections import Of
from electra_lab.config.source import parse, read_file
from registry import Backbone, backbones, generators, samplers, schedules
from registry.component import Sizes
from registry.signature import Strict, validate
from tests.electra_lab.config import generated
from tests.helpers import EXPERIMENT, ROOT

experiment_schema = partial(file_schema, ExperimentConfig, "experiment")
ablation_schema = partial(file_schema, AblationConfig, "ablation")
TINY: Any = parse(EXPERIMENT, "", Path()).plain()
SIZES = {"dim": 16, "depth": 1, "heads": 2}
COMPONENTS, SECTIONS = dict[str, Of](), dict[str, type[BaseModel]]()
for name, field in ExperimentConfig.model_fields.items():
    for mark in field.metadata:
        if isinstance(mark, Of):
            COMPONENTS[name] = mark
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        SECTIONS[name] = field.annotation
law = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class Inner(Strict):
    share: Annotated[float, Field(gt=0, le=1)]
    words: list[str] | None = None


class Plugged(Backbone):
    """A backbone with a required option, and one that contains other components."""

    def __init__(
        self, dim, depth, heads, max_length, /, *, window: Annotated[int, Field(ge=2)], inner: Inner | None = None
    ):
        """Nothing."""


def bounded(logits, rng, /, *, edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.1):
    """A sampler with a bounded option."""


@pytest.fixture(scope="module")
def schema() -> Iterator[dict[str, Any]]:
    """The schema of experiments, with two components of a plug-in."""
    with backbones.isolated(), samplers.isolated():
        backbones.register("plugged")(Plugged)
        samplers.register("bounded")(bounded)
        yield experiment_schema()


@pytest.fixture(scope="module")
def accepts(schema: dict[str, Any]) -> Callable[[Any], bool]:
    return Draft202012Validator(schema).is_valid


def errors_of(values: dict[str, Any], model: type[BaseModel] = ExperimentConfig) -> list[dict[str, Any]]:
    """Return the errors that `check` finds, in a whole file or a part of one."""
    try:
        validate(model, values)
    except ValidationError as error:
        return [dict(problem) for problem in error.errors()]
    return []


def by_itself(error: dict[str, Any]) -> bool:
    """True for an unknown key or a wrong value; False for a missing key, or a combination that is not allowed."""
    return re.match("unknown parameter|must (be|match|have) (?!none:)", error["msg"]) is not None


def changed(key: str, value: Any) -> dict[str, Any]:
    section, _, inner = key.partition(".")
    return TINY | {section: TINY[section] | {inner: value} if inner else value}


def test_it_is_a_valid_schema_whose_references_are_defined_and_used(schema: dict[str, Any]):
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert set(re.findall(r"#/\$defs/([\w.]+)", str(schema))) == {*schema["$defs"]}


# Everything that `check` accepts is accepted


def test_every_shipped_file_and_all_that_they_extend_pass_as_written():
    files = sorted((ROOT / "experiments").rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        load_plugins(file)
    kinds = {"ablation": AblationConfig, "fine-tuning": FinetuningConfig}
    models = (ExperimentConfig, *kinds.values())
    schemas = {model: Draft202012Validator(file_schema(model, "any")) for model in models}
    for file in files:
        kind = schemas[kinds.get(kind_of_file(file), ExperimentConfig)]
        raw = parse(file.read_text(encoding="utf-8"), str(file), file.parent).plain()
        for values in (raw, read_file(file).plain()):
            assert kind.is_valid(values), (file, [error.message for error in kind.iter_errors(values)])


@pytest.mark.usefixtures("schema")
def test_files_whose_values_are_right_by_themselves_pass_and_so_do_their_parts(accepts: Callable[[Any], bool]):
    """`check` agrees: the strategy draws no value that is wrong by itself."""
    seen: Counter[bool] = Counter()
    scheduled = st.dictionaries(st.sampled_from(["learning_rate", "sampler.temperature", "masking.mask_prob"]),
                                generated.component(Of(schedules)), max_size=2)  # fmt: skip
    files = generated.file(ExperimentConfig, name=st.sampled_from(["a", "b.1-2_3", "0" * 64]), schedules=scheduled)

    @law
    @given(files, st.data())
    def passes(values: dict[str, Any], data: st.DataObject) -> None:
        wrong = [error for error in errors_of(values) if by_itself(error)]
        assert not wrong, (wrong, values)
        seen[not errors_of(values)] += 1
        assert accepts(values), values
        kept = data.draw(st.sets(st.sampled_from(sorted(values))))
        part = {key: value for key, value in values.items() if key in kept}
        for key in kept:
            if isinstance(part[key], dict) and part[key]:
                gone = data.draw(st.sampled_from(sorted(part[key])))
                part[key] = {name: option for name, option in part[key].items() if name != gone}
        assert accepts({"extends": "parent.yaml", **part}), part

    passes()
    assert sum(seen.values()) >= 60


@pytest.mark.parametrize(
    "values",
    [
        {}, {"train": {}, "corpus": {"type": "text_files"}, "discriminator": {"type": "bert", "depth": 2}},
        {"sampler": {"temperature": 2.0}, "generator": {"hashes": 2}},  # of types that the parent names
        {"generator": {}, "discriminator": {"type": "reformer"}},
        {"generator": {"type": "reformer", "scale": 0.25, "depth": 1}},
        {"generator": {"type": "unigram", "power": 0.5}, "train": {"tokens": 5, "steps": None}},
        {"objective": {"type": "mlm"}, "generator": None, "sampler": None, "train": {"steps": 1e3}},
        {"optimizer": {"weight_decay": 0.1}, "schedules": {"learning_rate": {"warmup_steps": 10}}},
        {"schedules": {"learning_rate": {"type": "cosine", "start": 1, "end": 0}, "sampler.temperature": {"until": 1}}},
        {"discriminator": {"type": "plugged", "inner": {"words": ["a"]}}},
    ],
)  # fmt: skip
def test_a_file_may_leave_out_anything(accepts: Callable[[Any], bool], values: dict[str, Any]):
    assert accepts(values)
    assert accepts({"extends": "parent.yaml"} | values)


# Values that are wrong by themselves are refused


JUNK: list[Any] = [None, True, -1, 0, 1, 2.5, 1e12, "", "bert", [], ["a"], [0.5, 0.5], [1], {}, {"share": 0.5}]
# By section and component: a mapping that `check` accepts.
STARTS: dict[str, dict[str, dict[str, Any]]] = {key: {"": TINY.get(key, {})} for key in SECTIONS}
for key, of in COMPONENTS.items():
    STARTS[key] = {name: {"type": name} for name in of.registry.names()}
STARTS["generator"] |= {name: {"type": name} for name in generators.names()}
STARTS["discriminator"] = {name: {"type": name, **SIZES} for name in backbones.names()}
STARTS["discriminator"]["plugged"] = {"type": "plugged", **SIZES, "window": 2}
STARTS["sampler"]["bounded"] = {"type": "bounded"}


@pytest.mark.usefixtures("schema")
@pytest.mark.parametrize("key", [*SECTIONS, *COMPONENTS])
def test_every_option_is_judged_as_by_check(key: str, schema: dict[str, Any]):
    """For a component whose type is written: the schema refuses an option by itself exactly if `check` does."""
    verdicts: Counter[bool] = Counter()
    field = ExperimentConfig.model_fields[key]
    section = create_model("Section", __base__=Strict, **{key: (field.annotation, field)})
    accepts = Draft202012Validator({**schema["properties"][key], "$defs": schema["$defs"]}).is_valid
    for name, start in STARTS[key].items():
        options = [*SECTIONS[key].model_fields] if key in SECTIONS else [*options_of(COMPONENTS[key], name)]
        for option in (*options, "temperatur"):
            for value in JUNK:
                values = start | {option: value}
                errors = [error for error in errors_of({key: values}, section) if error["loc"][:2] == (key, option)]
                if any(map(by_itself, errors)) or not errors:
                    verdicts[not errors] += 1
                    assert accepts(values) == (not errors), (name, option, value, errors)
    assert verdicts[False] > 10
    assert verdicts[True] > 0


def options_of(of: Of, name: str) -> Iterator[str]:
    registry = of.registry if name in of.registry.names() else of.also
    assert registry is not None
    yield from registry.get(name).schema.model_fields
    if of.sized and registry is of.registry:
        yield from Sizes.model_fields


@pytest.mark.parametrize(
    "values",
    [
        {"extends": 3}, {"sampel": {}}, {"imports": "a.py"}, {"train": 3}, {"sampler": "gumbel"}, {"masking": None},
        {"sampler": {"type": 3}}, {"sampler": {"type": "bert"}}, {"generator": {"type": "uniform", "power": 1.0}},
        {"discriminator": {"type": "bert", "scale": 0.5}}, {"discriminator": {"type": "uniform"}},
        {"discriminator": {"type": "plugged", "inner": {"share": 2}}},
        {"discriminator": {"type": "plugged", "inner": {"shrae": 1}}},
        {"optimizer": {"type": "adamw", "betas": [0.9, 1.0]}}, {"schedules": []},
        {"schedules": {"learning_rate": {"type": "warmup_linear", "steps": 3}}},
        {"schedules": {"sampler.temperature": {"type": "liner"}}},
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_refused_also_in_a_child(accepts: Callable[[Any], bool], values: dict[str, Any]):
    assert not accepts({"extends": "parent.yaml"} | values)
    assert not accepts(TINY | values)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("seed", 2**63 - 1, 2**63), ("data.sequence_length", 8, 7), ("data.held_out", 1e-9, 0),
        ("embedding.dim", 65_536, 65_537), ("discriminator.dropout", 0, 1), ("tokenizer.vocab_size", 100, 99),
        ("masking.mask_prob", 1, 1.001), ("sampler.temperature", 1e-6, 9e-7), ("train.steps", 1, 0),
        ("train.steps", 1e3, 1.5), ("name", "a" * 64, "a" * 65),
    ],
)  # fmt: skip
def test_bounds_are_those_of_check(accepts: Callable[[Any], bool], key: str, good: Any, bad: Any):
    for value, expected in ((good, True), (bad, False)):
        values = changed(key, value)
        assert accepts(values) == expected, value
        assert any(map(by_itself, errors_of(values))) != expected, value


# Texts for editors


@pytest.mark.parametrize("make", [experiment_schema, ablation_schema], ids=["experiment", "ablation"])
def test_every_key_is_described_by_a_sentence(make: Callable[[], dict[str, Any]]):
    found = make()
    described = dict(found["properties"])
    for section in SECTIONS if "train" in described else ("budget",):
        name = re.findall(r"#/\$defs/(\w+)", str(found["properties"][section]))[0]
        described[section] = found["$defs"][name]
        described |= {f"{section}.{key}": schema for key, schema in found["$defs"][name]["properties"].items()}
    assert len(described) > 15
    text = {key: schema.get("description", "") for key, schema in described.items()}
    assert [key for key, description in text.items() if not re.fullmatch(r"(?s)[A-Z].*\.", description)] == []


@pytest.mark.parametrize("key", COMPONENTS)
def test_every_registered_component_is_offered_with_its_summary(schema: dict[str, Any], key: str):
    registries = [registry for registry in (COMPONENTS[key].registry, COMPONENTS[key].also) if registry]
    summaries = {listing.name: listing.summary for registry in registries for listing in registry.listings()}
    names = [name for registry in registries for name in registry.names()]
    offered = schema["properties"][key]["properties"]["type"]
    assert offered["enum"] == names
    assert offered["enumDescriptions"] == [summaries[name] for name in names]
    assert all(summaries.values())


def test_schedules_and_options_of_plug_ins_are_offered_with_type_bounds_and_default(schema: dict[str, Any]):
    offered = schema["properties"]["schedules"]["additionalProperties"]["properties"]["type"]
    assert offered["enum"] == schedules.names()
    conditions = schema["properties"]["sampler"]["allOf"]
    (then,) = [rule["then"] for rule in conditions if rule["if"]["properties"]["type"]["const"] == "bounded"]
    bounds = {"exclusiveMinimum": 0, "exclusiveMaximum": 0.5}
    assert then["properties"]["edge"] == {"type": "number", "default": 0.1, **bounds}
    assert not then.get("required")


def test_an_option_that_json_cannot_say_is_left_to_check():
    def calling(logits, rng, /, *, call: Callable[[], int], edge: float = 0.5):
        """A sampler that cannot be set from YAML."""

    with samplers.isolated():
        samplers.register("calling")(calling)
        accepts = Draft202012Validator(experiment_schema()).is_valid
    assert accepts({"sampler": {"type": "calling", "call": "anything", "edge": 1}})
    assert not accepts({"sampler": {"type": "calling", "edge": "sharp"}})
