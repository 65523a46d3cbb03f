"""Compare the training step with electra-pytorch's and with the usual one on transformers, in one process, in turns.

    python benchmarks/step.py --length 128 --batch 16 --ours fp32 bf16

All train the same ELECTRA (dropout 0, a vocabulary of 30,522) with AdamW and clipped gradients. electra-pytorch's
`Electra` gets transformers' networks; the usual step computes logits at every position, takes the cross-entropy of the
masked ones and draws replacements by `torch.multinomial`. Ours is written as precision[+compile][+sampler].

Each runs with the memory settings that it brings: our trainings keep what they free (training/allocator.py), the others
have glibc's defaults. `--clock processor` counts the processor's time instead of the clock's.
"""

import argparse
import ctypes
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _alternating import alternate, table, write
from electra_pytorch import Electra
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.assembly.build import build, make_optimizer
from electra_lab.config.load import load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.training.allocator import keep_freed_memory
from electra_lab.training.compilation import compile_modules
from electra_lab.training.step import training_step
from registry import Batch

SIZES = {
    "small": {"dim": 256, "depth": 12, "heads": 4, "embedding": 128, "scale": 0.25},
    "base": {"dim": 768, "depth": 12, "heads": 12, "embedding": 768, "scale": 1 / 3},
}
VOCABULARY, PAD, CLS, SEP, MASK = 30_522, 0, 101, 102, 103
Step = Callable[[], object]


def tokens_of(length: int, batch: int, seed: int = 0) -> Tensor:
    """Rows without padding."""
    tokens = torch.randint(1000, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    return tokens


def ours(size: str, length: int, batch: int, how: str) -> Step:
    """Return our step. `how`: fp32 or bf16, then + and a value of train.compile, + and a sampler."""
    of, (precision, *others) = SIZES[size], how.split("+")
    compile_ = next((each for each in others if each in ("off", "layers", "full")), "off")
    sampler = next((each for each in others if each not in ("off", "layers", "full")), "temperature")
    text = f"""
name: bench
corpus: {{type: docstrings}}
tokenizer: {{type: wordpiece, vocab_size: {VOCABULARY}}}
data: {{sequence_length: {length}}}
embedding: {{dim: {of["embedding"]}, max_length: 512, dropout: 0.0}}
discriminator: {{type: bert, dim: {of["dim"]}, depth: {of["depth"]}, heads: {of["heads"]}, dropout: 0.0}}
generator: {{scale: {of["scale"]}}}
masking: {{type: replace_prob}}
sampler: {{type: {sampler}}}
objective: {{type: electra}}
schedules: {{learning_rate: {{type: warmup_linear, warmup_steps: 10}}}}
train: {{steps: 100000, batch_size: {batch}, precision: {precision}, compile: {compile_}}}
"""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.yaml"
        file.write_text(text, encoding="utf-8")
        loaded = load(file, [])
    vocabulary = stand_in_vocabulary(VOCABULARY)
    built = build(loaded, vocabulary, seed=0)
    compile_modules(compile_, built.learner.objective, built.networks.values())  # type: ignore[arg-type]
    optimizer = make_optimizer(loaded, built.learner.objective)
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    tokens, step = tokens_of(length, batch), 0
    given = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens), torch.arange(batch))
    built.learner.objective.train()

    def take() -> None:
        nonlocal step
        training_step(
            built.learner, optimizer, given, seed=0, step=step, rate=0.01, clip_norm=1.0, micro_batch_size=batch,
            precision=precision,  # type: ignore[arg-type]  # by the file, which is validated
        )  # fmt: skip
        step += 1

    return take


def networks(size: str) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """Return transformers' pair with shared embeddings and dropout 0."""
    of = SIZES[size]

    def config(scale: float) -> ElectraConfig:
        return ElectraConfig(
            vocab_size=VOCABULARY,
            embedding_size=of["embedding"],
            hidden_size=round(of["dim"] * scale),
            num_hidden_layers=of["depth"],
            num_attention_heads=max(1, round(of["heads"] * scale)),
            intermediate_size=round(4 * of["dim"] * scale),
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )

    generator, discriminator = ElectraForMaskedLM(config(of["scale"])), ElectraForPreTraining(config(1))
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    return generator.train(), discriminator.train()


