"""Rows 1, 2, 6, 7 and 9 of the scorecard for transformers' Trainer and for Lightning: `make scorecard-peers`.

    python -m benchmarks.peers.reliability [INTERPRETER]

The outcomes are counted, and written to build/scorecard_peers.md and .json. INTERPRETER is the Python interpreter that
has the two libraries; one that it lacks is skipped.
"""

from __future__ import annotations

import errno
import importlib
import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TypeVar

from benchmarks.peers import config
from tests.helpers import ROOT
from tests.scorecard.lab import COUNT, FAIL, KILL, SHORT, TEAR, Ended, Fault, Lab, compiled_shim
from tests.scorecard.rows import SEED
from tests.scorecard.table import FOLDER

PYTHON = sys.argv[1] if len(sys.argv) > 1 else sys.executable
PEERS = {"trainer": ("accelerate", "transformers"), "pl": ("lightning", "jsonargparse")}
MOST = 120
T = TypeVar("T")
OUTCOMES: dict[str, dict[str, Counter[str]]] = {}


@dataclass
class Peer:
    """A trainer in forked processes, and the weights of an undisturbed run."""

    name: str
    module: ModuleType
    lab: Lab
    folder: Path
    expected: bytes = b""

    @property
    def out(self) -> Path:
        return self.folder / "all" / "out"

    def train(self, **options: object) -> Ended:
        """Train in `out`, from the last checkpoint on if there is one. Temporary files lie next to it."""
        (self.folder / "all" / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {"TMPDIR": str(self.folder / "all" / "tmp"), **options.pop("environment", {})}  # type: ignore[dict-item]
        train = (f"{self.module.__name__}:train", self.out, self.folder / "result")
        return self.lab(*train, cwd=self.folder, environment=environment, **options)  # type: ignore[arg-type]

    def clean(self) -> None:
        shutil.rmtree(self.folder / "all", ignore_errors=True)
        (self.folder / "result").unlink(missing_ok=True)

    def again(self) -> str:
        """Start it once more and return the outcome."""
        ended = self.train()
        if ended.code:
            return "cannot be continued"
        return "identical" if (self.folder / "result").read_bytes() == self.expected else "other weights"

    def count(self, row: str, outcome: str) -> None:
        OUTCOMES.setdefault(row, {}).setdefault(self.name, Counter())[outcome] += 1


@contextmanager
def started(kind: str) -> Iterator[Peer]:
    """Start a trainer, and let it train undisturbed. Raises ImportError if a library is not installed."""
    versions = []
    for name in PEERS[kind]:
        show = f"import {name}; print(getattr({name}, '__version__', ''))"
        found = subprocess.run([PYTHON, "-c", show], cwd=ROOT, capture_output=True, text=True, check=False)
        if found.returncode:
            raise ImportError(f"{name} is not installed for {PYTHON}")
        versions.append(f"{name} {found.stdout.strip()}")
    module = importlib.import_module(f"benchmarks.peers.{kind}")
    with TemporaryDirectory() as above:
        folder = Path(above)
        made = Peer(", ".join(versions), module, Lab(compiled_shim(folder), folder, PYTHON, module.MODULES), folder)
        assert made.train().code == 0
        made.expected = (folder / "result").read_bytes()
        yield made
        made.lab.close()


def write_outcomes() -> None:
    """Write the counts; rows that an earlier call has counted are kept."""
    file = FOLDER / "scorecard_peers.json"
    FOLDER.mkdir(exist_ok=True)
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for row, by_peer in OUTCOMES.items():
        found[row] = found.get(row, {}) | by_peer
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = ["| row | trainer | outcomes |", "|---|---|---|"]
    for row, by_peer in sorted(found.items()):
        for name, counted in by_peer.items():
            outcomes = "; ".join(f"{number} {outcome}" for outcome, number in Counter(counted).most_common())
            lines.append(f"| {row} | {name} | {outcomes} (of {sum(counted.values())}) |")
    file.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def calls(peer: Peer) -> list[str]:
    peer.clean()
    journal = peer.folder / "journal"
    journal.unlink(missing_ok=True)
    assert peer.train(fault=Fault(peer.folder / "all", COUNT, journal=str(journal))).code == 0
    return [line.split()[1] for line in journal.read_text().splitlines()]


def sampled(cases: list[T]) -> list[T]:
    """Return at most MOST of the cases: Lightning writes in thousands of small pieces."""
    return random.Random(SEED).sample(cases, min(MOST, len(cases)))


def row_1_kills(peer: Peer) -> None:
    found = calls(peer)
    points = [(KILL, n) for n in range(1, len(found) + 1)]
    points += [(TEAR, n) for n, kind in enumerate(found, start=1) if kind == "write"]
    for action, nth in sampled(points):
        peer.clean()
        ended = peer.train(fault=Fault(peer.folder / "all", action, nth))
        peer.count("1 kills", peer.again() if ended.code == -signal.SIGKILL else "was not killed")


def row_2_signals(peer: Peer) -> None:
    """Half a second a step, as Trainer waits three seconds after SIGTERM before it saves."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU):
        for step in (1, 5):
            peer.clean()
            hook = ("signals", {"point": "step", "nth": step, "numbers": [int(number)]})
            ended = peer.train(hooks=[hook], environment={"SECONDS_A_STEP": "0.5"})
            found = [int("".join(filter(str.isdigit, path.name.split("step")[-1]))) for path in checkpoints(peer)]
            saved = max(found, default=0) >= step
            outcome = "went on to the end" if ended.code == 0 else peer.again()
            peer.count("2 signals", f"{'saved' if saved else 'not saved'}, {outcome}")


def checkpoints(peer: Peer) -> list[Path]:
    """Return the checkpoints, oldest first."""
    found = [*peer.out.glob("checkpoint-*"), *peer.out.glob("checkpoints/*step=*.ckpt")]
    return sorted(found, key=lambda path: int("".join(filter(str.isdigit, path.name.split("step")[-1]))))


def row_6_damage(peer: Peer) -> None:
    peer.clean()
    assert peer.train().code == 0
    kept = shutil.copytree(peer.folder / "all", peer.folder / "kept")
    newest = checkpoints(peer)[-1].relative_to(peer.folder / "all")
    dice = random.Random(SEED)
    for trial in range(100):
        peer.clean()
        shutil.copytree(kept, peer.folder / "all")
        place = peer.folder / "all" / newest
        # Lightning keeps its newest checkpoint twice: damage the one that would be loaded.
        last = peer.out / "checkpoints" / "last.ckpt"
        files = sorted(place.iterdir()) if place.is_dir() else [last if last.exists() else place]
        file = dice.choice(files)
        content = bytearray(file.read_bytes())
        if trial % 2:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        else:
            del content[dice.randrange(len(content)) :]
        file.write_bytes(content)
        peer.count(f"6 damage ({'a bit flipped' if trial % 2 else 'cut'})", peer.again())


def row_7_write_errors(peer: Peer) -> None:
    found = calls(peer)
    below, growing = peer.folder / "all", "open write mkdir rename link truncate"
    grows, writes = sum(kind in growing for kind in found), found.count("write")
    faults = [Fault(below, FAIL, n, errno.ENOSPC, True, growing) for n in range(1, grows + 1)]
    faults += [Fault(below, FAIL, n, errno.EIO) for n in range(1, len(found) + 1)]
    faults += [Fault(below, SHORT, n, errno.ENOSPC, True, "write") for n in range(1, writes + 1)]
    for fault in sampled(faults):
        peer.clean()
        ended = peer.train(fault=fault)
        silent = ended.code == 0 and (peer.folder / "result").read_bytes() == peer.expected
        peer.count("7 write errors", "identical" if silent else peer.again())


def row_9_configs(peer: Peer) -> None:
    """Each file has one mistake. It is refused if the process fails and names the key."""
    for words, key, text in config.mistakes(peer.module.CONFIG, random.Random(SEED), 200):
        file = peer.folder / "config.yaml"
        file.write_text(text)
        try:
            ended = peer.lab(f"{peer.module.__name__}:configured", file, cwd=peer.folder, timeout=30)
        except AssertionError:
            peer.count(f"9 configs ({words})", "hangs")
            continue
        shutil.rmtree(peer.folder / "out", ignore_errors=True)
        named = key in ended.err
        outcome = "refused by name" if ended.code and named else "fails, without the name" if ended.code else "accepted"
        peer.count(f"9 configs ({words})", outcome)


if __name__ == "__main__":
    for kind in PEERS:
        try:
            with started(kind) as peer:
                for row in (row_1_kills, row_2_signals, row_6_damage, row_7_write_errors, row_9_configs):
                    row(peer)
                    write_outcomes()
        except ImportError as error:
            print(error)
