"""Batches of a packing: their order, their parts, samples, and rows grouped by length."""

from itertools import accumulate, groupby, pairwise
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from electra_lab.data.rows import WINDOW, Rows, document_counts, permuted
from electra_lab.packings.contiguous import Contiguous
from electra_lab.packings.documents import Documents
from electra_lab.testing import SIGNIFICANCE, ArrayTokens, chi_square_p, vocabulary
from registry import Batch, BatchSizes

CPU = torch.device("cpu")
WORDS = vocabulary(3000)

numbers = st.integers(1, 13)


def counting(number: int, length: int = 5) -> Rows:
    """Return `number` rows of distinct content."""
    return Rows(Contiguous(ArrayTokens([range(5, 4 + number * (length - 2))]), length, WORDS))


def uneven(number: int, length: int = 64, *, group: bool = True) -> Rows:
    """Return `number` documents, one per row, each of 1 to 62 tokens that equal the document's number."""
    sizes = np.random.RandomState(number).randint(1, length - 1, number)
    texts = [[5 + document] * size for document, size in enumerate(sizes.tolist())]
    return Rows(Documents(ArrayTokens(texts), length, WORDS), group_by_length=group)


def one_batch(made: Rows) -> Batch:
    indices = np.arange(len(made))
    return made.batch(indices, indices, CPU)


def epochs(made: Rows, seed: int, size: int, steps: int) -> Tensor:
    return torch.cat([made.training_batch(seed, step, size, CPU).tokens for step in range(steps)])


def order(seed: int, epoch: int, number: int) -> list[int]:
    return permuted(seed, np.full(number, epoch), np.arange(number), number).tolist()


@settings(deadline=None)
@given(number=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6))
def test_an_order_has_every_row_once(number: int, seed: int, epoch: int) -> None:
    found = order(seed, epoch, number)
    assert sorted(found) == list(range(number))
    if number > 20:
        assert found != order(seed, epoch + 1, number)
        assert found != order(seed + 1, epoch, number)


@pytest.mark.parametrize("number", [2, 5, 12])
def test_every_row_is_as_likely_at_every_place(number: int) -> None:
    """And every pair of rows is equally likely to be neighbours."""
    orders = np.array([order(seed, 0, number) for seed in range(3000)])
    uniform = torch.full((number,), 1 / number, dtype=torch.float64)
    for place in range(number):
        counts = torch.bincount(torch.from_numpy(orders[:, place]), minlength=number).double()
        assert chi_square_p(counts, uniform) > SIGNIFICANCE
    pairs = torch.from_numpy(orders[:, 0] * number + orders[:, 1])
    possible = 1 - torch.eye(number, dtype=torch.float64).flatten()
    counts = torch.bincount(pairs, minlength=number**2).double()
    assert chi_square_p(counts, possible / possible.sum()) > SIGNIFICANCE


@pytest.mark.parametrize("number", [10**6, 2**33 + 1, 10**14])
def test_orders_of_large_stores_are_found_place_by_place(number: int) -> None:
    places = np.concatenate([np.arange(1000), number - 1 - np.arange(1000)])
    found = permuted(0, np.zeros_like(places), places, number)
    assert len({*found.tolist()}) == 2000
    assert ((found >= 0) & (found < number)).all()
    assert abs(np.corrcoef(places, found)[0, 1]) < 0.15
    assert abs(found.mean() / number - 0.5) < 0.05


def test_the_order_of_published_runs() -> None:
    """If this fails, every existing run would read its data in another order: do not change the literals."""
    assert order(0, 0, 12) == [10, 6, 2, 0, 9, 3, 11, 1, 5, 8, 4, 7]
    assert order(1, 3, 7) == [6, 1, 3, 2, 4, 5, 0]
    assert permuted(5, np.array([2, 2, 9]), np.array([0, 10**6, 5]), 10**7).tolist() == [1409203, 5276974, 6265332]


