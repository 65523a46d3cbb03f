"""The log of a small simulated service: a corpus of normal lines, and labelled lines with faults.

`python service_log.py 400 > lines.csv` writes lines of which a third have a fault, with the columns label and text.
"""

from __future__ import annotations

import csv
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from registry import corpora

PATHS = ("/cart", "/cart/items", "/login", "/search", "/orders", "/orders/last", "/health")
TABLES = ("orders", "items", "users", "sessions", "prices")
JOBS = ("send invoices", "rebuild index", "expire sessions", "export prices")


def normal_line(rng: random.Random) -> str:
    """Return a line in which level, status, component and verb go together."""
    path, table, job = rng.choice(PATHS), rng.choice(TABLES), rng.choice(JOBS)
    ms, rows, user = rng.randint(1, 90), rng.randint(0, 500), f"user{rng.randint(1, 99)}"
    ip = ".".join(str(rng.randint(1, 254)) for _ in range(4))
    lines = (
        f"INFO web: GET {path} from {ip} status 200 in {ms} ms",
        f"INFO web: POST {path} from {ip} status 201 in {ms} ms",
        f"WARN web: GET {path} from {ip} status 404 in {ms} ms",
        f"ERROR web: GET {path} from {ip} status 503 after {ms} s, retry",
        f"INFO db: select from {table}, {rows} rows in {ms} ms",
        f"INFO db: insert into {table}, 1 rows in {ms} ms",
        f"WARN db: slow select from {table}, {rows} rows in {ms} s",
        f"INFO cache: hit {table}:{rows}",
        f"INFO cache: miss {table}:{rows}, read from db",
        f"INFO auth: {user} logged in from {ip}",
        f"WARN auth: wrong password for {user} from {ip}",
        f"INFO job: {job} finished, {rows} items in {ms} s",
    )
    return rng.choices(lines, weights=(12, 6, 2, 1, 10, 6, 1, 10, 4, 4, 1, 2))[0]


def faulty_line(rng: random.Random) -> str:
    """Return a line of known words that a service would not write: a contradiction, a swap, a cut or a repetition."""
    words, other = normal_line(rng).split(), normal_line(rng).split()
    at = rng.randrange(1, len(words) - 1)
    match rng.randrange(5):
        case 0:  # the level or the component of another line
            place = rng.randrange(2)
            words[place] = rng.choice([word for word in ("ERROR", "job:") if word != words[place]])
        case 1:  # two neighbours in the wrong order
            words[at], words[at + 1] = words[at + 1], words[at]
        case 2:  # the end of another line
            words[at:] = other[max(len(other) - 3, 2) :]
        case 3:  # a write that was interrupted
            words[at + 1 :] = words[:2]
        case _:
            words.insert(at, words[at])
    return " ".join(words)


@corpora.register("service_log")
class ServiceLog:
    """Normal lines of the log.

    lines  number of lines
    seed   of the random numbers that they are made of
    """

    def __init__(self, /, *, lines: Annotated[int, Field(ge=100, le=10**7)] = 5000, seed: int = 0) -> None:
        self.lines, self.seed = lines, seed

    def __iter__(self) -> Iterator[str]:
        rng = random.Random(self.seed)
        for _ in range(self.lines):
            yield normal_line(rng)

    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self).encode()).hexdigest()


if __name__ == "__main__":
    draw, table = random.Random(1), csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["label", "text"])
    for _ in range(int(sys.argv[1])):
        fault = draw.random() < 1 / 3
        table.writerow([int(fault), faulty_line(draw) if fault else normal_line(draw)])
