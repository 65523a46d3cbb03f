"""Row 9: thousands of wrong experiment files and `--set`s."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.helpers import write_experiment
from tests.scorecard import fuzz
from tests.scorecard.conftest import Score
from tests.scorecard.lab import TRACES, Lab
from tests.scorecard.rows import FULL, ROWS, SEED

BATCH = 500  # cases per process
PLACE = re.compile(r"(fuzz\.yaml(:\d+)?|--set .*?): \S", re.S)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")


def judged(answer: Any, case: fuzz.Case) -> None:
    code, err, seconds, grown = answer
    assert not any(trace in err for trace in TRACES), f"a traceback: {err.strip()[-300:]}"
    assert code in (0, 2), f"exit {code}: {err.strip()[-300:]}"
    assert case.code is None or code == case.code, f"exit {code}, must be {case.code}"
    assert seconds < 1, f"took {seconds:.1f} s"
    assert grown < 200, f"took {grown:.0f} MB"
    assert not CONTROL.search(err), f"control characters reach the terminal: {err!r:.200}"
    if code == 2:
        assert PLACE.match(err), f"does not begin with the location: {err.strip()[:200]!r}"
    if case.line is not None:
        assert f"fuzz.yaml:{case.line}:" in err, f"does not name line {case.line}: {err.strip()[:200]!r}"
    assert case.says in err, f"does not name {case.says}: {err.strip()[:200]!r}"


def test_fuzzed_files(score: Score, lab: Lab, tmp_path: Path) -> None:
    write_experiment(tmp_path)
    row = ROWS[9]
    found = fuzz.cases(SEED, row.full if FULL else row.small)
    for start in range(0, len(found), BATCH):
        part = found[start : start + BATCH]
        fuzz.write(part, tmp_path / "cases.json")
        judge = ("tests.scorecard.fuzz:judge", tmp_path / "cases.json", tmp_path / "answers.json")
        lab(*judge, cwd=tmp_path, timeout=600).must(0)
        answers = json.loads((tmp_path / "answers.json").read_text())
        for number, (case, answer) in enumerate(zip(part, answers, strict=True), start=start):
            with score.trial(f"case {number}, {case.words}"):
                judged(answer, case)
    with score.trial("no tag has run code"):
        assert not (tmp_path / fuzz.CANARY).exists()
