"""Compare writing a checkpoint with `torch.save` of the same state, alternating in one process.

    python benchmarks/checkpoint.py --experiment electra_small

Ours writes safetensors, a checksum of each file and a manifest, and waits until all of it is on the disk. `torch.save`
does none of that, so `torch.save` followed by fsync is measured too. They alternate with a training step of the
experiment, whose time gives the share of a run that checkpoints take.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _alternating import CLOCKS, alternate, parser, spread, table, write
from _steps import LAB, Case, make

from electra_lab.assembly.build import make_optimizer
from electra_lab.storage.checkpoint import save, tensors_of
from electra_lab.training.step import update

OURS, PEER, WAITING, STEP = "electra_lab", "torch.save", "torch.save and fsync", "a training step"


def ways_of(case: Case, folder: Path) -> dict[str, Callable[[], object]]:
    loaded, built = case.built()
    objective = built.learner.objective
    optimizer = make_optimizer(loaded, built)
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    update(optimizer, torch.tensor(True))  # state has tensors from the first step on

    def by_torch() -> Path:
        file = folder / "state.pt"
        torch.save({"model": objective.state_dict(), "optimizer": optimizer.state_dict()}, file)
        return file

    def by_torch_to_the_disk() -> None:
        with by_torch().open("rb+") as file:
            os.fsync(file.fileno())

    def by_us() -> None:
        save(folder / "checkpoints", 1, tensors_of(objective, optimizer), {}, keep=1)

    return {PEER: by_torch, WAITING: by_torch_to_the_disk, OURS: by_us, STEP: make(case, f"{LAB} fp32")}


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def main() -> None:
    options = parser(__doc__, rounds=7)
    options.add_argument("--experiment", default="electra_small", help="a file of experiments/")
    options.add_argument("--every", type=int, default=100, help="steps between two checkpoints, for their share")
    options.add_argument("--folder", type=Path, help="where to write, by default where temporary files are")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    clock = CLOCKS[given.clock]
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        # Data that other programs have not flushed yet must not count.
        seconds = alternate(
            ways_of(Case(given.experiment), folder), given.rounds, before=lambda _: os.sync(), clock=clock
        )
        sizes = {OURS: size(folder / "checkpoints"), PEER: size(folder / "state.pt")}
    sizes[WAITING] = sizes[PEER]
    megabytes = {name: f"{bytes_ / 1e6:,.1f}" for name, bytes_ in sizes.items()} | {STEP: ""}
    steps = [given.every * step for step in seconds[STEP]]
    share = spread([100 * save / (save + rest) for save, rest in zip(seconds[OURS], steps, strict=True)])
    title = f"Checkpoint of {given.experiment}: {given.threads} threads, {given.clock} time"
    title += f"; every {given.every} steps {share} % of it"
    about = {"case": f"checkpoint of {given.experiment}", "threads": given.threads, "clock": given.clock}
    write(given.out, title, table(seconds, [PEER], {"MB": megabytes}), about, {"seconds": seconds, "bytes": sizes})


if __name__ == "__main__":
    main()
