"""Several processes that want one store: one builds it, the others wait."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from electra_lab.data.store import open_store
from registry.errors import DataError
from tests.electra_lab.data.test_store import DOCUMENTS, Documents, contents, left, opened, recipe
from tests.helpers import ROOT

SLOW = """
import sys, time
from pathlib import Path
from tests.electra_lab.data.test_store import DOCUMENTS, Documents, opened

class Slow(Documents):
    def __iter__(self):
        Path(sys.argv[1]).touch()
        time.sleep(0.5)
        yield from self.documents

Path("ready-" + sys.argv[1]).touch()
while len(list(Path().glob("ready-*"))) < 2:
    time.sleep(0.01)
print(opened(Path("store"), Slow(DOCUMENTS)).key)
"""


def test_two_processes_build_one_store(tmp_path: Path) -> None:
    """Of the same bytes as this process builds, whatever their hash seeds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SLOW, name],
            cwd=tmp_path,
            env=environment | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for name, seed in (("a", "1"), ("b", "2"))
    ]
    keys = {process.communicate(timeout=60)[0].decode().strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(keys) == 1
    assert left(tmp_path / "store") == list(keys)
    assert len([name for name in "ab" if (tmp_path / name).exists()]) == 1, "the corpus was read twice"
    here = opened(tmp_path / "here")
    assert contents(tmp_path / "store" / here.key) == contents(here.folder)


def test_the_lock_outlives_a_holder_that_fails(tmp_path: Path) -> None:
    """One build fails while a second waits for it; a third that comes later must wait for the second."""
    (tmp_path / "kept").touch()  # so that the failing build does not remove the folder
    reading = {name: threading.Event() for name in "abc"}
    go_on = {name: threading.Event() for name in "abc"}
    outcome: dict[str, Any] = {}

    class Stepwise(Documents):
        def __init__(self, name: str) -> None:
            super().__init__(DOCUMENTS)
            self.name = name

        def __iter__(self) -> Iterator[str]:
            reading[self.name].set()
            assert go_on[self.name].wait(20)
            if self.name == "a":
                raise DataError("fails")
            yield from self.documents

    waits = threading.Event()

    def say(name: str, text: str) -> None:
        if (name, text) == ("b", "another process is building this token store; waiting for it"):
            waits.set()

    def build(name: str) -> None:
        try:
            outcome[name] = open_store(tmp_path, recipe(Stepwise(name)), partial(say, name)).key
        except BaseException as error:
            outcome[name] = error

    threads = {name: threading.Thread(target=build, args=name, daemon=True) for name in "abc"}
    threads["a"].start()
    assert reading["a"].wait(20)
    threads["b"].start()
    assert waits.wait(20)  # b has opened the lock file and waits for it
    go_on["a"].set()
    threads["a"].join(20)
    assert reading["b"].wait(20)
    threads["c"].start()
    assert not reading["c"].wait(0.3), "two build at once"
    go_on["b"].set()
    go_on["c"].set()
    for thread in threads.values():
        thread.join(20)
    assert isinstance(outcome["a"], DataError)
    assert outcome["b"] == outcome["c"]
    assert not reading["c"].is_set()
    assert left(tmp_path) == sorted([outcome["b"], "kept"])
