"""A component in a config: a registered name with its validated options, still data."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError, create_model

from electra_lab.config.component import Component, Of, default, loadable
from registry import backbones, generators, launchers, optimizers, samplers
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


def test_options_are_completed_and_dumped_in_order() -> None:
    found = read(Of(optimizers), {"type": "adamw", "epsilon": 1})
    assert found is not None
    assert found.dump() == {"type": "adamw", "weight_decay": 0.01, "betas": [0.9, 0.999], "epsilon": 1.0}
    assert found.keywords() == {"weight_decay": 0.01, "betas": (0.9, 0.999), "epsilon": 1.0}
    assert found == read(Of(optimizers), found.dump())


def test_a_sized_component_has_sizes_beside_its_options() -> None:
    found = read(Of(backbones, sized=True), {"type": "bert", "dropout": 0, "heads": 2, "dim": 8, "depth": 1})
    assert found is not None
    assert found.sizes is not None
    assert found.sizes.model_dump() == {"dim": 8, "depth": 1, "heads": 2}
    assert "dim" not in found.keywords()
    assert list(found.dump()) == ["type", "dim", "depth", "heads", "ff_mult", "dropout"]
    assert read(Of(samplers), {"type": "gumbel"}).sizes is None


def test_all_errors_of_sizes_and_options_come_at_once() -> None:
    wrong = {"type": "bert", "dim": 0, "depth": "two", "droput": 0.1, "ff_mult": -1}
    found = dict(refusal(Of(backbones, sized=True), wrong))
    assert set(found) == {"held.dim", "held.depth", "held.heads", "held.droput", "held.ff_mult"}
    assert found["held.droput"].endswith("Did you mean 'dropout'? Known: depth, dim, dropout, ff_mult, heads.")
    sizes = {"type": "bert", "dim": 9, "depth": 1, "heads": 2}
    assert refusal(Of(backbones, sized=True), sizes) == [("held.heads", "2 heads do not divide dim 9.")]


def test_a_second_registry_without_sizes() -> None:
    of = Of(backbones, sized=True, also=generators)
    found = read(of, {"type": "unigram", "power": 0.5})
    assert found is not None
    assert (found.sizes, found.keywords()) == (None, {"power": 0.5})
    assert refusal(of, {"type": "unigram", "dim": 8}) == [("held.dim", "unknown parameter. Known: power.")]


def test_null_only_where_it_is_allowed() -> None:
    assert read(Of(samplers, optional=True), None) is None
    reason = "must be a mapping such as {type: argmax}."
    assert refusal(Of(samplers), None) == [("held", reason)]
    assert refusal(Of(samplers), [1]) == [("held", reason)]


@pytest.mark.parametrize(
    ("value", "reason"), [({}, "is required"), ({"type": None}, "is required"), ({"type": 3}, "must")]
)
def test_a_type_must_be_written_unless_there_is_a_default(value: dict[str, Any], reason: str) -> None:
    ((key, sentence),) = refusal(Of(samplers), value)
    assert key == "held.type"
    assert sentence.startswith(reason)
    assert sentence.endswith("it names the sampler.")


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
