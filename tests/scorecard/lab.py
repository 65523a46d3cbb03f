"""Commands of the lab in forked processes, with faults; and the comparison of runs that must be equal.

All tests of a session share the server of the fixture `forks` in tests/conftest.py: a command costs no imports.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.helpers import ROOT

COUNT, KILL, TEAR, FAIL, SHORT, SIGNAL = range(6)  # as in faults.c
TRACES = ("Traceback (most recent call last)", "internal error")
TIMES = ("seconds", "tokens_per_second", "peak_memory_bytes")  # of records; all other fields are equal in equal runs


def compiled_shim(folder: Path) -> Path | None:
    """Compile the library that injects faults; None without a compiler, or without Linux and its LD_PRELOAD."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        return None
    library, source = folder / "faults.so", Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Fault:
    """A fault at the n-th call that changes something below a folder; see faults.c."""

    below: Path
    action: int
    nth: int = 0
    value: int = 0  # an errno or a signal
    lasting: bool = False
    kinds: str = ""  # all
    journal: str = ""

    @property
    def words(self) -> str:
        """The fault, short enough for a list of failed trials."""
        errno_ = errno.errorcode.get(self.value, str(self.value))
        names = {KILL: "SIGKILL before", TEAR: "SIGKILL in the middle of", SHORT: "half of the write at"}
        names |= {FAIL: f"{errno_} at", COUNT: "counted"}
        if self.action == SIGNAL:
            names[SIGNAL] = f"{signal.Signals(self.value).name} before"
        return f"{names[self.action]} call {self.nth}{' and after it' * self.lasting}"


@dataclass(frozen=True, repr=False)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float  # of processor time
    megabytes: float  # peak of memory

    @property
    def traced(self) -> bool:
        """True if its error output has a traceback."""
        return any(trace in self.err for trace in TRACES)

    @property
    def last(self) -> str:
        """The end of its error output."""
        return " / ".join(line.strip() for line in self.err.strip().splitlines()[-3:])[-400:]

    def must(self, *codes: int) -> Ended:
        """Check that it ended with one of these codes and without a traceback. Raises AssertionError."""
        assert self.code in codes, f"not exit {' or '.join(map(str, codes))}, but {self}"
        assert not self.traced, f"a traceback: {self}"
        return self

    def __repr__(self) -> str:
        return f"exit {self.code}: {self.last}"


class Running:
    """A command that was started."""

    def __init__(self, lab: Lab, pid: int, out: Path, err: Path) -> None:
        self.lab, self.pid, self.out, self.err = lab, pid, out, err
        self._ended: Ended | None = None

    def send(self, number: int) -> None:
        """Send a signal; the process may have ended without having been waited for."""
        os.kill(self.pid, number)

    def poll(self, timeout: float = 0.0) -> Ended | None:
        """Return the ended command, None if it still runs."""
        if self._ended is None:
            answer = self.lab.ask({"wait": self.pid, "timeout": timeout})
            if answer.get("timeout"):
                return None
            out, err = (path.read_text(encoding="utf-8", errors="replace") for path in (self.out, self.err))
            self.out.unlink()
            self.err.unlink()
            self._ended = Ended(answer["code"], out, err, answer["seconds"], answer["megabytes"])
        return self._ended

    def wait(self, timeout: float = 60.0) -> Ended:
        if ended := self.poll(timeout):
            return ended
        said = self.err.read_text(errors="replace")[-500:]
        self.kill()
        raise AssertionError(f"still running after {timeout:g} s: {said}")

    def kill(self) -> None:
        """End it by SIGKILL if it still runs."""
        if not self.poll():
            os.kill(self.pid, signal.SIGKILL)
            self.poll(10.0)


