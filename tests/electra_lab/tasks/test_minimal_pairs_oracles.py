"""Scores of minimal pairs equal those of minicons and of transformers."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from electra_lab.tasks.minimal_pairs import MinimalPairs
from registry import Pretrained
from tests.electra_lab.tasks.judged import EXAMPLES, SENTENCES, masked, scores


@pytest.fixture(scope="module")
def minicons() -> Iterator[Any]:
    """minicons, with a stand-in for a library that it imports for other things, if that is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("wonderwords") is None:
            stand_in = ModuleType("wonderwords")
            stand_in.__getattr__ = lambda name: None  # type: ignore[method-assign]
            patch.setitem(sys.modules, "wonderwords", stand_in)
        yield pytest.importorskip("minicons.scorer", reason="minicons cannot be imported", exc_type=ImportError)


@pytest.mark.parametrize(("variant", "theirs"), [("salazar", "original"), ("within_word", "within_word_l2r")])
def test_pseudo_log_likelihood_is_that_of_minicons(
    exported: tuple[Pretrained, Path], minicons: Any, variant: Any, theirs: str
) -> None:
    model, folder = exported
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "generator")
    network = ElectraForMaskedLM.from_pretrained(folder / "generator")
    scorer = minicons.MaskedLMScorer(network, "cpu", tokenizer=tokenizer)
    read = tokenizer(SENTENCES, padding=True)  # minicons would do it by a method that transformers 5 does not have
    expected = scorer.sequence_score(read, reduction=lambda each: each.sum(0).item(), PLL_metric=theirs)
    found = masked(variant=variant)(EXAMPLES, model)
    assert scores(found) == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 10


@torch.no_grad()
def test_detection_is_that_of_transformers(exported: tuple[Pretrained, Path]) -> None:
    model, folder = exported
    network = ElectraForPreTraining.from_pretrained(folder / "discriminator").double()
    tokenizer = AutoTokenizer.from_pretrained(folder / "discriminator")
    expected = []
    for sentence in SENTENCES:
        logits = network(**tokenizer(sentence, return_tensors="pt")).logits[0, 1:-1]
        expected.append((1 - logits.sigmoid()).log().sum().item())
    assert scores(MinimalPairs()(EXAMPLES, model)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("task", [MinimalPairs(), masked(), masked(variant="within_word", tokens="differing")])
def test_the_size_of_the_batch_and_autocast_do_not_matter(
    model: Pretrained, hashing: Pretrained, task: MinimalPairs
) -> None:
    for each in (model, hashing):
        expected = scores(task(EXAMPLES, each))
        with torch.autocast("cpu", torch.bfloat16):
            assert scores(task(EXAMPLES, each)) == expected
        for size in (1, 3, 100):
            assert scores(task(EXAMPLES, replace(each, batch_size=size))) == pytest.approx(expected, abs=2e-5)
