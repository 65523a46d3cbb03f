"""What a run would need, from shapes: no corpus is read, and no weight has memory unless a component needs numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from electra_lab.assemble import build_objective, build_pair, without_memory
from electra_lab.budget import Pair, budgeted_steps, count_parameters, networks, price
from electra_lab.config.load import Loaded
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.training.device import Precision, autocast, choose_precision
from electra_lab.training.loop import Flops
from electra_lab.training.memory import peak_bytes, shapes_only
from electra_lab.training.random import Streams
from electra_lab.training.step import backward, losses_at
from registry import Batch, Vocabulary

UNKNOWN_VOCABULARY = 30_522  # BERT's, which google-research/electra uses


@dataclass(frozen=True)
class Forecast:
    """What a run would need.

    vocabulary_size  None where the tokenizer's options do not say; then UNKNOWN_VOCABULARY stands in
    parameters       as in Experiment; `parts`: embeddings, projection, backbone, head of each network
    flops            of training, as in Plan
    state_bytes      weights and the optimizer's two moments, in float32
    working_bytes    the peak of what training on a batch, micro-batch by micro-batch, makes, gradients included;
                     None where a component needs numbers to go on
    evaluation_bytes the same of evaluation, over evaluate.batch_size rows
    """

    vocabulary_size: int | None
    parameters: dict[str, int]
    parts: dict[str, dict[str, int]]
    steps: int
    flops: Flops
    precision: Precision
    state_bytes: int
    working_bytes: int | None
    evaluation_bytes: int | None


def forecast(loaded: Loaded, device: torch.device) -> Forecast:
    """What a run of `loaded` on `device` would need. Raises ConfigError."""
    config, train = loaded.config, loaded.config.train
    size = getattr(config.tokenizer.options, "vocab_size", None)
    length, micro = config.data.sequence_length, train.micro_batch_size or train.batch_size

    def build() -> tuple[Vocabulary, Pair, Flops]:  # operations may have to be counted, so the price belongs to it
        vocabulary = stand_in_vocabulary(size or UNKNOWN_VOCABULARY)
        pair = build_pair(loaded, vocabulary)
        return vocabulary, pair, price(pair, config)

    vocabulary, pair, flops = without_memory(shapes_only(), build)
    with shapes_only():
        objective, _ = build_objective(loaded, pair, vocabulary)

        def rows(number: int) -> Batch:
            tokens = torch.full((number, length), vocabulary.size - 1)
            real = torch.ones_like(tokens, dtype=torch.bool)
            return Batch(tokens, real, torch.zeros_like(tokens), torch.arange(number))

        def step(stage: int) -> None:
            for _ in range(2 if micro < train.batch_size else 1):  # the second micro-batch finds gradients there
                backward(losses_at(stage, objective, rows(micro), config.seed, precision).terms)

        def evaluation() -> None:
            with torch.no_grad():
                batch = rows(config.evaluate.batch_size)
                with autocast(batch.tokens.device, precision):
                    objective.eval()(batch, Streams(config.seed, 0, batch.examples))

        precision = choose_precision(train.precision, device)
        peaks = []
        for stage in sorted({0, flops.first}):
            peaks.append(peak_bytes(partial(step, stage)))
            objective.zero_grad(set_to_none=True)
        working = None if None in peaks else max(peak for peak in peaks if peak is not None)
        evaluating = peak_bytes(evaluation)
    frozen = set(pair[0].parameters()) if config.needs.frozen and pair[0] else set()  # it has no moments
    return Forecast(
        vocabulary_size=size,
        parameters=count_parameters(pair),
        parts={name: _parts(network) for name, network in networks(pair).items()},
        steps=budgeted_steps(loaded, flops),
        flops=flops,
        precision=precision,
        state_bytes=sum((4 if p in frozen else 12) * p.numel() for p in objective.parameters()),
        working_bytes=working,
        evaluation_bytes=evaluating,
    )


def _parts(network: nn.Module) -> dict[str, int]:
    return {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}
