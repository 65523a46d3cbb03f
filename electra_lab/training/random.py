"""Random numbers as a pure function of (seed, step, purpose, example), in plain integer tensor operations.

A counter-based generator in the sense of Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3": a
number is a hash of its own coordinates. So it is the same eager and compiled, on CPU and CUDA, for any split of the
global batch, and there is no state to save, lose or corrupt.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float32, Int, Int32
from numpy.typing import NDArray
from torch import Tensor

EVALUATION = -1  # the "step" of evaluation: its masks and draws depend on the seed alone


def _signed(word: int) -> int:
    """Return the int32 that has the bits of a 32-bit word."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


_AT_ONCE = 1 << 15  # numbers; on the CPU, more at a time would not stay in its cache
_M1, _M2 = _signed(0x7FEB352D), _signed(0x846CA68B)
_U1, _U2 = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_ONE, _BELOW_ONE = np.uint32(0x3F800000), np.float32(1.0 - 2.0**-24)  # the bits of 1.0; the float32 before it


def mix_(x: Int32[Tensor, "*shape"]) -> Int32[Tensor, "*shape"]:
    """Mix 32-bit words in place by a bijection in which each input bit changes every output bit half of the time.

    The constants are those of Wellons' "lowbias32". int32 multiplication wraps; the shifts are made logical. In place,
    as fresh memory for each operation would cost more than the arithmetic.
    """
    if _in_numpy(x):
        words = x.numpy().view(np.uint32)
        _mix_on_the_cpu(words, np.empty_like(words))
        return x
    return x.copy_(_mixed(x)) if torch.compiler.is_compiling() else _mix_in_torch(x)


def _mix_in_torch(x: Int32[Tensor, "*shape"]) -> Int32[Tensor, "*shape"]:
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_M1)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_M2)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


@torch.library.custom_op("electra_lab::mix", mutates_args=())
def _mixed(x: Tensor) -> Tensor:
    """Return `mix_` of a copy, as one operation for compilers.

    Each shift uses its argument twice, and inductor writes arguments out: a chain of mixes took it minutes.
    """
    return _mix_in_torch(x.clone())


@_mixed.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def digest(*parts: object) -> int:
    """Return 64 bits that depend on all of `parts`, computed on the host, for keys and seeds."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def seed_global(seed: int, step: int, rank: int = 0) -> None:
    """Seed torch's own generators, from which libraries draw dropout masks and LSH rotations."""
    number = digest("global", seed, step, rank)
    torch.default_generator.manual_seed(number)
    # torch.manual_seed also remembers a call, with its stack, for a device that is not used yet: 3 ms, at every step.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)


