"""What a linear reader finds in the frozen states of any network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from electra_lab.measures._corruption import choose, judged, numbers, rankable, unigram
from registry import Batch, Quantity, Trained, measures

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Half the squared weights of standardised features, beside the mean loss of a token. States are wide and their features
# alike: with less, the fit takes several times as many steps and reads held-out text worse.
PENALTY = 3e-3


@measures.register("detection_probe")
class DetectionProbe:
    """How well a logistic regression on the frozen states tells tokens drawn by word frequencies from original ones.

    It asks nothing of a network's own head, so networks that predict tokens are measured like those that detect. It is
    fitted on text that the network was trained on and judged on held-out text, with replacements that are the same for
    all cells.

    mask_prob   the share of the tokens that are offered for replacement
    rows        of text, to fit on and to judge on, at most: the first ones
    seed        of the replacements
    batch_size  of rows at a time, which decides speed and memory alone
    """

    same_rows = True
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "probe_auc": Quantity(
            "AUC of a logistic regression on the frozen states that looks for tokens drawn by word frequencies"
        )
    }

    def __init__(
        self,
        /,
        *,
        mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.15,
        rows: Annotated[int, Field(gt=0)] = 256,
        seed: Annotated[int, Field(ge=0, lt=2**63)] = 20_202,
        batch_size: Annotated[int, Field(gt=0)] = 32,
    ) -> None:
        self.mask_prob, self.rows, self.seed, self.batch_size = mask_prob, rows, seed, batch_size

    def reference(self, base: Mapping[str, Any]) -> None:
        return None

    def prepare(self, run: Trained, reference: Trained | None, folder: Path) -> None: ...

    def __call__(self, run: Trained, folder: Path) -> Mapping[str, float]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        states, replaced = self._states(run, run.train, "train")
        unseen, truth = self._states(run, run.held_out, "held-out")
        if not (rankable(replaced, states) and rankable(truth, unseen)):
            return {}
        regression = LogisticRegression(C=1 / (PENALTY * len(states)), max_iter=1000)
        probe = make_pipeline(StandardScaler(), regression).fit(states, replaced)
        return {"probe_auc": float(roc_auc_score(truth, probe.decision_function(unseen)))}

    def _states(
        self, run: Trained, rows: Callable[[int], Iterable[Batch]], split: str
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Float[N D] and Bool[N]: the state of each maskable position, and whether its token was replaced.

        The splits draw different numbers: else a position that is replaced more often than others would be so in both,
        and the probe could read it off states that know nothing but the position.
        """
        states, replaced, left = [], [], self.rows
        for each in rows(min(self.batch_size, self.rows)):
            batch = each[:left]
            left -= len(batch)
            maskable = judged(batch, run.vocabulary)
            chosen = choose(maskable.cpu().numpy(), self.mask_prob, numbers(batch, self.seed, f"chosen {split}"))
            text = unigram(batch, run.vocabulary, chosen, numbers(batch, self.seed, f"unigram {split}"))
            inputs = torch.from_numpy(text).to(batch.tokens.device)
            states.append(run.network.hidden(inputs, batch.mask, batch.segments)[maskable].float().cpu().numpy())
            replaced.append((inputs != batch.tokens)[maskable].cpu().numpy())
            if not left:
                break
        return np.concatenate(states), np.concatenate(replaced)
