"""`electra-lab` in two processes: by torchrun, and with the variables that Slurm's jobs set."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from electra_lab.jobs.pretraining import execute
from electra_lab.storage.files import sha256
from registry import objectives
from tests.electra_lab.jobs.pretraining.tiny import experiment, lines, outcome, steps
from tests.electra_lab.parallel.launch import ended, start, torchrun
from tests.helpers import exit_code
from tests.scorecard.lab import Lab

SLOW = pytest.mark.skipif("ELECTRA_LAB_PARALLEL" not in os.environ, reason="takes minutes: make test-parallel")
PLUG_IN = Path(__file__).with_name("failing.py")
EXACT = {
    "embedding": "{dim: 8, max_length: 16, dropout: 0.0}",
    "discriminator": "{type: bert, dim: 16, depth: 2, heads: 2, dropout: 0.0}",
    "evaluate": "{every: 6, batch_size: 2, examples: 2}",
}


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """The plug-in's registrations end after these tests; module fixtures import it."""
    with objectives.isolated():
        yield


def file(folder: Path, deed: str = "") -> Path:
    """Write an experiment of 12 steps without dropout, whose objective makes a process fail."""
    return experiment(folder, **EXACT, imports=f"[{PLUG_IN}]", objective=f"{{type: trouble{deed}}}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, threads = tmp_path_factory.mktemp("whole"), torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(execute, "write_report", lambda directory: directory.path / "report.html")
        path = execute.run(file(folder), [], folder / "run", "cpu")
    torch.set_num_threads(threads)
    return path


def assert_equal(found: Path, expected: Path) -> None:
    """Compare records and last checkpoints to 1e-5, and the examples."""
    (records, weights), (others, reference) = outcome(found), outcome(expected)
    for record, other in zip(records, others, strict=True):
        assert record.pop("split") == other.pop("split")
        assert record == pytest.approx(other, rel=1e-5, abs=1e-5)
    assert weights.keys() == reference.keys()
    for name, value in reference.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-5)
    shown, other = (json.loads((path / "examples.json").read_text()) for path in (found, expected))
    for row, same in zip(shown, other, strict=True):
        for token, twin in zip(row, same, strict=True):
            assert token.pop("probability") == pytest.approx(twin.pop("probability"), abs=2e-4)  # records are rounded
            assert token == twin


def of_two(forks: Lab, folder: Path, deed: str = "", *more: str, timeout: float = 300) -> list[tuple[int, str, str]]:
    """Train in two processes, with the run in `folder / "run"`; returns their exit codes, output and errors."""
    command = ("run", str(file(folder / "there", deed)), "--out", "run", "--device", "cpu", *more)
    return ended(start(forks, *command, cwd=folder), timeout=timeout)


def assert_stopped(both: list[tuple[int, str, str]], code: int, run: Path) -> None:
    assert [ended[0] for ended in both] == [code, code], both
    said = [line for *_, text in both for line in text.splitlines() if line.startswith("stopped and saved")]
    step = steps(run)[-1]
    assert said == [f"stopped and saved after step {step}. Resume with: electra-lab resume run"]
    assert not any("Traceback" in text for *_, text in both)


def test_a_run_in_two_processes_is_that_of_one(forks: Lab, tmp_path: Path, whole: Path) -> None:
    """One directory, one lock, one answer, one report, and no line twice."""
    both = ended(start(forks, "run", str(file(tmp_path / "there")), "--device", "cpu", cwd=tmp_path))
    assert [code for code, *_ in both] == [0, 0], both
    (path,) = (tmp_path / "runs" / "tiny").iterdir()
    assert_one_run(path, whole, "".join(said for *_, said in both))
    assert "".join(out for _, out, _ in both) == f"{path.relative_to(tmp_path)}\n"


def assert_one_run(path: Path, whole: Path, said: str) -> None:
    assert (path / "report.html").is_file()
    assert said.count("on cpu in 2 processes (ddp), fp32") == 1
    assert said.count("step     12  test") == said.count("trained in ") == 1
    assert json.loads((path / "provenance.json").read_text())["environment"]["processes"] == 2
    assert_equal(path, whole)


