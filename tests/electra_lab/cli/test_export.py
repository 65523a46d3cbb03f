"""electra-lab export: what it writes, how to load it, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.export.exports import finished
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.helpers import ROOT


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("runs")
    plugin = f"[{ROOT / 'experiments' / 'plugins' / 'light_conv.py'}]"
    with for_a_module():
        yield {
            "plain": finished(folder / "plain", generator="{type: unigram}"),
            "plug_in": finished(
                folder / "plug_in", imports=plugin, discriminator="{type: light_conv, dim: 16, depth: 1, heads: 2}"
            ),
        }


def test_it_says_what_it_wrote_and_how_to_load_it(lab: Lab, runs: dict[str, Path]) -> None:
    code, out, err = lab("export", runs["plain"], "out")
    assert (code, err) == (0, "")
    assert out == (
        "out: the networks after step 12\n"
        "  discriminator   ElectraForPreTraining, 4,841 parameters\n"
        "  note: The generator, `unigram`, learned nothing and was not exported.\n"
        "load with:\n\n"
        "  from transformers import AutoModelForPreTraining\n"
        "  discriminator = AutoModelForPreTraining.from_pretrained('out/discriminator')\n"
    )


def test_it_names_the_onnx_files(lab: Lab, runs: dict[str, Path]) -> None:
    code, out, _ = lab("export", runs["plain"], "out", "--onnx-size", "1x8")
    assert (code, out.splitlines()[1].endswith(", model.onnx")) == (0, True)


def test_the_code_that_it_prints_loads_both_networks(lab: Lab, runs: dict[str, Path]) -> None:
    code, out, _ = lab("export", runs["plug_in"], "out")
    assert code == 0
    lines = out.partition("load with:\n\n")[2].replace("\n  ", "\n").strip()
    assert lines.count("load_plugin") == 1
    names: dict[str, object] = {}
    with for_a_module():
        import registry

        del registry.backbones._entries["light_conv"]
        registry.discovery._loaded.clear()
        exec(lines, names)
    assert [type(names[part]).__name__ for part in ("discriminator", "generator")] == [
        "ElectraLabForPreTraining",
        "ElectraLabForMaskedLM",
    ]


def test_programs_may_read_the_answer(lab: Lab, runs: dict[str, Path]) -> None:
    code, out, _ = lab("export", runs["plain"], "out", "--step", 8, "--json")
    made = {"class": "ElectraForPreTraining", "auto_class": "AutoModelForPreTraining", "parameters": 4841}
    networks = {"discriminator": {"path": "out/discriminator", **made}}
    assert (code, json.loads(out)) == (0, {"path": "out", "step": 8, "networks": networks})


def test_a_step_that_is_not_kept_lists_those_that_are(lab: Lab, runs: dict[str, Path]) -> None:
    err = lab.fails(4, "export", runs["plain"], "out", "--step", 5)
    assert err.endswith("there is no checkpoint of step 5. Kept: 8, 12.\n")
    assert not Path("out").exists()


def test_other_folders_are_left_alone(lab: Lab, runs: dict[str, Path]) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    for run, destination, said in (
        (runs["plain"], "mine", "/mine: exists, and is not an earlier export. Choose another folder.\n"),
        ("mine", "out", "mine: is not a run directory: it has no config.yaml and provenance.json.\n"),
    ):
        err = lab.fails(2, "export", run, destination)
        assert err.endswith(said)
    assert [path.name for path in Path().rglob("*")] == ["mine", "notes.txt"]
