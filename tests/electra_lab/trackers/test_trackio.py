"""Trackio's database, read by its own API."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from electra_lab.jobs.track import FILE
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.testing import TrackerContract
from electra_lab.testing.trackers import Values
from registry import Tracked
from tests.electra_lab.trackers.kills import assert_whole, interrupted
from tests.electra_lab.trackers.library import needs


@pytest.fixture(scope="module", autouse=True)
def _own_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trackio sets its folder at import, so it must be replaced in every module that has imported the name."""
    import trackio

    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
            for constant in ("TRACKIO_DIR", "MEDIA_DIR"):
                if hasattr(sys.modules[name], constant):
                    patched.setattr(sys.modules[name], constant, folder)
        assert folder == trackio.TRACKIO_DIR
        yield


needs("trackio")

from electra_lab.trackers.trackio import Trackio  # noqa: E402  # only where the library is


def values_of(id: str) -> Values:
    from trackio.sqlite_storage import SQLiteStorage

    found = Values()
    for row in SQLiteStorage.get_logs("electra-lab", id):
        for name in row.keys() - {"step", "timestamp"}:
            found.setdefault(name, {}).setdefault(row["step"], []).append(row[name])
    return found


class TestTrackio(TrackerContract):
    name = "trackio"

    def read(self, run: Path, id: str) -> Values:
        return values_of(id)


def test_the_run_has_project_group_and_config(tmp_path: Path) -> None:
    import trackio

    tracker = Trackio(project="mine")
    id = tracker.start(Tracked("law-1", "law", tmp_path, {"seed": 3}, 0, None))
    tracker.record(1, {"train/loss": 2.0})
    assert tracker._run._cpu_monitor is None, "the load of the machine is recorded"
    tracker.close("done")
    assert id.startswith("law-1-")
    (stored,) = (run for run in trackio.Api().runs("mine") if run.name == id)
    assert (stored.config["seed"], stored.config["_Group"]) == (3, "law")


def test_killed_stopped_and_resumed(tmp_path: Path) -> None:
    """Trackio writes twice a second, so a kill loses later records."""
    from trackio.utils import TRACKIO_DIR

    path = interrupted(tmp_path, "{type: trackio}", TRACKIO_DIR=str(TRACKIO_DIR))
    (known,) = RunDirectory(path).read_json(FILE)
    assert_whole(values_of(known["id"]), path, lost=70)
