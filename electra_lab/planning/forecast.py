"""The needs of a run, from shapes: no corpus is read, and no weight has memory unless a component needs numbers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from electra_lab.assembly.budget import count_parameters
from electra_lab.assembly.build import BERT_VOCABULARY, Built, build, make_optimizer, vocabulary_size
from electra_lab.config.load import Loaded
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.planning.memory import free_bytes, peak_bytes, shapes_only
from electra_lab.training.device import Precision, choose_precision
from electra_lab.training.loop import Run
from electra_lab.training.step import backward, is_fused, training_step
from registry import Batch, Flops

SHORT = 3e11  # FLOPs of a step that may be tried
SMALL = 4e9  # bytes of an experiment that may be tried
FREE = 0.6  # share of the free memory that tensors may take; allocators leave gaps, and kernels need some, too


@dataclass(frozen=True)
class Forecast:
    """The needs of a run. Bytes are peaks of the tensors that exist at once; None if a component needs numbers."""

    vocabulary_size: int | None  # None if the tokenizer's options do not say; then BERT_VOCABULARY is used
    parameters: dict[str, int]  # by network, `shared` and `total`
    parts: dict[str, dict[str, int]]  # embeddings, projection, backbone and heads of each network
    steps: int
    flops: Flops
    paper_flops: Flops
    precision: Precision
    rows: int  # at a time
    state_bytes: int  # weights and the optimizer's state
    working_bytes: int | None  # training on a batch, micro-batch by micro-batch, gradients included
    evaluation_bytes: int | None  # evaluation of evaluate.batch_size rows


def forecast(loaded: Loaded, built: Built, device: torch.device) -> Forecast:
    """Return what a run on `device` would need. `built` is the sketch of the experiment."""
    config, train, learner = loaded.config, loaded.config.train, built.learner
    precision = choose_precision(train.precision, device)

    def evaluation() -> None:
        with torch.no_grad(), learner.evaluating(config.seed):
            learner.losses(_rows(loaded, config.evaluate.batch_size), config.seed, 0, precision)

    state = state_bytes(loaded, built)
    asked, free = train.micro_batch_size or train.batch_size, free_bytes(device)
    for rows in [asked] if isinstance(asked, int) else parts_of(train.batch_size):
        working = working_bytes(loaded, built, rows, precision)
        if working is None or free is None or state + working <= FREE * free:
            break
    with shapes_only():
        evaluating = peak_bytes(evaluation)
    parts = {name: dict(network.named_children()) for name, network in built.networks.items()}
    return Forecast(
        vocabulary_size=vocabulary_size(loaded),
        parameters=count_parameters(built.networks),
        parts={
            name: {n: sum(p.numel() for p in part.parameters()) for n, part in of.items()} for name, of in parts.items()
        },
        steps=built.steps,
        flops=built.flops,
        paper_flops=built.paper_flops,
        precision=precision,
        rows=rows,
        state_bytes=state,
        working_bytes=working,
        evaluation_bytes=evaluating,
    )


def state_bytes(loaded: Loaded, built: Built) -> int:
    """Return the bytes of the weights and of the optimizer's state."""
    optimizer: Any = make_optimizer(loaded, built.learner.objective)  # the real one: state may depend on names
    parameters = built.learner.objective.parameters()
    return sum(4 * p.numel() + (optimizer.state_bytes(p) if p.requires_grad else 0) for p in parameters)


def working_bytes(loaded: Loaded, built: Built, rows: int, precision: Precision) -> int | None:
    """Return the peak bytes of training on a batch, so many rows at a time, gradients included.

    built  a sketch. None if a component needs numbers.
    """
    config, learner = loaded.config, built.learner

    def step(number: int) -> None:
        learner.at_step(config.seed, number)
        for _ in range(2 if rows < config.train.batch_size else 1):  # the second micro-batch finds gradients there
            backward(learner.losses(_rows(loaded, rows), config.seed, number, precision).terms)

    peaks = []
    with shapes_only():
        for first in sorted({0, built.flops.first}):
            peaks.append(peak_bytes(partial(step, first)))
            learner.objective.zero_grad(set_to_none=True)
    if None in peaks:
        return None
    optimizer: Any = make_optimizer(loaded, learner.objective)
    if not is_fused(optimizer):  # gradients, and copies to return to after a skipped step
        learning = [p for p in learner.objective.parameters() if p.requires_grad]
        peaks.append(sum(8 * p.numel() + optimizer.state_bytes(p) for p in learning))
    return max(peak for peak in peaks if peak is not None)


def parts_of(rows: int) -> Iterator[int]:
    """Yield numbers of rows at a time that divide a batch evenly: all, then the largest up to half of it, and so on."""
    size = rows
    while size:
        yield size
        size = max((part for part in range(1, size // 2 + 1) if rows % part == 0), default=0)


def trial_seconds(loaded: Loaded, needs: Forecast, device: torch.device) -> float | None:
    """Return the seconds of the whole training, from the faster of two steps after a warm-up.

    None if a step is too large to be tried here.
    """
    config, train = loaded.config, loaded.config.train
    absent = device.type == "cuda" and not torch.cuda.is_available()
    if absent or needs.flops.per_step > SHORT or needs.state_bytes + (needs.working_bytes or 0) > SMALL:
        return None
    words = stand_in_vocabulary(needs.vocabulary_size or BERT_VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        built = build(loaded, words)
    objective = built.learner.objective.to(device)
    run = Run(built.learner, make_optimizer(loaded, objective))
    objective.train()
    batch = _batch(torch.randint(5, words.size, (train.batch_size, config.data.sequence_length), device=device))
    step = partial(training_step, run.learner, run.optimizer, batch, seed=config.seed, rate=0.0,
                   clip_norm=train.clip_norm, precision=needs.precision,
                   micro_batch_size=needs.rows)  # fmt: skip
    total = 0.0
    begin = needs.flops.first  # of the second stage
    for first, number in ((0, begin), (begin, needs.steps - begin)) if begin else ((0, needs.steps),):
        times = []
        for _ in range(3):
            started = time.perf_counter()
            step(step=first)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        total += min(times[1:]) * number
    return total


def _rows(loaded: Loaded, number: int) -> Batch:
    size, length = vocabulary_size(loaded) or BERT_VOCABULARY, loaded.config.data.sequence_length
    return _batch(torch.full((number, length), size - 1))


def _batch(tokens: torch.Tensor) -> Batch:
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, torch.zeros_like(tokens), torch.arange(len(tokens), device=tokens.device))
