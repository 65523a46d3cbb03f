"""Laws of launchers."""

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from electra_lab.testing import probes
from electra_lab.testing.common import Contract
from registry import Launcher, Outcome, launchers
from registry.errors import Preempted


class LauncherContract(Contract):
    """Laws of launchers. Override `folder` if the workers do not see pytest's temporary folder.

    patience  seconds that two pieces of work may need to run side by side, and to end once they are asked to
    """

    registry = launchers
    patience: float = 20.0

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture(autouse=True)
    def _ends(self) -> Iterator[None]:
        """Fail a launcher that waits for ever."""
        with on_signal(signal.SIGALRM, TimeoutError("the launcher did not come to an end")):
            signal.setitimer(signal.ITIMER_REAL, 4 * self.patience)
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)

    def launch(
        self, work: Callable[[str, str], Outcome], folder: Path, ids: Sequence[str], workers: int = 2, threads: int = 1
    ) -> Iterator[tuple[str, Outcome]]:
        launcher: Launcher = self.component()(workers=workers, threads=threads)
        return launcher(work, str(folder), ids)

    def test_it_says_where_pieces_run_and_that_nothing_is_missing(self) -> None:
        launcher = self.component()(workers=1, threads=1)
        assert isinstance(launcher.here, bool)
        assert launcher.check() is None

    def test_every_id_comes_once_with_its_outcome(self, folder: Path) -> None:
        statuses = ("done", "failed", "lost", "preempted", "elsewhere")
        ids = [f"{status}-{number}" for status, number in product(statuses, range(2))]
        results = list(self.launch(probes.behave, folder, ids))
        assert Counter(name for name, _ in results) == Counter(ids)
        for name, outcome in results:
            assert outcome == Outcome(name.split("-")[0], f"said {name}")  # type: ignore[arg-type]

    def test_an_exception_fails_its_own_piece_alone(self, folder: Path) -> None:
        ids = ["done-1", "raises-1", "exits-1", "done-2"]
        outcomes = dict(self.launch(probes.behave, folder, ids, workers=1))
        expected = dict(zip(ids, ["done", "failed", "failed", "done"], strict=True))
        assert {name: outcome.status for name, outcome in outcomes.items()} == expected
        assert "ValueError: raises-1 is no good" in outcomes["raises-1"].error, "it does not say why, on one line"
        assert "exits-1 exits" in outcomes["exits-1"].error

    def test_a_process_that_dies_is_lost_and_the_others_finish(self, folder: Path) -> None:
        ids = ["done-1", "killed-1", "done-2", "gone-1", "killed-2", "done-3"]
        results = list(self.launch(probes.behave, folder, ids))
        assert Counter(name for name, _ in results) == Counter(ids)
        for name, outcome in results:
            assert outcome.status == ("done" if name.startswith("done") else "lost")
            assert outcome.error, "it does not say why"

    def test_never_more_at_once_than_there_are_workers(self, folder: Path) -> None:
        results = list(self.launch(probes.crowd, folder, [f"piece-{n}" for n in range(6)]))
        assert {outcome.error for _, outcome in results} <= {"1", "2"}

    def test_workers_work_side_by_side(self, folder: Path) -> None:
        work = partial(probes.meet, number=2, patience=self.patience)
        assert list(dict(self.launch(work, folder, ["one", "two"])).values()) == [Outcome("done")] * 2

    def test_what_is_done_first_comes_first(self, folder: Path) -> None:
        """A slow piece delays neither the others nor their outcomes."""
        order = []
        work = partial(probes.follow, patience=self.patience)
        for name, outcome in self.launch(work, folder, ["last", "one", "two"]):
            assert outcome == Outcome("done")
            order.append(name)
            if len(order) == 2:
                (folder / "go").touch()
        assert order == ["one", "two", "last"]

    @pytest.mark.parametrize("threads", [1, 2])
    def test_work_runs_elsewhere_with_its_share_of_threads(self, folder: Path, threads: int) -> None:
        work = partial(probes.report, names=("OMP_NUM_THREADS",))
        assert dict(self.launch(work, folder, ["one"], threads=threads)) == {"one": Outcome("done")}
        where = reported(folder)["one"]
        assert (where["host"], where["pid"]) != (socket.gethostname(), os.getpid())
        assert where["environment"] == {"OMP_NUM_THREADS": str(threads)}

    def test_nothing_to_do(self, folder: Path) -> None:
        assert list(self.launch(probes.report, folder, [])) == []

    def test_closing_the_iterator_stops_what_runs(self, folder: Path) -> None:
        ids = ["slow-1", "quick", "slow-2", "slow-3"]
        results = self.launch(partial(probes.linger, patience=self.patience), folder, ids)
        assert next(results) == ("quick", Outcome("done"))
        results.close()  # type: ignore[attr-defined]
        self.assert_all_stopped(folder)

    def test_a_signal_stops_what_runs(self, folder: Path) -> None:
        """A program turns SIGTERM into an exception, which reaches the launcher while it waits."""

        def send() -> None:
            if probes.until(lambda: bool(reported(folder)), self.patience):
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGTERM)

        sender = threading.Thread(target=send, daemon=True)
        with on_signal(signal.SIGTERM, Preempted("stop")):
            sender.start()
            with pytest.raises(Preempted):
                list(self.launch(partial(probes.linger, patience=self.patience), folder, ["slow-1", "slow-2"]))
            sender.join()
        self.assert_all_stopped(folder)

    def assert_all_stopped(self, folder: Path) -> None:
        assert reported(folder)
        for name, where in reported(folder).items():
            assert (folder / f"{name}.stopped").exists(), f"{name} had no time to save"
            assert (folder / f"{name}.stopped").read_text(encoding="utf-8") != "0", f"{name} was not asked to stop"
            if where["host"] == socket.gethostname():
                assert ended(where["pid"]), f"the process of {name} is left"


def reported(folder: Path) -> dict[str, Any]:
    """Return the facts that the pieces have written about the place where they run."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def ended(pid: int) -> bool:
    """Return True if there is no such process on this machine, not even a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@contextmanager
def on_signal(number: signal.Signals, error: Exception) -> Iterator[None]:
    """Let the signal `number` raise `error`."""

    def strike(*_: object) -> None:
        raise error

    before = signal.signal(number, strike)
    try:
        yield
    finally:
        signal.signal(number, before)
