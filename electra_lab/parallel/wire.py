"""Batches and losses as bytes, for other processes: safetensors, so that nothing is unpickled."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from registry import Batch, Choice, Detection, Losses, Prediction, Term

_BETWEEN = "\x1f"  # the parts of a tensor's name, which may be names that components chose


def pack(batch: Batch, losses: Losses) -> bytes:
    """Return the bytes of a batch and its losses, wherever these are."""
    named = {**dict(_leaves(batch, ("batch",))), **dict(_leaves(losses, ("losses",)))}
    # A copy of each, as safetensors refuses tensors that share memory.
    return save({_BETWEEN.join(name): value.detach().cpu().contiguous().clone() for name, value in named.items()})


def unpack(data: bytes, device: torch.device) -> tuple[Batch, Losses]:
    """Return the arguments of `pack`; weights have become tensors."""
    tree: dict[str, Any] = {"batch": {}, "losses": {}}
    for name, value in load(data).items():
        *above, last = name.split(_BETWEEN)
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value.to(device)
    given = tree["losses"]
    losses = Losses(
        {name: Term(**term) for name, term in given.get("terms", {}).items()},
        {name: Prediction(**asked) for name, asked in given.get("predictions", {}).items()},
        Detection(**given["detection"]) if "detection" in given else None,
        given.get("outputs", {}),
        {name: Term(**term) for name, term in given.get("metrics", {}).items()},
        Choice(**given["choice"]) if "choice" in given else None,
    )
    return Batch(**tree["batch"]), losses


def _leaves(value: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, (*name, key))
    elif value is not None:
        yield name, value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
