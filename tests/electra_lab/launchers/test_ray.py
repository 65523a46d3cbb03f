"""The ray launcher where there is no Ray, and against a stand-in for it; on real clusters: test_cluster_ray.py."""

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.launchers import local
from electra_lab.launchers import ray as module
from electra_lab.launchers.ray import Ray
from electra_lab.testing import probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.parallel.launch import port

ONE = {"one": ["true"]}


class RayError(Exception): ...


class StandIn:
    """The part of Ray that the launcher uses: tasks run in threads, one after the other."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, *, gpus: float = 0.0, initialized: bool = False, refuses: bool = False) -> None:
        self.gpus, self.initialized, self.refuses = gpus, initialized, refuses
        self.calls: list[str] = []
        self.init_options: dict[str, Any] = {}
        self.share: dict[str, Any] = {}
        self.cancelled: list[tuple[Any, bool]] = []
        self.started: list[str] = []
        self.pool = ThreadPoolExecutor(1)

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, **options: Any) -> None:
        self.calls.append("init")
        self.init_options = options
        if self.refuses:
            raise ConnectionError("nobody\nanswers")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0} | ({"GPU": self.gpus} if self.gpus else {})

    def remote(self, **share: Any) -> Callable[[Any], Any]:
        self.share = share

        def wrap(task: Any) -> Any:
            def start(command: Any, folder: str, name: str, threads: int, gpus: bool) -> Any:
                self.started.append(name)
                future = self.pool.submit(task, command, folder, name, threads, gpus)
                return SimpleNamespace(future=lambda: future, name=name)

            return SimpleNamespace(remote=start)

        return wrap

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.cancelled.append((reference, force))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StandIn]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def install(**options: Any) -> StandIn:
        library = StandIn(**options)
        monkeypatch.setitem(sys.modules, "ray", library)
        return library

    return install


def test_without_ray_there_is_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for ask in (lambda: Ray().check(), lambda: next(Ray()(ONE, tmp_path)), lambda: list(Ray()({}, tmp_path))):
        with pytest.raises(ConfigError, match=r"launcher 'ray' needs ray\. Install it: pip install 'electra-lab\[clus"):
            ask()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[127.0.0.1]:{}"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_nobody_at_the_address(given, monkeypatch, address: str, by: str, tmp_path: Path) -> None:
    """Ray itself would try for ten minutes."""
    library, where = given(), address.format(port())
    if by == "environment":
        monkeypatch.setenv("RAY_ADDRESS", where)
    with pytest.raises(ConfigError, match=r"finds no cluster at .*\(ConnectionRefusedError.*\. Start one there with"):
        next(Ray(address=where if by == "option" else None)(ONE, tmp_path))
    assert library.calls == []


@pytest.mark.parametrize("address", ["auto", "somewhere"])
def test_an_address_that_only_ray_can_read(given: Callable[..., StandIn], address: str, tmp_path: Path) -> None:
    library = given(refuses=True)
    with pytest.raises(ConfigError, match=rf"finds no cluster at {address} \(ConnectionError: nobody answers\)"):
        next(Ray(address=address)(ONE, tmp_path))
    assert library.calls == ["init", "shutdown"]


@pytest.mark.parametrize(("gpus", "there", "words"), [(2.0, 1.0, "2, but .* has 1"), (0.5, 0.0, r"0\.5, but .* has 0")])
def test_more_gpus_than_there_are(given, gpus: float, there: float, words: str, tmp_path: Path) -> None:
    library = given(gpus=there)
    with pytest.raises(ConfigError, match=f"launcher 'ray': gpus is {words}"):
        next(Ray(gpus=gpus)(ONE, tmp_path))
    assert library.calls == ["init", "shutdown"]
    assert library.started == []


def test_a_cluster_of_its_own_has_a_place_for_each_worker(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given(gpus=1.0)
    assert (Ray.here, Ray().check(), library.calls) == (False, None, [])
    commands = probes.commands(probes.behave, tmp_path, ["0-1", "5-2", "0-3"])
    outcomes = dict(Ray(workers=2, threads=3, gpus=0.5)(commands, tmp_path))
    assert {name: outcome.code for name, outcome in outcomes.items()} == {"0-1": 0, "5-2": 5, "0-3": 0}
    assert library.init_options["address"] == "local"
    assert library.init_options["num_cpus"] == 2
    assert library.share == {"max_retries": 0, "max_calls": 1, "num_cpus": 1, "num_gpus": 0.5}
    assert library.calls == ["init", "shutdown"]


def test_a_cluster_that_others_use_counts_threads(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given()
    assert len(list(Ray(workers=2, threads=3, address="auto")(ONE, tmp_path))) == 1
    assert library.init_options["address"] == "auto"
    assert "num_cpus" not in library.init_options
    assert library.share["num_cpus"] == 3


def test_a_connection_that_is_there_is_used_and_left(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given(initialized=True)
    assert len(list(Ray(threads=2)(ONE, tmp_path))) == 1
    assert library.calls == []
    assert library.share["num_cpus"] == 2


def test_closing_cancels_what_runs(given: Callable[..., StandIn], monkeypatch, tmp_path: Path) -> None:
    library = given()
    monkeypatch.setattr(module, "SAVING", 0.05)
    commands = probes.commands(probes.follow, tmp_path, ["one", "last", "two", "three"], 20)
    results = Ray(workers=2)(commands, tmp_path)
    assert next(results) == ("one", Outcome(0))
    results.close()
    (tmp_path / "go").touch()
    assert library.started == ["one", "last"]
    assert [(reference.name, force) for reference, force in library.cancelled] == [("last", False), ("last", True)]
    assert library.calls == ["init", "shutdown"]


def test_what_ray_says_of_a_task() -> None:
    future: Future[Outcome] = Future()
    future.set_exception(RayError("The node died.\nMore of it"))
    assert module._outcome(StandIn(), future) == Outcome(None, "Ray lost it (RayError: The node died.)")


@pytest.mark.parametrize(("gpus", "seen"), [(False, ""), (True, "5")])
def test_a_task_runs_its_command_in_a_process_of_its_own(monkeypatch, gpus: bool, seen: str, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    command = ["sh", "-c", "echo $OMP_NUM_THREADS $CUDA_VISIBLE_DEVICES; exit 5"]
    assert module._task(command, str(tmp_path), "one", 3, gpus).code == 5
    assert (tmp_path / "logs" / "one.txt").read_text().split() == ["3", *seen]


def test_a_task_that_ray_cancels_stops_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cancelled = []

    def cancel(seconds: float) -> None:
        if not cancelled and (tmp_path / "one.json").exists():
            cancelled.append(seconds)
            raise KeyboardInterrupt

    monkeypatch.setattr(local.time, "sleep", cancel)
    command = probes.commands(probes.linger, tmp_path, ["one"], 20)["one"]
    with pytest.raises(KeyboardInterrupt):
        module._task(command, str(tmp_path), "one", 1, False)
    assert (tmp_path / "one.stopped").read_text() == "1"


def test_a_task_that_a_signal_meets_at_its_start_is_cancelled(given, monkeypatch, tmp_path: Path) -> None:
    library = given()
    submit = library.pool.submit

    def interrupted(*args: Any) -> Future[Any]:
        future = submit(*args)
        os.kill(os.getpid(), signal.SIGINT)
        return future

    monkeypatch.setattr(library.pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(Ray()({"one": ["sleep", "0.5"]}, tmp_path))
    assert [(reference.name, force) for reference, force in library.cancelled] == [("one", False)]
