"""Random numbers: against an independent numpy version, statistical tests, eager against compiled, split or whole."""

import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from electra_lab.testing import SIGNIFICANCE, on_each_device
from electra_lab.training import random
from electra_lab.training.random import Keys, Random, Streams, digest, mix_, seed_global


def mixed(words: np.ndarray) -> np.ndarray:
    """lowbias32 in unsigned arithmetic, as it was published."""
    x = words.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def test_mix_is_lowbias32() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint32)
    words[:3] = 0, 2**31, 2**32 - 1
    ours = mix_(torch.from_numpy(words.view(np.int32).copy())).numpy().view(np.uint32)
    assert (ours == mixed(words)).all()


def test_uniform_against_numpy() -> None:
    """An independent implementation of the whole path from coordinates to numbers."""
    streams = Streams.of(3, 5, torch.tensor([0, 7]))
    numbers = streams("law").uniform(4, 6).numpy()

    key = digest("step", 3, 5)
    k0, k1 = np.uint32(key >> 32), np.uint32(key & 0xFFFFFFFF)
    tag = 0x811C9DC5
    for byte in b"law":
        tag = ((tag ^ byte) * 0x01000193) & 0xFFFFFFFF
    examples = np.array([0, 7], np.uint32)
    with np.errstate(over="ignore"):
        first = mixed(mixed(mixed(examples + k0) ^ np.uint32(tag)) + k1)
        second = mixed(mixed(mixed(examples ^ k1) + np.uint32(tag)) ^ k0)
        counter = np.arange(12, dtype=np.uint32)
        call = np.uint32(0x9E3779B9)
        bits = mixed(mixed(counter + mixed(first + call)[:, None]) ^ mixed(second ^ call)[:, None])
    expected = ((bits >> np.uint32(9)).astype(np.float64) + 0.5) / 2**23
    assert (numbers == expected.reshape(4, 6)).all()


def uniform(seed: int, step: int, purpose: str, examples: int, width: int) -> torch.Tensor:
    return Streams.of(seed, step, torch.arange(examples))(purpose).uniform(examples, width)


