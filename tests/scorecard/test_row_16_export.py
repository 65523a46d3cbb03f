"""Row 16: exported models, and exports that are killed or run into a full disk."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

import pytest

from tests.scorecard.conftest import Score
from tests.scorecard.lab import FAIL, KILL, TEAR, Fault
from tests.scorecard.others import count_tests
from tests.scorecard.project import Project, contents


@pytest.mark.scorecard
def test_it_loads_and_computes_the_same(score: Score, tmp_path: Path) -> None:
    names = ("export/test_plain", "interop/test_hugging_face", "pretrained/test_tokenizer", "export/test_folder")
    count_tests(score, tmp_path, *(f"tests/electra_lab/{name}.py" for name in names))


@pytest.mark.scorecard
def test_an_export_is_there_whole_or_not_at_all(score: Score, project: Project) -> None:
    home = project.folder / "exports"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    out = home / "model"
    command = ("export", project.reference, out)
    calls = project.lab.calls(*command, cwd=project.folder, below=home)
    whole = contents(out)
    points = [(KILL, n) for n in range(1, len(calls) + 1)]
    points += [(TEAR, n) for n, call in enumerate(calls, start=1) if call.startswith("write ")]
    points += [(FAIL, n) for n in range(1, len(calls) + 1)]
    cases = [(point, there) for point in points for there in (False, True)]
    for (action, nth), earlier in score.chosen(cases, lambda case: f"call {case[0][1]} "):
        shutil.rmtree(home)
        home.mkdir()
        if earlier:
            assert project.lab("export", project.reference, out, "--step", "9", cwd=project.folder).code == 0
        before = contents(out) if earlier else {}
        fault = Fault(home, action, nth, errno.ENOSPC)
        with score.trial(f"{fault.words} ({calls[nth - 1]}) of an export{' over an earlier one' * earlier}"):
            ended = project.lab(*command, cwd=project.folder, fault=fault)
            if action == FAIL:
                assert not ended.traced, ended
                assert ended.code in (0, 2, 4), ended
            else:
                # An earlier export may have other calls before the last, so that the n-th does not come.
                assert ended.code in (-signal.SIGKILL, 0), ended
            found = contents(out) if out.exists() else {}
            assert found in (whole, before), f"half an export: {sorted(found)}"
            again = project.lab(*command, cwd=project.folder)
            assert again.code == 0, again
            assert contents(out) == whole, "the next export differs"
            assert [path.name for path in home.iterdir()] == ["model"], sorted(home.iterdir())
