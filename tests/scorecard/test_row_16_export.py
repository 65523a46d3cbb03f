"""Row 16: exported models, and exports that are killed or run into a full disk."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, Fault
from tests.scorecard.others import count_tests
from tests.scorecard.project import Project, call, contents, kills


@pytest.mark.scorecard
def test_it_loads_and_computes_the_same(score: Score, tmp_path: Path) -> None:
    names = ("export/test_plain", "interop/test_hugging_face", "pretrained/test_tokenizer", "export/test_folder")
    count_tests(score, tmp_path, *(f"tests/electra_lab/{name}.py" for name in names))


@pytest.mark.scorecard
def test_an_export_is_there_whole_or_not_at_all(score: Score, project: Project) -> None:
    home = project.folder / "exports"
    out, command = home / "model", ("export", project.reference, home / "model")
    home.mkdir()
    calls = project.lab.calls(*command, cwd=project.folder, below=home)
    whole = contents(out)
    points = kills(calls) + [(FAIL, n) for n in range(1, len(calls) + 1)]
    cases = [(point, there) for point in points for there in (False, True)]
    for (action, nth), earlier in score.chosen(cases, lambda case: call(case[0])):
        shutil.rmtree(home)
        home.mkdir()
        if earlier:
            project.lab("export", project.reference, out, "--step", "9", cwd=project.folder).must(0)
        before = contents(out) if earlier else {}
        fault = Fault(home, action, nth, errno.ENOSPC)
        with score.trial(f"{fault.words} ({calls[nth - 1]}) of an export{' over an earlier one' * earlier}"):
            # An earlier export may change the number of calls, so that the n-th may not happen.
            codes = (0, 2, 4) if action == FAIL else (-signal.SIGKILL, 0)
            project.lab(*command, cwd=project.folder, fault=fault).must(*codes)
            found = contents(out) if out.exists() else {}
            assert found in (whole, before), f"half an export: {sorted(found)}"
            project.lab(*command, cwd=project.folder).must(0)
            assert contents(out) == whole, "the next export differs"
            assert [path.name for path in home.iterdir()] == ["model"], sorted(home.iterdir())
