"""Detection on one corruption for all cells, with networks whose answers are known."""

import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from electra_lab.assembly.experiment import check
from electra_lab.config.load import load, validated
from electra_lab.config.source import parse
from electra_lab.jobs.sweeps.file import load_ablation
from electra_lab.measures import fixed_corruption
from electra_lab.measures.fixed_corruption import FILE, FixedCorruption
from electra_lab.testing import MASK, SIGNIFICANCE, chi_square_p, count
from registry import Batch, MetricWithDocuments
from registry.errors import DataError
from tests.electra_lab.measures.readers import LENGTH, SIZE, Reads, knows, noise, run, sentence
from tests.helpers import ROOT

TEXT = sentence(60)
NAMES = ("small", "large", "unigram")
AUC, PRECISION = "corruption_auc", "corruption_average_precision"
AUCS = [f"{AUC}_{name}" for name in NAMES]
RARITY, CHANCE = "corruption_rarity", "corruption_chance"


def mixed(tokens: Any, mask: Any, segments: Any) -> Any:
    """A number that depends on row and position, not on the token."""
    return ((segments * LENGTH + torch.arange(tokens.shape[1])) % SIZE).unsqueeze(-1)


def guesser(guesses: torch.Tensor | None = None) -> Reads:
    return Reads(mixed, torch.zeros(SIZE, SIZE) if guesses is None else guesses)


def prepare(folder: Path, small: Reads | None = None, text: Batch = TEXT, **options: Any) -> FixedCorruption:
    large = options.pop("beside", None)
    measure = FixedCorruption(**options)
    folder.mkdir(exist_ok=True)
    others = {"small": small or guesser(), "large": large or guesser()}
    references = {name: run(other, None, detects=False) for name, other in others.items()}
    measure.prepare(run(None, text), references, folder)  # for any network of the cell
    return measure


def test_a_network_that_knows_the_originals_finds_every_replacement(tmp_path: Path) -> None:
    found = prepare(tmp_path)(run(Reads(knows), TEXT), tmp_path)
    assert found == {AUC: 1.0, PRECISION: 1.0, RARITY: found[RARITY], CHANCE: 0.5} | dict.fromkeys(AUCS, 1.0)


def test_a_baseline_suspects_rare_tokens_of_the_same_text(tmp_path: Path) -> None:
    measure, model = prepare(tmp_path), run(Reads(knows), TEXT)
    rare = Reads(lambda tokens, *_: -model.vocabulary.counts[tokens].float().unsqueeze(-1))
    found, known = measure(model, tmp_path), measure(replace(model, model=rare), tmp_path)
    assert len(model.vocabulary.counts.unique()) > 2
    assert found[RARITY] == known[AUC] != found[AUC]
    assert found[RARITY].documents == known[AUC].documents != ()
    assert {len(found[name].documents) for name in (AUC, RARITY, CHANCE)} == {len(found[AUC].documents)}
    leading, metric = next(iter(FixedCorruption.metrics.items()))
    assert (leading, metric.baselines, metric.parts) == (AUC, (RARITY, CHANCE), tuple(AUCS))


def test_documents_that_one_reference_lacks_have_no_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = fixed_corruption.auc_with_documents
    left = iter([[], None] + [None] * 4)  # for each reference, of the model and of the rare-token detector

    def lacking(*arguments: Any) -> Any:
        found = measured(*arguments)
        return MetricWithDocuments(found, found.documents if (few := next(left)) is None else few)

    monkeypatch.setattr(fixed_corruption, "auc_with_documents", lacking)
    found = prepare(tmp_path)(run(Reads(knows), TEXT), tmp_path)
    assert [getattr(found[name], "documents", None) for name in (AUC, AUCS[0])] == [(), ()]
    assert len(found[AUCS[1]].documents) > 1


