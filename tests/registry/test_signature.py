"""A signature becomes a strict schema, or is refused at its location."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from registry import Backbone, backbones, corpora, load_plugin, masking_strategies, samplers, schedules
from registry.errors import BadSignature
from registry.signature import FolderOrName, Strict, schema_of, validate

if TYPE_CHECKING:
    from nowhere import Tensor


@pytest.fixture(autouse=True)
def _isolated():
    with samplers.isolated(), backbones.isolated(), corpora.isolated(), schedules.isolated():
        yield


def schema(component) -> type[Strict]:
    return schema_of(component, ((),), "here.py:1")[1]


# Parameters of a sampler, and the reason why each is refused.
REFUSED = {
    "logits, rng, /, *rest: int": r"\*rest.* hides options; name each one after a bare `\*`",
    "logits, rng, /, **options: float": r"\*\*options.* hides options",
    "logits, rng, /, *, heat=1.0": r"option 'heat' has no type; write for example `heat: float = 1\.0`",
    "logits, rng, /, *, type: str = 'x'": "may not be called 'type'",
    "logits, rng, /, *, _heat: float = 1.0": "'_heat' starts with an underscore",
    "logits, rng, /, *, copy: bool = False": "may not be called 'copy'",
    "scores, rng, /": r"must take \(logits, rng\) before its options, takes \(scores, rng\)",
    "logits, /, *, heat: float = 1.0": r"must take \(logits, rng\) before its options, takes \(logits\)",
    "logits, rng, heat: float = 1.0": r"takes \(logits, rng, heat\)",
    "logits, rng, /, *, heat: Tensor = None": "type cannot be resolved .*'Tensor'.* import it at run time",
    "logits, rng, /, *, heat: 'float |' = 1.0": "type cannot be resolved",
    "logits, rng, /, *, heat: float = 'hot'": "the default of 'heat' does not fit its type",
    "logits, rng, /, *, heat: Annotated[float, Field(gt=0)] = 0.0": "the default of 'heat' does not fit its type",
    "logits, rng, /, *, heat: float = None": "the default of 'heat' does not fit its type",
    "logits, rng, /, *, need: int, heat: float = 'hot'": "the default of 'heat' does not fit its type",
}


@pytest.mark.parametrize("parameters", REFUSED)
def test_a_bad_signature_is_refused_at_registration_with_file_and_line(tmp_path: Path, parameters: str):
    file = tmp_path / "bad.py"
    file.write_text(
        "from __future__ import annotations\nfrom typing import Annotated\nfrom pydantic import Field\n"
        f"from registry import samplers\n@samplers.register('candidate')\ndef bad({parameters}):\n    'Bad.'\n"
    )
    with pytest.raises(BadSignature, match=r"bad\.py:5: bad: .*" + REFUSED[parameters]):
        load_plugin(file)
    assert "candidate" not in samplers.names()


def test_a_class_is_read_by_its_init_and_refused_at_its_own_line():
    class Good(Backbone):
        """A backbone."""

        def __init__(self, dim, depth, heads, max_length, /, *, wide: bool = False) -> None: ...

    class Bad(Backbone):
        """A backbone."""

        def __init__(self, dim, depth, /) -> None: ...

    backbones.register("good")(Good)
    assert list(backbones.get("good").schema.model_fields) == ["wide"]
    with pytest.raises(BadSignature, match=r"test_signature\.py:\d+: .*Bad: must take \(dim, depth, heads, max_len"):
        backbones.register("bad")(Bad)


def test_positional_types_may_be_for_the_type_checker_only():
    def typed(logits: Tensor, rng: NoSuchType, /, *, heat: Annotated[float, Field(gt=0)] = 1.0) -> Tensor:  # noqa: F821
        """Annotations are text here: this file imports annotations from __future__."""

    samplers.register("typed")(typed)
    assert samplers.get("typed").schema.model_fields["heat"].annotation is float


def options(
    *, whole: int = 1, real: float = 1.0, yes: bool = False, pair: tuple[int, int] = (1, 2), file: Path = Path("x"),
    word: str = "a", choice: Literal["a", "b"] = "a", maybe: int | None = None,
    share: Annotated[float, Field(ge=0, le=1)] = 0.5,
):  # fmt: skip
    """Every kind of option."""


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("real", 2, 2.0), ("pair", [3, 4], (3, 4)), ("file", "a/b", Path("a/b")), ("maybe", None, None),
        ("maybe", 3, 3), ("choice", "b", "b"), ("share", 0, 0.0), ("share", 1, 1.0), ("whole", 10**30, 10**30),
        ("whole", 1e3, 1000), ("whole", -0.0, 0), ("whole", float(2**53 - 1), 2**53 - 1),
        ("pair", [3.0, 4], (3, 4)), ("maybe", 3.0, 3),
    ],
)  # fmt: skip
def test_values_that_yaml_can_write_are_accepted(name, value, becomes):
    got = getattr(validate(schema(options), {name: value}), name)
    assert got == becomes
    assert type(got) is type(becomes) or isinstance(got, Path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", True), ("whole", 1.5), ("whole", 1e300), ("whole", "1"), ("word", 1.0), ("choice", 1.0),
        ("whole", float(2**53)),  # beyond this, floats cannot represent all integers
        ("whole", None), ("real", "1.0"), ("real", True), ("yes", 1), ("yes", "true"), ("pair", [1]),
        ("pair", [1, 2, 3]), ("pair", "12"), ("file", 3), ("word", 3), ("choice", "c"), ("share", 1.0001),
        ("share", -1e-9), ("real", float("nan")), ("real", float("inf")), ("real", float("-inf")),
    ],
)  # fmt: skip
def test_nothing_is_coerced_and_the_reason_names_key_and_value(name, value):
    with pytest.raises(ValidationError) as refused:
        validate(schema(options), {name: value})
    [error] = refused.value.errors()
    assert error["loc"][0] == name
    assert error["msg"].endswith(".")
    assert "Input" not in error["msg"]


def test_all_reasons_come_at_once_and_say_what_was_written():
    with pytest.raises(ValidationError) as refused:
        validate(schema(options), {"whole": "many", "shrae": 0.5, "share": 7})
    reasons = {error["loc"]: error["msg"] for error in refused.value.errors()}
    assert reasons[("whole",)] == 'must be an integer, is "many".'
    assert reasons[("share",)] == "must be less than or equal to 1, is 7."
    assert reasons[("shrae",)].startswith("unknown parameter. Did you mean 'share'? Known: choice, file, maybe, ")


class Union(Strict):
    rows: Annotated[int, Field(gt=0)] | Literal["auto"] | None = None
    runs: str | list[str] = ""
    deep: dict[str, str | list[int]] = Field(default_factory=dict)
    any: dict[str, Any] = Field(default_factory=dict)


class Outer(Strict):
    inner: Union


def test_a_union_is_one_error_at_a_key_of_the_file() -> None:
    with pytest.raises(ValidationError) as refused:
        validate(Union, {"rows": 0, "runs": 3, "deep": {"a": 3, "b": ["x", 1, "y"]}})
    found = [(error["loc"], error["msg"].rpartition(", is ")[2]) for error in refused.value.errors()]
    assert found[:3] == [(("rows",), "0."), (("runs",), "3."), (("deep", "a"), "3.")]
    assert [loc for loc, _ in found[3:]] == [("deep", "b"), ("deep", "b", 0), ("deep", "b", 2)]


def test_whole_floats_become_integers_only_where_a_schema_demands_them() -> None:
    """Also in a member of a union and in a list; the float next to it stays one."""
    values = {"rows": 2.0, "deep": {"b": [1.0, 2]}, "any": {"rows": 2.0, "b": [1.0, 2, {"c": -0.0}]}}
    read = validate(Outer, {"inner": values}).inner
    assert repr((read.rows, read.deep, read.any)) == "(2, {'b': [1, 2]}, {'rows': 2.0, 'b': [1.0, 2, {'c': -0.0}]})"
    for refused in (2.5, 2.0**60, True, "2"):
        with pytest.raises(ValidationError):
            validate(Union, {"rows": refused})


def test_braces_in_a_key_do_not_upset_the_message():
    with pytest.raises(ValidationError, match=r"unknown parameter"):
        validate(schema(options), {"{reason}": 1})


def test_a_contract_may_allow_two_kinds_of_positional_parameters() -> None:
    def number(progress, /, *, end: float = 0.0):
        """Any number."""

    def factor(step, steps, /, *, warmup: int = 0):
        """A factor of the learning rate."""

    def neither(step, /):
        """Half of the second kind."""

    schedules.register("number")(number)
    schedules.register("factor")(factor)
    assert [schedules.get(name).lead for name in ("number", "factor")] == [("progress",), ("step", "steps")]
    assert [list(schedules.get(name).schema.model_fields) for name in ("number", "factor")] == [["end"], ["warmup"]]
    with pytest.raises(BadSignature, match=r"must take \(progress\) or \(step, steps\) .*, takes \(step\)"):
        schedules.register("neither")(neither)


def test_options_that_a_contract_demands_and_their_types() -> None:
    def bounded(
        tokens, maskable, vocabulary, rng, /, *,
        mask_prob: Annotated[float, Field(gt=0)], replace_prob: float, random_prob: float,
    ):  # fmt: skip
        """A masking strategy."""

    def textual(tokens, maskable, vocabulary, rng, /, *, mask_prob: str, replace_prob: float, random_prob: float):
        """A masking strategy."""

    def forgetful(tokens, maskable, vocabulary, rng, /, *, mask_prob: float = 0.15):
        """A masking strategy."""

    with masking_strategies.isolated():
        masking_strategies.register("bounded")(bounded)
        with pytest.raises(BadSignature, match=r"option 'mask_prob' must be of type float, is str\."):
            masking_strategies.register("textual")(textual)
        with pytest.raises(BadSignature, match="option replace_prob and random_prob"):
            masking_strategies.register("forgetful")(forgetful)


@pytest.mark.parametrize("text", ["bert-base-uncased", "google/electra-small-discriminator", "a_b/c.d-1"])
def test_a_text_is_a_name_unless_its_path_or_the_first_part_of_it_exists(tmp_path: Path, text: str) -> None:
    assert FolderOrName(text).is_name(tmp_path)
    (tmp_path / text.split("/")[0]).mkdir()
    assert not FolderOrName(text).is_name(tmp_path)


@pytest.mark.parametrize(
    "text", ["", ".", "./a", "../a", "a/", "/a/b", "~/a", "~", "a/b/c", "a b", "a//b", "a/../b", "ä/b", "a\\b", "a\0b"]
)
def test_everything_else_is_a_path(tmp_path: Path, text: str) -> None:
    assert not FolderOrName(text).is_name(tmp_path)


def test_a_schema_takes_text_and_dumps_it_as_plain_text() -> None:
    class Options(BaseModel, strict=True):
        path: FolderOrName | None = None

    read: Any = Options.model_validate_json('{"path": "a/b"}')
    assert type(read.path) is FolderOrName
    assert type(read.model_dump(mode="json")["path"]) is str
    assert Options.model_json_schema()["properties"]["path"]["anyOf"][0] == {"type": "string"}
    with pytest.raises(ValueError, match="string"):
        Options.model_validate_json('{"path": 3}')
