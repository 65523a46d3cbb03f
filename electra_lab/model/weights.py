"""All tensors of a network by name: compared with those of a model that it starts from, and filled from them."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from electra_lab.model.network import Network, Shifted

TABLE = "embeddings.tokens.weight"
VOCABULARY_SIZED = (TABLE, "heads.tokens.bias")
OUTPUT_TABLES = ("heads.tokens.weight", "heads.tokens.decoder.weight")  # of models whose output is not tied
SHOWN = 8  # misfits that an error names


@dataclass(frozen=True)
class Account:
    """The tensors without a counterpart."""

    new: tuple[str, ...]  # of the network: heads that the given model lacks
    unused: tuple[str, ...]  # of the given model: heads that the network lacks, parts that no network of the lab has


def own_tensors(network: Network) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers; a table that is a sum of two is one tensor, detached."""
    own: dict[str, Tensor] = dict(network.state_dict(keep_vars=True))
    if isinstance(network.embeddings.tokens, Shifted):
        own = {name: value for name, value in own.items() if not name.startswith("embeddings.tokens.")}
        own = {TABLE: network.embeddings.tokens.weight.detach(), **own}
    return own


def repeated(module: nn.Module) -> dict[str, str]:
    """Return the names of tensors that have another name before, and that name."""
    first: dict[Tensor, str] = {}
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: first[tensor] for name, tensor in named if first.setdefault(tensor, name) != name}


def with_all_names(given: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return tensors of a file, which has one with several names under the first, under all names of a module."""
    found = dict(given)
    for name, first in repeated(module).items():
        if first in found:
            found.setdefault(name, found[first])
    return found


def account_for(
    given: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    known: Callable[[str], str] = str,
    foreign: re.Pattern[str] | None = None,
) -> Account:
    """Compare the tensors of a model, under our names, with a network's own.

    known    turns one of our names into the one that the model has
    foreign  names that a network of the lab never has, and that are left out

    Raises ValueError that names the tensors that are missing, left over, of another shape, not of floating-point
    numbers or not finite. Of the network's own, which may be on the meta device, no number is read.
    """
    heads = {head_of(name) for name in own} - {None}
    lacking = heads - {head_of(name) for name in given}
    new = tuple(name for name in own if head_of(name) in lacking)
    wrong = [f"{known(name)} is missing" for name in own if name not in given and name not in new]
    for name in [name for name in own if name in given]:
        if given[name].shape != own[name].shape:
            wrong.append(f"{known(name)} has the shape {list(given[name].shape)}, not {list(own[name].shape)}")
        if own[name].is_floating_point() and not given[name].is_floating_point():
            wrong.append(f"{known(name)} holds {given[name].dtype}, not floating-point numbers")
    left = {name: head_of(name) for name in sorted(given.keys() - own.keys())}
    unused = [n for n, head in left.items() if (head and head not in heads) or (foreign and foreign.fullmatch(n))]
    for name in [name for name in left if name not in unused]:
        wrong.append(f"{known(name)} is {'not tied to the token table' if name in OUTPUT_TABLES else 'left over'}")
    if not wrong:  # numbers are looked at once all fits
        buffers = {name for name, tensor in own.items() if not isinstance(tensor, nn.Parameter)} - {*VOCABULARY_SIZED}
        wrong += not_finite(given, known, buffers)
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"{'; '.join(wrong[:SHOWN])}{more}.")
    return Account(new, tuple(map(known, unused)))


def not_finite(given: Mapping[str, Tensor], known: Callable[[str], str], buffers: Collection[str] = ()) -> list[str]:
    """Name the tensors with numbers that are not finite. Buffers may be infinite, as a causal mask is."""
    wrong = []
    for name, tensor in given.items():
        if tensor.is_floating_point():
            numbers = tensor.float()
            if count := int((numbers.isnan() if name in buffers else ~numbers.isfinite()).sum()):
                wrong.append(f"{known(name)} has NaN or infinite numbers ({count:,} of {numbers.numel():,})")
    return wrong


@torch.no_grad()
def fill(network: Network, given: Mapping[str, Tensor]) -> None:
    """Copy tensors by our names. Of a table that is a sum of two, only the network's own part changes.

    Rotary frequencies remain the network's own: they follow from its theta, which may be another one.
    """
    for name, tensor in own_tensors(network).items():
        if name not in given or (name.endswith(".inv_freq") and not isinstance(tensor, nn.Parameter)):
            continue
        if name == TABLE and isinstance(shifted := network.embeddings.tokens, Shifted):
            shifted.difference.weight.copy_(given[name] - shifted.table.weight)
        else:
            tensor.copy_(given[name])


def head_of(name: str) -> str | None:
    found = re.match(r"heads\.(\w+)\.", name)
    return found and found[1]
