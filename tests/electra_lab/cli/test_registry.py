"""electra-lab registry list and describe, with --from. Installed packages: tests/registry/test_installed.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

import registry
from tests.electra_lab.cli.conftest import Lab
from tests.helpers import write_experiment

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
def test_a_file_shows_its_own_components_alone(lab: Lab, plugin: Path, file: str) -> None:
    code, out, err = lab("registry", "list", "--from", plugin.parent / file)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if line] == ["masking_strategies", "odd", "samplers", "plain"]
    assert re.search(rf"^  plain +{plugin}:4 +Draw plainly\.$", out, re.MULTILINE)


def test_kind_json_and_describe(lab: Lab, plugin: Path) -> None:
    code, out, _ = lab("registry", "list", "sampler", "--from", plugin, "--json")
    assert code == 0
    (entry,) = json.loads(out)["samplers"]
    assert entry["name"] == "plain"
    assert entry["options"] == [{"name": "sharpness", "type": "float", "bounds": "", "default": 2.0}]
    code, out, _ = lab("registry", "describe", "sampler", "plain", "--from", plugin)
    assert code == 0
    assert out.startswith(f"sampler plain  {plugin}:4\n\nDraw plainly.\n")
    assert lab("registry", "list", "corpora", "--from", plugin) == (
        0, "none: it registers no component of this kind\n", ""
    )  # fmt: skip


def test_a_file_that_registers_nothing_or_cannot_be_loaded(lab: Lab, tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.py", tmp_path / "broken.py"
    empty.write_text("")
    broken.write_text("x = 1\nimport nothing_of_that_name\n")
    assert lab("registry", "list", "--from", empty) == (0, "none: it registers nothing\n", "")
    code, out, err = lab("registry", "list", "--from", broken)
    assert (code, out) == (2, "")
    assert err == f"{broken}:2: ModuleNotFoundError: No module named 'nothing_of_that_name'\n"
    code, _, err = lab("registry", "list", "--from", tmp_path / "none.yaml")
    assert (code, err) == (2, f"{tmp_path}/none.yaml: cannot be read (No such file or directory).\n")


def test_without_from_components_that_are_loaded_already_are_listed_among_the_others(lab: Lab, plugin: Path) -> None:
    lab("registry", "list", "--from", plugin)
    _, out, _ = lab("registry", "list", "samplers")
    assert re.search(r"^  gumbel ", out, re.MULTILINE)


def test_output_of_a_plug_in_is_not_part_of_the_answer(lab: Lab, plugin: Path) -> None:
    noisy = plugin.parent / "noisy.py"
    noisy.write_text(f"print('NOISE')\n{PLUGIN}")
    code, out, err = lab("registry", "list", "samplers", "--from", noisy, "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)["samplers"]] == ["plain"]
    assert err == "NOISE\n"


def test_a_files_printing_stays_out_of_the_checked_config(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text("print('NOISE')\n")
    code, out, err = lab("check", write_experiment(tmp_path, imports="[noisy.py]"))
    assert code == 0
    assert out.startswith("name: tiny")
    assert err == "NOISE\n"


# Built-in components


def test_registry_list_shows_every_component_with_place_and_summary(lab):
    code, out, err = lab("registry", "list")
    assert (code, err) == (0, "")
    assert re.search(r"^samplers \(\d+\)  registry/contracts: Sampler$", out, re.MULTILINE)
    assert re.search(r"^  gumbel +\S*samplers/gumbel\.py:\d+ +Draw from softmax", out, re.MULTILINE)
    for name in ("bert", "reformer", "replace_prob", "electra", "text_files", "wordpiece"):
        assert re.search(rf"^  {name} ", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        *((word, "masking_strategies") for word in ("masking_strategies", "masking_strategy", "masking-strategy")),
        ("masking strategy", "masking_strategies"),
        ("masking", "masking_strategies"),
        ("discriminator", "backbones"),
        *((each.singular, each.plural) for each in registry.ALL),
    ],
)
def test_a_kind_is_understood_singular_plural_and_by_its_key(lab, kind: str, plural: str):
    code, out, _ = lab("registry", "list", kind)
    assert code == 0
    assert out.startswith(f"{plural} (")
    assert len(re.findall(r"^\S", out, flags=re.M)) == 1


@pytest.mark.parametrize(
    ("kind", "name", "singular"),
    [
        ("masking", "span", "masking strategy"),
        ("discriminator", "bert", "backbone"),
        ("generator", "unigram", "generator"),
    ],
)
def test_a_component_is_described_by_the_key_of_the_experiment(lab, kind: str, name: str, singular: str):
    code, out, err = lab("registry", "describe", kind, name)
    assert (code, err) == (0, "")
    assert out.startswith(f"{singular} {name}  ")
    assert not re.search("FieldInfo|Annotated", out)


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


def test_the_yaml_of_a_backbone_has_its_sizes(lab):
    _, out, _ = lab("registry", "describe", "backbone", "bert")
    assert out.endswith("\n  {type: bert, dim: ..., depth: ..., heads: ...}\n")


def test_registry_list_json_gives_options_with_type_default_and_bounds(lab):
    code, out, _ = lab("registry", "list", "--json")
    assert code == 0
    kinds = json.loads(out)
    assert {"backbones", "masking_strategies", "samplers", "objectives", "corpora", "tokenizers"} <= set(kinds)
    gumbel = next(entry for entry in kinds["samplers"] if entry["name"] == "gumbel")
    assert gumbel["summary"].startswith("Draw from softmax")
    assert re.search(r"samplers/gumbel\.py:\d+$", gumbel["place"])
    assert gumbel["options"] == [{"name": "temperature", "type": "float", "bounds": ">= 1e-06", "default": 1.0}]
    paths = next(e for e in kinds["corpora"] if e["name"] == "text_files")["options"][0]
    assert (paths["name"], paths["type"], "default" in paths) == ("paths", "list[Path]", False)


@pytest.mark.parametrize("kind", ["sampler", "samplers"])
def test_registry_describe_shows_docstring_options_and_yaml(lab, kind: str):
    code, out, _ = lab("registry", "describe", kind, "gumbel")
    assert code == 0
    assert re.match(r"sampler gumbel  \S*samplers/gumbel\.py:\d+\n\nDraw from softmax", out)
    assert re.search(r"^  temperature +float +default 1\.0  >= 1e-06$", out, re.MULTILINE)
    assert out.endswith("\n  {type: gumbel}\n")


def test_describe_shows_what_is_required(lab):
    _, out, _ = lab("registry", "describe", "corpus", "text_files")
    assert re.search(r"^  paths +list\[Path\] +required  at least 1$", out, re.MULTILINE)
    assert out.endswith("\n  {type: text_files, paths: ...}\n")
    _, out, _ = lab("registry", "describe", "sampler", "argmax")
    assert "  (no options)\n" in out


def test_an_unknown_kind_or_name_gets_a_suggestion(lab):
    known = "backbones, corpora, masking_strategies, objectives, samplers, tokenizers"
    code, out, err = lab("registry", "list", "sampels")
    assert (code, out) == (2, "")
    assert err.startswith("there is no kind 'sampels'. Did you mean 'samplers'? Known: ")
    assert all(kind in err for kind in known.split(", "))
    sentence = (
        "no sampler is called 'gumbl'. Did you mean 'gumbel'? Known: argmax, gumbel, nucleus, temperature, top_k.\n"
    )
    assert lab("registry", "describe", "sampler", "gumbl") == (2, "", sentence)
