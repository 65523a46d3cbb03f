"""A network as ONNX, for programs without torch: written by torch's exporter, and compared with the original."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from electra_lab.model.network import Network, everywhere
from registry.errors import ConfigError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOLERANCE = 1e-4
NEEDED = ("onnx", "onnxscript", "onnxruntime")
LARGEST = 1_800_000_000  # bytes of weights in one file, as protobuf's limit is 2 GB; others go to a second file


class _Logits(nn.Module):
    """A network with the interface of transformers: integers in, the logits of its head out."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        states = self.network.hidden(input_ids, attention_mask.bool(), token_type_ids)
        if "replaced" in self.network.heads:
            return self.network.replaced_logits(states)
        if "tokens" in self.network.heads:
            return self.network.token_logits(states, everywhere(states))
        return states


def write_onnx(file: Path, network: Network, vocabulary_size: int, longest: int) -> None:
    """Write a network in eval mode, from `input_ids`, `attention_mask` and `token_type_ids` to `logits`.

    The inputs are int64 [batch, length], of any size up to `longest` tokens. Raises ConfigError if the network cannot
    be written, or if onnxruntime computes other logits than torch.
    """
    if missing := [name for name in NEEDED if not find_spec(name)]:
        raise ConfigError(f"ONNX needs {', '.join(missing)}. Install: pip install 'electra-lab[onnx]'")
    module = _Logits(network).eval()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1, max=longest)
    size = sum(each.nbytes for each in network.state_dict().values())
    shapes = {name: {0: batch, 1: length} for name in INPUTS}
    try:
        with _quiet(), torch.no_grad():
            traced = torch.export.export(
                module,
                _inputs(2, min(16, longest), vocabulary_size),
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
            torch.onnx.export(
                traced,
                (),
                file,
                input_names=INPUTS,
                output_names=("logits",),
                dynamo=True,
                external_data=size > LARGEST,
                verbose=False,
            )
    except Exception as error:  # of many kinds
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise _refusal(network, "torch cannot export it", cause) from error
    _compare(file, module, vocabulary_size, longest)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and its advice for developers from the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript", "onnx_ir")]
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


def _compare(file: Path, module: _Logits, vocabulary_size: int, longest: int) -> None:
    """Raise ConfigError unless onnxruntime computes torch's logits, for batches and lengths that were not traced."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own
        raise _refusal(module.network, "onnxruntime cannot open it", error) from error
    for rows, length in ((1, 1), (1, longest), (3, max(1, longest // 2)), (2, min(7, longest))):
        inputs = _inputs(rows, length, vocabulary_size)
        with torch.no_grad():
            expected = module(*inputs)
        given = {name: tensor.numpy() for name, tensor in zip(INPUTS, inputs, strict=True)}
        try:
            computed = torch.from_numpy(session.run(["logits"], given)[0])
        except Exception as error:
            raise _refusal(module.network, f"onnxruntime cannot run {rows} x {length} tokens", error) from error
        difference = (computed - expected).abs().max().item()
        if not difference <= TOLERANCE:
            raise _refusal(module.network, f"for {rows} x {length} tokens its logits would differ by {difference:.2g}")


def _refusal(network: Network, what: str, error: Exception | None = None) -> ConfigError:
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    reason = f" ({lines[0].partition(' For more information')[0]})" if lines else ""
    return ConfigError(
        f"{type(network.backbone).__name__} cannot be written as ONNX with any batch and length: {what}{reason}. "
        "Export without --onnx."
    )


def _inputs(rows: int, length: int, vocabulary_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, a mask that leaves the first row whole and each other one shorter, and segments."""
    tokens = torch.randint(vocabulary_size, (rows, length), generator=torch.Generator().manual_seed(0))
    lengths = length - torch.arange(rows) * (length // rows)
    return tokens, (torch.arange(length) < lengths.unsqueeze(1)).long(), tokens % 2
