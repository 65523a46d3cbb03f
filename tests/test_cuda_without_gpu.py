"""A step of each experiment stays on one CUDA device, and the host never waits: tested with shapes, without a GPU.

`make check-cuda`: it needs a CUDA build of torch, as the CPU build cannot pretend. Tensors of torch's FakeTensorMode
have a device, a type and a shape, but no memory. A mix of devices, a tensor that forgot its device, `.item()` and
`nonzero` raise. Forward pass, clipping, update and evaluation are tried; the backward pass is not, as autograd asks the
driver. What a recorded step would freeze, a number that comes from the host, raises as well.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra_lab.assembly.build import Built, build, make_optimizer, vocabulary_size
from electra_lab.assembly.data import allocate_memory
from electra_lab.config.load import Loaded, load
from electra_lab.data.vocabulary import stand_in_vocabulary
from electra_lab.model import layers
from electra_lab.model.long_rows import by_sequence
from electra_lab.training import step as training_step
from electra_lab.training.execution import Watch
from electra_lab.training.random import Streams
from electra_lab.training.step import compute, parameters_of, prepare
from registry import Batch, Term, Vocabulary, masking_strategies, samplers
from tests.helpers import ROOT

ROWS, CUDA = 4, torch.device("cuda", 0)

needs_a_build = pytest.mark.skipif(torch.version.cuda is None, reason="this is torch's CPU build: make check-cuda")


def names() -> list[str]:
    """Return the experiments that need no plug-in, no other run and no released tokenizer."""
    files = [*(ROOT / "experiments").glob("*.yaml"), *(ROOT / "experiments" / "objectives").glob("*.yaml")]
    found = [file.relative_to(ROOT / "experiments").with_suffix("").as_posix() for file in files]
    return sorted({*found} - {"electra_large", "deberta_v3_small", "domain_deberta", "objectives/frozen_generator"})


# Components of a step that some of them may lack
OTHERS = [
    ("objectives/electric", "generator={type: two_towers, scale: 0.5}"),
    ("electra_small", "generator={type: uniform}"),
    *(("bert_small", f"masking={{type: {name}}}") for name in masking_strategies.names()),
    *(("bert_small", f"sampler={{type: {name}}}") for name in samplers.names()),
]


class FromTheHost(TorchDispatchMode):
    """Refuse operations on the device that read numbers of the host: a recorded step would keep those of one step."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.device == CUDA]
        if on_device and any(tensor.device.type == "cpu" for tensor in tensors):
            raise RuntimeError(f"{function} reads a tensor of the host")
        return result


