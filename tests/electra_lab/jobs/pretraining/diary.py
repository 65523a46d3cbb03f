"""A tracker in a user's file: it records every call, and fails on request."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from registry import Ended, Tracked, trackers
from registry.errors import ConfigError

When = Literal["never", "build", "check", "start", "record", "close"]


@trackers.register("diary")
class Diary:
    """A file of lines. A file `ink` next to it lets all calls succeed; a file `no paper` makes its library missing.

    fails    the call that fails
    at_step  the only step whose record fails; by default all do
    exits    it fails by sys.exit
    """

    def __init__(
        self, /, *, path: Path, fails: When = "never", at_step: int = 0, exits: bool = False, rewinds: bool = False
    ) -> None:
        self.path, self.fails, self.at_step, self.exits, self.rewinds = path, fails, at_step, exits, rewinds
        if fails == "build":
            raise ValueError("no such diary")

    def check(self) -> None:
        if self.fails == "check" or (self.path.parent / "no paper").exists():
            raise ConfigError("needs paper. Install it: pip install paper.")

    def start(self, run: Tracked, /) -> str:
        self.note("start", run.name, run.group, str(run.folder), run.step, run.id, dict(run.config))
        return run.id or f"id of {run.name}"

    def record(self, step: int, values: Mapping[str, float], /) -> None:
        self.note("record", step, dict(values), fails=self.at_step in (0, step))

    def close(self, outcome: Ended, /) -> None:
        self.note("close", outcome)

    def note(self, call: str, *what: object, fails: bool = True) -> None:
        if call == self.fails and fails and not (self.path.parent / "ink").exists():
            raise SystemExit(3) if self.exits else OSError(f"no ink\nto {call}")
        with self.path.open("a") as stream:
            stream.write(json.dumps([call, *what]) + "\n")