class Logits(nn.Module):
    """What electra-pytorch calls: a network that returns a tensor."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens).logits
        return logits


def stepper(modules: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    parameters = list(modules.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=5e-6, weight_decay=0.01)

    def take() -> None:
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return take


def of_electra_pytorch(size: str, length: int, batch: int) -> Step:
    generator, discriminator = networks(size)
    model = Electra(
        Logits(generator), Logits(discriminator), num_tokens=VOCABULARY, mask_token_id=MASK, pad_token_id=PAD,
        mask_ignore_token_ids=[CLS, SEP],
    )  # fmt: skip
    tokens = tokens_of(length, batch)
    return stepper(model, lambda: model(tokens).loss)


def of_transformers(size: str, length: int, batch: int) -> Step:
    generator, discriminator = networks(size)
    tokens = tokens_of(length, batch)

    def loss() -> Tensor:
        special = (tokens == CLS) | (tokens == SEP)
        masked = torch.bernoulli(torch.full(tokens.shape, 0.15).masked_fill(special, 0.0)).bool()
        kept = torch.bernoulli(torch.full(tokens.shape, 0.15)).bool()
        inputs = torch.where(masked & ~kept, MASK, tokens)
        guess = generator(inputs, labels=torch.where(masked, tokens, -100))
        with torch.no_grad():
            drawn = torch.multinomial(guess.logits[masked].softmax(-1), 1).squeeze(-1)
        corrupted = tokens.clone()
        corrupted[masked] = drawn
        found = discriminator(corrupted, labels=(corrupted != tokens).long())
        total: Tensor = guess.loss + 50 * found.loss
        return total

    return stepper(nn.ModuleList([generator, discriminator]), loss)


def matrix_peak(threads: int) -> float:
    """Return the FLOPs a second of a product of two 2048 x 2048 matrices in float32, which is 2 * 2048^3 each."""
    one = torch.randn(2048, 2048)
    seconds = alternate({"mm": lambda: one @ one}, 5)["mm"]
    return float(2 * 2048**3 / min(seconds))


def memory_of(name: str) -> None:
    """Set glibc's malloc as `name` has it, and return what is free to the system."""
    libc = ctypes.CDLL(None)
    if name.startswith("electra_lab"):
        keep_freed_memory()
    else:
        libc.mallopt(-4, 65_536)  # the defaults of M_MMAP_MAX and M_TRIM_THRESHOLD
        libc.mallopt(-1, 128 * 1024)
        libc.malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", nargs="+", default=["fp32"])
    parser.add_argument("--peers", nargs="*", default=["electra-pytorch", "transformers"])
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    makers = {"electra-pytorch": of_electra_pytorch, "transformers": of_transformers}
    case = (given.size, given.length, given.batch)
    ways = {name: makers[name](*case) for name in given.peers}
    ways |= {f"electra_lab {how}": ours(*case, how) for how in given.ours}
    clock = time.process_time if given.clock == "processor" else time.perf_counter
    seconds = alternate(ways, given.rounds, warm_up=2, before=memory_of, clock=clock)
    print(f"ELECTRA-{given.size}, {given.length} x {given.batch}, {given.threads} threads, torch {torch.__version__}")
    print(f"matrix products at {matrix_peak(given.threads) / 1e9:.0f} GFLOP/s\n")
    print(table(seconds, given.peers or [next(iter(ways))]))
    about = {
        "size": given.size,
        "length": given.length,
        "batch": given.batch,
        "threads": given.threads,
        "clock": given.clock,
    }
    write(given.json, about | {"machine": platform.processor(), "torch": torch.__version__}, seconds)


if __name__ == "__main__":
    main()
