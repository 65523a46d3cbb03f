"""Ways of taking the same training step: ours, electra-pytorch's, the usual one on transformers, and txtai's.

A case is an experiment of experiments/, without dropout, on random tokens of its vocabulary in rows without padding.
All ways train networks of the same sizes, with AdamW and clipped gradients. For `bert` the peers get transformers'
networks; for backbones that transformers lacks, they get the lab's, with logits at every position.

Each way runs with its own settings: our trainings keep freed memory and, on CUDA, use exact kernels
(training/device.py); the others have the defaults of glibc and torch.
"""

import ctypes
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electra_lab.assembly.build import (
    BERT_VOCABULARY,
    Built,
    build,
    loop_settings,
    make_optimizer,
    vocabulary_size,
)
from electra_lab.config.load import Loaded, load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.model.layers import KERNELS, use_kernel
from electra_lab.model.network import Network, everywhere
from electra_lab.training.device import compile_modules, keep_freed_memory, use_exact_kernels
from electra_lab.training.graph import EAGER, CudaGraphs, Recorded
from electra_lab.training.loop import Run
from electra_lab.training.step import prepare
from registry import Batch, Vocabulary

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
COMPILE = ("off", "layers", "full")
GRAPH, HALVES, CHECKPOINTING = "graph", "halves", "checkpointing"
REHEARSED = bool(os.environ.get("ELECTRA_LAB_REHEARSAL"))  # set by gpu.py: CUDA's parts are played on a CPU
USUAL = "usual step"
LAB = "electra_lab"
Step = Callable[[], object]


class Missing(Exception):
    """A peer that is not installed, or has no such networks; the message is a cell of the table."""


@dataclass(frozen=True)
class Case:
    """An experiment of experiments/ with other options: `changes` as `--set` takes them."""

    experiment: str
    length: int | None = None
    batch: int | None = None
    changes: tuple[str, ...] = ()
    device: str = "cpu"

    def loaded(self, *more: str) -> Loaded[Any]:
        changes = [*self.changes, "embedding.dropout=0.0", "discriminator.dropout=0.0", *more]
        if self.length:
            changes += [f"data.sequence_length={self.length}", f"embedding.max_length={max(self.length, 512)}"]
        if self.batch:
            changes += [f"train.batch_size={self.batch}"]
        return load(EXPERIMENTS / f"{self.experiment}.yaml", changes)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        size = vocabulary_size(self.loaded()) or BERT_VOCABULARY
        return stand_in_vocabulary(size, torch.device(self.device))

    @cached_property
    def tokens(self) -> Tensor:
        config, words = self.loaded().config, self.vocabulary
        size = config.train.batch_size, config.data.sequence_length
        tokens = torch.randint(4, words.size, size, generator=torch.Generator().manual_seed(0))
        tokens[:, 0], tokens[:, -1] = words.cls_id, words.sep_id
        return tokens.to(self.device)

    def built(self, *more: str) -> tuple[Loaded[Any], Built]:
        loaded = self.loaded(*more)
        built = build(loaded, self.vocabulary, seed=0)
        built.learner.objective.to(self.device)
        return loaded, built

    def __str__(self) -> str:
        batch, length = self.tokens.shape
        return f"{self.experiment}, {length} x {batch}"


def make(case: Case, way: str) -> Step:
    """Return the step of a peer or of the lab, by its name and options: `electra_lab HOW`. Raises Missing.

    HOW is that of `ours`. Peers take fp32, bf16 (by autocast), bf16+full (compiled) and bf16+overhead (compiled, with
    the CUDA graphs of torch.compile), each with +adam for torch's fused AdamW, and are in fp32 without a word.
    Kernels are chosen while code is compiled and graphs are recorded, so that the settings of a way hold from here on.
    """
    settings_of(way)
    if way.startswith(LAB):
        return ours(case, way.removeprefix(LAB).strip())
    name = name_of_peer(way)
    try:
        return PEERS[name](case, way.removeprefix(name).strip())
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from error