@SLOW
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_by_torchrun_is_that_of_one_process(tmp_path: Path, whole: Path, nodes: int) -> None:
    """On two nodes, two launchers have one process each, both of which are the first of their node."""
    command = ("electra_lab", "run", str(file(tmp_path / "there")), "--out", "run", "--device", "cpu")
    with torchrun(*command, cwd=tmp_path, nodes=nodes) as launchers:
        texts = [launcher.communicate(timeout=300) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0] * nodes, texts
    assert "".join(out for out, _ in texts) == texts[0][0] == "run\n"
    assert_one_run(tmp_path / "run", whole, "".join(said for _, said in texts))
    assert "trained in " in texts[0][1]


def test_one_process_is_killed_and_the_other_says_so(forks: Lab, tmp_path: Path) -> None:
    written = file(tmp_path / "there", ", step: 5, rank: 1, deed: kill")
    both = start(forks, "run", str(written), "--out", "run", "--device", "cpu", cwd=tmp_path)
    assert both[1].wait(300).code == -signal.SIGKILL
    killed = time.monotonic()
    (code, out, said), _ = ended(both, timeout=30)
    assert time.monotonic() - killed < 30
    assert (code, out) == (1, "")
    last = said.strip().splitlines()[-1]
    assert last.startswith("another of the 2 processes ")
    assert last.endswith("Continue from the last checkpoint: electra-lab resume RUN_DIR")
    assert "Traceback" not in said
    assert steps(tmp_path / "run") == [4]


@SLOW
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_stops_both_after_one_step_and_other_numbers_of_ranks_continue(
    forks: Lab, tmp_path: Path, whole: Path, rank: int
) -> None:
    """2 -> 1 -> 2 ranks, ddp -> one process -> fsdp: the results are the same."""
    assert_stopped(of_two(forks, tmp_path, f", step: 4, rank: {rank}"), 75, tmp_path / "run")
    assert steps(tmp_path / "run")[-1] == 6  # the ranks agree in between
    (second,) = ended(start(forks, "resume", "run", "--device", "cpu", cwd=tmp_path, size=1))
    assert second[0] == 0, second
    assert "processes 2 -> 1" in second[2]
    assert_equal(tmp_path / "run", whole)


def test_both_ranks_are_interrupted_at_once(forks: Lab, tmp_path: Path) -> None:
    """Twice, as with a launcher that forwards Ctrl-C: they save once, together, and end as after one Ctrl-C."""
    assert_stopped(of_two(forks, tmp_path, ", step: 4, rank: -1, deed: interrupts"), 130, tmp_path / "run")
    assert steps(tmp_path / "run")[-1] == 6


@SLOW
@pytest.mark.parametrize("kinds", [("fsdp", "ddp"), ("ddp", "fsdp")])
def test_two_ranks_then_one_then_two(forks: Lab, tmp_path: Path, whole: Path, kinds: tuple[str, str]) -> None:
    """Each is stopped by SIGTERM; checkpoints do not depend on the number of ranks, so that the config may change."""
    chosen = ["--set", f"train.parallel={kinds[0]}", "--set", "checkpoint.every=100"]
    assert_stopped(of_two(forks, tmp_path, ", step: 3, rank: 1", *chosen), 75, tmp_path / "run")
    assert steps(tmp_path / "run") == [5]
    (alone,) = start(forks, "resume", "run", "--device", "cpu", cwd=tmp_path, size=1)
    while len(lines(tmp_path / "run")) < 2:  # step 6's evaluation
        assert alone.poll() is None
        time.sleep(0.02)
    alone.send(signal.SIGTERM)
    code, _, said = ended([alone])[0]
    assert code == 75, said
    _choose(tmp_path / "run", kinds)
    third = ended(start(forks, "resume", "run", "--device", "cpu", cwd=tmp_path))
    assert [code for code, *_ in third] == [0, 0], third
    assert f"2 processes ({kinds[1]})" in third[0][2]
    assert not [line for line in third[1][2].splitlines() if not line.startswith("[rank1]:[W")]  # torch's own warnings
    assert_equal(tmp_path / "run", whole)


