"""Networks as ONNX: onnxruntime computes the lab's logits for every batch and length."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from electra_lab.export import onnx as module
from electra_lab.export.export import export
from electra_lab.export.onnx import INPUTS, write_onnx
from electra_lab.model.network import Network
from electra_lab.model.pair import EmbeddingSizes, make_pair
from electra_lab.pretrained.hugging_face import MARK
from registry import backbones
from registry.errors import ConfigError
from tests.electra_lab.export.exports import assert_close, finished, inputs, logits, opened

for _name in module.NEEDED:
    pytest.importorskip(_name, reason=f"{_name} is not installed")

LONGEST = 48
slow = pytest.mark.skipif("ELECTRA_LAB_ONNX" not in os.environ, reason="takes a minute: make test-onnx")
SHAPES = [(1, 1), (1, 3), (2, 16), (3, 17), (5, LONGEST)]


def network(kind: str, heads: tuple[str, ...] = ("replaced",), **options: Any) -> Network:
    torch.manual_seed(0)
    backbone: Any = backbones.get(kind).component(16, 1, 4, LONGEST, **options)
    made = make_pair(None, 0, backbone, 16, EmbeddingSizes(60, 8, LONGEST, 0.1), "none", 0, heads)[1]
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return made.eval()


def assert_computed(file: Path, ours: Network, size: int) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert [(each.name, each.type) for each in session.get_inputs()] == [(name, "tensor(int64)") for name in INPUTS]
    assert [each.name for each in session.get_outputs()] == ["logits"]
    for rows, length in SHAPES:
        given = inputs(size, rows, length)
        computed = session.run(["logits"], {name: given[name].numpy() for name in INPUTS})[0]
        assert_close(torch.from_numpy(computed), logits(ours, given), given, 1e-4)


def test_an_export_has_the_discriminator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("electra_lab.jobs.pretraining.execute.write_report", lambda directory: directory.path)
    run = finished(tmp_path)
    capsys.readouterr()
    export(run, tmp_path / "out", onnx=True)
    assert capsys.readouterr() == ("", "")
    ours = opened(run)
    assert_computed(
        tmp_path / "out" / "discriminator" / "model.onnx", ours.networks["discriminator"], ours.vocabulary.size
    )
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.onnx*")}
    assert files == {"discriminator/model.onnx"}  # no file of weights beside it
    card = (tmp_path / "out" / "discriminator" / "README.md").read_text()
    assert "- `model.onnx` turns `input_ids`, `attention_mask`, `token_type_ids` into `logits`." in card


@slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("transformer", {"rotary": True, "rmsnorm": True, "glu": True}),
        ("transformer", {"local_heads": 1, "window": 4}),
        ("performer", {"local_heads": 1, "window": 4}),
    ],
)
def test_other_backbones_are_written(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    ours = network(kind, **options)
    write_onnx(tmp_path / "model.onnx", ours, 60, LONGEST)
    assert_computed(tmp_path / "model.onnx", ours, 60)


@slow
def test_weights_of_a_large_network_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ONNX holds 2 GB at most; the two files can be moved together. Here the head is that for tokens."""
    monkeypatch.setattr(module, "LARGEST", 1000)
    ours = network("bert", ("tokens",))
    (tmp_path / "made").mkdir()
    write_onnx(tmp_path / "made" / "model.onnx", ours, 60, LONGEST)
    (tmp_path / "made").rename(tmp_path / "moved")
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert_computed(tmp_path / "moved" / "model.onnx", ours, 60)


@slow
def test_what_depends_on_the_sizes_of_its_input_is_refused(tmp_path: Path) -> None:
    """Reformer's hash depends on the length; nothing is left of the export."""
    run = finished(tmp_path / "a", discriminator="{type: reformer, dim: 16, depth: 1, heads: 2, bucket_size: 4}")
    with pytest.raises(ConfigError) as refused:
        export(run, tmp_path / "out", onnx=True)
    assert str(refused.value) == (
        "Reformer cannot be written as ONNX with any batch and length: torch cannot export it (Specializations "
        "unexpectedly required (length)!). Export without --onnx."
    )
    assert not [path for path in tmp_path.iterdir() if path.name != "a"]
    export(run, tmp_path / "out")
    assert (tmp_path / "out" / MARK).is_file()


class _Odd(nn.Module):
    """Adds what onnxruntime computes in another way."""

    length_multiple, positions = 1, "own"

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * torch.rand_like(x)


@slow
def test_other_logits_than_torchs_are_refused(tmp_path: Path) -> None:
    made = network("bert")
    made.backbone = _Odd()
    with pytest.raises(
        ConfigError, match=r"_Odd cannot be written .* its logits would differ by 0\.\d+\. Export without"
    ):
        write_onnx(tmp_path / "model.onnx", made, 60, LONGEST)


def test_without_the_packages_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(ConfigError, match=r"ONNX needs no_such_package\. Install: pip install 'electra-lab\[onnx\]'"):
        write_onnx(tmp_path / "model.onnx", network("bert"), 60, LONGEST)
