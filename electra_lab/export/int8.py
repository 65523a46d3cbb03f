"""A network as ONNX in int8, by onnxruntime's dynamic quantization, compared with the original."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from electra_lab.assembly.experiment import assemble
from electra_lab.data.store import is_store, load_store
from electra_lab.export.onnx import INPUTS, NamedOutputs, Size, open_onnx, quiet, random_inputs
from electra_lab.pretrained.opening import run_config
from electra_lab.pretrained.trained_model import TrainedModel
from electra_lab.storage.checkpoint import read_model
from electra_lab.tokenizers.pretrained import read_tokenizer
from electra_lab.training.random import EVALUATION, Streams
from registry.errors import LabError

BATCH = 8  # rows at a time, if the file does not fix them
MOST = 1 << 16  # tokens, padding included, that the two files are compared on


@dataclass(frozen=True)
class Rows:
    """Inputs of a network, [B T] by name; which tokens are compared; and which were replaced, if that is known."""

    inputs: dict[str, NDArray[np.int64]]
    judged: NDArray[np.bool_]
    replaced: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Change:
    """The difference between two files on the same rows; pairs are fp32 and int8.

    text       which tokens are compared
    tokens     their number
    auc        of detecting the replaced tokens, if they are known
    agreement  the share of equal answers; None for numbers
    answers    what they are: verdicts, labels, tags or tokens
    outputs    the mean and the largest absolute difference
    """

    text: str
    tokens: int
    batch: int
    length: int
    threads: int
    bytes: tuple[int, int]
    seconds: tuple[float, float]
    auc: tuple[float, float] | None
    agreement: float | None
    answers: str
    outputs: tuple[float, float]

    def __str__(self) -> str:
        smaller, faster = self.bytes[0] / self.bytes[1], self.seconds[0] / self.seconds[1]
        effects = [f"{smaller:.1f} times smaller", f"{faster:.2f} times as fast"]
        if self.auc:
            effects.append(f"AUC {self.auc[1]:.4f} instead of {self.auc[0]:.4f}")
        if self.agreement is not None:
            effects.append(f"{self.agreement:.1%} of the {self.answers} equal")
        effects.append(f"outputs differ by {self.outputs[0]:.2g} on average, by {self.outputs[1]:.2g} at most")
        rows, threads = f"{self.batch} x {self.length}", f"{self.threads} thread{'s' * (self.threads != 1)}"
        return f"{', '.join(effects)} ({self.tokens:,} {self.text}, {rows}, {threads})"


def write_int8(
    fp32: Path, module: NamedOutputs, rows: list[Rows], text: str, vocabulary_size: int, longest: int, size: Size | None
) -> Change:
    """Write model_int8.onnx next to a file, and compare them on these rows; on random tokens if there are none."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    int8, external = fp32.with_name("model_int8.onnx"), fp32.with_name(f"{fp32.name}.data").exists()
    source: Any = fp32
    if not external:  # some weights will be transposed, but not the shapes that the exporter noted of them
        source = onnx.load(fp32)
        del source.graph.value_info[:]
    with quiet():
        quantize_dynamic(source, int8, weight_type=QuantType.QInt8, use_external_data_format=external)
    if not rows:
        shape, text = size or (BATCH, min(longest, 128)), "random tokens"
        rows = [_rows(*random_inputs(*shape, vocabulary_size, seed)) for seed in range(4)]
    return _compared(fp32, int8, module, rows, text)


def _compared(fp32: Path, int8: Path, module: NamedOutputs, rows: list[Rows], text: str) -> Change:
    """Run both files on the same rows, alternating which one is first."""
    threads = torch.get_num_threads()  # as OMP_NUM_THREADS says
    sessions, seconds = [open_onnx(file, threads) for file in (fp32, int8)], [0.0, 0.0]
    of_head, detects = [*module.outputs[-2:][:1]], "replaced" in module.network.heads
    outputs: list[Any] = [None, None]
    scores, gaps, same, largest = list[NDArray[Any]](), list[float](), list[float](), 0.0
    for session in sessions:
        session.run(of_head, rows[0].inputs)  # the first call allocates
    for number, batch in enumerate(rows):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            (outputs[which],) = sessions[which].run(of_head, batch.inputs)
            seconds[which] += time.perf_counter() - began
        exact, rounded = (output if module.of_text else output[batch.judged] for output in outputs)
        gaps.append(float(np.abs(exact - rounded).mean()))
        largest = max(largest, float(np.abs(exact - rounded).max(initial=0.0)))
        if detects:
            same.append(float(((exact > 0) == (rounded > 0)).mean()))
            if batch.replaced is not None:
                scores.append(np.stack([batch.replaced[batch.judged], exact, rounded]))
        elif len(module.outputs) == 2 and exact.shape[-1] > 1:
            same.append(float((exact.argmax(-1) == rounded.argmax(-1)).mean()))
    shape, of_tokens = max(batch.judged.shape for batch in rows), "tags" if module.labels else "tokens"
    return Change(
        text=text,
        tokens=sum(int(batch.judged.sum()) for batch in rows),
        batch=shape[0],
        length=shape[1],
        threads=threads,
        bytes=(_bytes(fp32), _bytes(int8)),
        seconds=(seconds[0], seconds[1]),
        auc=_auc(*np.concatenate(scores, axis=1)) if scores else None,
        agreement=float(np.mean(same)) if same else None,
        answers="verdicts" if detects else "labels" if module.of_text else of_tokens,
        outputs=(float(np.mean(gaps)), largest),
    )