@settings(deadline=None)
@given(number=numbers, size=st.integers(1, 30), seed=st.integers(0, 2**40))
def test_each_epoch_reads_every_row_once_without_a_gap(number: int, size: int, seed: int) -> None:
    """For any batch size, even larger than an epoch; the batch size only changes the cuts."""
    made = counting(number)
    assert len(made) == number
    whole = one_batch(made).tokens
    read = epochs(made, seed, size, -(-3 * number // size))
    for epoch in range(3):
        part = read[epoch * number : (epoch + 1) * number]
        assert torch.equal(part, whole[order(seed, epoch, number)])


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    made = counting(40)
    first, again, other = (epochs(made, seed, 8, 10) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:40], first[40:])
    np.random.seed(7)
    torch.manual_seed(7)
    assert torch.equal(counting(40).training_batch(0, 3, 8, CPU).tokens, first[24:32])


@settings(deadline=None)
@given(number=numbers, size=st.integers(1, 15))
def test_evaluation_reads_all_rows_once_in_order(number: int, size: int) -> None:
    """An example's index is that of its row, so that the batch size has no effect."""
    made = counting(number)
    batches = list(made.in_order(size, CPU))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert torch.equal(torch.cat([batch.tokens for batch in batches]), one_batch(made).tokens)
    assert torch.cat([batch.example_ids for batch in batches]).tolist() == list(range(number))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_evaluation_knows_the_document_of_each_position(size: int) -> None:
    """Numbered within the split, not the batch or sample; parts of a batch keep it. Training does not use it."""
    texts = [[5 + document] * (3 + document % 4) for document in range(30)]
    made = Rows(Contiguous(ArrayTokens(texts), 7, WORDS))
    for rows in (made, made.sample(50)):
        for batch in rows.in_order(size, CPU):
            assert batch.source_document_ids is not None
            known = batch.tokens >= 5
            assert torch.equal(batch.source_document_ids[known], batch.tokens[known] - 5)
            part, half = batch[len(batch) // 2 :].source_document_ids, batch.source_document_ids[len(batch) // 2 :]
            assert part is not None
            assert torch.equal(part, half)
    made.packing.source_document_ids = Mock(side_effect=AssertionError)  # type: ignore[attr-defined]
    batch = made.training_batch(0, 0, 4, CPU)
    assert batch.source_document_ids is None
    assert batch[:2].source_document_ids is None


class Bare:
    """A packing that hides its documents."""

    def __init__(self, made: Contiguous | Documents) -> None:
        self.rows, self.number = made.rows, len(made)

    def __len__(self) -> int:
        return self.number


def test_a_packing_need_not_know_the_documents() -> None:
    made = Rows(Bare(Contiguous(ArrayTokens([range(5, 50)]), 7, WORDS)))  # type: ignore[arg-type]
    assert [batch.source_document_ids for batch in made.in_order(4, CPU)] == [None] * 3


@pytest.mark.parametrize("made", [counting(9), uneven(9)])
def test_a_row_has_one_number_in_every_epoch(made: Rows) -> None:
    """Its position in the packing; parts and slices of a batch keep it, and evaluations do not have it."""
    whole = made.packing.rows(np.arange(9)).tokens
    for step in range(6):
        batch = made.training_batch(0, step, 4, CPU)
        assert batch.row_ids is not None
        assert batch.tokens.tolist() == whole[batch.row_ids.numpy()][:, : batch.tokens.shape[1]].tolist()
        part = made.training_batch(0, step, 4, CPU, part=slice(1, 4))[1:]
        assert part.row_ids is not None
        assert part.row_ids.tolist() == batch.row_ids.tolist()[2:]
        # Examples count the global batch.
        assert (batch.example_ids.tolist(), part.example_ids.tolist()) == ([0, 1, 2, 3], [2, 3])
    assert all(batch.row_ids is None for batch in made.in_order(4, CPU))


def test_a_part_reads_no_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(40)
    whole = made.training_batch(0, 3, 8, CPU)
    read = Mock(wraps=made.packing.tokens.read)  # type: ignore[attr-defined]
    monkeypatch.setattr(ArrayTokens, "read", read)
    part = made.training_batch(0, 3, 8, CPU, part=slice(2, 5))
    assert torch.equal(part.tokens, whole.tokens[2:5])
    assert [call.args[0].shape[0] for call in read.call_args_list] == [3]


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, [0]), (50, [*range(0, 40, 4)]), (52, None), (200, [*range(40)]), (10**9, [*range(40)])]
)
def test_a_sample_is_spread_over_all_rows(tokens: int, expected: list[int] | None) -> None:
    """Its rows keep the example ids of the whole split, so that masks and draws are the same."""
    made = counting(40)
    made.training_batch(0, 0, 10, CPU)  # a sample has a different order
    sampled = made.sample(tokens)
    ids = [id for batch in sampled.in_order(3, CPU) for id in batch.example_ids.tolist()]
    assert len(sampled) == len(ids) == len(expected or range(11))
    assert ids == (expected or sorted({*ids}))
    assert sampled.example_ids(range(len(ids))) == ids
    read = torch.cat([batch.tokens for batch in sampled.in_order(3, CPU)])
    assert torch.equal(read, one_batch(made).tokens[ids])
    assert sorted(epochs(sampled, 0, len(ids), 1).tolist()) == sorted(read.tolist())


