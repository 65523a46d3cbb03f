"""metrics.jsonl, the records of a run, one on each line after the id of the run. Read without torch."""

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from electra_lab.storage.files import open_regular, reason
from electra_lab.storage.provenance import compared, refuse_other
from registry import Metric
from registry.errors import CheckpointError

EVALUATIONS = b'"split": "test"', b'"split": "validation"'  # the first goes before the second
HEAD = "run"  # the split of the first line, which has the id of the run
TAIL = 1 << 13  # bytes at the end of the file
LARGEST = 1e100  # number in a record; those of training are of float32
AUTO, OFF = "auto", "off"  # values of checkpoint.best; any other one is the name of a metric
Step = int | Literal["best"] | None  # of a checkpoint; None is the newest
Record = Mapping[str, Any]


def record_of(line: str | bytes) -> dict[str, Any] | None:
    """Return the record in a line of metrics.jsonl; None for text, and for numbers that no chart can show."""
    try:
        record: dict[str, Any] = json.loads(line)
        if not (isinstance(record["step"], int) and isinstance(record["split"], str) and 0 <= record["step"] < 2**63):
            return None
        for key, value in record.items():
            if key != "split" and value is not None and not -LARGEST < value < LARGEST:
                return None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return record


def head_of(line: str | bytes) -> str | None:
    """Return the id in the first line of metrics.jsonl; None if the line is a record."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return str(head.get("id")) if isinstance(head, dict) and head.get("split") == HEAD else None


def last_records(file: Path, id: str | None = None) -> list[dict[str, Any]]:
    """Return the last records of metrics.jsonl, after the last test, or evaluation, that is not among them.

    Raises CheckpointError for a line that is not a record, unless it is the last, which a kill cut short, and for the
    records of another run than that of `id`.
    """
    try:
        with open_regular(file) as stream:
            head = head_of(stream.readline(TAIL))
            if id is not None and head is not None:
                refuse_other(file, head, id)
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - TAIL))
            tail = stream.read(TAIL)
            if size > TAIL:  # its first line may be cut
                tail = tail.partition(b"\n")[2]
                if EVALUATIONS[0] not in tail:
                    tail = _last_evaluation(stream, size - len(tail)) + b"\n" + tail
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({reason(error)}).") from None
    records = [record_of(line) for line in tail.split(b"\n") if line.strip() and head_of(line) is None]
    if None in records[:-1]:
        raise CheckpointError(f"{file}: has a line that is not a record; the file is damaged.")
    return [record for record in records if record is not None]


def _last_evaluation(stream: Any, before: int) -> bytes:
    """Return the line of the last evaluation in the first bytes of a long file; b"" if there is none."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for split in EVALUATIONS:
            at = text.rfind(split, 0, before)
            if at >= 0:
                return text[text.rfind(b"\n", 0, at) + 1 : text.find(b"\n", at)]
    return b""


@dataclass(frozen=True, order=True)
class Best:
    """A step by the validation value of a metric; the best and then the earliest is the smallest."""

    rank: float  # the value, negated if higher is better
    step: int
    metric: str
    value: float


def ranked(records: Sequence[Record], chosen: str | None, metrics: Mapping[str, Metric]) -> list[Best]:
    """Return the validations that have a value of the chosen metric."""
    validated = [record for record in records if record["split"] == "validation"]
    if chosen == AUTO:
        chosen = next(iter(compared(metrics, validated[0])), None) if validated else None
    if chosen is None or chosen not in metrics:
        return []
    sign, validations = -1 if metrics[chosen].higher_is_better else 1, list[Best]()
    for record in validated:
        if (value := record.get(chosen)) is not None:
            validations.append(Best(sign * value, record["step"], chosen, value))
    return validations


class Profile(BaseModel):
    """profile.json: the time of a step by its parts, and their FLOPs.

    steps      number of steps that were recorded
    seconds    mean time of each part in a step
    on_device  True if it is the time of kernels on a GPU
    flops      floating point operations of each part in a step
    """

    steps: int
    seconds: dict[str, float]
    on_device: bool = False
    flops: dict[str, int] = {}
