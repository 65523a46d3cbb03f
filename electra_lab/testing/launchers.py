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

    patience  seconds that two commands may need to run side by side, and to end once they are asked to
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
        self, work: Callable[..., None], folder: Path, names: Sequence[str], *options: object, **chosen: int
    ) -> Iterator[tuple[str, Outcome]]:
        launcher: Launcher = self.component()(**{"workers": 2, "threads": 1} | chosen)
        return launcher(probes.commands(work, folder, names, *options), folder)

    def test_it_says_where_commands_run_and_that_nothing_is_missing(self) -> None:
        launcher = self.component()(workers=1, threads=1)
        assert isinstance(launcher.here, bool)
        assert launcher.check() is None

    def test_every_command_comes_once_with_its_exit_code_and_its_output(self, folder: Path) -> None:
        names = [f"{code}-{number}" for code, number in product((0, 1, 5, 75, 130), range(2))]
        results = list(self.launch(probes.behave, folder, names))
        assert Counter(name for name, _ in results) == Counter(names)
        for name, outcome in results:
            assert outcome.code == int(name.split("-")[0])
            assert bool(outcome.error) == (outcome.code != 0)
            output = (folder / "logs" / f"{name}.txt").read_text(encoding="utf-8")
            assert output.startswith(f"{name} says something\n")

    def test_a_command_that_fails_or_dies_does_not_stop_the_others(self, folder: Path) -> None:
        names = ["0-1", "raises-1", "killed-1", "0-2", "killed-2", "0-3"]
        outcomes = dict(self.launch(probes.behave, folder, names))
        assert [outcomes[name].code for name in names if name[0] == "0"] == [0, 0, 0]
        assert outcomes["raises-1"].code == 1
        assert "ValueError: raises-1 is no good" in (folder / "logs" / "raises-1.txt").read_text(encoding="utf-8")
        for name in ("killed-1", "killed-2"):
            assert outcomes[name].code in (-signal.SIGKILL, None)
            assert outcomes[name].error, "it does not say why"

    def test_never_more_at_once_than_there_are_workers(self, folder: Path) -> None:
        list(self.launch(probes.crowd, folder, [f"command-{n}" for n in range(6)]))
        assert {file.read_text(encoding="utf-8") for file in folder.glob("*.number")} <= {"1", "2"}

    def test_workers_work_side_by_side(self, folder: Path) -> None:
        outcomes = dict(self.launch(probes.meet, folder, ["one", "two"], 2, self.patience))
        assert outcomes == dict.fromkeys(("one", "two"), Outcome(0))

    def test_what_is_done_first_comes_first(self, folder: Path) -> None:
        """A slow command delays neither the others nor their outcomes."""
        order = []
        for name, outcome in self.launch(probes.follow, folder, ["last", "one", "two"], self.patience):
            assert outcome == Outcome(0)
            order.append(name)
            if len(order) == 2:
                (folder / "go").touch()
        assert order == ["one", "two", "last"]

    @pytest.mark.parametrize("threads", [1, 2])
    def test_a_command_has_its_share_of_threads(self, folder: Path, threads: int) -> None:
        assert dict(self.launch(probes.report, folder, ["one"], "OMP_NUM_THREADS", threads=threads))["one"].code == 0
        assert reported(folder)["one"]["environment"] == {"OMP_NUM_THREADS": str(threads)}

    def test_nothing_to_do(self, folder: Path) -> None:
        assert list(self.launch(probes.report, folder, [])) == []

    def test_closing_the_iterator_stops_what_runs(self, folder: Path) -> None:
        results = self.launch(probes.linger, folder, ["slow-1", "quick", "slow-2", "slow-3"], self.patience)
        assert next(results) == ("quick", Outcome(0))
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
                list(self.launch(probes.linger, folder, ["slow-1", "slow-2"], self.patience))
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
    """Return the facts that the commands have written about the place where they run."""
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