class Lab:
    """The command line of the lab, each time in a process forked from one that has imported it."""

    def __init__(
        self, shim: Path | None, folder: Path, python: str = sys.executable, modules: Sequence[str] = ()
    ) -> None:
        self.shim, self.folder, self.seconds, self._numbers = shim, folder, 0.0, itertools.count()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"LD_PRELOAD": str(shim)} if shim else {}
        environment |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "TOKENIZERS_PARALLELISM": "false"}
        self._server = subprocess.Popen(
            [python, "-m", "tests.scorecard.server", *modules],
            cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._answer()

    def close(self) -> None:
        self._server.stdin.close()  # type: ignore[union-attr]
        self._server.wait(timeout=60)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._server.stdin.write(json.dumps(message) + "\n")  # type: ignore[union-attr]
        self._server.stdin.flush()  # type: ignore[union-attr]
        answer = self._answer()
        self.seconds += answer.get("seconds", 0.0)
        return answer

    def _answer(self) -> dict[str, Any]:
        line = self._server.stdout.readline()  # type: ignore[union-attr]
        assert line, "the fork server has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(
        self,
        *arguments: object,
        cwd: Path,
        fault: Fault | None = None,
        hooks: Sequence[tuple[str, dict[str, Any]]] = (),
        environment: dict[str, str] | None = None,
        limits: dict[str, int] | None = None,
    ) -> Running:
        number = next(self._numbers)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        faults = asdict(fault) | {"below": str(fault.below)} if fault else None
        start = {
            "arguments": [str(word) for word in arguments], "folder": str(cwd), "out": str(out), "err": str(err),
            "faults": faults, "hooks": list(hooks), "environment": environment or {}, "limits": limits or {},
        }  # fmt: skip
        return Running(self, self.ask({"start": start})["pid"], out, err)

    def __call__(self, *arguments: object, cwd: Path, timeout: float = 60.0, **options: Any) -> Ended:
        """Run a command to its end; see `start` for the options."""
        return self.start(*arguments, cwd=cwd, **options).wait(timeout)

    def calls(self, *arguments: object, cwd: Path, below: Path, kinds: str = "") -> list[str]:
        """Return the calls below a folder in an undisturbed command: "open checkpoints/..."."""
        journal = self.folder / f"journal-{next(self._numbers)}"
        fault = Fault(below, COUNT, kinds=kinds, journal=str(journal))
        self(*arguments, cwd=cwd, fault=fault).must(0)
        lines = journal.read_text().splitlines()
        return [line.split(" ", 1)[1].replace(f"{below}/", "") for line in lines]


@dataclass(frozen=True)
class Likeness:
    """What must be equal in equal runs, however they were interrupted: bytes of tensors, and records except times."""

    checkpoint: str
    tensors: bytes
    state: str
    records: list[dict[str, Any]]
    examples: str | None

    def differs(self, other: Likeness) -> list[str]:
        """Return the names of the fields that differ."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name)]


def likeness(run: Path) -> Likeness:
    last = saved(run)[-1]
    examples = run / "examples.json"
    return Likeness(
        last.name,
        (last / "state.safetensors").read_bytes(),
        json.dumps(json.loads((last / "state.json").read_text()) | {"run": ""}),  # every run has another id
        [{key: value for key, value in record.items() if key not in TIMES} for record in records(run)],
        examples.read_text() if examples.exists() else None,
    )


def records(run: Path) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, without its first and an incomplete last line."""
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines[1:]]


def saved(run: Path) -> list[Path]:
    """Return the checkpoints, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if (path / "MANIFEST.json").is_file())


def is_valid(checkpoint: Path) -> bool:
    """Compare a checkpoint's files with its manifest, independently of the lab's own code."""
    import hashlib

    try:
        manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
        return {"state.json", "state.safetensors"} <= set(manifest) and all(
            hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == value["sha256"]
            for name, value in manifest.items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def litter(run: Path) -> list[str]:
    """Return the files that a finished run must not contain: temporary files and incomplete checkpoints."""
    hidden = [path for path in run.rglob(".*") if path.name != ".lock"]
    broken = [path for path in (run / "checkpoints").glob("*") if not is_valid(path)]
    return sorted(str(path.relative_to(run)) for path in {*hidden, *broken})
