"""Absurdly large numbers are refused by `check` or harmless, for every integer that a file can set."""

import json
import typing
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import registry
from electra_lab.assembly.experiment import check
from electra_lab.config.load import load
from electra_lab.config.schema import ExperimentConfig
from registry.core import Registry
from registry.errors import ConfigError
from registry.signature import validate
from tests.helpers import write_experiment


def whole_numbers(schema: type[BaseModel], key: str = "") -> Iterator[str]:
    """Yield the dotted keys of the fields that may be an integer."""

    def kinds(annotation: Any) -> Iterator[Any]:
        if isinstance(annotation, type) and (annotation is int or issubclass(annotation, BaseModel)):
            yield annotation
        elif typing.get_origin(annotation) is not typing.Literal:
            for inner in typing.get_args(annotation):
                yield from kinds(inner)

    for name, field in schema.model_fields.items():
        for kind in kinds(field.annotation):
            yield from [f"{key}{name}"] if kind is int else whole_numbers(kind, f"{key}{name}.")


KEYS = list(dict.fromkeys(whole_numbers(ExperimentConfig)))
HARMLESS = 10**9  # largest value of a key that neither allocates nor counts anything
MOST = {"train.steps", "train.log_every", "evaluate.every", "evaluate.tokens", "evaluate.test_tokens",
        "checkpoint.every", "checkpoint.keep", "seed", "train.skip_limit"}  # fmt: skip
OPTIONS = []
for components in registry.ALL:
    for name in components.names():
        for option in dict.fromkeys(whole_numbers(components.get(name).schema)):
            if option.split(".")[0] not in ("sbatch", "special"):  # by name, what sbatch takes; mappings of ids
                OPTIONS.append((components, name, option))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("large"))


def test_the_keys_are_found() -> None:
    assert {"seed", "train.micro_batch_size", "evaluate.examples", *MOST} <= set(KEYS)
    assert len(OPTIONS) > 40


@pytest.mark.parametrize("number", [10**9, 2**63, 10**21, -(10**21)], ids=lambda number: f"{number:.0e}")
@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_an_experiment(file: Path, key: str, number: int) -> None:
    harmless = key in MOST and abs(number) <= HARMLESS
    with nullcontext() if harmless else pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        check(load(file, [f"{key}={number}"]))


@pytest.mark.parametrize("number", [10**12, 10**21, -(10**21)], ids=lambda number: f"{number:.0e}")
@pytest.mark.parametrize(("components", "name", "option"), OPTIONS, ids=lambda part: getattr(part, "plural", part))
def test_an_option_of_a_component(components: Registry[Any], name: str, option: str, number: int) -> None:
    if option == "seed" and 0 < number < 2**63:
        return
    listed = "." not in option and "list[" in str(components.get(name).schema.model_fields[option].annotation)
    value: Any = [1, number] if listed else number
    for key in reversed(option.split(".")[1:]):
        value = [{key: value}]  # a list of components with weights
    with pytest.raises(ValidationError, match=r"must be (less|greater) than"):
        validate(components.get(name).schema, {option.split(".")[0]: value})


@pytest.mark.parametrize(("name", "option"), [(n, option) for of, n, option in OPTIONS if of is registry.backbones])
def test_an_option_that_sizes_a_network_is_refused_or_harmless(file: Path, name: str, option: str) -> None:
    values = {"type": name, "dim": 16, "depth": 1, "heads": 2, option: 10**9}
    harmless = (name, option) == ("performer", "redraw_every")  # steps
    with nullcontext() if harmless else pytest.raises(ConfigError):
        check(load(file, [f"discriminator={json.dumps(values)}"]))


def test_a_number_that_need_not_be_whole_may_be_written_out(file: Path) -> None:
    written = load(file, ["train.steps=null", f"train.flops={10**21}"])
    assert written.config.train.flops == 1e21
