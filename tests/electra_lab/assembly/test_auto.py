"""The rules behind `auto`: by processor, precision, width, length and FLOPs; kept by a resume, shared by cells."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_lab.assembly import budget
from electra_lab.assembly.budget import SHORT_ROWS, WIDE, Scale, by_rule, decide
from electra_lab.config.load import load
from electra_lab.config.schema import Train
from electra_lab.jobs.pretraining import execute
from electra_lab.storage.run_directory import RunDirectory
from registry.contracts.objective import ALONE, World
from registry.errors import ConfigError
from tests.electra_lab.jobs.pretraining.tiny import experiment, lose_checkpoints, outcome, run

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHORT = SHORT_ROWS["AVX-512 BF16"]
LARGE = Scale(WIDE, SHORT, 10**15)
TRAIN = "{steps: 4, batch_size: 4, log_every: 2, learning_rate: 0.01}"
BERT = "{type: bert, dim: 16, depth: 1, heads: 2, dropout: 0.0}"
UNITS = {"AMX": {"amx_bf16": True, "avx512_bf16": True}, "AVX-512 BF16": {"avx512_bf16": True}, "": {}}


@pytest.fixture(autouse=True)
def _compiler(no_report: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "missing_compiler", lambda _: None)


def processor(monkeypatch: pytest.MonkeyPatch, units: str) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: UNITS[units])


def by_rules(scale: Scale, device: torch.device = CPU, **named: Any) -> str:
    return " ".join(value for value, _ in by_rule(Train(steps=1, **named), scale, device).values())


@pytest.mark.parametrize(
    ("units", "scale", "expected"),
    [
        ("AVX-512 BF16", LARGE, "bf16 products layers"),
        ("AVX-512 BF16", Scale(WIDE, SHORT + 1, 10**15), "bf16 fused layers"),
        # Measured with AMX: 533 ms with products and 658 fused at 128 x 16, 849 and 642 at 512 x 4
        ("AMX", Scale(WIDE, 128, 10**15), "bf16 products layers"),
        ("AMX", Scale(WIDE, 129, 10**15), "bf16 fused layers"),
        ("AMX", LARGE, "bf16 fused layers"),
        ("AMX", Scale(WIDE, 128, 10**15 - 1), "bf16 products off"),
        ("AMX", Scale(WIDE - 1, 128, 10**15), "fp32 fused off"),
        ("", LARGE, "fp32 fused off"),
    ],
)
def test_on_a_cpu(monkeypatch: pytest.MonkeyPatch, units: str, scale: Scale, expected: str) -> None:
    processor(monkeypatch, units)
    assert by_rules(scale) == expected
    found = by_rule(Train(steps=1), scale, CPU)
    assert all(reason for _, reason in found.values())
    assert units in found["precision"][1]
    if found["precision"][0] == "bf16":
        assert {*f"{units} {SHORT_ROWS[units]}".split()} <= {*found["attention"][1].split()}


@pytest.mark.parametrize(
    ("bf16", "flops", "expected"),
    [(True, 10**16, "bf16 fused layers"), (True, 10**15, "bf16 fused off"), (False, 10**16, "fp16 fused layers")],
)
def test_on_cuda(monkeypatch: pytest.MonkeyPatch, bf16: bool, flops: int, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: bf16)
    assert by_rules(Scale(16, 16, flops), CUDA) == expected


def test_a_value_that_the_experiment_names_stands_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "AMX")
    named = Train(steps=1, precision="fp32", attention="fused", compile="off")
    assert decide(named, LARGE, CPU, ALONE) == budget.Choices("fp32", "fused", "off", {})
    # The rules of the other keys use the precision that the experiment names.
    assert by_rules(LARGE, precision="fp32") == "fp32 fused off"
    processor(monkeypatch, "")  # bf16 is slow on this processor
    assert by_rules(LARGE, precision="bf16") == "bf16 fused off"


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """An error if the experiment asks for compilation; with `auto` nothing is compiled."""
    processor(monkeypatch, "AMX")
    long, train = Scale(WIDE, SHORT, 10**16), Train(steps=1, precision="bf16")
    assert decide(train, long, device, ALONE).compile == "layers"
    monkeypatch.setattr(budget, "missing_compiler", "none for {}".format)
    found = decide(train, long, device, ALONE)
    assert (found.compile, found.reasons["compile"]) == ("off", f"none for {device.type}")
    with pytest.raises(ConfigError, match=rf"^train\.compile: layers needs .* none for {device.type}"):
        decide(train.model_copy(update={"compile": "layers"}), long, device, ALONE)


def test_rank_0_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(World):
        rank, size = 1, 2

        def once(self, work: Any) -> str:
            return told

    processor(monkeypatch, "AMX")
    told = json.dumps(by_rule(Train(steps=1), LARGE, CPU))
    processor(monkeypatch, "")
    assert decide(Train(steps=1), LARGE, CPU, Second()).precision == "bf16"


# Runs


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment that is wide enough for bf16, on a processor that supports it."""
    processor(monkeypatch, "AVX-512 BF16")
    monkeypatch.setattr(budget, "WIDE", 16)
    return experiment(tmp_path, train=TRAIN, embedding="{dim: 8, max_length: 16, dropout: 0.0}", discriminator=BERT)


def environment(path: Path) -> Any:
    return RunDirectory(path).provenance().environment


def test_what_is_decided_is_what_runs_and_is_told_with_its_reason(file: Path, tmp_path: Path, capsys) -> None:
    path = run(file, tmp_path / "auto")
    found, said = environment(path), capsys.readouterr().err
    assert (found.precision, found.attention, found.compile) == ("bf16", "products", "off")
    assert found.reasons.keys() == {"precision", "attention", "compile"}
    for key, reason in found.reasons.items():
        assert f"  {key:<14}{getattr(found, key)}: {reason}\n" in said
    named = run(file, tmp_path / "named", "train.precision=bf16", "train.attention=products", "train.compile=off")
    assert environment(named).reasons == {}
    (records, weights), (same, others) = outcome(path), outcome(named)
    assert records == same
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())


def test_a_resume_goes_by_what_the_run_began_with(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(file, tmp_path / "whole")
    path = Path(shutil.copytree(whole, tmp_path / "cut"))
    lose_checkpoints(path)
    processor(monkeypatch, "")
    execute.resume(path, "cpu")
    assert outcome(path)[0] == outcome(whole)[0]
    assert environment(path) == environment(whole)


def test_on_another_device_the_rules_decide_again_and_it_is_said(file, tmp_path, monkeypatch, capsys) -> None:
    path = run(file, tmp_path / "run")
    provenance = path / "provenance.json"
    device = json.loads(provenance.read_text())["environment"]["device"]
    provenance.write_text(provenance.read_text().replace(json.dumps(device), '"NVIDIA H100"'))
    processor(monkeypatch, "")
    capsys.readouterr()
    execute.resume(path, "cpu")
    said = capsys.readouterr().err
    for change in ("device NVIDIA H100 -> cpu", "precision bf16 -> fp32", "attention products -> fused"):
        assert change in said


def test_experiments_that_are_compared_go_by_the_same_numbers(file: Path, tmp_path: Path) -> None:
    scale = Scale.of(load(file), 10**15)
    execute.run(file, ["discriminator.dim=8", "train.compile=off"], tmp_path / "narrow", "cpu", scale)
    assert environment(tmp_path / "narrow").precision == "bf16"
    execute.run(file, ["discriminator.dim=8"], tmp_path / "alone", "cpu")
    assert environment(tmp_path / "alone").precision == "fp32"
