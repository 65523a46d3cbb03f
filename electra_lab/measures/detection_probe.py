"""A linear probe on the frozen states of any model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from electra_lab.measures._corruption import choose, judged, numbers, rankable, unigram
from registry import Batch, Metric, Trained, measures

# Half the squared weights of standardised features, relative to the mean loss per token. States are wide and their
# features similar: with less, the fit takes several times as many steps and generalises worse.
PENALTY = 3e-3


@measures.register("detection_probe")
@dataclass(kw_only=True)
class DetectionProbe:
    """Logistic regression on the frozen states that detects tokens drawn by word frequencies.

    It does not use a model's own head, so models that predict tokens are measured like those that detect. It is fitted
    on training text and evaluated on test text, with replacements that are the same for all cells.

    mask_prob   the share of the tokens that are offered for replacement
    rows        of text, to fit on and to evaluate on, at most: the first ones
    seed        of the replacements
    batch_size  rows at a time, which affects only speed and memory
    """

    same_rows = True
    metrics: ClassVar[Mapping[str, Metric]] = {
        "probe_auc": Metric(
            "AUC of a logistic regression on the frozen states that detects tokens drawn by word frequencies"
        )
    }

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15
    rows: Annotated[int, Field(gt=0)] = 256
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 20_202
    batch_size: Annotated[int, Field(gt=0)] = 32

    def reference(self, base: Mapping[str, Any]) -> None:
        return None

    def prepare(self, run: Trained, reference: Trained | None, folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        states, replaced = self._states(run, run.train, "train")
        unseen, truth = self._states(run, run.test, "test")
        if not (rankable(replaced, states) and rankable(truth, unseen)):
            return {}
        regression = LogisticRegression(C=1 / (PENALTY * len(states)), max_iter=1000)
        probe = make_pipeline(StandardScaler(), regression).fit(states, replaced)
        return {"probe_auc": float(roc_auc_score(truth, probe.decision_function(unseen)))}

    def _states(
        self, run: Trained, rows: Callable[[int], Iterable[Batch]], split: str
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return Float[N D] and Bool[N]: the state of each maskable position, and True if its token was replaced.

        The splits draw different numbers: otherwise a position that is replaced more often than others would be so in
        both, and the probe could succeed with states that encode nothing but the position.
        """
        states, replaced, left = [], [], self.rows
        for each in rows(min(self.batch_size, self.rows)):
            batch = each[:left]
            left -= len(batch)
            maskable = judged(batch, run.vocabulary)
            chosen = choose(maskable.cpu().numpy(), self.mask_prob, numbers(batch, self.seed, f"chosen {split}"))
            text = unigram(batch, run.vocabulary, chosen, numbers(batch, self.seed, f"unigram {split}"))
            inputs = torch.from_numpy(text).to(batch.tokens.device)
            hidden = run.model.hidden(inputs, batch.attention_mask, batch.segments, batch.documents)
            states.append(hidden[maskable].float().cpu().numpy())
            replaced.append((inputs != batch.tokens)[maskable].cpu().numpy())
            if not left:
                break
        return np.concatenate(states), np.concatenate(replaced)
