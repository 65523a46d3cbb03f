"""The choice of device and precision, compared with torch's facts about this machine; kept memory, by page faults."""

import resource
import subprocess
import sys
from typing import Any

import pytest
import torch

from electra_lab.training.device import bf16_units, choose_device, choose_precision
from electra_lab.training.execution import autocast
from registry.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_auto_is_cuda_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ConfigError, match=r"--device cuda: torch finds no CUDA device here\. Use --device cpu or auto"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 3)
    assert choose_device("cpu") == CPU
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({}, ""), ({"avx512_bf16": False}, ""), ({"avx512_bf16": True}, "AVX-512 BF16"), ({"amx_bf16": True}, "AMX")],
)
def test_bf16_of_processors(monkeypatch: pytest.MonkeyPatch, capabilities: Any, expected: str) -> None:
    """Without the width of a network, auto is fp32 on all processors."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert bf16_units() == expected
    assert choose_precision("auto", CPU) == "fp32"


def test_auto_on_cuda_is_what_the_device_does_without_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for an absent device assumes a current one."""
    asked: list[bool] = []

    def supported(*, including_emulation: bool) -> bool:
        asked.append(including_emulation)
        return False

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_precision("auto", CUDA) == "fp16"
    assert asked == [False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_precision("auto", CUDA) == "bf16"


def test_a_named_precision_is_taken_and_makes_products_narrow_and_no_losses() -> None:
    a = torch.ones(2, 2)
    for precision, expected in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        assert choose_precision(precision, CPU) == choose_precision(precision, CUDA) == precision
        with autocast(CPU, precision):
            assert (a @ a).dtype == expected
            assert torch.nn.functional.cross_entropy(a, a[0].long()).dtype == torch.float32
        assert (a @ a).dtype == torch.float32


def test_a_training_within_another_block_sees_its_present_weights() -> None:
    layer, ones = torch.nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    with autocast(CPU, "bf16"):
        with torch.no_grad():
            layer(ones)  # its narrow copy of the weight has no gradient
        for weight in (0.5, 3.0):
            layer.weight.data.fill_(weight)
            with autocast(CPU, "bf16"):
                found = layer(ones)
                found.sum().backward()
            assert found.tolist() == [[2 * weight, 2 * weight]]
            layer.weight.data.fill_(7.0)
            assert layer(ones).tolist() == [[14.0, 14.0]]  # nor does the outer one keep the inner one's copies
        assert torch.equal(layer.weight.grad, torch.full((2, 2), 2.0))  # of two steps


PROGRAM = """
import resource
import torch
from electra_lab.training.device import keep_freed_memory

def faults():
    for _ in range(3):  # the first freed block may be cut for something smaller
        torch.ones(10_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
assert keep_freed_memory()
print(min(faults() for _ in range(3)))  # a machine short of memory adds some
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone has these settings")
def test_a_block_that_is_allocated_again_costs_no_page_faults() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    usual, kept = map(int, ran.stdout.split())
    once = 40_000_000 // resource.getpagesize()
    assert usual >= 9.9 * once
    assert kept <= 1.1 * once