@settings(deadline=None, max_examples=50)
@given(full=numbers, start=numbers, increment=numbers, every=st.integers(1, 14), number=st.integers(1, 60))
@patch("electra_lab.data.rows.WINDOW", 10)
def test_batches_of_growing_size_read_the_same_rows_in_the_same_order(
    full: int, start: int, increment: int, every: int, number: int
) -> None:
    """No row is skipped or repeated, also across windows; also grouped by length, every row comes once per epoch."""
    sizes, steps = BatchSizes(full + start, start, increment, every), 2 * 10 + 3
    grown = [min(full + start, start + increment * (step // every)) for step in range(steps)]
    assert [sizes.at(step) for step in range(steps)] == grown
    assert [sizes.before(step) for step in range(steps)] == [0, *accumulate(grown[:-1])]
    assert sizes.at(sizes.warmup - 1) < full + start
    assert sizes.at(sizes.warmup) == full + start
    made, total = counting(number), sum(grown)
    flat = epochs(made, 3, 64, -(-total // 64))[:total]
    assert torch.equal(epochs(made, 3, sizes, steps), flat)  # type: ignore[arg-type]
    parts = [made.training_batch(3, 12, sizes, CPU, part=part).tokens for part in (slice(0, 1), slice(1, None))]
    assert torch.equal(torch.cat(parts), flat[sum(grown[:12]) :][: grown[12]])
    grouped = uneven(number)
    read = [d for step in range(steps) for d in documents(grouped.training_batch(3, step, sizes, CPU))]
    for epoch in range(total // number):
        assert sorted(read[epoch * number : (epoch + 1) * number]) == list(range(number))


def documents(batch: Batch) -> list[int]:
    return (batch.tokens[:, 1] - 5).tolist()


@settings(deadline=None, max_examples=25)
@given(number=st.integers(1, 150), size=st.integers(1, 20), seed=st.integers(0, 2**40))
def test_grouped_rows_come_once_per_epoch(number: int, size: int, seed: int) -> None:
    """Complete rows, in the same epoch and window as without grouping."""
    made, plain = uneven(number), uneven(number, group=False)
    steps = -(-2 * number // size)
    batches = [made.training_batch(seed, step, size, CPU) for step in range(steps)]
    read = [document for batch in batches for document in documents(batch)]
    for epoch in range(2):
        assert sorted(read[epoch * number : (epoch + 1) * number]) == list(range(number))
    for batch in batches:
        expected = made.packing.rows(np.array(documents(batch)))
        width = batch.tokens.shape[1]
        assert torch.equal(batch.tokens, torch.from_numpy(expected.tokens[:, :width]))
        assert not expected.attention_mask[:, width:].any(), "a row is cut"
    first = [plain.training_batch(seed, step, size, CPU) for step in range(min(WINDOW, steps))]
    if number >= WINDOW * size:
        assert sorted(read[: WINDOW * size]) == sorted(document for batch in first for document in documents(batch))


def test_grouped_batches_hold_rows_of_similar_lengths() -> None:
    """Batches are cut to multiples of an eighth of the length, and are not sorted by length."""
    made, size = uneven(2000), 16
    batches = [made.training_batch(0, step, size, CPU) for step in range(2000 // size)]
    lengths = [batch.attention_mask.sum(1) for batch in batches]
    spread = np.mean([int(batch.max() - batch.min()) for batch in lengths])
    assert spread < 8, "of 60"
    widths = [batch.tokens.shape[1] for batch in batches]
    assert widths == [-(-int(batch.max()) // 8) * 8 for batch in lengths]
    assert sum(widths) < 0.7 * 64 * len(widths)
    falls = sum(width > following for width, following in pairwise(widths[:WINDOW]))
    assert 2 <= falls <= WINDOW - 3


def test_a_grouped_batch_is_a_function_of_its_step() -> None:
    made = uneven(300)
    expected = [made.training_batch(3, step, 8, CPU).tokens for step in range(60)]
    for step in (59, 0, 33, 17):
        assert torch.equal(uneven(300).training_batch(3, step, 8, CPU).tokens, expected[step])
        parts = [made.training_batch(3, step, 8, CPU, part=part).tokens for part in (slice(0, 3), slice(3, 8))]
        assert torch.equal(torch.cat(parts), expected[step])
    assert not torch.equal(made.training_batch(4, 0, 8, CPU).tokens[:, 1], expected[0][:, 1])


@settings(deadline=None)
@given(rows=st.lists(st.lists(st.sampled_from([-1, -1, 0, 1, 2, 3]), min_size=6, max_size=6), min_size=1, max_size=3))
def test_documents_are_counted(rows: list[list[int]]) -> None:
    """Documents and pieces of padding of each row; None if a document continues after another one."""
    documents = np.array(rows)
    found = document_counts(documents, documents >= 0)
    numbers, returns = [], False
    for row in rows:
        runs = [number for number, _ in groupby(row)]
        numbers.append(len(runs))
        returns |= any(runs.count(number) > 1 for number in runs if number >= 0)
    if returns:
        assert found is None
        return
    assert found is not None
    assert found.tolist() == numbers


def test_batches_know_how_many_documents_their_rows_have(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rows(Contiguous(ArrayTokens([[7] * 4, [8] * 2, [9] * 9]), 10, WORDS, attention="within_documents"))
    batch = one_batch(made)
    assert batch.document_counts is not None
    assert batch.document_counts.tolist() == [3, 1, 2]
    assert batch[1:].document_counts.tolist() == [1, 2]  # type: ignore[union-attr]
    # Without documents, on CUDA: of rows with padding
    monkeypatch.setattr("electra_lab.data.rows._moved", lambda array, _: torch.from_numpy(array))
    padded = counting(7)
    for rows, counts in (([0, 1], None), ([5, 6], [2, 2]), ([6], [2])):
        batch = padded.batch(np.array(rows), np.arange(len(rows)), torch.device("cuda"))
        assert (None if batch.document_counts is None else batch.document_counts.tolist()) == counts
        assert batch.full == (counts is None)
        assert padded.batch(np.array(rows), np.arange(len(rows)), CPU).document_counts is None


def test_a_batch_knows_whether_it_has_padding() -> None:
    """Also after its rows are cut to their longest one."""
    made, known = counting(7), set()
    for rows in ([0, 1], [5, 6], [6]):
        batch = made.batch(np.array(rows), np.arange(len(rows)), CPU)
        assert batch.full == bool(batch.attention_mask.all())
        known.add(batch.full)
        assert batch[:1].full == batch.full
    assert known == {True, False}
    cut = Rows(Documents(ArrayTokens([[5] * 3, [6] * 3]), 8, WORDS)).batch(np.arange(2), np.arange(2), CPU, 5)
    assert cut.full
    assert cut.attention_mask.all()
