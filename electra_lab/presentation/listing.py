"""The table of `electra-lab list`: as many columns as the terminal has room for."""

import os
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from electra_lab.analysis.catalog import Job
from electra_lab.presentation.text import Table, seconds

# The columns in the order in which they are shown; the first number is left out last.
COLUMNS = {"path": 0, "kind": 5, "state": 1, "done": 2, "time": 3, "written": 4}
SHORTEST = 24  # characters of a result
UNITS = {"run": "", "fine-tuning": "seeds", "ablation": "cells"}


def table(jobs: Sequence[Job], root: Path, sort: str, width: int | None) -> Table:
    """Return a row per job with its leading metric, or the one that it is sorted by, last.

    width  width of the terminal in characters; None for a column per metric
    """
    # All columns: those of COLUMNS, the result, and the other metrics.
    rows = [_row(job, root, sort) for job in jobs]
    metrics = set[str]().union(*(job.numbers for job in jobs))
    others = sorted(metrics - {job.leading for job in jobs} - {sort})
    for job, row in zip(jobs, rows, strict=True):
        for name in others:
            row[name] = f"{job.numbers[name]:.4g}" if name in job.numbers else ""
    # Columns are left out, the least important first, until the rest fits.
    columns = [*COLUMNS, "result", *others]
    optional = [*reversed(others), *sorted(COLUMNS, key=COLUMNS.__getitem__, reverse=True)[:-2]]
    while width and optional and _width(rows, columns) > width:
        columns.remove(optional.pop(0))
    # The result is cut to the width that is left.
    if width:
        left = max(SHORTEST, width - _width(rows, [column for column in columns if column != "result"]) - 2)
        rows = [row | {"result": row["result"][:left]} for row in rows]
    lines = [itemgetter(*columns)(row) for row in rows]
    return Table("Jobs", columns, lines, {"kind", "state", "result"})


def _row(job: Job, root: Path, sort: str) -> dict[str, str]:
    unit = UNITS[job.kind] if job.kind else ""
    return {
        "path": os.path.relpath(job.path, root) if job.path != root else str(job.path),
        "kind": job.kind or "",
        "state": job.state,
        "done": f"{job.done:,}/{job.total:,} {unit}".rstrip() if job.total else "",
        "time": "" if job.seconds is None else seconds(job.seconds),
        "written": time.strftime("%Y-%m-%d %H:%M", time.localtime(job.written)) if job.written else "",
        "result": _result(job, sort),
    }


def _result(job: Job, sort: str) -> str:
    if job.error:
        return job.error.removeprefix(f"{job.path}: ").removeprefix(f"{job.path}{os.sep}")
    name = sort if sort in job.numbers else job.leading
    if not name:
        return job.verdict
    number = f"{job.numbers[name]:.4g} {job.metrics[name].title or name}"
    return f"{number}: {job.verdict}" if job.verdict else number


def _width(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> int:
    """Return the width of a table, in which a long result, such as an error, may be cut."""
    widths = {column: max(map(len, [column, *map(itemgetter(column), rows)])) for column in columns}
    if "result" in widths:
        widths["result"] = min(widths["result"], SHORTEST)
    return sum(widths.values()) + 2 * (len(columns) - 1)
