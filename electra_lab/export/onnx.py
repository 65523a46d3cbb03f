"""A network as ONNX, for programs without torch: written by torch's exporter, and compared with the original."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_lab.model.network import Network, everywhere
from registry import Batch
from registry.errors import ConfigError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
NEEDED = ("onnx", "onnxscript", "onnxruntime")
SIZE = "--onnx-size"
Size = tuple[int, int]  # batch and length
LARGEST = 1_800_000_000  # bytes of weights in one file, as protobuf's limit is 2 GB; others go to a second file


class NamedOutputs(nn.Module):
    """A network with the interface of transformers: integers in, the output of its head and then the states out.

    head    head of a task, for the class `kind`; without it, the network's own head is used
    labels  labels of the task, in the order of its outputs
    usual   the tag of words without tokens
    texts   number of texts of an input, if it is always the same
    """

    def __init__(
        self,
        network: Network,
        head: nn.Module | None = None,
        kind: str = "",
        labels: Sequence[str] = (),
        usual: str = "",
        texts: int = 0,
    ) -> None:
        super().__init__()
        self.network, self.head, self.labels, self.usual, self.texts = network, head, [*labels], usual, texts
        self.of_text, self.of_spans = kind == "ForSequenceClassification", kind == "ForQuestionAnswering"
        of_head: tuple[str, ...] = ("start_logits", "end_logits") if self.of_spans else ("logits",)
        has_head = head is not None or "replaced" in network.heads or "tokens" in network.heads
        self.outputs = (*of_head, "last_hidden_state") if has_head else ("last_hidden_state",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        batch = Batch(input_ids, attention_mask.bool(), token_type_ids, input_ids[:, 0])
        states = self.network.hidden(batch.tokens, batch.attention_mask, batch.segments)
        return *self._head(states, batch), states

    def _head(self, states: Tensor, batch: Batch) -> Sequence[Tensor]:
        head: Any = self.head
        if self.of_spans:
            start, end = head.span(head.prepared(states)).unbind(-1)
            return [start, end]
        if head is not None:
            return [head(states, batch)]
        if "replaced" in self.network.heads:
            return [self.network.replaced_logits(states)]
        if "tokens" in self.network.heads:
            return [self.network.token_logits(states, everywhere(states))]
        return []


def write_onnx(file: Path, module: NamedOutputs, vocabulary_size: int, longest: int, size: Size | None = None) -> None:
    """Write a network in eval mode, from `input_ids`, `attention_mask` and `token_type_ids` to `module.outputs`.

    The inputs are int64 [batch, length], of any size up to `longest` tokens.

    size  the only batch and length that the file will take

    Raises ConfigError if the network cannot be written, or if onnxruntime computes other numbers than torch.
    """
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise ConfigError(f"ONNX needs {', '.join(missing)}. Install: pip install 'electra-lab[onnx]'")
    if size and not (size[0] >= 1 and 1 <= size[1] <= longest):
        raise ConfigError(f"{SIZE} {size[0]}x{size[1]}: must be at least 1x1, with at most {longest} tokens.")
    module.eval()
    backbone: Any = module.network.backbone
    backbone.before_export(size[1] if size else longest)
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1, max=longest)
    weights = sum(tensor.nbytes for tensor in module.state_dict().values())
    try:
        with quiet(), torch.no_grad():
            traced = torch.export.export(
                module,
                random_inputs(*(size or (2, min(16, longest))), vocabulary_size),
                dynamic_shapes=None if size else {name: {0: batch, 1: length} for name in INPUTS},
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            program = torch.onnx.export(
                traced, (), input_names=INPUTS, output_names=module.outputs, dynamo=True, verbose=False
            )
            assert program is not None
            _name_axes(program, size)
            program.model.metadata_props["longest"] = str(size[1] if size else longest)  # input, in tokens
            if module.labels:
                program.model.metadata_props.update(labels=json.dumps(module.labels), usual=module.usual)
            if module.texts:
                program.model.metadata_props["texts"] = str(module.texts)
            program.save(file, external_data=weights > LARGEST)
    except Exception as error:  # of many kinds
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(cause, OSError) and cause.errno:  # of the disk, and not of the network
            raise cause from None
        raise _refusal(module, longest, size, "torch cannot export it", cause) from error
    _compare(file, module, vocabulary_size, longest, size)


def _name_axes(program: Any, size: Size | None) -> None:
    """Name the open axes of inputs and outputs `batch` and `length`, which the exporter calls `s18` or worse."""
    from onnx_ir import Shape

    graph, names = program.model.graph, size or ("batch", "length")
    for value in (*graph.inputs, *graph.outputs):
        axes = [axis if isinstance(axis, int) else names[place] for place, axis in enumerate(value.shape)]
        value.shape = Shape(axes)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress and its advice for developers from the terminal."""
    loggers = [logging.getLogger(name) for name in ("", "torch", "torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def open_onnx(file: Path, threads: int = 0) -> Any:
    """Return a session of onnxruntime on the CPU. `threads` 0 means one for each core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _compare(file: Path, module: NamedOutputs, vocabulary_size: int, longest: int, size: Size | None) -> None:
    """Raise ConfigError unless onnxruntime computes torch's numbers, for batches and lengths that were not traced."""
    try:
        session = open_onnx(file)
    except Exception as error:  # onnxruntime's own
        raise _refusal(module, longest, size, "onnxruntime cannot open it", error) from error
    sizes = [size] if size else [(1, 1), (1, longest), (3, max(1, longest // 2)), (2, min(7, longest))]
    # Where a network hashes, rounding may move a state to another bucket: then other inputs must agree.
    attempts = range(3 if module.network.backbone.discontinuous else 1)
    for rows, length in sizes:
        attempt_inputs = (random_inputs(rows, length, vocabulary_size, seed) for seed in attempts)
        try:
            difference, name = min(_difference(session, module, inputs) for inputs in attempt_inputs)
        except Exception as error:
            problem = f"onnxruntime cannot run {rows} x {length} tokens"
            raise _refusal(module, longest, size, problem, error) from error
        if not difference <= TOLERANCE:
            reason = f"for {rows} x {length} tokens its {name} would differ by {difference:.2g}"
            raise _refusal(module, longest, size, reason)


@torch.no_grad()
def _difference(session: Any, module: NamedOutputs, inputs: Sequence[Tensor]) -> tuple[float, str]:
    """Return the largest difference between onnxruntime's numbers and torch's, and the output that has it.

    The states of padding mean nothing: they need only be numbers.
    """
    arrays = {name: tensor.numpy() for name, tensor in zip(INPUTS, inputs, strict=True)}
    outputs = zip(module.outputs, module(*inputs), session.run(list(module.outputs), arrays), strict=True)
    gaps = []
    for name, expected, computed in outputs:
        gap = (torch.from_numpy(computed) - expected).abs()
        if name != "logits" or not module.of_text:  # [B T ...]
            gap = gap * inputs[1].reshape(*inputs[1].shape, *[1] * (gap.dim() - 2))
        gaps.append((gap.nan_to_num(nan=torch.inf).max().item(), name))
    return max(gaps)


def _refusal(
    module: NamedOutputs, longest: int, size: Size | None, problem: str, error: Exception | None = None
) -> ConfigError:
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    reason = f" ({lines[0].partition(' For more information')[0]})" if lines else ""
    sizes, cure = "any batch and length", f"Fix them, such as by {SIZE} 1x{min(128, longest)}, or "
    if size:
        sizes, cure = f"{size[0]} x {size[1]} tokens", f"Choose another {SIZE}, or "
    return ConfigError(
        f"{type(module.network.backbone).__name__} cannot be written as ONNX with {sizes}: {problem}{reason}. "
        f"{cure}export without --onnx."
    )


def random_inputs(rows: int, length: int, vocabulary_size: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, a mask that leaves the first row whole and each other one shorter, and segments."""
    tokens = torch.randint(vocabulary_size, (rows, length), generator=torch.Generator().manual_seed(seed))
    lengths = length - torch.arange(rows) * (length // rows)
    return tokens, (torch.arange(length) < lengths.unsqueeze(1)).long(), tokens % 2
