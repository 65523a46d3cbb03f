"""electra-lab registry list and describe, with --from. Installed packages: tests/registry/test_installed.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import registry

PLUGIN = '''\
from registry import masking_strategies, samplers


@samplers.register("plain")
def plain(logits, rng, /, *, sharpness: float = 2.0):
    """Draw plainly."""


@masking_strategies.register("odd")
def odd(tokens, maskable, vocabulary, rng, /, *, mask_prob: float, replace_prob: float, random_prob: float):
    """Mask every odd position."""
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "plug.py"
    file.write_text(PLUGIN)
    (tmp_path / "uses.yaml").write_text("imports: [plug.py]\nsampler: {type: plain}\n")
    return file


@pytest.mark.parametrize("file", ["plug.py", "uses.yaml"])
def test_a_file_shows_its_own_components_alone(lab: Any, plugin: Path, file: str) -> None:
    code, out, err = lab("registry", "list", "--from", plugin.parent / file)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line] == ["masking_strategies", "odd", "samplers", "plain"]
    assert re.search(rf"^  plain +{plugin}:4 +Draw plainly\.$", out, re.MULTILINE)


def test_kind_json_and_describe(lab: Any, plugin: Path) -> None:
    _, out, _ = lab("registry", "list", "sampler", "--from", plugin, "--json")
    (entry,) = json.loads(out)["samplers"]
    assert entry["name"] == "plain"
    assert entry["options"] == [{"name": "sharpness", "type": "float", "bounds": "", "default": 2.0}]
    _, out, _ = lab("registry", "describe", "sampler", "plain", "--from", plugin)
    assert out.startswith(f"sampler plain  {plugin}:4\n\nDraw plainly.\n")
    none = "none: it registers no component of this kind\n"
    assert lab("registry", "list", "corpora", "--from", plugin) == (0, none, "")


def test_a_file_that_registers_nothing_or_cannot_be_loaded(lab: Any, tmp_path: Path) -> None:
    empty, broken, absent = (tmp_path / name for name in ("empty.py", "broken.py", "none.yaml"))
    empty.write_text("")
    broken.write_text("x = 1\nimport nothing_of_that_name\n")
    assert lab("registry", "list", "--from", empty) == (0, "none: it registers nothing\n", "")
    assert lab.fails(2, "registry", "list", "--from", broken).startswith(f"{broken}:2: ModuleNotFoundError")
    assert lab.fails(2, "registry", "list", "--from", absent).startswith(f"{absent}: ")


def test_every_component_is_listed_with_place_and_summary(lab):
    code, out, err = lab("registry", "list")
    assert (code, err) == (0, "")
    assert re.search(r"^samplers \(\d+\)  registry/contracts: Sampler$", out, re.MULTILINE)
    assert re.search(r"^  gumbel +\S*samplers/gumbel\.py:\d+ +Draw from softmax", out, re.MULTILINE)
    kinds = json.loads(lab("registry", "list", "--json")[1])
    assert [*kinds] == [each.plural for each in registry.ALL]
    for name in (entry["name"] for entries in kinds.values() for entry in entries):
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
    gumbel = next(entry for entry in kinds["samplers"] if entry["name"] == "gumbel")
    assert gumbel["summary"].startswith("Draw from softmax")
    assert re.search(r"samplers/gumbel\.py:\d+$", gumbel["place"])
    assert gumbel["options"] == [{"name": "temperature", "type": "float", "bounds": ">= 1e-06", "default": 1.0}]
    paths = next(entry for entry in kinds["corpora"] if entry["name"] == "text_files")["options"][0]
    assert (paths["name"], paths["type"], "default" in paths) == ("paths", "list[Path]", False)


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("masking_strategies", "masking_strategies"), ("masking-strategy", "masking_strategies"),
        ("masking", "masking_strategies"), ("discriminator", "backbones"),
        *((each.singular, each.plural) for each in registry.ALL),
    ],
)  # fmt: skip
def test_a_kind_is_understood_singular_plural_and_by_its_key(lab, kind: str, plural: str):
    code, out, _ = lab("registry", "list", kind)
    assert (code, out.split()[0], len(re.findall(r"^\S", out, flags=re.M))) == (0, plural, 1)


def test_types_and_bounds_inside_others_are_in_plain_words(lab):
    def odd(
        logits, rng, /, *,
        pair: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[int, Field(gt=1)]] = (0.5, 2),
        maybe: Annotated[float, Field(gt=0)] | None = None,
        way: Literal["one", "another"] = "one",
        paths: tuple[Path, ...] = (),
        more: dict[str, int | str] | None = None,
    ):  # fmt: skip
        """Of every type."""

    with registry.samplers.isolated():
        registry.samplers.register("odd")(odd)
        _, out, _ = lab("registry", "describe", "sampler", "odd")
    options = out.split("\n\n")[2].splitlines()
    assert [re.split(r"  +", line.strip()) for line in options] == [
        ["pair", "tuple[float, int]", "default [0.5, 2]", ">= 0, < 1, > 1"],
        ["maybe", "float | None", "default null", "> 0"],
        ["way", '"one" | "another"', 'default "one"'],
        ["paths", "tuple[Path, ...]", "default []"],
        ["more", "dict[str, int | str] | None", "default null"],
    ]


@pytest.mark.parametrize(
    ("kind", "name", "option", "yaml"),
    [
        ("sampler", "gumbel", r"  temperature +float +default 1\.0  >= 1e-06", "{type: gumbel}"),
        ("corpus", "text_files", r"  paths +list\[Path\] +required  at least 1", "{type: text_files, paths: ...}"),
        ("sampler", "argmax", r"  \(no options\)", "{type: argmax}"),
        ("discriminator", "bert", "  dropout +float .*", "{type: bert, dim: ..., depth: ..., heads: ...}"),
    ],
)
def test_describe_shows_options_and_yaml(lab, kind: str, name: str, option: str, yaml: str):
    code, out, _ = lab("registry", "describe", kind, name)
    assert (code, out.endswith(f"\n  {yaml}\n")) == (0, True)
    assert re.match(rf"\w+ {name}  \S*/{name}\.py:\d+\n\n[A-Z]", out)
    assert re.search(f"^{option}$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "right"), [(("list", "sampels"), "samplers"), (("describe", "sampler", "gumbl"), "gumbel")]
)
def test_an_unknown_kind_or_name_gets_a_suggestion(lab, words: tuple[str, ...], right: str):
    assert f"'{words[-1]}'. Did you mean '{right}'? Known: " in lab.fails(2, "registry", *words)
