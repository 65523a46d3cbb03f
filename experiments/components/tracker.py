"""A tracker."""

import json
from collections.abc import Mapping

from registry import Ended, Tracked, trackers


@trackers.register("my_tracker")
class MyTracker:
    """A JSON object for each record, in my_tracker.jsonl of the run directory."""

    rewinds = False  # a resumed run sends no record twice

    def check(self) -> None: ...

    def start(self, run: Tracked, /) -> str:
        self.file = run.folder / "my_tracker.jsonl"
        return str(self.file)

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self, outcome: Ended, /) -> None: ...
