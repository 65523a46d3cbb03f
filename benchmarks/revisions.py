"""Compare the training step of this working tree with that of earlier commits, alternating.

    python benchmarks/revisions.py a6d31e1 --experiment transformer_tiny

Each commit is unpacked into a temporary folder and takes its steps in a separate process, with this environment's
libraries, one process at a time. The experiment is the commit's own file, without dropout, in float32, with random
tokens.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from _alternating import alternate, parser, table, write

ROOT = Path(__file__).resolve().parents[1]
NOW = "working tree"
WARM_UP = 6  # steps: the first ones are checked, and memory grows


class Process:
    """The steps of one commit, taken on request; calling it takes some and returns when they are done."""

    def __init__(self, root: Path, experiment: str, steps: int, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", str(root), experiment, str(steps), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        self.seconds = 0.0  # of the processor, for all steps so far
        self._answer()

    def __call__(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        self.seconds += float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of a commit ended with exit code {self._process.wait()}; see above")
        return line

    def close(self) -> None:
        self._process.communicate()


def serve(root: str, experiment: str, steps: int, threads: int) -> None:
    """Build the experiment with the code at `root`; at each line that is read, take steps and write their seconds."""
    sys.path.insert(0, root)
    import torch

    from electra_lab.assembly.build import build, make_optimizer, vocabulary_size
    from electra_lab.config.load import load
    from electra_lab.data.vocabulary import stand_in_vocabulary
    from electra_lab.training import step as module
    from registry import Batch

    assert module.__file__.startswith(root), f"{module.__file__} is not in {root}"
    try:
        from electra_lab.training.device import keep_freed_memory
    except ImportError:  # an older commit
        pass
    else:
        keep_freed_memory()
    torch.set_num_threads(threads)
    changes = ["embedding.dropout=0.0", "discriminator.dropout=0.0", "train.precision=fp32"]
    loaded = load(Path(root) / "experiments" / f"{experiment}.yaml", changes)
    words = stand_in_vocabulary(vocabulary_size(loaded))
    built = build(loaded, words, seed=0)
    try:
        optimizer = make_optimizer(loaded, built)
    except AttributeError:  # an older commit
        optimizer = make_optimizer(loaded, built.learner.objective)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    rows, length = loaded.config.train.batch_size, loaded.config.data.sequence_length
    tokens = torch.randint(4, words.size, (rows, length), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(rows))
    built.learner.objective.train()
    taken = 0

    def take(number: int) -> float:
        nonlocal taken
        began = time.process_time()
        for _ in range(number):
            module.training_step(
                built.learner, optimizer, batch, seed=0, step=taken, rate=0.01, clip_norm=1.0, micro_batch_size=rows,
                precision="fp32",
            )  # fmt: skip
            taken += 1
        return time.process_time() - began

    print(take(WARM_UP), flush=True)
    for _ in sys.stdin:
        print(take(steps), flush=True)


def main() -> None:
    options: argparse.ArgumentParser = parser(__doc__, rounds=30, threads=1, clock="processor")
    options.add_argument("commits", nargs="+", help="earlier commits, the first of which the others are compared to")
    options.add_argument("--experiment", default="transformer_tiny", help="a file of experiments/")
    options.add_argument("--steps", type=int, default=3, help="steps at a time")
    given = options.parse_args()
    if given.clock != "processor":
        options.error("--clock: the processes take turns, so only the processor's time is theirs")
    with ExitStack() as stack:
        roots = {}
        for commit in given.commits:
            roots[commit] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", str(roots[commit])], input=archive.stdout, check=True)
        ways: dict[str, Process] = {}
        for name, root in (roots | {NOW: ROOT}).items():
            ways[name] = Process(root, given.experiment, given.steps, given.threads)
            stack.callback(ways[name].close)
        calls: dict[str, Callable[[], object]] = dict(ways)
        found = alternate(calls, given.rounds, 1, clock=lambda: sum(way.seconds for way in ways.values()))
    each = {name: [seconds / given.steps for seconds in values] for name, values in found.items()}
    title = f"Step of {given.experiment}, {given.threads} threads, processor time"
    write(given.out, title, table(each, given.commits[:1]), {"experiment": given.experiment}, {"seconds": each})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
