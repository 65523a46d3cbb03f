"""Long tests: `make soak`. An ablation whose launchers and workers are killed again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from electra_lab.storage.ablation_folder import AblationFolder
from tests.electra_lab.jobs.sweeps.small import STEPS, ablate, contents, lines, start, write
from tests.electra_lab.launchers.slurm_here import missing, slurm_here

pytestmark = pytest.mark.skipif("ELECTRA_LAB_SOAK" not in os.environ, reason="takes many minutes: make soak")

KILLS = 20


def test_24_cells_through_20_kills(tmp_path: Path) -> None:
    """Four workers, two launchers at once, random SIGKILLs to launchers and workers: every cell ends exactly once, with
    the weights, records and measures of a run one cell after the other; the tables are equal byte for byte, except for
    times."""
    file = write(tmp_path, seeds="[0, 1, 2, 3, 4, 5]", discriminator="{type: bert, dim: 32, depth: 1, heads: 4}")
    text = file.read_text().replace(
        "vary: {generator.scale: [0.5, 1.0]}", "vary: {generator.scale: [0.25, 0.5, 0.75, 1.0]}"
    )
    file.write_text(text + "retries: 100\n")
    serial = ablate(file, tmp_path / "serial", workers=1)
    file.write_text(file.read_text().replace("workers: 2", "workers: 4"))

    out, dice, killed = tmp_path / "out", random.Random(0), 0
    launchers = [start(file, out) for _ in range(2)]
    deadline = time.monotonic() + 3600
    while True:
        assert time.monotonic() < deadline
        time.sleep(dice.uniform(1.0, 8.0))
        if killed >= KILLS:
            break
        for place, launcher in enumerate(launchers):
            if launcher.poll() is not None:
                assert launcher.returncode in (-signal.SIGKILL, 0), launcher.communicate()[1]
                launchers[place] = start(file, out)
        victim = dice.choice(launchers)
        workers = _children(victim.pid)
        target = victim.pid if not workers or dice.random() < 0.4 else dice.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)
            killed += 1
    for launcher in launchers:
        said = launcher.communicate(timeout=1800)[1]
        assert launcher.returncode in (0, -signal.SIGKILL), said
    assert start(file, out).wait(timeout=600) == 0
    print(f"{killed} kills")
    assert killed == KILLS
    plan = AblationFolder(out).plan
    assert len(plan.cells) == 24
    for cell in plan.cells:
        records = lines(out / "cells" / cell.id)
        assert [(r["step"], r["split"]) for r in records] == [
            *((step, "train") for step in range(2, STEPS + 1, 2)), (STEPS, "validation"), (STEPS, "test"),
        ]  # fmt: skip
    assert contents(out) == contents(serial)
    assert _timeless(out) == _timeless(serial)


def test_killed_or_stopped_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    file = write(tmp_path)
    whole = ablate(file, tmp_path / "whole")
    out = tmp_path / "out"
    killed = start(file, out)
    _until(lambda: list(out.glob("cells/*/checkpoints/step-*")), killed)
    killed.kill()
    killed.communicate()
    stopped = start(file, out)
    # The cells of the killed one go on.
    _until(lambda: len(list(out.glob("cells/*/report.html"))) >= 2 and _children(stopped.pid), stopped)
    stopped.send_signal(signal.SIGTERM)
    said = stopped.communicate(timeout=120)[1]
    assert stopped.returncode in (0, 75), said  # it may have just ended
    ablate(file, out)
    assert contents(out) == contents(whole)
    assert (out / "table.csv").read_text().splitlines()[0] == (whole / "table.csv").read_text().splitlines()[0]


def _until(true: Any, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not true() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def _slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if why := missing():
        pytest.skip(f"no Slurm can run here: {why}")
    with slurm_here(tmp_path_factory.mktemp("slurm")) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("_slurm")
def test_8_cells_on_slurm_through_kills_of_launchers_and_jobs(tmp_path: Path) -> None:
    _on_a_cluster(tmp_path, "slurm", _stop_a_job)


def test_8_cells_on_ray_through_kills_of_launchers_and_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra: pip install -e '.[clusters]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    _on_a_cluster(tmp_path, "ray", _kill_a_worker)


def _on_a_cluster(tmp_path: Path, launcher: str, strike: Callable[[random.Random], bool]) -> None:
    """Kill two launchers one after the other, and pieces of work; the result is that of a serial run."""
    file = write(tmp_path, seeds="[0, 1, 2, 3]", more="retries: 100")
    serial = ablate(file, tmp_path / "serial", workers=1)
    out, dice, struck = tmp_path / "out", random.Random(0), 0
    for _ in range(2):
        process = start(file, out, "--launcher", launcher, "--workers", "2")
        deadline = time.monotonic() + dice.uniform(40, 60)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(5.0)
            struck += struck < 6 and strike(dice)
        process.kill()
        process.communicate()
    last = start(file, out, "--launcher", launcher, "--workers", "2")
    said = last.communicate(timeout=1800)[1]
    assert last.returncode == 0, said
    print(f"{struck} pieces of work were struck")
    assert struck
    assert contents(out) == contents(serial)
    assert _timeless(out) == _timeless(serial)


def _stop_a_job(dice: random.Random) -> bool:
    """Cancel, requeue or preempt a running job."""
    asked = ["squeue", "--noheader", "--states=RUNNING", "--format=%i"]
    jobs = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    if not jobs:
        return False
    how = dice.choice([["scancel"], ["scontrol", "requeue"], ["scancel", "--signal=TERM", "--full"]])
    return subprocess.run([*how, dice.choice(jobs)], capture_output=True, check=False).returncode == 0


def _kill_a_worker(dice: random.Random) -> bool:
    found = subprocess.run(["pgrep", "-f", "electra_lab cell"], capture_output=True, text=True, check=False).stdout
    mine = [int(line) for line in found.split() if _descends(int(line), os.getpid())]
    if not mine:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(dice.choice(mine), signal.SIGKILL)
    return True


def _descends(process: int, ancestor: int) -> bool:
    while process > 1 and process != ancestor:
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return process == ancestor


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in found.split()]


def _timeless(out: Path) -> list[dict[str, str]]:
    import csv

    with (out / "table.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{k: v for k, v in row.items() if "second" not in k and "memory" not in k} for row in rows]
