"""The ray launcher on real Ray clusters of this machine: `make test-cluster`."""

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from electra_lab.launchers.ray import Ray
from electra_lab.testing import LauncherContract, probes
from electra_lab.testing.launchers import ended, reported
from registry import Outcome
from tests.helpers import ROOT

why_not = "" if importlib.util.find_spec("ray") else "needs Ray: pip install 'electra-lab[clusters]'"
if "ELECTRA_LAB_CLUSTERS" not in os.environ:
    why_not = "takes minutes: make test-cluster"
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not)
PATIENCE = 40.0


def ray(work: Any, folder: Path, names: Sequence[str], *words: object, **options: Any) -> Any:
    return Ray(**options)(probes.commands(work, folder, names, *words), folder)


@pytest.fixture(scope="module", autouse=True)
def _no_other_cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", str(ROOT))  # the workers import the launcher
        patch.setenv("RAY_AUTH_MODE", "token")  # with a token of these tests, not the one in the home directory
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
        yield


@pytest.fixture(scope="module")
def address(_no_other_cluster: None) -> Iterator[str]:
    """A cluster that exists before the launcher starts and remains afterwards."""
    program = (
        "import ray, sys; ray.init(address='local', num_cpus=2, object_store_memory=80 * 2**20, "
        "include_dashboard=False, logging_level='ERROR'); "
        "print(ray.get_runtime_context().gcs_address, flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(30)


class TestRay(LauncherContract):
    """On a cluster that the launcher starts."""

    name = "ray"
    patience = PATIENCE


class TestRayCluster(LauncherContract):
    """On an existing cluster."""

    name = "ray"
    patience = PATIENCE

    @pytest.fixture(autouse=True)
    def _there(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", address)


def test_a_worker_of_ray_that_dies_is_a_lost_command(tmp_path: Path) -> None:
    """As if its machine had died; the worker is the parent of the command."""
    commands = {"a": ["sh", "-c", f"kill -9 $PPID; sleep {PATIENCE}"], "b": ["true"]}
    results = dict(Ray(workers=1)(commands, tmp_path))
    assert results["a"].code is None
    assert "Ray" in results["a"].error
    assert results["b"] == Outcome(0)


def test_a_cluster_of_its_own_ends_and_what_is_there_stays(tmp_path: Path, address: str) -> None:
    import ray as library

    for where in (None, address):
        assert dict(ray(probes.report, tmp_path, ["a"], address=where)) == {"a": Outcome(0)}
        assert not library.is_initialized()
    library.init(address=address, logging_level="ERROR")
    try:
        assert dict(ray(probes.report, tmp_path, ["a"])) == {"a": Outcome(0)}
        assert library.is_initialized()
    finally:
        library.shutdown()


def test_tasks_wait_for_room_in_the_cluster(tmp_path: Path, address: str) -> None:
    """It has two CPUs: one task of two threads at a time, for any number of workers."""
    list(ray(probes.crowd, tmp_path, list("abc"), workers=3, threads=2, address=address))
    assert {file.read_text() for file in tmp_path.glob("*.number")} == {"1"}


def test_closing_asks_once(tmp_path: Path) -> None:
    with closing(ray(probes.linger, tmp_path, ["quick", "a", "b"], PATIENCE, workers=2)) as results:
        assert next(results) == ("quick", Outcome(0))
    assert (tmp_path / "a.stopped").read_text() == "1"


LAUNCH = """
import pathlib, sys
from electra_lab.testing import probes
from registry import launchers
folder = pathlib.Path(sys.argv[1])
for outcome in launchers.get("ray").component(workers=2)(probes.commands(probes.linger, folder, "ab", 60), folder):
    print(outcome)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on_without_its_launcher(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C goes to all processes of the terminal, and running tasks save. If a launcher is killed, Ray ends its
    tasks."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(tmp_path)], start_new_session=True)
    assert probes.until(lambda: set(reported(tmp_path)) == {"a", "b"}, PATIENCE)
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)
    process.wait(PATIENCE)
    assert probes.until(lambda: all(ended(where["pid"]) for where in reported(tmp_path).values()), PATIENCE)
    if number == signal.SIGINT:
        assert [(tmp_path / f"{piece}.stopped").read_text() for piece in "ab"] == ["1", "1"]