def ours(case: Case, how: str) -> Step:
    """Return our step. `how`: a precision, then after + signs an attention kernel, a compile mode, a sampler.

    Or graph (recorded and replayed), halves (two micro-batches), checkpointing (activations are computed again).
    """
    precision, *others = how.split("+")
    compile_ = next((word for word in others if word in COMPILE), "off")
    kernel = next((word for word in others if word in KERNELS), "fused")
    words = (*COMPILE, *KERNELS, GRAPH, HALVES, CHECKPOINTING)
    sampler = next((word for word in others if word not in words), "temperature")
    if GRAPH in others and case.device != "cuda" and not REHEARSED:
        raise Missing("there is no CUDA device here")
    again = f"train.activation_checkpointing={str(CHECKPOINTING in others).lower()}"
    loaded, built = case.built(f"sampler={{type: {sampler}}}", f"train.precision={precision}", again)
    use_kernel(kernel, built.learner.objective)  # type: ignore[arg-type]
    compile_modules(compile_, built.learner.objective, built.networks.values())  # type: ignore[arg-type]
    device, run = torch.device(case.device), Run(built.learner, make_optimizer(loaded, built))
    options: Any = {"precision": precision, "steps": 1_000_000, "flops": built.flops, "examples": 0}
    micro = len(case.tokens) // (2 if HALVES in others else 1)
    settings = replace(loop_settings(loaded.config, seed=0, **options), micro_batch_size=micro)
    tokens = case.tokens
    rows = len(tokens)
    given = Batch(
        tokens,
        torch.ones_like(tokens, dtype=torch.bool),
        torch.zeros_like(tokens),
        torch.arange(rows, device=case.device),
    )
    built.learner.objective.train()
    run.begin(settings, device)

    def take() -> None:
        prepare(run.learner, run.optimizer, np.arange(rows), seed=0, step=run.step, rate=0.01, watch=run.watch)
        run.compute(run, settings, given)
        run.step += 1

    if GRAPH in others:
        said: list[str] = []
        run.compute = Recorded(run, recorder(run, device), device, said.append)
        for _ in range(EAGER):  # recorded, and compared with an eager step
            take()
        if said:
            raise Missing(said[0])
    return take


def recorder(run: Run, device: torch.device) -> CudaGraphs:
    """Return the recorder of steps; in a rehearsal on a CPU, the recorder of operations that the tests use."""
    if device.type == "cuda":
        return CudaGraphs(device)
    sys.path.insert(0, str(EXPERIMENTS.parent))
    from electra_lab.training import random
    from tests.electra_lab.training.recorded import CpuGraphs

    random._in_numpy = lambda *_: False  # it sees torch's operations alone
    graphs: Any = CpuGraphs(run)
    return graphs


def of_transformers(case: Case, attention: str = "sdpa") -> tuple[nn.Module, nn.Module]:
    """Return transformers' pair of these sizes, with shared embeddings and dropout 0."""
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    config = case.loaded().config

    def sized(sizes: Any) -> ElectraConfig:
        return ElectraConfig(
            vocab_size=case.vocabulary.size,
            embedding_size=config.embedding.dim,
            max_position_embeddings=config.embedding.max_length,
            hidden_size=sizes.dim,
            num_hidden_layers=sizes.depth,
            num_attention_heads=sizes.heads,
            intermediate_size=4 * sizes.dim,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation=attention,
        )

    generator = ElectraForMaskedLM(sized(config.generator.sizes))
    discriminator = ElectraForPreTraining(sized(config.discriminator.sizes))
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    return generator.train().to(case.device), discriminator.train().to(case.device)