class Random:
    """registry.contracts.Random for one purpose. `keys`: number of a call -> two 32-bit words for each example."""

    def __init__(self, keys: Callable[[int], tuple[Int32[Tensor, " B"], Int32[Tensor, " B"]]]) -> None:
        self._keys, self._calls = keys, 0

    def uniform(self, rows: int, *shape: int) -> Float32[Tensor, " rows *shape"]:
        """Return numbers (k + 1/2) / 2^23 in the open interval (0, 1); each call gives fresh ones.

        `rows` must be a multiple m of the number of examples: row r belongs to example r // m.
        """
        first, second, numbers = self._next_call(rows, shape)
        if _in_numpy(first):
            return torch.from_numpy(_on_the_cpu(numbers, first.numpy(), second.numpy())).view(rows, *shape)
        return _in_torch(numbers, first, second).view(rows, *shape)

    def in_parts(self, some: int, rows: int, *shape: int) -> Iterator[Float32[Tensor, " some *shape"]]:
        """Yield the rows of one call of `uniform`, `some` at a time, of which only one part exists at once.

        Compiled code has all of them at once.
        """
        if torch.compiler.is_compiling():
            return iter(torch.split(self.uniform(rows, *shape), some))
        first, second, _ = self._next_call(rows, shape)
        of_one, width = max(rows // max(len(first), 1), 1), math.prod(shape)

        def part(begin: int) -> Tensor:
            places = torch.arange(begin, min(begin + some, rows), device=first.device)
            example, row = places // of_one, places % of_one
            counted = first[example] + (row * width).to(torch.int32)
            return _in_torch(width, counted, second[example]).view(len(places), *shape)

        begins = range(0, max(rows, 1), some)
        if hasattr(first, "fake_mode"):  # a forecast of memory, of which each part takes the same
            begins = begins[:1]
        if not _in_numpy(first):
            return map(part, begins)
        keys = first.numpy().view(np.uint32), second.numpy().view(np.uint32)

        def part_on_the_cpu(begin: int) -> Tensor:
            example, row = np.divmod(np.arange(begin, min(begin + some, rows)), of_one)
            counted = keys[0][example] + (row * width).astype(np.uint32)
            numbers = _on_the_cpu(width, counted.view(np.int32), keys[1][example].view(np.int32))
            return torch.from_numpy(numbers).view(len(numbers), *shape)

        return map(part_on_the_cpu, begins)

    def _next_call(self, rows: int, shape: tuple[int, ...]) -> tuple[Int32[Tensor, " B"], Int32[Tensor, " B"], int]:
        """Return two keys for each example, and the count of its numbers."""
        self._calls += 1
        first, second = self._keys(self._calls)
        examples = len(first)
        if rows % max(examples, 1):
            raise ValueError(f"uniform: {rows} rows are not a multiple of the {examples} examples of this batch.")
        numbers = (rows // examples) * math.prod(shape) if examples else 0
        if numbers > 1 << 32:
            raise ValueError(f"uniform: {numbers} numbers for one example are more than 2^32.")
        return first, second, numbers


def _in_torch(numbers: int, first: Int32[Tensor, " B"], second: Int32[Tensor, " B"]) -> Float32[Tensor, " B numbers"]:
    """Return the numbers of `uniform`, [B numbers]."""
    bits = torch.arange(numbers, device=first.device).to(torch.int32) + first.unsqueeze(1)
    mix_(mix_(bits).bitwise_xor_(second.unsqueeze(1)))
    # 23 bits and a half: exact in float32, and never 0 or 1.
    bits.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF)
    return bits.float().mul_(2.0**-23).add_(2.0**-24)


def _on_the_cpu(numbers: int, first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the numbers of `uniform`, [B numbers], in a quarter of the time.

    numpy has unsigned shifts and little overhead, and some numbers at a time stay in the cache.
    """
    drawn = np.empty((len(first), numbers), dtype=np.float32)
    keys = first.view(np.uint32)[:, None], second.view(np.uint32)[:, None]
    height, width = max(1, _AT_ONCE // max(numbers, 1)), min(numbers, _AT_ONCE)
    bits, spare = (np.empty((height, width), dtype=np.uint32) for _ in range(2))
    # A few rows and columns at a time, so that the buffers stay in the cache.
    for row in range(0, len(first), height):
        for begin in range(0, numbers, _AT_ONCE):
            part = drawn[row : row + height, begin : begin + _AT_ONCE]
            x, y = (buffer[: part.shape[0], : part.shape[1]] for buffer in (bits, spare))
            first_key, second_key = (key[row : row + height] for key in keys)
            counter = np.arange(begin, begin + part.shape[1], dtype=np.uint32)
            _mix_on_the_cpu(np.add(counter, first_key, out=x), y)
            _mix_on_the_cpu(np.bitwise_xor(x, second_key, out=x), y)
            # As the fraction of a float32 from 1 to 2. The difference, (2 k + 1) / 2^24, is exact, as 2 k + 1 < 2^24.
            np.bitwise_or(np.right_shift(x, 9, out=x), _ONE, out=x)
            np.subtract(x.view(np.float32), _BELOW_ONE, out=part)
    return drawn


def _in_numpy(tensor: Tensor) -> bool:
    """Return True if numpy can work on a tensor: not on one that has only shapes, nor in compiled code."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _mix_on_the_cpu(x: NDArray[np.uint32], spare: NDArray[np.uint32]) -> None:
    """Do what `mix_` does. `spare` is memory of the same shape."""
    for shift, factor in ((16, _U1), (15, _U2), (16, None)):
        np.bitwise_xor(x, np.right_shift(x, shift, out=spare), out=x)
        if factor is not None:
            np.multiply(x, factor, out=x)


def key_of(seed: int, step: int) -> Int32[Tensor, " 2"]:
    """Return the key of the random numbers of a step, on the CPU."""
    key = digest("step", seed, step)
    return torch.tensor([_signed(key >> 32), _signed(key)], dtype=torch.int32)


def _mixed_keys(
    key: Int32[Tensor, " 2"], examples: Int32[Tensor, " B"], tag: Any, call: Any
) -> tuple[Int32[Tensor, "*draws B"], Int32[Tensor, "*draws B"]]:
    """Return two keys for each example. `tag` and `call` are those of one draw, or of several as columns."""
    k0, k1 = key
    first = mix_(mix_(mix_(examples + k0) ^ tag) + k1)
    second = mix_(mix_(mix_(examples ^ k1) + tag) ^ k0)
    # The call enters both words: otherwise two long calls with overlapping counters would share some numbers.
    return mix_(first + call), mix_(second ^ call)


def _words(purpose: str, call: int) -> tuple[int, int]:
    """Return a draw as two words. FNV-1a in plain Python is a constant that torch.compile can fold."""
    word = 0x811C9DC5
    for byte in purpose.encode():
        word = ((word ^ byte) * 0x01000193) & 0xFFFFFFFF
    return _signed(word), _signed(call * 0x9E3779B9)


class Streams:
    """The random numbers of one step: `streams("masking")` is a fresh Random, the same for the same purpose.

    The key of (seed, step) is a tensor, so that a compiled step is not compiled again for every step, and that a
    recorded one reads that of each step. It is on the device of the examples' ids.

    prepared  keys of the step's draws, of whose rows these are `rows`
    """

    def __init__(
        self,
        key: Int32[Tensor, " 2"],
        examples: Int[Tensor, " B"],
        prepared: Keys | None = None,
        rows: slice = slice(None),
    ) -> None:
        self._key, self._examples = key, examples.to(torch.int32)
        self._prepared, self._rows = prepared, rows

    @classmethod
    def of(cls, seed: int, step: int, examples: Int[Tensor, " B"]) -> Self:
        """Return the random numbers of (seed, step) for examples on any device."""
        return cls(key_of(seed, step).to(examples.device, non_blocking=True), examples)

    def __call__(self, purpose: str) -> Random:
        return Random(partial(self._keys, purpose))

    def _keys(self, purpose: str, call: int) -> tuple[Int32[Tensor, " B"], Int32[Tensor, " B"]]:
        mixed = self._prepared.of_draw(purpose, call) if self._prepared else None
        if mixed is None:
            return _mixed_keys(self._key, self._examples, *_words(purpose, call))
        return mixed[0, self._rows], mixed[1, self._rows]


DRAWS = 16  # calls of all purposes in a step whose keys the host mixes


class Keys:
    """The keys of a step's draws, mixed on the host beforehand: a device would launch hundreds of kernels for them.

    A draw is a call for a purpose. The host mixes its keys in the steps after the first that asked for it; until then,
    and beyond DRAWS, the device does. They are at an address that depends on the number of rows alone.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], int] = {}  # places in the table
        self._ready = 0  # how many of them are mixed
        self._tables: dict[int, Int32[Tensor, " numbers"]] = {}  # by the number of rows
        self._rows, self._device = 0, torch.device("cpu")

    def to(self, device: torch.device) -> None:
        if device != self._device:
            self._device, self._tables = device, {}

    def fill(self, seed: int, step: int, examples: NDArray[np.int64]) -> None:
        """Mix the keys of a step with these examples. The host does not wait for the device."""
        draws = [_words(*draw) for draw in self._asked]
        columns = torch.tensor(draws, dtype=torch.int32).view(-1, 2, 1).unbind(1)
        key = key_of(seed, step)
        mixed = _mixed_keys(key, torch.from_numpy(examples).to(torch.int32), *columns)
        words = torch.cat([key, torch.stack(mixed, dim=1).flatten()])  # [2 + draws * 2 * B]
        words = words.pin_memory() if self._device.type == "cuda" else words
        self._ready, self._rows = len(draws), len(examples)
        if self._rows not in self._tables:
            size = 2 + 2 * DRAWS * self._rows
            self._tables[self._rows] = torch.zeros(size, dtype=torch.int32, device=self._device)
        self.table[: len(words)].copy_(words, non_blocking=True)

    @property
    def table(self) -> Int32[Tensor, " numbers"]:
        """The key of the step, and those of its draws, [DRAWS 2 B]."""
        return self._tables[self._rows]

    def streams(self, examples: Int[Tensor, " B"], rows: slice = slice(None)) -> Streams:
        """Return the random numbers of some rows of the step's batch, whose example ids are on the device."""
        return Streams(self.table[:2], examples, self, rows)

    def of_draw(self, purpose: str, call: int) -> Int32[Tensor, "2 B"] | None:
        """Return the keys of a draw, None if they are not mixed."""
        place = self._asked.get((purpose, call), DRAWS)
        if place < self._ready:
            return self.table[2:].view(DRAWS, 2, -1)[place]
        if len(self._asked) < DRAWS and not torch.compiler.is_compiling():
            self._asked.setdefault((purpose, call), len(self._asked))
        return None