def test_numbers_equal_counted_pairs_and_thresholds(tmp_path: Path) -> None:
    """The AUC is the share of (replaced, original) pairs in the right order, ties half; average precision the
    precision at each score of a replaced token. Scores have many ties, and depend on the token at the position."""
    measure = prepare(tmp_path, mask_prob=0.3)
    found = measure(run(Reads(lambda tokens, *_: (tokens % 7).float().unsqueeze(-1)), TEXT), tmp_path)
    saved = load_file(tmp_path / FILE)
    precisions = []
    for name, auc in zip(NAMES, AUCS, strict=True):
        shown, tokens = (saved[key][saved["maskable"]] for key in (name, "tokens"))
        scores, replaced = shown % 7, shown != tokens
        hits, misses = scores[replaced], scores[~replaced]
        order = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in product(hits, misses)]
        assert found[auc] == pytest.approx(sum(order) / len(order), abs=1e-12)
        precisions.append(np.mean([(hits >= score).sum() / (scores >= score).sum() for score in hits]))
    assert found[AUC] == pytest.approx(sum(found[name] for name in AUCS) / 3, abs=1e-12)
    assert found[PRECISION] == pytest.approx(sum(precisions) / 3, abs=1e-12)


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_all_references_see_mask_where_tokens_are_chosen(share: float, tmp_path: Path) -> None:
    """Exactly a share of each row is [MASK], the rest unchanged; references replace tokens only there."""
    reference, beside = guesser(), guesser()
    prepare(tmp_path, reference, mask_prob=share, beside=beside)
    assert reference.shown == beside.shown
    saved = load_file(tmp_path / FILE)
    assert np.array_equal(saved["tokens"], TEXT.tokens.numpy())
    for row, (shown, real) in enumerate(zip(reference.shown, TEXT.attention_mask.numpy(), strict=True)):
        hidden, was = np.array(shown) == MASK, TEXT.tokens[row].numpy()
        assert np.array_equal(np.array(shown)[~hidden], was[real][~hidden])
        assert saved["maskable"][row][real][hidden].all()
        assert hidden.sum() == count(share, int(saved["maskable"][row].sum()))
        for name in NAMES:
            differs = saved[name][row] != was
            assert not differs[~real].any()
            assert not (differs[real] & ~hidden).any()
    assert all((saved[name] != saved["tokens"]).any(1).sum() > 40 for name in NAMES)
    assert saved["maskable"].sum(1).min() == 0, "this test needs a row without ordinary tokens"


def test_what_is_drawn_is_what_the_reference_says_of_its_row_and_position(tmp_path: Path) -> None:
    by = {"small": 5, "large": 9}
    references = {name: guesser(torch.eye(SIZE).roll(n, 1) * 1e4) for name, n in by.items()}
    prepare(tmp_path, references["small"], mask_prob=0.4, beside=references["large"])
    saved = load_file(tmp_path / FILE)
    for name, reference in references.items():
        said = mixed(TEXT.tokens, TEXT.attention_mask, TEXT.segments)[..., 0].add(by[name]).remainder(SIZE).numpy()
        for row, (shown, real) in enumerate(zip(reference.shown, TEXT.attention_mask.numpy(), strict=True)):
            hidden = np.flatnonzero(real)[np.array(shown) == MASK]
            sure = hidden[said[row, hidden] >= 5]  # it predicts a special token elsewhere with certainty
            assert np.array_equal(saved[name][row, sure], said[row, sure])
        assert not np.isin(saved[name][saved["maskable"]], [0, 2, 3, 4]).any()


def test_draws_of_a_reference_follow_its_softmax(tmp_path: Path) -> None:
    """Over ordinary tokens."""
    logits = 2 * torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    prepare(tmp_path, guesser(logits.expand(SIZE, -1)), sentence(1500), mask_prob=1.0)
    saved = load_file(tmp_path / FILE)
    drawn = torch.from_numpy(saved["small"][saved["maskable"]]).long()
    special = run(None, TEXT).vocabulary.is_special
    expected = logits.double().masked_fill(special, float("-inf")).softmax(0)
    assert chi_square_p(torch.bincount(drawn, minlength=SIZE).double(), expected) > SIGNIFICANCE


def test_references_draw_apart(tmp_path: Path) -> None:
    """They draw different tokens even from equal distributions, so that their mean is over more draws."""
    frequencies = guesser((run(None, TEXT).vocabulary.counts + 1.0).log().expand(SIZE, -1))
    prepare(tmp_path, frequencies, mask_prob=1.0, beside=frequencies)
    saved = load_file(tmp_path / FILE)
    for name, other in combinations(NAMES, 2):
        assert (saved[name] == saved[other])[saved["maskable"]].mean() < 0.5


