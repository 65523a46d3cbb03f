"""What each document contributes to an AUC, against scikit-learn's AUC without it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from electra_lab.metrics import auc_by_document


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.booleans())
def test_pseudo_values_are_those_of_leaving_a_document_out(seed: int, documents: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    held = rng.choice(1000, documents, replace=False)
    document = np.concatenate([np.repeat(held, 2), rng.choice(held, 40)])
    replaced = np.concatenate([np.tile([True, False], documents), rng.random(40) < 0.3])
    scores = rng.normal(size=len(document)) + replaced
    scores = scores.round(0 if ties else 8)
    found = auc_by_document(replaced, scores, document)
    whole = roc_auc_score(replaced, scores)
    expected = []
    for number in sorted(held):
        rest = document != number
        expected.append(documents * whole - (documents - 1) * roc_auc_score(replaced[rest], scores[rest]))
    assert found == pytest.approx(expected, abs=1e-12)
    assert abs(found.mean() - whole) < 0.2