def _choose(run: Path, kinds: tuple[str, str]) -> None:
    """Rewrite the config of a run and its checksum, which no command does."""
    config, provenance = run / "config.yaml", run / "provenance.json"
    config.write_text(config.read_text().replace(f"parallel: {kinds[0]}", f"parallel: {kinds[1]}"))
    began = json.loads(provenance.read_text())
    provenance.write_text(json.dumps(began | {"config_sha256": sha256(config)}))


@SLOW
def test_sigterm_to_torchrun_saves(tmp_path: Path) -> None:
    """It forwards the signal; its own exit code is always 1."""
    written = file(tmp_path / "there")
    command = ("electra_lab", "run", str(written), "--out", "run", "--device", "cpu", "--set", "train.steps=100000")
    with torchrun(*command, cwd=tmp_path) as (process,):
        while len(lines(tmp_path / "run")) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("SIGTERM: saving after this step\n") == 1
    assert said.count("stopped and saved after step") == 1
    assert f"after step {steps(tmp_path / 'run')[-1]}." in said


TROUBLES = {
    "memory": (6, r"there is not enough memory"),
    "diverge": (5, r"step 5: the loss or gradient of 1 of the steps"),
    "fail": (2, r"objective 'trouble' failed: KeyError: 'unforeseen'"),
    "exit": (2, r"objective 'trouble' failed: SystemExit: 0"),
}


@SLOW
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("deed", TROUBLES)
def test_an_error_of_one_rank_is_said_once_and_both_end_with_its_code(
    forks: Lab, tmp_path: Path, deed: str, rank: int
) -> None:
    code, sentence = TROUBLES[deed]
    both = of_two(forks, tmp_path, f", step: 4, rank: {rank}, deed: {deed}", timeout=60)
    assert_said_once(both, code, sentence)


def assert_said_once(both: list[tuple[int, str, str]], code: int, sentence: str) -> None:
    assert [ended[0] for ended in both] == [code, code], both
    said = both[0][2] + both[1][2]
    assert said.count(sentence) == 1, both
    assert "Traceback" not in said
    assert "another process of this run" not in said


@pytest.mark.parametrize("mistake", ["config", pytest.param("data", marks=SLOW), pytest.param("disk", marks=SLOW)])
def test_an_error_before_training_is_said_once(forks: Lab, tmp_path: Path, mistake: str) -> None:
    more: list[str] = []
    if mistake == "config":
        more, code, sentence = ["--set", "train.parallel=fdsp"], 2, "must be 'auto', 'ddp' or 'fsdp'"
    elif mistake == "data":
        more, code, sentence = ["--set", "corpus.paths=[none.txt]"], 3, "no file matches"
    else:
        (tmp_path / "run").write_text("in the way")
        code, sentence = 2, "--out run"
    assert_said_once(of_two(forks, tmp_path, "", *more, timeout=60), code, sentence)


CORPUS = '''
from registry import corpora


@corpora.register("failing")
class Failing:
    """Cannot be read."""

    def __iter__(self):
        raise {error}

    def fingerprint(self):
        return "failing"
'''


@pytest.mark.parametrize(
    ("error", "code"),
    [("MemoryError", 6), pytest.param("RuntimeError('std::bad_alloc')", 6, marks=SLOW),
     pytest.param("KeyError('unforeseen')", 2, marks=SLOW)],
)  # fmt: skip
def test_both_end_with_the_code_of_an_error_in_the_data(forks: Lab, tmp_path: Path, error: str, code: int) -> None:
    """Rank 0 alone reads the corpus."""
    (tmp_path / "failing.py").write_text(CORPUS.replace("{error}", error))
    written = experiment(tmp_path, **EXACT, imports="[failing.py]", corpus="{type: failing}")
    both = ended(start(forks, "run", str(written), "--device", "cpu", cwd=tmp_path), timeout=60)
    assert [ended[0] for ended in both] == [code, code], both
    assert both[1][2] == ""


@pytest.mark.parametrize(("rank", "said"), [("0", "WORLD_SIZE is 2: only `run` and `resume` train in"), ("1", "")])
def test_ablations_and_fine_tunings_are_refused_once(tmp_path, monkeypatch, capsys, rank: str, said: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    (tmp_path / "any.yaml").write_text("{}")
    assert exit_code("finetune", str(tmp_path / "any.yaml")) == 2
    found = capsys.readouterr().err
    assert found.startswith(said)
    assert bool(found) == bool(said)