@pytest.mark.parametrize("logits", [1, 1 << 22])
@pytest.mark.parametrize("batch_size", [1, 7, 60, 64])
def test_batches_decide_memory_alone(batch_size: int, logits: int, tmp_path: Path, monkeypatch: Any) -> None:
    made = guesser(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)))
    once = prepare(tmp_path / "once", made)
    monkeypatch.setattr(fixed_corruption, "LOGITS", logits)
    again = prepare(tmp_path / "again", made, batch_size=batch_size)
    assert (tmp_path / "once" / FILE).read_bytes() == (tmp_path / "again" / FILE).read_bytes()
    reads = run(Reads(lambda tokens, *_: (tokens % 7).float().unsqueeze(-1)), TEXT)
    assert once(reads, tmp_path / "once") == again(reads, tmp_path / "again")


def test_another_seed_makes_another_corruption(tmp_path: Path) -> None:
    for seed in (1, 2):
        prepare(tmp_path / str(seed), seed=seed)
    first, second = (load_file(tmp_path / str(seed) / FILE) for seed in (1, 2))
    assert np.array_equal(first["tokens"], second["tokens"])
    assert all((first[name] != second[name]).mean() > 0.05 for name in NAMES)


def test_a_drawn_original_is_original(tmp_path: Path) -> None:
    """A reference that always draws the original replaces nothing: its AUC is undefined, and so is the mean: it would
    not be comparable over fewer references."""
    sure = torch.zeros(LENGTH, SIZE)
    sure[torch.arange(LENGTH), 5 + torch.arange(LENGTH)] = 1e4
    reference = Reads(lambda tokens, *_: torch.arange(LENGTH).expand(tokens.shape).unsqueeze(-1), sure)
    found = prepare(tmp_path, reference)(run(Reads(knows), TEXT), tmp_path)
    assert found == dict.fromkeys(AUCS[1:], 1.0)


def test_a_network_that_predicts_tokens_has_no_numbers(tmp_path: Path) -> None:
    network = Reads(knows)
    assert prepare(tmp_path)(run(network, TEXT, detects=False), tmp_path) == {}
    assert not network.shown, "nothing needs to be computed for it"


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_a_network_whose_scores_are_lost_has_no_numbers(lost: float, tmp_path: Path) -> None:
    network = Reads(lambda tokens, *_: torch.full((*tokens.shape, 1), lost))
    assert prepare(tmp_path)(run(network, TEXT), tmp_path) == {}


@pytest.mark.parametrize(
    "other", [sentence(59), sentence(61), sentence(60, LENGTH + 1), replace(TEXT, tokens=TEXT.tokens.roll(1, 0))]
)
def test_other_text_is_refused(other: Batch, tmp_path: Path) -> None:
    measure = prepare(tmp_path)
    with pytest.raises(DataError, match=r"corruption\.safetensors: was made from other text"):
        measure(run(Reads(noise(1)), other), tmp_path)


def test_both_networks_are_told_the_documents(tmp_path: Path) -> None:
    """The references when they draw, a cell when it is measured; neither reads the training text."""
    reference, beside, cell = guesser(), guesser(), Reads(knows)
    text = replace(TEXT, attention_document_ids=TEXT.segments + 7)
    measure = prepare(tmp_path, reference, text, batch_size=25, beside=beside)
    measure(run(cell, text), tmp_path)
    for network, times in ((reference, 1), (beside, 1), (cell, 3)):
        assert None not in network.documents
        shown = [documents[:, 0].tolist() for documents in network.documents if documents is not None]
        assert shown == [list(range(7 + a, 7 + b)) for a, b in ((0, 25), (25, 50), (50, 60)) for _ in range(times)]


def test_every_position_is_judged_once(tmp_path: Path) -> None:
    network = Reads(knows)
    prepare(tmp_path, batch_size=60)(run(network, TEXT), tmp_path)
    saved = load_file(tmp_path / FILE)
    rows = [row for name in NAMES for row in zip(saved[name], TEXT.attention_mask.numpy(), strict=True)]
    assert network.shown == [tokens[real].tolist() for tokens, real in rows]


