"""electra-lab registry list, registry describe and schema, with --from."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field

import registry
from electra_lab.config.source import parse
from registry import samplers
from registry.errors import PluginError
from tests.helpers import EXPERIMENT, write_experiment

PLUGIN = '''\
from typing import Annotated

from pydantic import Field

from registry import masking_strategies, samplers

print("a plug-in that talks")


@samplers.register("plain")
def plain(logits, rng, /, *, sharpness: Annotated[float, Field(gt=0, lt=5)] = 2.0):
    """Draw plainly."""


@masking_strategies.register("odd")
def odd(tokens, maskable, vocabulary, rng, /, *, mask_prob: float, replace_prob: float, random_prob: float):
    """Mask every odd position."""
'''
TALK = "a plug-in that talks\n"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "plug.py"
    file.write_text(PLUGIN)
    write_experiment(tmp_path, "uses.yaml", imports="[plug.py]", sampler="{type: plain}")
    (tmp_path / "child.yaml").write_text("extends: uses.yaml\n")
    return file


@pytest.mark.parametrize("file", ["plug.py", "uses.yaml", "child.yaml"])
def test_a_file_shows_its_own_components_alone(lab: Any, plugin: Path, file: str) -> None:
    code, out, err = lab("registry", "list", "--from", plugin.parent / file)
    assert (code, err) == (0, TALK)
    assert [line.split()[0] for line in out.splitlines() if line] == ["masking_strategies", "odd", "samplers", "plain"]
    assert re.search(rf"^  plain +{plugin}:10 +Draw plainly\.$", out, re.MULTILINE)


def test_kind_json_and_describe(lab: Any, plugin: Path) -> None:
    _, out, _ = lab("registry", "list", "sampler", "--from", plugin, "--json")
    (entry,) = json.loads(out)["samplers"]
    assert entry["name"] == "plain"
    assert entry["options"] == [{"name": "sharpness", "type": "float", "bounds": "> 0, < 5", "default": 2.0}]
    _, out, _ = lab("registry", "describe", "sampler", "plain", "--from", plugin)
    assert out.startswith(f"sampler plain  {plugin}:10\n\nDraw plainly.\n")
    none = "none: it registers no component of this kind\n"
    assert lab("registry", "list", "corpora", "--from", plugin) == (0, none, "")


def test_a_file_that_registers_nothing(lab: Any) -> None:
    Path("empty.py").touch()
    assert lab("registry", "list", "--from", "empty.py") == (0, "none: it registers nothing\n", "")


def test_every_component_is_listed_with_place_and_summary(lab):
    code, out, err = lab("registry", "list")
    assert (code, err) == (0, "")
    assert re.search(r"^samplers \(\d+\)  registry/contracts: Sampler$", out, re.MULTILINE)
    assert re.search(r"^  gumbel +\S*samplers/gumbel\.py:\d+ +Draw from softmax", out, re.MULTILINE)
    kinds = json.loads(lab("registry", "list", "--json")[1])
    assert [*kinds] == [components.plural for components in registry.ALL]
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
        *((components.singular, components.plural) for components in registry.ALL),
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


@pytest.mark.parametrize(("words", "right"), [("list sampels", "samplers"), ("describe sampler gumbl", "gumbel")])
def test_an_unknown_kind_or_name_gets_a_suggestion(lab, words: str, right: str):
    err = lab.fails(2, "registry", *words.split())
    assert f"'{words.split()[-1]}'. Did you mean '{right}'? Known: " in err


def accepts(schema: str, sampler: str) -> bool:
    values = parse(EXPERIMENT.replace("{type: gumbel}", sampler), "", Path()).plain()
    return Draft202012Validator(json.loads(schema)).is_valid(values)


def test_it_prints_a_schema_and_nothing_else(lab):
    code, out, err = lab("schema")
    assert (code, err) == (0, "")
    Draft202012Validator.check_schema(json.loads(out))
    assert accepts(out, "{type: gumbel}")
    assert not accepts(out, "{type: gumbel, temprature: 1.0}")
    assert not accepts(out, "{type: plain}")
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("file", ["plug.py", "uses.yaml", "child.yaml"])
def test_a_plug_in_is_in_the_schema_and_its_bounds_hold(lab, plugin: Path, file: str):
    other = plugin.with_name("other.py")
    other.write_text(PLUGIN.replace("plain", "another").replace('"odd"', '"even"'))
    code, out, err = lab("schema", "--from", plugin.parent / file, "--from", other)
    assert (code, err) == (0, TALK * 2)
    assert accepts(out, "{type: plain, sharpness: 4.9}")
    assert not accepts(out, "{type: plain, sharpness: 5}")
    assert not accepts(out, "{type: plain, temperature: 0.4}")
    assert accepts(out, "{type: another}")


def test_a_component_that_cannot_be_loaded_is_reported_on_stderr_and_the_rest_works(lab, monkeypatch):
    def get(name: str):
        if name == "broken":
            raise PluginError("no luck.")
        return load(name)

    load, names = samplers.get, samplers.names()
    monkeypatch.setattr(samplers, "names", lambda: ["broken", *names])
    monkeypatch.setattr(samplers, "get", get)
    code, out, err = lab("schema")
    assert (code, err) == (0, "sampler 'broken' is left out: no luck.\n")
    assert accepts(out, "{type: gumbel}")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("none.yaml", None, r"none\.yaml: "),
        ("none.py", None, r"none\.py: "),
        ("bad.py", "raise ValueError('no luck')\n", r"bad\.py:1: ValueError: no luck"),
        ("bad.yaml", "imports: [none.py]\n", r"bad\.yaml:1: imports\.0: the file .*/none\.py "),
    ],
)
def test_a_file_that_cannot_be_used_is_exit_code_2(lab, name: str, text: str | None, reason: str):
    if text:
        Path(name).write_text(text)
    for verb in ("schema", "registry list"):
        assert re.match(rf"\S*{reason}", lab.fails(2, *verb.split(), "--from", name))


@pytest.mark.parametrize(
    ("option", "title", "key"),
    [("--ablation", "electra_lab ablation", "vary"), ("--finetuning", "electra_lab fine-tuning", "dataset")],
)
def test_the_schema_of_each_kind_of_file(lab, option: str, title: str, key: str):
    code, out, err = lab("schema", option)
    assert (code, err, json.loads(out)["title"]) == (0, "", title)
    assert key in json.loads(out)["properties"]
    assert lab.fails(2, "schema", "--ablation", "--finetuning")
