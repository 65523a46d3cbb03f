"""Several processes that want one store: one builds it, the others wait."""

import os
import subprocess
import sys
from pathlib import Path

from tests.electra_lab.data.test_store import contents, left, opened
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