def sized(scale: float, dim: int, heads: int, **options: Any) -> dict[str, Any]:
    """Return the discriminator's section of the reference of this scale."""
    measure = FixedCorruption(small=scale) if scale < 1 else FixedCorruption(large=scale)
    values = base(dim, heads)
    values["discriminator"] |= options
    made: dict[str, Any] = dict(measure.references(values)["small" if scale < 1 else "large"]["discriminator"])
    return made


@given(heads=st.integers(1, 32), width=st.integers(1, 128), scale=st.floats(0.01, 8))
def test_sizes_of_a_reference_divide(heads: int, width: int, scale: float) -> None:
    sizes = sized(scale, heads * width, heads)
    fewer, dim = sizes["heads"], sizes["dim"]
    assert fewer == max(1, round(scale * heads))
    assert dim > 0
    assert dim % fewer == 0
    assert width % 2 or dim // fewer % 2 == 0
    grain = fewer * (1 if width % 2 else 2)
    assert abs(dim - scale * heads * width) <= grain / 2 + 1e-6 or dim == grain


@pytest.mark.parametrize(("scale", "local"), [(0.0625, 0), (0.5, 1), (0.75, 1), (1.0, 2), (1.5, 3)])
def test_options_that_count_heads_keep_their_share(scale: float, local: int) -> None:
    """Two of four heads; otherwise no small reference could be built, as at least one head must not be local."""
    sizes = sized(scale, 128, 4, local_heads=2, window=32, rotary_heads=None)
    assert (sizes["local_heads"], sizes["window"], sizes["rotary_heads"]) == (local, 32, None)


def test_the_default_references_are_outside_of_the_sizes_that_are_compared() -> None:
    measure = FixedCorruption()
    for file in (ROOT / "experiments" / "ablations").glob("generator_size*.yaml"):
        scales = load_ablation(file).config.vary["generator.scale"]
        assert measure.small < min(scales) <= max(scales) < measure.large


RATE = {"type": "warmup_linear", "warmup_steps": 7}


def base(dim: int, heads: int) -> dict[str, Any]:
    return {
        "discriminator": {"type": "bert", "dim": dim, "depth": 2, "heads": heads},
        "embedding": {"dim": 8, "tie": "all"},
        "train": {"flops": 1e9, "batch_size": 2},
        "schedules": {"learning_rate": RATE, "sampler.temperature": {"type": "cosine"}},
    }


def test_a_reference_is_one_network_with_its_own_seed_and_budget() -> None:
    """It keeps only the schedule of the learning rate, as it has no sampler."""
    alone = {"seed": 5, "embedding": {"dim": 8, "tie": "none"}, "objective": {"type": "mlm"}, "generator": None,
             "sampler": None, "schedules": {"learning_rate": RATE}}  # fmt: skip
    lengths = dict.fromkeys(("epochs", "flops", "paper_flops", "tokens"))
    budget = {**lengths, "steps": 7, "batch_size": 2}
    for steps in (None, 7):
        references = FixedCorruption(seed=5, steps=steps).references(base(8, 2))
        assert list(references) == ["small", "large"]
        for sections in references.values():
            assert sections.items() >= alone.items()
            assert sections.get("train") == (budget if steps else None)


BASES = {f"{yaml.safe_load(file.read_text()).get('base', '')}" for file in (ROOT / "experiments/ablations").glob("*")}
OTHERS = {f"../{name}.yaml" for name in ("reformer_small", "performer_small", "transformer_small", "objectives/mlm")}


@pytest.mark.parametrize("file", sorted((BASES - {""}) | OTHERS))
def test_the_references_of_shipped_experiments_can_be_built(file: str) -> None:
    values = load(ROOT / "experiments" / "ablations" / file).config.model_dump(mode="json")
    for sections in FixedCorruption(steps=20_000).references(values).values():
        loaded = validated(parse(json.dumps({**values, **sections}), file, Path.cwd(), one_line=True))
        assert loaded.config.schedules["learning_rate"].dump() == values["schedules"]["learning_rate"]
        check(loaded)
