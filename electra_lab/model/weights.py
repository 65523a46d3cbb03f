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

    new: tuple[str, ...]  # tensors of the network: heads that the model lacks
    unused: tuple[str, ...]  # tensors of the model: heads that the network lacks, parts that no network of the lab has


def own_tensors(network: Network) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers; a table that is a sum of two is one tensor, detached."""
    tensors: dict[str, Tensor] = dict(network.state_dict(keep_vars=True))
    if isinstance(network.embeddings.tokens, Shifted):
        tensors = {name: value for name, value in tensors.items() if not name.startswith("embeddings.tokens.")}
        tensors = {TABLE: network.embeddings.tokens.weight.detach(), **tensors}
    return tensors


def repeated(module: nn.Module) -> dict[str, str]:
    """Return the later names of tensors with several names, each with the first name."""
    first: dict[Tensor, str] = {}
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: first[tensor] for name, tensor in named if first.setdefault(tensor, name) != name}


def with_all_names(tensors: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a file under all names of a module; the file has the first of several names alone."""
    named = dict(tensors)
    for name, first in repeated(module).items():
        if first in named:
            named.setdefault(name, named[first])
    return named


def account_for(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    name_of: Callable[[str], str] = str,
    foreign: re.Pattern[str] | None = None,
) -> Account:
    """Compare the tensors of a model, under the lab's names, with those that a network expects.

    name_of  function from a name of the lab to the model's name, for errors
    foreign  names that a network of the lab never has, and that are left out

    Raises ValueError that names the tensors that are missing, left over, of another shape, not of floating-point
    numbers or not finite. The network's tensors may be on the meta device: their numbers are not read.
    """
    heads = {head_of(name) for name in expected} - {None}
    lacking = heads - {head_of(name) for name in tensors}
    new = tuple(name for name in expected if head_of(name) in lacking)
    wrong = [f"{name_of(name)} is missing" for name in expected if name not in tensors and name not in new]
    for name in [name for name in expected if name in tensors]:
        if tensors[name].shape != expected[name].shape:
            wrong.append(f"{name_of(name)} has the shape {list(tensors[name].shape)}, not {list(expected[name].shape)}")
        if expected[name].is_floating_point() and not tensors[name].is_floating_point():
            wrong.append(f"{name_of(name)} holds {tensors[name].dtype}, not floating-point numbers")
    left = {name: head_of(name) for name in sorted(tensors.keys() - expected.keys())}
    unused = [n for n, head in left.items() if (head and head not in heads) or (foreign and foreign.fullmatch(n))]
    for name in [name for name in left if name not in unused]:
        wrong.append(f"{name_of(name)} is {'not tied to the token table' if name in OUTPUT_TABLES else 'left over'}")
    if not wrong:  # numbers are checked once everything fits
        buffers = [name for name, tensor in expected.items() if not isinstance(tensor, nn.Parameter)]
        wrong += not_finite(tensors, name_of, {*buffers} - {*VOCABULARY_SIZED})
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"{'; '.join(wrong[:SHOWN])}{more}.")
    return Account(new, tuple(map(name_of, unused)))


def not_finite(
    tensors: Mapping[str, Tensor], name_of: Callable[[str], str], buffers: Collection[str] = ()
) -> list[str]:
    """Name the tensors with numbers that are not finite. Buffers may be infinite, as a causal mask is."""
    wrong = []
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            numbers = tensor.float()
            if count := int((numbers.isnan() if name in buffers else ~numbers.isfinite()).sum()):
                wrong.append(f"{name_of(name)} has NaN or infinite numbers ({count:,} of {numbers.numel():,})")
    return wrong


@torch.no_grad()
def fill(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors by the lab's names. Where a table is a sum of two, only the network's difference changes.

    Rotary frequencies do not change: they follow from the network's theta, which may be another one.
    """
    for name, tensor in own_tensors(network).items():
        if name not in tensors or (name.endswith(".inv_freq") and not isinstance(tensor, nn.Parameter)):
            continue
        if name == TABLE and isinstance(shifted := network.embeddings.tokens, Shifted):
            shifted.difference.weight.copy_(tensors[name] - shifted.table.weight)
        else:
            tensor.copy_(tensors[name])


def head_of(name: str) -> str | None:
    match = re.match(r"heads\.(\w+)\.", name)
    return match and match[1]
