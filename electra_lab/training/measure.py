"""Find the fastest of several ways, by trying them."""

import time
from collections.abc import Callable, Mapping

import torch

ROUNDS = 3
GAIN = 0.05  # a way must be faster by this share than the one before it in the list


def seconds_of(ways: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return the least time of each way, in seconds: of several calls in turns, after one that does not count."""
    least = dict.fromkeys(ways, float("inf"))
    for round in range(-1, ROUNDS):
        for name, way in ways.items():
            _finish(device)
            began = time.perf_counter()
            way()
            _finish(device)
            if round >= 0:
                least[name] = min(least[name], time.perf_counter() - began)
    return least


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the fastest way; the first in the list, unless another is faster by more than GAIN, and so on."""
    chosen, *others = seconds
    for name in others:
        if seconds[name] < (1 - GAIN) * seconds[chosen]:
            chosen = name
    return chosen


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
