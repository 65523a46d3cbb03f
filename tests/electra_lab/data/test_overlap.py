"""Runs of 13 tokens, compared with plain Python sets."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from electra_lab.data import overlap
from electra_lab.data.overlap import RUN, HeldOutRuns, runs, without_overlap

law = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
documents = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=12)


@pytest.fixture(autouse=True, params=[1, 50, 1 << 18])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vary the number of tokens that are processed at once."""
    monkeypatch.setattr(overlap, "AT_ONCE", request.param)


def arrays(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    flat = list(itertools.chain.from_iterable(texts))
    return np.array(flat, np.uint16), np.array([len(text) for text in texts])


def plain(text: list[int]) -> list[tuple[int, ...]]:
    """Return the runs of a document; a document shorter than a run is one run."""
    return [tuple(text[i : i + RUN]) for i in range(max(1, len(text) - RUN + 1))]


@law
@given(documents)
def test_equal_runs_have_equal_hashes_and_others_do_not(texts: list[list[int]]) -> None:
    hashes, counts = runs(*arrays(texts))
    expected = [plain(text) for text in texts]
    assert counts.tolist() == list(map(len, expected))
    flat = list(itertools.chain.from_iterable(expected))
    of_run = dict(zip(flat, hashes.tolist(), strict=True))
    assert [of_run[run] for run in flat] == hashes.tolist()
    assert len(set(of_run.values())) == len(of_run)


def test_hashes_do_not_depend_on_the_place_in_a_long_stream() -> None:
    text = list(range(100, 120))
    filler = [7] * 30_000
    hashes, counts = runs(*arrays([text, filler, text]))
    assert hashes[: counts[0]].tolist() == hashes[-counts[2] :].tolist()


@law
@given(documents, documents, documents, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_documents_that_share_too_much_are_left_out(
    held_out: list[list[int]], left_out: list[list[int]], texts: list[list[int]], most: float
) -> None:
    """Runs of documents that are left out of the test count only for the sufficient overlap."""
    known = HeldOutRuns.of(*(runs(*arrays(side))[0] for side in (held_out, left_out)))
    there = {run for text in held_out for run in plain(text)}
    known_at_all = there | {run for text in left_out for run in plain(text)}
    keep, seen, sufficient = without_overlap(*arrays(texts), known, most)
    assert sufficient == least(held_out + left_out, texts)
    expected = [shared_runs(text, there) <= most * len(plain(text)) for text in texts]
    assert keep.tolist() == expected
    kept = itertools.chain.from_iterable(map(plain, itertools.compress(texts, expected)))
    shared = [run for run in kept if run in known_at_all]
    assert len(seen) == len(shared)
    assert len({*seen.tolist()}) == len({*shared})


def test_the_filter_lets_every_known_hash_through_and_few_others() -> None:
    mine, others = np.random.default_rng(0).integers(0, 2**64, (2, 20_000), dtype=np.uint64)
    known = HeldOutRuns.of(mine)
    found, where = known.find(mine)
    assert found.tolist() == list(range(len(mine)))
    assert np.array_equal(known.hashes[where], mine)
    assert known.find(others)[0].tolist() == []
    places = others >> np.uint64(64 - (len(known.filter).bit_length() + 2))
    passed = known.filter[places >> np.uint64(3)] >> (places & np.uint64(7)).astype(np.uint8) & 1
    assert passed.mean() < 0.1


def test_nothing_is_known_of_nothing() -> None:
    known = HeldOutRuns.of(np.zeros(0, np.uint64))
    keep, seen, sufficient = without_overlap(*arrays([[1, 2, 3]]), known, 0.0)
    assert (keep.tolist(), seen.tolist(), sufficient) == ([True], [], 0.0)


def test_a_share_that_is_a_hundredth_suffices_in_floating_point() -> None:
    """0.29 * 100 is below 29, so 0.29 would leave out a document that shares 29 of 100 runs."""
    shared, own = list(range(29 + RUN - 1)), list(range(500, 571))
    known = HeldOutRuns.of(runs(*arrays([shared]))[0])
    sufficient = without_overlap(*arrays([shared + own]), known, 0.0)[2]
    assert sufficient == 0.3
    assert without_overlap(*arrays([shared + own]), known, sufficient)[0].all()
    assert not without_overlap(*arrays([shared + own]), known, 0.29)[0].any()


def shared_runs(text: list[int], there: set[tuple[int, ...]]) -> int:
    return sum(run in there for run in plain(text))


def least(held_out: list[list[int]], texts: list[list[int]]) -> float:
    """Return the smallest share, in hundredths, with which no text is left out, by trying all shares."""
    there = {run for text in held_out for run in plain(text)}
    for n in range(101):
        if all(shared_runs(text, there) <= n / 100 * len(plain(text)) for text in texts):
            return n / 100
    raise AssertionError("no text shares more than all of its runs")