def to_cuda(module: nn.Module) -> None:
    """Replace parameters and buffers by fake ones on CUDA; a shared parameter stays shared."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in moved:
                empty = torch.empty_like(parameter, device=CUDA)
                moved[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
            part._parameters[name] = moved[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty_like(buffer, device=CUDA)


def words_on_cuda(words: Vocabulary) -> Vocabulary:
    tensors = {name: value for name, value in vars(words).items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(words, **{name: torch.empty_like(old, device=CUDA) for name, old in tensors.items()})


def made(name: str, *overrides: str) -> tuple[Loaded[Any], Built]:
    loaded = load(ROOT / "experiments" / f"{name}.yaml", ["discriminator.depth=2", *overrides])
    return loaded, build(loaded, stand_in_vocabulary(vocabulary_size(loaded) or 30_522), seed=0)


def batch_of(loaded: Loaded[Any]) -> Batch:
    shape, ids = (ROWS, loaded.config.data.sequence_length), torch.empty(ROWS, dtype=torch.long, device=CUDA)
    tokens = torch.empty(shape, dtype=torch.long, device=CUDA)
    separate = loaded.config.packing.dump().get("attention") == "within_documents"
    documents = torch.empty_like(tokens) if separate else None
    real = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, real, torch.zeros_like(tokens), ids, documents, row_ids=ids)


@pytest.fixture(autouse=True)
def _nobody_asks_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    # Autocast asks whether there is a GPU.
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda **_: True)
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda tensor: tensor)  # as autograd does


@needs_a_build
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("experiment", [*((name,) for name in names()), *OTHERS], ids=" ".join)
def test_a_step_stays_on_the_device(
    experiment: tuple[str, ...], precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, built = made(*experiment)
    learner, objective = built.learner, built.learner.objective
    with FakeTensorMode(allow_non_fake_inputs=True):
        to_cuda(objective)
        objective.vocabulary = words_on_cuda(built.vocabulary)  # type: ignore[assignment]
        allocate_memory(loaded, objective, 100, CUDA)
        optimizer, batch = make_optimizer(loaded, built), batch_of(loaded)
        watch = Watch(CUDA)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])

        def backward(terms: dict[str, Term], *_: Any) -> None:
            assert all(term.sum.device == CUDA for term in terms.values())
            for parameter in parameters_of(optimizer):
                parameter.grad = torch.empty_like(parameter)

        monkeypatch.setattr(training_step, "backward", backward)
        if (
            loaded.config.optimizer.type == "stable_adamw"
        ):  # torch has no fake kernel of AdamW at a rate that is a tensor
            monkeypatch.setattr(training_step, "update", lambda *_: None)
        # Prepare, on the host
        objective.train()
        learner.to(CUDA)
        for step in (1, 2):  # from the second step on, the host mixes the keys
            prepare(learner, optimizer, np.arange(ROWS), seed=0, step=step, rate=1.0, watch=watch)
            # Compute, on the device
            with FromTheHost():
                options = {"clip_norm": 1.0, "micro_batch_size": ROWS // 2, "precision": precision, "watch": watch}
                result = compute(learner, optimizer, batch, **options)
            assert result.gradient_norm.device == CUDA
        # Evaluation; that of `reformer` reads the lengths of rows on the host
        objective.eval()
        if loaded.config.discriminator.type != "reformer":
            learner.losses(batch, Streams.of(0, -1, batch.example_ids), precision)


@needs_a_build
@pytest.mark.parametrize("name", ["electra_small", "transformer_small", "modernbert_small"])
def test_long_rows_with_padding_are_sequences(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's kernel gets the bound of the batch, and no number of the device is read."""
    without_dropout = ("discriminator.dropout=0.0", "embedding.dropout=0.0")
    loaded, built = made(name, "data.sequence_length=600", "embedding.max_length=600", *without_dropout)
    begins = []

    def counted(*inputs: Any) -> Any:
        begins.append(inputs[3].begins)
        return by_sequence(*inputs)

    monkeypatch.setattr(layers, "by_sequence", counted)
    learner = built.learner
    with FakeTensorMode(allow_non_fake_inputs=True):
        to_cuda(learner.objective)
        learner.objective.vocabulary = words_on_cuda(built.vocabulary)  # type: ignore[assignment]
        batch = batch_of(loaded)
        for encoder in learner.encoders:
            encoder.most_documents = 2 * ROWS  # as from `document_counts`, whose numbers are not read here
        learner.objective.train()
        learner.to(CUDA)
        learner.at_step(0, 1, np.arange(ROWS))
        learner.at_step(0, 2, np.arange(ROWS))
        with FromTheHost():
            losses = learner.losses(batch, learner.keys.streams(batch.example_ids, slice(0, ROWS)), "bf16")
        assert all(term.sum.device == CUDA for term in losses.terms.values())
    assert len(begins) >= 3
    assert {(tuple(begin.shape), begin.device) for begin in begins} == {((2 * ROWS + 1,), CUDA)}


@needs_a_build
@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x + torch.ones(3),
        lambda x: x * torch.tensor(2.0),
        lambda x: x + torch.ones(3).to(CUDA, non_blocking=True),
        lambda x: x.copy_(torch.ones(3)),
    ],
)
def test_what_it_looks_for_raises(wrong: Any) -> None:
    with FakeTensorMode(), FromTheHost(), pytest.raises((RuntimeError, DataDependentOutputException)):
        wrong(torch.empty(3, device=CUDA))


def test_there_are_experiments() -> None:
    assert {"reformer_small", "electra_small", "objectives/sas"} <= set(names())
