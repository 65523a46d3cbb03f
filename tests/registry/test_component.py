"""Nested components are validated, dumped and described for editors like those of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field, ValidationError, create_model

from registry import corpora
from registry.component import Component, Of, entries_of
from registry.signature import Strict, validate


@pytest.fixture(autouse=True)
def nesting() -> Iterator[None]:
    with corpora.isolated():

        @corpora.register("wrapping")
        class Wrapping:
            """Wraps a corpus."""

            def __init__(
                self,
                /,
                *,
                inner: Annotated[Component, Of(corpora)],
                other: Annotated[Component | None, Of(corpora, optional=True, default="docstrings")] = None,
            ) -> None: ...

        yield


def holder() -> type[Strict]:
    return create_model("Holder", __base__=Strict, held=(Annotated[Component, Of(corpora)], Field()))


def held(value: Any) -> Component:
    found = validate(holder(), {"held": value}).held  # type: ignore[attr-defined]
    assert isinstance(found, Component)
    return found


DOCSTRINGS = {"type": "docstrings", "min_characters": 80}


def test_an_option_may_be_a_component() -> None:
    found = held({"type": "wrapping", "inner": {"type": "wrapping", "inner": {"type": "docstrings"}}})
    inner = found.keywords()["inner"]
    assert isinstance(inner, Component)
    assert inner.keywords()["inner"].keywords() == {"min_characters": 80}
    wrapped = {"type": "wrapping", "inner": DOCSTRINGS, "other": None}
    assert found.dump() == {"type": "wrapping", "inner": wrapped, "other": None}
    assert held(found.dump()) == found


def test_a_default_type_and_null() -> None:
    found = held({"type": "wrapping", "inner": DOCSTRINGS, "other": {"min_characters": 7}})
    assert found.keywords()["other"].keywords() == {"min_characters": 7}
    with pytest.raises(ValidationError, match="must be a mapping such as"):
        held({"type": "wrapping", "inner": None})


def test_errors_are_at_their_place_and_come_at_once() -> None:
    wrong = {"type": "wrapping", "inner": {"type": "docstrings", "min_character": 1}, "other": {"type": "none"}}
    with pytest.raises(ValidationError) as refused:
        held(wrong)
    found = {".".join(map(str, error["loc"])): error["msg"] for error in refused.value.errors()}
    assert found["held.inner.min_character"].endswith("Did you mean 'min_characters'? Known: min_characters.")
    assert found["held.other.type"].startswith("no corpus is called 'none'.")
    assert len(found) == 2


def test_editors_check_what_is_inside() -> None:
    schema = holder().model_json_schema()
    Draft202012Validator.check_schema(schema)
    accepts = Draft202012Validator(schema).is_valid
    good: dict[str, Any] = {"type": "docstrings", "min_characters": 5}
    bad: dict[str, Any] = {"type": "docstrings", "min_characters": "five"}
    for depth in range(2):
        assert accepts({"held": good}), depth
        assert not accepts({"held": bad}), depth
        good, bad = ({"type": "wrapping", "inner": option} for option in (good, bad))
    assert not accepts({"held": {"type": "wrapping", "inner": {"type": "nonesuch"}}})


@pytest.mark.parametrize("levels", [1, 3])
def test_editors_check_mixtures(levels: int) -> None:
    accepts = Draft202012Validator(holder().model_json_schema()).is_valid
    good, bad = ({"type": "text_files", "paths": paths} for paths in (["a.txt"], 5))
    for _ in range(levels):
        good, bad = ({"type": "mixture", "parts": [{"corpus": option, "repeats": 2}]} for option in (good, bad))
    assert accepts({"held": good})
    assert not accepts({"held": bad})


def test_the_entries_of_a_component_are_its_own_and_those_inside() -> None:
    outer = held({"type": "wrapping", "inner": {"type": "mixture", "parts": [{"corpus": {"type": "docstrings"}}]}})
    assert [entry.name for entry in entries_of(corpora, outer)] == ["wrapping", "mixture", "docstrings"]
