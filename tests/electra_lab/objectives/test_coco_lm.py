"""The contrast of rows: the authors' function, a plain loop, the crop, and batches of whole groups."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble, check, parallelize, refuse_uneven
from electra_lab.config.load import load
from electra_lab.planning.forecast import Workload, parts_of
from electra_lab.testing import CLS, PAD, SEP
from electra_lab.training.step import Learner
from registry import Batch
from registry.errors import ConfigError
from tests.electra_lab.objectives.tiny import Fixed, Says, assert_close, berts, gradients, sentences, streams, tables
from tests.helpers import write_experiment


def contrast(**options: Any) -> Any:
    return tables("coco_lm", Fixed(1), Says(5), 5, **options)


def vectors(rows: int) -> Tensor:
    made = torch.randn(2, rows, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return made.requires_grad_()


def test_the_loss_is_that_of_the_function_that_the_authors_posted() -> None:
    """`seqcontrast` in issue 2 of microsoft/COCO-LM, on these vectors, normalized; its softmax is in float32.

    There they also posted the correction that is the default.

    Of the gradient, its product with cos(0), cos(1), ...
    """
    assert contrast().correction == "weighted"
    pair = vectors(4)
    losses = contrast(group=4, contrast_temperature=0.5).contrasted(pair, torch.ones(4, dtype=torch.bool))
    losses.sum().backward()
    assert losses.sum().item() == pytest.approx(8.5557222366333, abs=1e-5)
    assert float(pair.grad.flatten() @ torch.arange(48).double().cos()) == pytest.approx(1.7913690061762535, abs=1e-5)


def test_rows_are_contrasted_within_their_group_and_padding_with_nothing() -> None:
    """By a plain loop, with gradients: groups {0, 1, 2}, of which 1 is padding, {3, 4, 5}, and {6} alone."""
    pair, real = vectors(7), torch.tensor([True, False, True, True, True, True, True])
    losses = contrast(group=3, contrast_temperature=0.25).contrasted(pair, real)[real]
    expected = _by_hand(pair, [[0, 2], [3, 4, 5], [6]], 0.25)
    torch.testing.assert_close(losses, expected)
    assert losses[-1] == 0
    weights = torch.arange(6).double() + 1
    slopes = [torch.autograd.grad(loss @ weights, pair, retain_graph=True)[0] for loss in (losses, expected)]
    torch.testing.assert_close(*slopes)
    assert not slopes[0][:, [1, 6]].any()


def _by_hand(pair: Tensor, groups: list[list[int]], temperature: float) -> Tensor:
    losses = []
    for group in groups:
        for row in group:
            terms = []
            for view in (0, 1):
                others = [(v, r) for v in (0, 1) for r in group if (v, r) != (view, row)]
                similar = {at: F.cosine_similarity(pair[view, row], pair[at], dim=0) / temperature for at in others}
                total = torch.stack([value.exp() for value in similar.values()]).sum()
                terms.append(total.log() - similar[1 - view, row])
            losses.append(sum(terms) / 2)
    return torch.stack(losses)


def texts(*lengths: int, width: int = 24) -> Batch:
    """[CLS], numbers that count up, [SEP], padding; the segment of a token is 1 from the eighth on."""
    tokens = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.arange(length) + 100
        tokens[row, max(length - 1, 0) : length] = SEP
        tokens[row, : min(length, 1)] = CLS
    segments = (torch.arange(width) >= 8).long().expand_as(tokens)
    return Batch(tokens, tokens != PAD, segments, torch.arange(len(lengths)))


@pytest.mark.parametrize("share", [0.9, 0.5, 1.0, 0.01])
def test_a_crop_is_a_span_between_the_first_and_the_last_token(share: float) -> None:
    """Of ceil(share n) tokens of each row, in rows of ceil(share T); all tokens if the row has two or fewer.

    It begins anywhere: a row of 20 keeps 18 tokens, of which 16 are a span, at one of three places.
    """
    batch = texts(*[20] * 3000)
    begins = contrast().cropped(batch, streams(batch)("crop")).tokens[:, 1].bincount()[101:]
    assert len(begins) == 3
    assert (begins - 1000).abs().max() < 130  # five standard deviations
    lengths = (24, 20, 19, 10, 3, 2, 1, 0)
    batch = texts(*lengths)
    crop = contrast(crop=share).cropped(batch, streams(batch)("crop"))
    assert crop.tokens.shape == (8, max(math.ceil(share * 24), 2))
    assert crop.attention_mask.sum(1).tolist() == [max(math.ceil(share * n - 1e-9), min(2, n)) for n in lengths]
    for row, length in enumerate(lengths):
        kept = crop.tokens[row][crop.attention_mask[row]].tolist()
        assert kept[:1] == [CLS][:length]
        assert kept[1:][-1:] == ([SEP] if length > 1 else [])
        span = kept[1:-1]
        assert span == list(range(span[0], span[0] + len(span))) if span else True
        assert all(100 < token < 99 + length for token in span)
        assert crop.segments[row][1 : max(len(kept) - 1, 1)].tolist() == [int(token >= 108) for token in span]


def test_the_step_contrasts_the_row_with_replacements_and_the_crop_of_the_original() -> None:
    objective, batch = berts("coco_lm", group=3, contrast_weight=2.0).double().eval(), sentences()
    losses = objective(batch, streams(batch))
    network, crop = objective.discriminator, objective.cropped(batch, streams(batch)("crop"))
    head, read = network.heads["contrast"], losses.detection.inputs
    assert not torch.equal(read, batch.tokens)
    views = (read, batch), (crop.tokens, crop)
    states = [network.hidden(tokens, view.attention_mask, view.segments)[:, 0] for tokens, view in views]
    pair = torch.stack([head.norm(F.gelu(head.dense(state))) for state in states])
    expected = _by_hand(pair, [[0, 1, 2], [3, 4, 5]], 1.0).sum()
    term = losses.terms["contrast"]
    torch.testing.assert_close(term.sum, expected)
    assert (int(term.count), term.weight) == (6, 2.0)
    slopes = gradients(objective, term.sum)
    assert_close(slopes, gradients(objective, expected))
    assert not [name for name in slopes if name.startswith("generator")]


def test_a_split_within_a_group_would_change_the_loss() -> None:
    objective, batch = berts("coco_lm", group=2), sentences()

    def contrast(part: Batch) -> Tensor:
        return objective(part, streams(part)).terms["contrast"].sum

    whole, between, within = (contrast(batch[:cut]) + contrast(batch[cut:]) for cut in (6, 4, 3))
    torch.testing.assert_close(between, whole)
    assert abs((within - whole).item()) > 0.1


@pytest.mark.parametrize(
    ("section", "given", "key", "reason"),
    [
        ("train", "{steps: 1, batch_size: 10}", "batch_size", "10 rows are not whole groups of 4"),
        ("train", "{steps: 1, batch_size: 8, micro_batch_size: 2}", "micro_batch_size", "2 rows"),
        ("train", "{steps: 9, batch_size: 8, batch_warmup: {start: 2, increment: 4, every: 1}}", "start", "2 rows"),
        ("evaluate", "{batch_size: 6}", "batch_size", "6 rows"),
        ("packing", "{type: contiguous, attention: within_documents}", "attention", r"\[CLS\]"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, section: str, given: str, key: str, reason: str) -> None:
    sections = {"train": "{steps: 1, batch_size: 8, micro_batch_size: 4}", section: given}
    file = write_experiment(tmp_path, objective="{type: coco_lm, group: 4}", **sections)
    with pytest.raises(ConfigError, match=f"{key}.*{reason}"):
        check(load(file))


def test_processes_get_whole_groups(tmp_path: Path) -> None:
    loaded = load(write_experiment(tmp_path, objective="{type: coco_lm, group: 4}", train="{steps: 1, batch_size: 12}"))
    world, built = (SimpleNamespace(size=3), SimpleNamespace(learner=Learner(contrast(group=4))))
    refuse_uneven(loaded, world, built.learner.group)
    world.size = 2
    with pytest.raises(ConfigError, match="12 rows cannot be divided evenly among 2 processes in groups of 4"):
        parallelize(loaded, built, world, torch.device("cpu"), partly=False)


def test_automatic_micro_batches_are_whole_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for 6 rows of 12, these are 4."""
    train = "{steps: 1, batch_size: 12, micro_batch_size: auto, precision: fp32}"
    data = "{sequence_length: 16, held_out: 0.3, store: store}"
    loaded = load(write_experiment(tmp_path, objective="{type: coco_lm, group: 4}", train=train, data=data))
    monkeypatch.setattr(Workload, "working_bytes", lambda work: 0 if work.settings.micro_batch_size <= 6 else 1 << 60)
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    assert made.settings.micro_batch_size == 4
    assert list(parts_of(48, 4)) == [48, 24, 12, 4]


def test_cosines_are_exact_under_autocast() -> None:
    """bf16 would round them to a hundredth. Of whole losses: test_shared.py."""
    objective, pair, real = contrast(group=3), vectors(6).float(), torch.ones(6, dtype=torch.bool)
    exact = objective.contrasted(pair, real)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(objective.contrasted(pair, real), exact)
