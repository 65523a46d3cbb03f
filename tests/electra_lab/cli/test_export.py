"""electra-lab export: its files, how to load them, and refusals."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import registry
from tests.electra_lab.cli.conftest import Lab
from tests.electra_lab.export.exports import finished
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.helpers import ROOT

LIGHT = {
    "imports": f"[{ROOT / 'experiments' / 'plugins' / 'light_conv.py'}]",
    "discriminator": "{type: light_conv, dim: 16, depth: 1, heads: 2}",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with for_a_module():
        return finished(tmp_path_factory.mktemp("plain") / "run", generator="{type: unigram}")


def test_it_says_what_it_wrote_and_how_to_load_it(lab: Lab, plain: Path) -> None:
    code, out, err = lab("export", plain, "out", "--onnx-size", "1x8")
    assert (code, err) == (0, "")
    assert out == (
        "out: the networks after step 12\n"
        "  discriminator   ElectraForPreTraining, 4,841 parameters, model.onnx\n"
        "  note: The generator, `unigram`, learned nothing and was not exported.\n"
        "load with:\n\n"
        "  from transformers import AutoModelForPreTraining\n"
        "  discriminator = AutoModelForPreTraining.from_pretrained('out/discriminator')\n"
    )
    code, out, _ = lab("export", plain, "other", "--step", 8, "--json", "--license", "mit")
    assert ModelCard.load(Path("other/discriminator/README.md")).data.license == "mit"
    made = {"class": "ElectraForPreTraining", "auto_class": "AutoModelForPreTraining", "parameters": 4841}
    networks = {"discriminator": {"path": "other/discriminator", **made}}
    assert (code, json.loads(out)) == (0, {"path": "other", "step": 8, "networks": networks})


def test_the_code_that_it_prints_loads_both_networks(lab: Lab, tmp_path: Path) -> None:
    with for_a_module():
        code, out, _ = lab("export", finished(tmp_path / "run", **LIGHT), "out")
    lines = out.partition("load with:\n\n")[2].replace("\n  ", "\n").strip()
    assert (code, lines.count("load_plugin")) == (0, 1)
    assert "light_conv" not in registry.backbones.names()
    names: dict[str, object] = {}
    with for_a_module():
        exec(lines, names)
    found = [type(names[part]).__name__ for part in ("discriminator", "generator")]
    assert found == ["ElectraLabForPreTraining", "ElectraLabForMaskedLM"]


def test_refusals_write_nothing(lab: Lab, plain: Path) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    for code, words, said in (
        (4, (plain, "out", "--step", 5), "there is no checkpoint of step 5. Kept: 8, 12.\n"),
        (2, (plain, "mine"), "/mine: exists, and is not an earlier export. Choose another folder.\n"),
        (2, ("mine", "out"), "mine: is not a run directory: it has no config.yaml and provenance.json.\n"),
    ):
        assert lab.fails(code, "export", *words).endswith(said)
    assert [path.name for path in Path().rglob("*")] == ["mine", "notes.txt"]