class Logits(nn.Module):
    """A network that takes only tokens and returns logits at all positions: transformers', or the lab's."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        network = self.network
        if not isinstance(network, Network):
            logits: Tensor = network(tokens).logits
            return logits
        hidden = network.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens))
        if "tokens" in network.heads:
            return network.token_logits(hidden, everywhere(hidden))
        return network.replaced_logits(hidden)


def networks(case: Case) -> tuple[Logits, Logits]:
    if case.loaded().config.discriminator.type == "bert":
        generator, discriminator = of_transformers(case)
        return Logits(generator), Logits(discriminator)
    built = case.built()[1]
    return Logits(built.networks["generator"].train()), Logits(built.networks["discriminator"].train())


def stepper(case: Case, how: str, modules: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    words = how.split("+")
    parameters = list(modules.parameters())
    for network in modules.modules():
        if isinstance(network, Logits) and "full" in words:
            network.compile(dynamic=False)
        if isinstance(network, Logits) and "overhead" in words:
            network.compile(dynamic=False, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(parameters, lr=5e-6, weight_decay=0.01, fused="adam" in words or None)

    def take() -> None:
        with torch.autocast(case.device, torch.bfloat16, enabled="bf16" in words):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return take


def electra_pytorch(case: Case, how: str = "") -> Step:
    from electra_pytorch import Electra

    words, tokens = case.vocabulary, case.tokens
    model = Electra(
        *networks(case), num_tokens=words.size, mask_token_id=words.mask_id, pad_token_id=words.pad_id,
        mask_ignore_token_ids=[words.cls_id, words.sep_id],
    )  # fmt: skip
    return stepper(case, how, model, lambda: model(tokens).loss)


def mask(case: Case) -> tuple[Tensor, Tensor]:
    """Return masked tokens, and labels, which are -100 elsewhere."""
    tokens, words = case.tokens, case.vocabulary
    masked = torch.bernoulli(
        torch.full(tokens.shape, 0.15, device=case.device).masked_fill(words.is_special[tokens], 0.0)
    ).bool()
    kept = torch.bernoulli(torch.full(tokens.shape, 0.15, device=case.device)).bool()
    return torch.where(masked & ~kept, words.mask_id, tokens), torch.where(masked, tokens, -100)


def usual(case: Case, how: str = "", pair: tuple[nn.Module, nn.Module] | None = None) -> Step:
    """Logits at every position, the cross-entropy of the masked ones, replacements by `torch.multinomial`."""
    generator, discriminator = pair or networks(case)
    tokens = case.tokens

    def loss() -> Tensor:
        inputs, labels = mask(case)
        logits = generator(inputs)
        guess = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        masked = labels != -100
        with torch.no_grad():
            drawn = torch.multinomial(logits[masked].softmax(-1), 1).squeeze(-1)
        corrupted = tokens.clone()
        corrupted[masked] = drawn
        found = F.binary_cross_entropy_with_logits(discriminator(corrupted), (corrupted != tokens).float())
        return guess + 50 * found

    return stepper(case, how, nn.ModuleList([generator, discriminator]), loss)


def txtai(case: Case, how: str = "") -> Step:
    """The model of txtai's trainer for `token-detection`, driven step by step."""
    if case.loaded().config.discriminator.type != "bert":
        raise Missing("has no such networks")
    from txtai.models import TokenDetection

    # transformers refuses txtai's class around networks with any other attention.
    model = TokenDetection(*of_transformers(case, "eager"), tokenizer=None)

    def loss() -> Tensor:
        inputs, labels = mask(case)
        total: Tensor = model(inputs, labels=labels, attention_mask=torch.ones_like(inputs))[0]
        return total

    return stepper(case, how, model, loss)


PEERS: dict[str, Callable[[Case, str], Step]] = {"electra-pytorch": electra_pytorch, USUAL: usual, "txtai": txtai}


def name_of_peer(way: str) -> str:
    return next(name for name in PEERS if way.startswith(name))


def peer(way: str) -> str:
    """Return a way of a peer, for parsers."""
    if not way.startswith(tuple(PEERS)):
        raise ArgumentTypeError(f"{way!r} does not begin with one of {', '.join(PEERS)}")
    return way


def settings_of(way: str) -> None:
    """Set glibc's malloc and torch's kernels on CUDA as in this way, and return free memory to the system."""
    libc = ctypes.CDLL(None)
    if way.startswith(LAB):
        keep_freed_memory()
        use_exact_kernels()
    else:
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.enable_cudnn_sdp(True)
        libc.mallopt(-4, 65_536)  # the defaults of M_MMAP_MAX and M_TRIM_THRESHOLD
        libc.mallopt(-1, 128 * 1024)
        libc.malloc_trim(0)
