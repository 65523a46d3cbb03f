"""Detection on one corruption of the test text, the same for all cells."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load_file, save_file

from electra_lab.measures._corruption import choose, draw, filled, judged, numbers, rankable, unigram
from registry import Batch, Metric, Network, Trained, Vocabulary, measures
from registry.errors import DataError

FILE = "corruption.safetensors"
LOGITS = 1 << 22  # of the reference, drawn from at a time: 50 MB with the sums in doubles


@measures.register("fixed_corruption")
@dataclass(kw_only=True)
class FixedCorruption:
    """Detection of the replaced tokens in one fixed corruption of the test text, made once for all cells.

    A larger generator makes a cell's own task harder, so the scores of discriminators against their own generators
    compare the generators as much as the discriminators. Here all see the same replacements: those of one reference
    generator, which is trained separately with the objective `mlm`, has a seed and a size of its own and is used in no
    cell, and those drawn by word frequencies.

    mask_prob   the share of the tokens that are offered for replacement
    scale       the reference generator's width and heads, as a share of the base's discriminator, rounded so that the
                heads divide the width
    steps       of its training; without it, as many as the base's budget buys
    seed        of its training and of the corruption
    batch_size  rows at a time, which affects only speed and memory
    """

    same_rows = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "corruption_auc": Metric(
            "AUC of detecting the replacements of one reference generator in the test text, the same for all cells"
        ),
        "corruption_average_precision": Metric("area under the precision-recall curve of the same detection"),
        "unigram_corruption_auc": Metric(
            "AUC of detecting replacements drawn by word frequencies, the same for all cells"
        ),
    }

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    scale: Annotated[float, Field(gt=0, le=8)] = 0.75
    steps: Annotated[int, Field(gt=0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 20_201
    batch_size: Annotated[int, Field(gt=0)] = 32

    def reference(self, base: Mapping[str, Any]) -> Mapping[str, Any]:
        study, train = base["discriminator"], base["train"]
        if self.steps is not None:
            train = {**train, "steps": self.steps, "tokens": None, "flops": None}
        return {
            "seed": self.seed,
            "discriminator": {**study, **self._sizes(study["dim"], study["heads"])},
            "embedding": {**base["embedding"], "tie": "none"},
            "generator": None,
            "sampler": None,
            "objective": {"type": "mlm"},
            "schedules": {"learning_rate": base["schedules"]["learning_rate"]},
            "train": train,
        }

    def _sizes(self, dim: int, heads: int) -> Mapping[str, int]:
        """Scale the sizes, with the width rounded to a multiple of the heads.

        An even head width, which rotary positions need, stays even.
        """
        fewer, grain = max(1, round(self.scale * heads)), 1 if dim // heads % 2 else 2
        return {"dim": max(1, round(self.scale * dim / fewer / grain)) * fewer * grain, "heads": fewer}

    def prepare(self, run: Trained, reference: Trained | None, folder: Path) -> None:
        assert reference is not None
        words = run.vocabulary
        parts: dict[str, list[NDArray[Any]]] = {"tokens": [], "maskable": [], "reference": [], "unigram": []}
        for batch in run.test(self.batch_size):
            maskable = judged(batch, words).cpu().numpy()
            chosen = choose(maskable, self.mask_prob, numbers(batch, self.seed, "chosen"))
            guesses = self._guesses(reference.model, batch, words, chosen)
            parts["tokens"].append(batch.tokens.cpu().numpy())
            parts["maskable"].append(maskable)
            parts["reference"].append(filled(batch, chosen, guesses))
            parts["unigram"].append(unigram(batch, words, chosen, numbers(batch, self.seed, "unigram")))
        whole = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        small = {name: array.astype(np.int32) for name, array in whole.items() if name != "maskable"}
        save_file({**whole, **small}, folder / FILE)

    def _guesses(
        self, network: Network, batch: Batch, words: Vocabulary, chosen: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return Int[N], the reference's draws at the chosen positions, row by row, with [MASK] at all of them."""
        device = batch.tokens.device
        shown = torch.where(torch.from_numpy(chosen).to(device), words.mask_id, batch.tokens)
        states = network.hidden(shown, batch.attention_mask, batch.segments, batch.documents)
        # A row's chosen positions first, then any others, to get a rectangle.
        positions = (~chosen).argsort(axis=1, kind="stable")[:, : int(chosen.sum(1).max(initial=1))]
        wanted = np.take_along_axis(chosen, positions, 1)
        luck = np.take_along_axis(numbers(batch, self.seed, "reference"), positions, 1)
        drawn = []
        step = max(1, LOGITS // (positions.shape[1] * words.size))
        for start in range(0, len(batch), step):
            rows = slice(start, start + step)
            logits = network.token_logits(states[rows], torch.from_numpy(positions[rows]).to(device))
            drawn.append(draw(logits.flatten(0, 1), words, luck[rows].flatten())[wanted[rows].flatten()])
        return np.concatenate(drawn)

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        from sklearn.metrics import average_precision_score, roc_auc_score

        if not run.detects:
            return {}
        saved = load_file(folder / FILE)
        scores: dict[str, list[NDArray[Any]]] = {"reference": [], "unigram": []}
        start, total = 0, len(saved["tokens"])
        for batch in run.test(self.batch_size):
            rows = slice(start, start + len(batch))
            _refuse_unlike(batch.tokens.cpu().numpy(), saved["tokens"][rows], folder)
            for name, parts in scores.items():
                inputs = torch.from_numpy(saved[name][rows]).to(batch.tokens)
                states = run.model.hidden(inputs, batch.attention_mask, batch.segments, batch.documents)
                parts.append(run.model.replaced_logits(states).float().cpu().numpy())
            start += len(batch)
        _refuse_unlike(saved["tokens"][start:], saved["tokens"][total:], folder)

        found: dict[str, float] = {}
        for name, prefix in (("reference", ""), ("unigram", "unigram_")):
            replaced = (saved[name] != saved["tokens"])[saved["maskable"]]
            logits = np.concatenate(scores[name])[saved["maskable"]]
            if not rankable(replaced, logits):
                continue
            found[f"{prefix}corruption_auc"] = float(roc_auc_score(replaced, logits))
            if name == "reference":
                found["corruption_average_precision"] = float(average_precision_score(replaced, logits))
        return found


def _refuse_unlike(text: NDArray[Any], saved: NDArray[Any], folder: Path) -> None:
    if not np.array_equal(text, saved):
        raise DataError(f"{folder / FILE}: was made from other text than this run's test text.")
