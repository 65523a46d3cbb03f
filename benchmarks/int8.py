"""Time the ONNX files of a run's discriminator in fp32 and int8, and torch, on the test text of the run.

    python benchmarks/int8.py runs/reformer_small/20261120-120000-1a2b --threads 2 --size 8x128

The rows are those that the run was tested on, with the same replacements, so that fp32 has the AUC of its records. A
round reads 64 rows by each way; they alternate. Without --size the files take any batch and length; a batch is 8 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _alternating import CLOCKS, alternate, parser, table, write

from electra_lab.assembly.networks import build_network
from electra_lab.export.export import export
from electra_lab.export.int8 import run_rows
from electra_lab.export.onnx import NamedOutputs, open_onnx
from electra_lab.pretrained.opening import read_run

ROWS = 64
FILES = {"ONNX fp32": "model.onnx", "ONNX int8": "model_int8.onnx"}


def main() -> None:
    options = parser(__doc__, rounds=20)
    options.add_argument("run", type=Path, help="a finished run whose token store is there")
    options.add_argument("--size", help="the only batch and length of the files, such as 8x128")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    size = tuple(map(int, given.size.split("x"))) if given.size else None
    model = read_run(given.run)
    batches = run_rows(model, size)
    numbers = accumulate(len(batch.judged) for batch in batches)
    batches = [batch for batch, number in zip(batches, numbers, strict=True) if number <= ROWS]
    with TemporaryDirectory() as name:
        network = export(given.run, Path(name) / "exported", size=size, int8=True).networks[0]
        module = NamedOutputs(build_network(network.part, network.config["pad_token_id"])).eval()
        files = {way: Path(name) / "exported/discriminator" / file for way, file in FILES.items()}
        sessions = {way: open_onnx(file, given.threads) for way, file in files.items()}

        def by_torch() -> None:
            with torch.no_grad():
                for batch in batches:
                    module(*map(torch.from_numpy, batch.inputs.values()))

        def by_onnx(session: Any) -> Callable[[], None]:
            return lambda: [session.run(None, batch.inputs) for batch in batches] and None

        ways = {"torch fp32": by_torch, **{way: by_onnx(session) for way, session in sessions.items()}}
        seconds = alternate(ways, given.rounds, clock=CLOCKS[given.clock])
        change = network.int8[0]
    auc = {way: f"{value:.4f}" for way, value in zip(FILES, change.auc or (), strict=False)}
    megabytes = {way: f"{value / 1e6:.1f}" for way, value in zip(FILES, change.bytes, strict=True)}
    shape = f"{change.batch} x {change.length}" + ("" if size else ", any size")
    title = f"ONNX: {given.run.name}, {ROWS} rows, {shape}, {given.threads} threads, {given.clock} time"
    about = {"case": "int8", "threads": given.threads, "size": given.size, "auc": change.auc, "bytes": change.bytes}
    write(
        given.out,
        title,
        table(seconds, ["torch fp32", "ONNX fp32"], {"AUC": auc, "MB": megabytes}),
        about,
        {"seconds": seconds},
    )


if __name__ == "__main__":
    main()
