"""A component in a config: a registered name with its validated options, still data."""

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError, create_model

from electra_lab.config.component import Component, Of, default, loadable
from registry import backbones, generators, launchers, samplers
from registry.errors import PluginError
from registry.signature import Strict, validate


def read(of: Of, value: Any) -> Component | None:
    """Return `value` as a field with this mark holds it."""
    model = create_model("Holder", __base__=Strict, held=(Annotated[Component | None, of], Field(None)))
    return validate(model, {"held": value}).held


def refusal(of: Of, value: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as refused:
        read(of, value)
    return [(".".join(map(str, error["loc"])), error["msg"]) for error in refused.value.errors()]


def test_a_sized_component_has_sizes_beside_its_options() -> None:
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
