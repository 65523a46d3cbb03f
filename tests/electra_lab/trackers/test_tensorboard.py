"""TensorBoard's event files, read by its own accumulator."""

import logging
import os
from pathlib import Path

import pytest

from electra_lab.testing import TrackerContract
from electra_lab.testing.trackers import Values
from registry import Tracked
from tests.electra_lab.trackers.kills import assert_whole, interrupted
from tests.electra_lab.trackers.library import needs

needs("tensorboard")

from electra_lab.trackers.tensorboard import TensorBoard  # noqa: E402  # only where the library is


def accumulated(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of repeated values, which are intended here
    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def values_in(folder: Path) -> Values:
    found, read = Values(), accumulated(folder)
    for name in read.Tags()["scalars"]:
        for event in read.Scalars(name):
            found.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return found


class TestTensorBoard(TrackerContract):
    name = "tensorboard"

    def read(self, run: Path, id: str) -> Values:
        assert id == str(run / "tensorboard")
        return values_in(run / "tensorboard")


def test_values_after_the_checkpoint_are_those_of_the_second_time(tmp_path: Path) -> None:
    first, second = TensorBoard(), TensorBoard()
    id = first.start(Tracked("law-1", "law", tmp_path, {}, 0, None))
    for step in range(1, 7):
        first.record(step, {"train/loss": 1.0 * step})
    second.start(Tracked("law-1", "law", tmp_path, {}, 3, id))
    second.record(4, {"train/loss": 40.0})
    assert values_in(tmp_path / "tensorboard") == {"train/loss": {1: [1.0], 2: [2.0], 3: [3.0], 4: [40.0]}}
    first.close("failed")
    second.close("done")


@pytest.mark.parametrize("own", [False, True])
def test_the_folder_and_the_config(tmp_path: Path, own: bool) -> None:
    tracker = TensorBoard(folder=tmp_path / "own") if own else TensorBoard()
    place = tmp_path / "own" / "law-1" if own else tmp_path / "run" / "tensorboard"
    for id in (None, str(place)):
        assert tracker.start(Tracked("law-1", "law", tmp_path / "run", {"train": {"steps": 9}}, 0, id)) == str(place)
        tracker.close("done")
    (text,) = accumulated(place).Tensors("config/text_summary")
    assert '"steps": 9' in text.tensor_proto.string_val[0].decode()


@pytest.mark.skipif("ELECTRA_LAB_TRACKERS" not in os.environ, reason="takes half a minute: make test-trackers")
def test_killed_stopped_and_resumed(tmp_path: Path) -> None:
    path = interrupted(tmp_path, "{type: tensorboard}")
    assert_whole(values_in(path / "tensorboard"), path)
