"""Detectors that are fitted to the frozen states of any model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from electra_lab.measures._corruption import (
    auc_with_documents,
    choose,
    documents_of,
    judged,
    numbers,
    rankable,
    some,
    unigram,
)
from electra_lab.model.network import initialise
from registry import Batch, Metric, MetricWithDocuments, Trained, heads, measures
from registry.contracts.training import SHARE

# Half the squared weights, on standardised features, relative to the mean loss per token. States are wide and their
# features similar: with less, a fit takes several times as many steps and generalises worse.
PENALTY = 3e-3
_Auc = partial(Metric, baselines=("probe_chance",), bounds=SHARE)
STEPS = 30  # of L-BFGS on the head; 50 took its AUC from .580 to .582 on a transformer_tiny

Detector = Callable[[NDArray[Any]], NDArray[Any]]  # from standardised states Float[N D] to scores Float[N]


@measures.register("detection_probe")
@dataclass(kw_only=True)
class DetectionProbe:
    """Detectors that are fitted to the frozen states and find tokens drawn by word frequencies.

    A model's own head is not used: it is tuned to the model's own generator, and models that predict tokens have none.
    The detectors are fitted on rows of training text, drawn at random, and judged on all test text that the run was
    tested on. Rows and replacements are the same for all cells.

    mask_prob   share of the tokens to choose for replacement
    rows        maximum number of rows of training text to fit on
    seed        seed of the rows, the replacements and the head's initial weights
    batch_size  rows per batch; affects only speed and memory
    """

    same_rows = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "probe_auc": _Auc("AUC of a logistic regression on the frozen states that detects draws by word frequencies"),
        "head_auc": _Auc("the same of a detection head, trained from scratch on these states"),
        "probe_chance": Metric("the same of guessing; by their frequency, draws cannot be told from text", "chance"),
    }

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    rows: Annotated[int, Field(gt=0, le=10**9)] = 256
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 20_202
    batch_size: Annotated[int, Field(gt=0, le=1 << 20)] = 32

    def references(self, base: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def prepare(self, run: Trained, references: Mapping[str, Trained], folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        from sklearn.preprocessing import StandardScaler

        # Fit the detectors on training text.
        rows = some(self.rows, run.train_rows, self.seed)
        training = [self._states(run, batch, "train") for batch in run.train(self.batch_size, rows)]
        states, replaced = map(np.concatenate, zip(*training, strict=True))  # [N D], [N]
        if not rankable(replaced, states):
            return {}
        scaler = StandardScaler().fit(states)
        states = scaler.transform(states)
        detectors = {"probe_auc": _regression(states, replaced), "head_auc": _head(states, replaced, self.seed)}

        # Apply them to the test text.
        truth, text, scores = [replaced[:0]], [np.zeros(0, np.int64)], {name: [states[:0, 0]] for name in detectors}
        for batch in run.test(self.batch_size):
            unseen, labels = self._states(run, batch, "test")
            if not np.isfinite(unseen).all():
                return {}
            if len(unseen):
                truth.append(labels)
                text.append(documents_of(batch)[judged(batch, run.vocabulary)].cpu().numpy())
                for name, detect in detectors.items():
                    scores[name].append(detect(scaler.transform(unseen)))
        labels, documents = np.concatenate(truth), np.concatenate(text)
        auc = {}
        for name, parts in scores.items():
            values = np.concatenate(parts)
            if rankable(labels, values):
                auc[name] = auc_with_documents(labels, values, documents)
        if auc:
            size = max(len(value.documents) for value in auc.values())
            auc["probe_chance"] = MetricWithDocuments(0.5, [0.5] * size)
        return auc

    def _states(self, run: Trained, batch: Batch, split: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return Float[N D] and Bool[N]: the state of each maskable position, and True if its token was replaced.

        The splits draw different numbers: otherwise a position that is replaced more often than others would be so in
        both, and the probe could succeed with states that encode nothing but the position.
        """
        maskable = judged(batch, run.vocabulary)
        chosen = choose(maskable.cpu().numpy(), self.mask_prob, numbers(batch, self.seed, f"chosen {split}"))
        text = unigram(batch, run.vocabulary, chosen, numbers(batch, self.seed, f"unigram {split}"))
        inputs = torch.from_numpy(text).to(batch.tokens.device)
        hidden = run.model.hidden(inputs, batch.attention_mask, batch.segments, batch.attention_document_ids)
        return hidden[maskable].float().cpu().numpy(), (inputs != batch.tokens)[maskable].cpu().numpy()


def _regression(states: NDArray[Any], replaced: NDArray[np.bool_]) -> Detector:
    """Fit a logistic regression."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1 / (PENALTY * len(states)), max_iter=1000).fit(states, replaced)
    scores: Detector = fitted.decision_function
    return scores


def _head(states: NDArray[Any], replaced: NDArray[np.bool_], seed: int) -> Detector:
    """Train the lab's detection head, on the CPU and over all states at once, so that no order or device matters."""
    with torch.random.fork_rng(devices=[]):
        built: Any = heads.get("replaced").component  # whose constructor draws from the global generator
        head = built(states.shape[1], None, None)
    generator = torch.Generator().manual_seed(seed)
    initialise(head, lambda *_: generator)
    inputs, truth = torch.from_numpy(states)[None], torch.from_numpy(replaced).float()[None]
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        size = head.dense.weight.square().sum() + head.out.weight.square().sum()
        value: Tensor = F.binary_cross_entropy_with_logits(head(inputs), truth) + PENALTY / 2 * size
        value.backward()  # type: ignore[no-untyped-call]
        return value

    def scores(unseen: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            logits: NDArray[Any] = head(torch.from_numpy(unseen)[None])[0].numpy()
        return logits

    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return scores
