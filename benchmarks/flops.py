"""Compare the FLOPs of a step with torch's counter, for every shipped experiment.

    python benchmarks/flops.py deberta_small objectives/sas

Without names, all of them. Both passes are counted, from shapes alone, for some rows of the experiment's length.
Attention is by two products, and in DeBERTa by gathers: fused kernels compute scores again in the backward pass, as
long rows on a CPU do, and DeBERTa's blocks there multiply by more rows of its table. The formulas count neither. What
differs otherwise: logits of all positions, which the backward pass computes again (all_tokens_mlm); grouped
convolutions, of which torch counts the backward pass as if there were one group (light_conv); and constant features and
hashes, whose backward passes are cheaper (performer, reformer).
"""

import argparse
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra_lab.assembly.build import Built, outline, vocabulary_or_bert
from electra_lab.assembly.data import allocate_memory
from electra_lab.config.load import load
from electra_lab.model.layers import use_kernel
from electra_lab.planning.forecast import rows_of
from electra_lab.planning.memory import shapes_only
from electra_lab.training.random import Streams
from electra_lab.training.step import backward

FOLDER = Path(__file__).parent.parent / "experiments"
ROWS = 8
# Of files that need a model folder, which is not here.
WITHOUT = {
    "deberta_v3_small": ["tokenizer={type: unigram, vocab_size: 128000}"],
    "domain_deberta": ["tokenizer={type: unigram, vocab_size: 128000}", "init={}"],
}


def shipped() -> list[str]:
    """Return the names of all experiments of pre-training."""
    files = [*FOLDER.glob("*.yaml"), *FOLDER.glob("objectives/*.yaml"), *FOLDER.glob("plugins/**/*.yaml")]
    return sorted(file.relative_to(FOLDER).with_suffix("").as_posix() for file in files)


def compared(name: str, rows: int, micro: int, *changes: str) -> list[tuple[int, int]]:
    """Return the FLOPs by the formula and by torch's counter, of a step of each stage.

    rows   of a batch
    micro  those of a forward pass
    """
    sizes = f"train.batch_size={rows}", f"train.micro_batch_size={micro}", "train.batch_warmup=null"
    simple = "train.precision=fp32", "train.activation_checkpointing=false"
    loaded = load(FOLDER / f"{name}.yaml", [*simple, *sizes, *WITHOUT.get(name, ()), *changes])
    length = loaded.config.data.sequence_length
    built = outline(loaded, vocabulary_or_bert(loaded), shapes_only())
    use_kernel("products", built.learner.objective)
    with shapes_only():
        allocate_memory(loaded, built.learner.objective, rows, torch.device("cpu"))
    steps = []
    for step in sorted({0, built.flops.first}):
        formula = built.flops.total(step + 1) - built.flops.total(step)
        steps.append((formula, rows // micro * counted(built, micro, length, step)))
    return steps


def counted(built: Built, rows: int, length: int, step: int) -> int:
    """Return torch's count of a forward and a backward pass."""
    learner = built.learner
    learner.objective.train()
    learner.at_step(0, step)
    gathers = patch("electra_lab.backbones.deberta.can_be_in_blocks", return_value=False)
    whole = patch("electra_lab.model.long_rows._is_eager_on_cpu", return_value=False)
    counter = FlopCounterMode(display=False)
    with gathers, whole, sdpa_kernel(SDPBackend.MATH), shapes_only(), counter:
        batch = rows_of(torch.zeros(rows, length, dtype=torch.int64))
        backward(learner.losses(batch, Streams.of(0, step, batch.example_ids), "fp32").terms)
    return int(counter.get_total_flops())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help="such as reformer_small or objectives/mlm")
    options.add_argument("--rows", type=int, default=ROWS, metavar="N", help="of a batch")
    options.add_argument("--micro", type=int, metavar="N", help="rows of a forward pass, all by default")
    options.add_argument("--set", action="append", default=[], metavar="A.B=C")
    asked = options.parse_args()
    print("| experiment | formula | torch | difference |\n|---|---|---|---|")
    for name in asked.names or shipped():
        for formula, counter in compared(name, asked.rows, asked.micro or asked.rows, *asked.set):
            print(f"| {name} | {formula:.5e} | {counter:.5e} | {formula / counter - 1:+.3%} |", flush=True)


if __name__ == "__main__":
    main()
