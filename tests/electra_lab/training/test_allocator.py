"""Memory that is kept, seen by the page faults of a process that allocates the same block again and again."""

import resource
import subprocess
import sys

import pytest

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
