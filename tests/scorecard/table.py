"""The table that `make scorecard` writes."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.helpers import ROOT
from tests.scorecard.rows import ROWS, SEED

if TYPE_CHECKING:
    from tests.scorecard.conftest import Score

FOLDER = ROOT / "build"
PAGE = ROOT / "docs" / "reliability.md"


def write_table(scores: Sequence[Score]) -> str:
    """Write build/scorecard.md and build/scorecard.json; returns the table."""
    where = {"seed": SEED, "commit": commit(), "date": time.strftime("%Y-%m-%d"), "processor": processor()}
    rows = [_row(number, [score for score in scores if score.row == number]) for number in ROWS]
    before = _before(where)
    rows = [row if row["trials"] or row["skipped"] else before.get(row["row"], row) for row in rows]
    lines = ["| row | law | passed | seconds |", "|--:|---|--:|--:|"]
    lines += [f"| {r['row']} | {r['law']} | {r['result']} | {r['seconds']:.0f} |" for r in rows]
    foot = f"Seed {SEED}, commit {where['commit']}, {where['date']}, {where['processor']}."
    text = "\n".join([*lines, "", foot]) + "\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "scorecard.md").write_text(text, encoding="utf-8")
    (FOLDER / "scorecard.json").write_text(json.dumps({**where, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return text


def publish() -> None:
    """Copy the tables of the last calls into docs/reliability.md."""
    text = PAGE.read_text(encoding="utf-8")
    for name, file in (("scorecard", "scorecard.md"), ("peers", "scorecard_peers.md")):
        if (FOLDER / file).exists():
            table = (FOLDER / file).read_text(encoding="utf-8")
            start, end = re.escape(f"<!-- {name}:"), re.escape(f"<!-- end of the {name} -->")
            text = re.sub(f"({start}.*?-->\n).*?({end})", lambda m: m[1] + table + m[2], text, flags=re.S)  # noqa: B023
    PAGE.write_text(text, encoding="utf-8")


def _before(where: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the rows that an earlier call has run for the same code with the same seed."""
    try:
        found = json.loads((FOLDER / "scorecard.json").read_text(encoding="utf-8"))
        same = all(found[name] == where[name] for name in ("seed", "commit", "processor"))
        return {row["row"]: row for row in found["rows"]} if same and "+" not in where["commit"] else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _row(number: int, scores: Sequence[Score]) -> dict[str, Any]:
    passed, failed = sum(score.passed for score in scores), [line for score in scores for line in score.failed]
    skipped = [score.skipped for score in scores if score.skipped]
    result = f"{passed}/{passed + len(failed)}" if passed or failed else "not run"
    return {
        "row": number, "law": ROWS[number].law, "result": result, "passed": passed, "trials": passed + len(failed),
        "seconds": sum(score.seconds for score in scores), "failed": failed, "skipped": skipped,
    }  # fmt: skip


def commit() -> str:
    """Return the commit, with a + if files have changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=7", "HEAD") + "+" * bool(
            git("status", "--porcelain", "electra_lab", "registry")
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor() -> str:
    """Return the name of the processor, not that of the machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    publish()
