"""Peak memory from shapes: against counts by hand, and against the same computation with numbers."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import nn

from electra_lab.planning.memory import free_bytes, peak_bytes, shapes_only
from registry.errors import BadResult

MEGA = 1_000_000


def test_by_hand() -> None:
    def computation() -> torch.Tensor:
        a = torch.ones(MEGA // 4)  # 1 MB
        b = a + 1  # 2
        del a  # 1
        c = b * 2  # 2
        c += 1
        view = c.view(-1)[5:]
        del b, c  # 1
        return view.double()  # 1 + 2

    assert peak_bytes(computation) == pytest.approx(3 * MEGA, rel=1e-4)
    with shapes_only():
        assert peak_bytes(computation) == pytest.approx(3 * MEGA, rel=1e-4)


def test_activations_are_held_for_the_backward_pass_and_gradients_are_made_by_it() -> None:
    """Five sigmoid layers keep five outputs; without gradients, only one output and its input exist at a time."""
    layers = nn.Sequential(*(nn.Sigmoid() for _ in range(5)))
    x = torch.zeros(MEGA // 4, requires_grad=True)
    with torch.no_grad():
        assert peak_bytes(lambda: layers(x)) == pytest.approx(2 * MEGA, rel=1e-4)
    assert peak_bytes(lambda: layers(x)) == pytest.approx(5 * MEGA, rel=1e-4)
    # 5 outputs, 0 for the incoming gradient (expanded from a scalar), 1 for the outgoing one.
    assert peak_bytes(lambda: layers(x).sum().backward()) == pytest.approx(6 * MEGA, rel=0.01)


def test_shapes_take_no_memory_and_hold_no_numbers_to_be_read() -> None:
    def refuse() -> None:
        raise BadResult("no")

    with shapes_only():
        assert torch.ones(1 << 50).nbytes == 1 << 52
        assert peak_bytes(lambda: int(torch.ones(3).sum())) is None
        assert peak_bytes(lambda: torch.ones(3).nonzero()) is None
        with pytest.raises(BadResult):  # the lab's own refusals are not mistaken for reads of numbers
            peak_bytes(refuse)


def test_what_is_freed_counts_once_and_what_was_there_before_not_at_all() -> None:
    """The same megabyte ten times in a row; in-place operations and views on existing tensors are free."""
    given = torch.zeros(MEGA // 4)

    def computation() -> None:
        for _ in range(10):
            torch.ones(MEGA // 4)
        given.add_(1).view(2, -1).mul_(2)

    assert peak_bytes(computation) == pytest.approx(MEGA, rel=1e-3)


def test_weights_that_were_built_before_do_not_count() -> None:
    """A matrix of a megabyte, built from shapes before: only its output and its gradient count."""
    with shapes_only():
        layer = nn.Linear(500, 500, bias=False)
    with shapes_only():
        assert peak_bytes(lambda: layer(torch.ones(1, 500)).sum()) == pytest.approx(4004, abs=100)
        assert peak_bytes(lambda: layer(torch.ones(1, 500)).sum().backward()) == pytest.approx(MEGA + 4004, abs=5000)


ROOT, JOB = "/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/slurm/job_7"
NAMED = "Limit  Soft Limit\nMax address space         {}            unlimited   bytes\n"
MACHINE = {"/proc/meminfo": "MemTotal:  900 kB\nMemAvailable:   500 kB\n"}
CONTAINER = {
    f"{ROOT}/memory.max": "300000\n",
    f"{ROOT}/memory.current": "250000\n",
    f"{ROOT}/memory.stat": "anon 5\ninactive_file 20000\n",
}


def version_1(line: str, folder: str) -> dict[str, str]:
    """A container also sees its own group at the root, although its name is that of the host."""
    group = f"{ROOT}/memory{folder}"
    return {
        "/proc/self/cgroup": f"9:name=systemd:/\n{line}\n0::/\n",
        f"{ROOT}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{ROOT}/memory/memory.usage_in_bytes": "400000\n",
        f"{group}/memory.limit_in_bytes": "300000\n",
        f"{group}/memory.usage_in_bytes": "250000\n",
        f"{group}/memory.stat": "inactive_file 3\ntotal_inactive_file 20000\n",
    }


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (MACHINE | CONTAINER, 70_000),  # the remaining memory, with the cache that the kernel can drop
        (MACHINE | CONTAINER | {f"{ROOT}/memory.max": "max\n"}, 500 * 1024),
        (MACHINE | {"/proc/self/limits": NAMED.format("unlimited"), "/proc/self/statm": "10 5 3\n"}, 500 * 1024),
        (MACHINE | {"/proc/self/limits": NAMED.format("90000"), "/proc/self/statm": "2 5 3\n"},
         90_000 - 2 * mmap.PAGESIZE),
        ({}, None),
        # Slurm limits the group of a job, and groups within it have no limit.
        (MACHINE | {"/proc/self/cgroup": "1:name=systemd:/other\n0::/system.slice/slurm/job_7/step_0\n",
                    f"{JOB}/step_0/memory.max": "max\n", f"{JOB}/step_0/memory.current": "9000\n",
                    f"{JOB}/memory.max": "300000\n", f"{JOB}/memory.current": "10000\n"}, 290_000),
        (MACHINE | version_1("4:memory:/docker/ab12", "/docker/ab12"), 70_000),
        (MACHINE | version_1("3:cpu,memory:/docker/ab12", "/docker"), 70_000),
        (MACHINE | version_1("4:memory:/docker/ab12", ""), 70_000),
    ],
)  # fmt: skip
def test_the_least_of_all_limits_counts(monkeypatch, files: dict[str, str], free: int | None) -> None:
    def read_text(path: Path, **_: object) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert free_bytes(torch.device("cpu")) == free


def test_what_torch_keeps_on_the_device_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"is_available": True, "mem_get_info": (100, 1000), "memory_reserved": 700, "memory_allocated": 200}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    assert free_bytes(torch.device("cuda", 0)) == 600
