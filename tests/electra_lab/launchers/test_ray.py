"""The ray launcher where there is no Ray, and against a stand-in for it; on real clusters: test_cluster_ray.py."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from electra_lab.launchers import ray as module
from electra_lab.launchers.ray import Ray
from electra_lab.testing import probes
from registry import Outcome
from registry.errors import ConfigError
from tests.electra_lab.parallel.launch import port


class RayError(Exception): ...


class RayTaskError(RayError):
    def __init__(self, cause: Exception | None, text: str = "") -> None:
        super().__init__(text)
        self.cause = cause


class StandIn:
    """The part of Ray that the launcher uses: tasks run in threads, one after the other."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

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
            def start(work: Any, folder: str, piece: str, threads: int, gpus: bool) -> Any:
                self.started.append(piece)
                future = self.pool.submit(work, folder, piece)
                return SimpleNamespace(future=lambda: future, piece=piece)

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
    for ask in (lambda: Ray().check(), lambda: next(Ray()(probes.behave, str(tmp_path), ["done"])),
                lambda: list(Ray()(probes.behave, str(tmp_path), []))):  # fmt: skip
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
        next(Ray(address=where if by == "option" else None)(probes.behave, str(tmp_path), ["done"]))
    assert library.calls == []


@pytest.mark.parametrize("address", ["auto", "somewhere"])
def test_an_address_that_only_ray_can_read(given: Callable[..., StandIn], address: str, tmp_path: Path) -> None:
    library = given(refuses=True)
    with pytest.raises(ConfigError, match=rf"finds no cluster at {address} \(ConnectionError: nobody answers\)"):
        next(Ray(address=address)(probes.behave, str(tmp_path), ["done"]))
    assert library.calls == ["init", "shutdown"]


@pytest.mark.parametrize(("gpus", "there", "words"), [(2.0, 1.0, "2, but .* has 1"), (0.5, 0.0, r"0\.5, but .* has 0")])
def test_more_gpus_than_there_are(given, gpus: float, there: float, words: str, tmp_path: Path) -> None:
    library = given(gpus=there)
    with pytest.raises(ConfigError, match=f"launcher 'ray': gpus is {words}"):
        next(Ray(gpus=gpus)(probes.behave, str(tmp_path), ["done"]))
    assert library.calls == ["init", "shutdown"]
    assert library.started == []


def test_a_cluster_of_its_own_has_a_place_for_each_worker(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given(gpus=1.0)
    assert (Ray.here, Ray().check(), library.calls) == (False, None, [])
    ids = ["done-1", "failed-2", "done-3"]
    outcomes = list(Ray(workers=2, threads=3, gpus=0.5)(probes.behave, str(tmp_path), ids))
    assert dict(outcomes) == {name: Outcome(name.split("-")[0], f"said {name}") for name in ids}
    assert library.init_options["address"] == "local"
    assert library.init_options["num_cpus"] == 2
    assert library.share == {"max_retries": 0, "max_calls": 1, "num_cpus": 1, "num_gpus": 0.5}
    assert library.calls == ["init", "shutdown"]


def test_a_cluster_that_others_use_counts_threads(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given()
    assert len(list(Ray(workers=2, threads=3, address="auto")(probes.behave, str(tmp_path), ["done-1"]))) == 1
    assert library.init_options["address"] == "auto"
    assert "num_cpus" not in library.init_options
    assert library.share["num_cpus"] == 3


def test_a_connection_that_is_there_is_used_and_left(given: Callable[..., StandIn], tmp_path: Path) -> None:
    library = given(initialized=True)
    assert len(list(Ray(threads=2)(probes.behave, str(tmp_path), ["done-1"]))) == 1
    assert library.calls == []
    assert library.share["num_cpus"] == 2


def test_closing_cancels_what_runs(given: Callable[..., StandIn], monkeypatch, tmp_path: Path) -> None:
    library = given()
    monkeypatch.setattr(module, "SAVING", 0.05)
    work = partial(probes.follow, patience=20.0)
    results = Ray(workers=2)(work, str(tmp_path), ["one", "last", "two", "three"])
    assert next(results) == ("one", Outcome("done"))
    results.close()
    (tmp_path / "go").touch()
    assert library.started == ["one", "last"]
    assert [(reference.piece, force) for reference, force in library.cancelled] == [("last", False), ("last", True)]
    assert library.calls == ["init", "shutdown"]


def test_what_ray_says_of_a_task() -> None:
    def outcome(error: Exception) -> Outcome:
        future: Future[Outcome] = Future()
        future.set_exception(error)
        return module._outcome(StandIn(), future)

    assert outcome(RayTaskError(ImportError("No module named 'mine'"))) == Outcome(
        "failed", "Ray could not start the piece (ImportError: No module named 'mine')"
    )
    assert outcome(RayTaskError(None, "a task")).error == "Ray could not start the piece (RayTaskError: a task)"
    assert outcome(RayError("The node died.\nMore of it")) == Outcome("lost", "Ray lost it (RayError: The node died.)")


def environment(folder: str, piece: str) -> Outcome:
    return Outcome("done", f"{os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')!r}")


@pytest.mark.parametrize(("gpus", "seen"), [(False, "''"), (True, "'5'")])
def test_a_task_runs_its_piece_in_a_process_of_its_own(monkeypatch, gpus: bool, seen: str, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert module._task(environment, str(tmp_path), "one", 3, gpus) == Outcome("done", f"3 {seen}")


def test_a_task_that_ray_cancels_is_preempted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupted:
        def __init__(self, **_: Any) -> None: ...

        def __call__(self, *_: Any) -> Any:
            raise KeyboardInterrupt
            yield

    monkeypatch.setattr(module.launchers, "get", lambda name: SimpleNamespace(component=Interrupted))
    assert module._task(probes.behave, str(tmp_path), "one", 1, False) == Outcome("preempted", "was stopped by Ray")