def test_numbers_lie_strictly_between_0_and_1() -> None:
    numbers = uniform(0, 0, "law", 64, 1 << 16)
    assert numbers.dtype == torch.float32
    assert numbers.min() > 0
    assert numbers.max() < 1
    # Four million draws of 23 bits reach both ends.
    assert numbers.min() < 1e-5
    assert numbers.max() > 1 - 1e-5


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_numbers_are_uniform(seed: int) -> None:
    numbers = uniform(seed, 3, "law", 100, 10_000).flatten().numpy()
    counts = np.histogram(numbers, bins=1000, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE
    low_bits = (numbers.astype(np.float64) * 2**23 - 0.5).astype(np.int64) & 0xFF
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > SIGNIFICANCE


# Streams that differ in one coordinate; each pair must look independent.
PAIRS = {
    "neighbouring examples": lambda: (uniform(0, 0, "a", 301, 1000)[:-1], uniform(0, 0, "a", 301, 1000)[1:]),
    "neighbouring steps": lambda: (uniform(0, 8, "a", 300, 1000), uniform(0, 9, "a", 300, 1000)),
    "neighbouring seeds": lambda: (uniform(4, 8, "a", 300, 1000), uniform(5, 8, "a", 300, 1000)),
    "purposes": lambda: (uniform(0, 0, "masking", 300, 1000), uniform(0, 0, "sampling", 300, 1000)),
    "neighbouring positions": lambda: (uniform(0, 0, "a", 300, 1001)[:, :-1], uniform(0, 0, "a", 300, 1001)[:, 1:]),
    "calls": lambda: (lambda r: (r.uniform(300, 1000), r.uniform(300, 1000)))(Streams.of(0, 0, torch.arange(300))("a")),
    "seed and step exchanged": lambda: (uniform(1, 2, "a", 300, 1000), uniform(2, 1, "a", 300, 1000)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_streams_are_independent(pair: str) -> None:
    """No linear correlation, and a joint distribution that is flat on the unit square."""
    first, second = (t.flatten().numpy() for t in PAIRS[pair]())
    assert stats.pearsonr(first, second).pvalue > SIGNIFICANCE
    cells = np.histogram2d(first, second, bins=32, range=((0, 1), (0, 1)))[0].flatten()
    assert stats.chisquare(cells).pvalue > SIGNIFICANCE


def test_first_number_of_each_step_is_uniform() -> None:
    """As a run uses them over time: one number from each of many steps."""
    numbers = [float(uniform(0, step, "masking", 1, 1)) for step in range(1000)]
    assert stats.kstest(numbers, "uniform").pvalue > SIGNIFICANCE


@settings(max_examples=40, deadline=None)
@given(
    examples=st.integers(1, 12), cut=st.integers(0, 12), m=st.integers(1, 4), width=st.integers(1, 9),
    calls=st.integers(1, 3),
)  # fmt: skip
def test_any_split_of_the_batch_gives_the_same_numbers(examples: int, cut: int, m: int, width: int, calls: int) -> None:
    def draws(indices: torch.Tensor) -> list[torch.Tensor]:
        random = Streams.of(1, 2, indices)("law")
        return [random.uniform(len(indices) * m, width) for _ in range(calls)]

    cut = min(cut, examples)
    whole, left, right = (draws(torch.arange(a, b)) for a, b in ((0, examples), (0, cut), (cut, examples)))
    for all_rows, *parts in zip(whole, left, right, strict=True):
        assert torch.equal(all_rows, torch.cat(parts))


@on_each_device
@settings(max_examples=40, deadline=None)
@given(
    examples=st.integers(0, 6), m=st.integers(1, 4), shape=st.sampled_from([(1,), (7,), (2, 3)]),
    some=st.integers(1, 30), torchs=st.booleans(),
)  # fmt: skip
def test_parts_are_those_of_one_call(device: str, examples: int, m: int, shape, some: int, torchs: bool) -> None:
    """With numpy and with torch, as on a GPU. Without rows there is one empty part."""
    first, second = (Streams.of(1, 2, torch.arange(5, 5 + examples, device=device))("law") for _ in range(2))
    for numbers in (first, second):
        numbers.uniform(examples, 3)
    whole = first.uniform(examples * m, *shape)
    with pytest.MonkeyPatch.context() as patched:
        if torchs:
            patched.setattr(random, "_in_numpy", lambda _: False)
        parts = list(second.in_parts(some, examples * m, *shape))
    assert [len(part) for part in parts] == [len(part) for part in whole.split(some)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(first.uniform(examples, 2), second.uniform(examples, 2))
    # Draws depend on the order of calls.
    late, numbers = second.in_parts(some, examples * m, *shape), second.uniform(examples, 2)
    assert torch.equal(torch.cat(list(late)), first.uniform(examples * m, *shape))
    assert torch.equal(numbers, first.uniform(examples, 2))


def test_parts_on_the_cpu_do_not_exist_at_once() -> None:
    tracemalloc.start()
    try:
        for part in Streams.of(0, 0, torch.arange(4))("law").in_parts(16, 400, 5000):
            assert part.shape == (16, 5000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400 * 5000 * 4 / 4, f"{peak} bytes"


def test_the_global_generator_is_not_used() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    uniform(0, 0, "law", 3, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_must_fit_the_examples() -> None:
    with pytest.raises(ValueError, match="6 rows are not a multiple of the 4 examples"):
        Streams.of(0, 0, torch.arange(4))("law").uniform(6, 2)


def test_seed_global_depends_on_seed_step_and_rank() -> None:
    def first(*coordinates: int) -> float:
        seed_global(*coordinates)
        return float(torch.rand(()))

    values = [first(*c) for c in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(values)) == 4
    assert first(0, 0, 0) == values[0]


def draws_of(streams: Streams) -> tuple[torch.Tensor, torch.Tensor]:
    """Two calls for one purpose."""
    random: Random = streams("law")
    return random.uniform(16, 100), random.uniform(2 * 16, 7)


@pytest.mark.parametrize("prepared", [False, True])
def test_compiled_numbers_are_bit_identical_and_a_new_step_does_not_recompile(prepared: bool) -> None:
    compiled, keys, examples = torch.compile(draws_of, fullgraph=True), Keys(), torch.arange(16)
    keys.fill(7, 0, examples.numpy())
    draws_of(keys.streams(examples))
    torch._dynamo.reset()
    quick = torch._inductor.config.patch({"cpp.vec_isa_ok": True})  # torch would compile programs to find it out
    with quick, torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(3):
            keys.fill(7, step, examples.numpy())
            mixed = Streams.of(7, step, examples)
            streams = keys.streams(examples) if prepared else mixed
            for eager, fast in zip(draws_of(mixed), compiled(streams), strict=True):
                assert torch.equal(eager, fast)


def test_keys_mixed_on_the_host_are_those_of_the_device_in_any_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the first step, which finds out the draws, and beyond their number; at one address for each size."""
    monkeypatch.setattr(random, "DRAWS", 3)
    keys, places = Keys(), set()

    def draws(streams: Streams) -> list[torch.Tensor]:
        one, other = streams("masking"), streams("sampling")
        of_one = [one.uniform(len(streams._examples), 3) for _ in range(2)]
        return [*of_one, *(other.uniform(len(streams._examples), 5) for _ in range(2))]

    mixed = Mock(wraps=random._mixed_keys)
    monkeypatch.setattr(random, "_mixed_keys", mixed)
    for step, mixes in enumerate([4, 1, 1]):
        examples = np.array([7, 3, 11, 5]) + step
        keys.fill(2, step, examples)
        places.add(keys.table.data_ptr())
        expected = draws(Streams.of(2, step, torch.from_numpy(examples)))
        mixed.reset_mock()
        for rows in (slice(None), slice(1, 3)):
            part = keys.streams(torch.from_numpy(examples[rows]), rows)
            for numbers, whole in zip(draws(part), expected, strict=True):
                assert torch.equal(numbers, whole[rows])
        assert mixed.call_count == 2 * mixes
        keys.fill(2, step, examples[:2])
        places.add(keys.table.data_ptr())
    assert len(places) == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_cuda_numbers_are_those_of_the_cpu() -> None:
    for device in ("cpu", "cuda"):
        streams = Streams.of(7, 1, torch.arange(16, device=device))
        numbers = [t.cpu() for t in draws_of(streams)]
        if device == "cpu":
            expected = numbers
    assert all(torch.equal(a, b) for a, b in zip(expected, numbers, strict=True))


@pytest.mark.parametrize("shape", [(3, 40_000), (6, 5), (3, 7), (12,), (0, 5), (3, 0)])
def test_numbers_are_those_of_torch_however_many_are_made_at_a_time(shape: tuple[int, ...], monkeypatch) -> None:
    def numbers() -> torch.Tensor:
        return Streams.of(5, 1, torch.arange(3))("sampling").uniform(*shape)

    usual = numbers()
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)
        assert torch.equal(numbers(), usual)
    monkeypatch.setattr(random, "_AT_ONCE", 4)
    assert shape[-1] == 40_000 or torch.equal(numbers(), usual)