def _auc(replaced: NDArray[Any], exact: NDArray[Any], rounded: NDArray[Any]) -> tuple[float, float] | None:
    from sklearn.metrics import roc_auc_score

    if not 0 < replaced.sum() < len(replaced):
        return None
    return float(roc_auc_score(replaced, exact)), float(roc_auc_score(replaced, rounded))


def _bytes(file: Path) -> int:
    return sum(part.stat().st_size for part in (file, file.with_name(f"{file.name}.data")) if part.exists())


def run_rows(model: TrainedModel, size: Size | None = None) -> list[Rows]:
    """Return the test text of a run as its discriminator saw it, with the same replacements, if its store is there.

    Of an objective without replacements, the masks stay in it.
    """
    assert model.run is not None
    try:
        loaded = run_config(model.run.directory.path)
        root = loaded.config.data.store
        folder = root if is_store(root) else root / model.run.provenance.data.store
        if not is_store(folder):
            return []
        experiment = assemble(loaded, load_store(folder), torch.device("cpu"), restored=True)
        learner, special = experiment.run.learner, experiment.vocabulary.is_special
        read_model(model.run.directory.checkpoints, model.run.step).fill(learner.objective)
    except LabError:  # such as a plug-in that is no longer there
        return []
    batch_size, rows = size[0] if size else BATCH, list[Rows]()
    with torch.no_grad(), learner.evaluating(loaded.config.seed):
        batches = experiment.test.in_order(batch_size, experiment.device)
        for batch in islice(batches, -(-MOST // (batch_size * loaded.config.data.sequence_length))):
            if size and len(batch.tokens) < batch_size:
                break
            losses = learner.losses(batch, Streams.of(loaded.config.seed, EVALUATION, batch.example_ids), "fp32")
            inputs, replaced = batch.tokens, None
            if seen := losses.detection:
                inputs, replaced = seen.inputs, seen.replaced
            elif asked := losses.predictions.get("discriminator"):
                masks = torch.zeros_like(inputs).scatter_add(1, asked.positions, (asked.valid & asked.saw_mask).long())
                inputs = inputs.masked_fill(masks > 0, experiment.vocabulary.mask_id)
            judged = batch.attention_mask & ~special[batch.tokens]
            rows.append(_rows(inputs, batch.attention_mask, batch.segments, judged, replaced, size=size))
    return rows


def validation_rows(folder: Path, longest: int, size: Size | None = None) -> list[Rows]:
    """Return the texts that a fine-tuning was validated on, if its predictions name them. Of words, tags count."""
    file = folder.parent / "predictions-validation.jsonl"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8") as lines:
        examples = [json.loads(line) for line in lines]
    texts: list[Any] = []
    for example in examples:
        fields = [example[name] for name in ("words", "text", "pair") if name in example]
        if not fields:
            return []
        texts.append(fields[0] if len(fields) == 1 else tuple(fields))
    of_words = bool(texts) and isinstance(texts[0], list)
    batch_size, length = size or (BATCH, longest)
    tokenizer, rows = read_tokenizer(folder), list[Rows]()
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length if size else None)
    for start in range(0, min(len(texts), MOST // length), batch_size):
        encoded = tokenizer.encode_batch(texts[start : start + batch_size], is_pretokenized=of_words)
        if len(encoded) == batch_size or not size:
            parts = zip(*((row.ids, row.attention_mask, row.type_ids, _firsts(row)) for row in encoded), strict=True)
            tokens, mask, segments, firsts = map(torch.tensor, parts)
            rows.append(_rows(tokens, mask, segments, firsts if of_words else None))
    return rows


def _firsts(row: Any) -> list[bool]:
    """Return which tokens of an encoding are the first of a word."""
    return [word not in (None, before) for before, word in pairwise([None, *row.word_ids])]


def _rows(
    tokens: Tensor, mask: Tensor, segments: Tensor, judged: Tensor | None = None, replaced: Tensor | None = None,
    *, size: Size | None = None,
) -> Rows:  # fmt: skip
    """Return rows, padded or cut to the length of a file with fixed sizes."""

    def fitted(part: Tensor) -> NDArray[Any]:
        return (F.pad(part, (0, size[1] - part.shape[1])) if size else part).numpy()

    inputs = {name: fitted(part.long()) for name, part in zip(INPUTS, (tokens, mask, segments), strict=True)}
    return Rows(
        inputs, fitted(mask.bool() if judged is None else judged), None if replaced is None else fitted(replaced)
    )
