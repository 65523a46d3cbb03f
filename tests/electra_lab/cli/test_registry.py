"""`registry list` and `describe` for what a file plugs in. Installed packages: tests/registry/test_installed.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

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
        0, "none: it registers no component of this kind.\n", ""
    )  # fmt: skip


def test_a_file_that_registers_nothing_or_cannot_be_loaded(lab: Lab, tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.py", tmp_path / "broken.py"
    empty.write_text("")
    broken.write_text("x = 1\nimport nothing_of_that_name\n")
    assert lab("registry", "list", "--from", empty) == (0, "none: it registers nothing.\n", "")
    code, out, err = lab("registry", "list", "--from", broken)
    assert (code, out) == (2, "")
    assert err == f"{broken}:2: ModuleNotFoundError: No module named 'nothing_of_that_name'\n"
    code, _, err = lab("registry", "list", "--from", tmp_path / "none.yaml")
    assert (code, err) == (2, f"{tmp_path}/none.yaml: cannot be read (No such file or directory).\n")


def test_without_from_what_another_call_loaded_is_listed_among_the_others(lab: Lab, plugin: Path) -> None:
    lab("registry", "list", "--from", plugin)
    _, out, _ = lab("registry", "list", "samplers")
    assert re.search(r"^  gumbel ", out, re.MULTILINE)


def test_what_a_plug_in_prints_is_no_part_of_the_answer(lab: Lab, plugin: Path) -> None:
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
