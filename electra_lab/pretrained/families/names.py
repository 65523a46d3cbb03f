"""Names of tensors: those of a network of the lab, and those of a family of transformers' encoders."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

_BUFFERS = (".position_ids", ".token_type_ids")  # constants that old versions saved
OLD = {"gamma": "weight", "beta": "bias"}  # of LayerNorms that were converted from TensorFlow


@dataclass(frozen=True)
class Names:
    """The names that one class of a family has for the parts of a network.

    root     the encoder's name in a class with a head; the file of an encoder alone lacks it
    layers   the list of layers inside the encoder
    parts    names in the file of parts of the encoder outside its layers, by the lab's
    layer    names of a layer's parts in the file, by the lab's names
    heads    names in the file of parts outside the encoder, by the lab's
    copies   second names of a tensor, which some files have next to the first one or instead of it
    foreign  pattern of names for which a network of the lab has no place
    """

    root: str
    layers: str
    parts: Mapping[str, str]
    layer: Mapping[str, str]
    heads: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    foreign: str = r"(?!)"  # nothing

    def stored_name(self, name: str) -> str:
        """Return the name in the file of a tensor of the lab; an unknown name is returned unchanged."""
        part, dot, last = name.rpartition(".")
        of_layer = re.fullmatch(r"backbone\.layers\.(\d+)\.(\w+)", part)
        if of_layer and of_layer[2] in self.layer:
            return f"{self.root}.{self.layers}.{of_layer[1]}.{self.layer[of_layer[2]]}.{last}"
        return f"{dict(self._outside()).get(part, part)}{dot}{last}"

    def lab_tensors(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file under the lab's names, copies once; unknown names are unchanged.

        Raises ValueError if a tensor appears twice.
        """
        tensors: dict[str, Tensor] = {}
        for name, tensor in stored.items():
            modern = self._modern(name)
            if modern in tensors:
                raise ValueError(f"{modern} appears twice, under an old name and a new one.")
            if not name.endswith(_BUFFERS):
                tensors[modern] = tensor
        # A copy that differs from the original stays.
        for copy in tensors.keys() & self.copies.keys():
            original = tensors.setdefault(self.copies[copy], tensors[copy])
            if original.shape == tensors[copy].shape and torch.equal(original, tensors[copy]):
                del tensors[copy]
        return {self._lab_name(name): tensor for name, tensor in tensors.items()}

    def _outside(self) -> Iterator[tuple[str, str]]:
        """Yield the lab's name and the name in the file of all parts outside the layers."""
        for lab_name, stored_name in self.parts.items():
            yield lab_name, f"{self.root}.{stored_name}"
        yield from self.heads.items()

    def _lab_name(self, name: str) -> str:
        part, dot, last = name.rpartition(".")
        layer = {theirs: ours for ours, theirs in self.layer.items()}
        of_layer = re.fullmatch(rf"{self.root}\.{self.layers}\.(\d+)\.(.+)", part)
        if of_layer and of_layer[2] in layer:
            return f"backbone.layers.{of_layer[1]}.{layer[of_layer[2]]}.{last}"
        outside = {theirs: ours for ours, theirs in self._outside()}
        return f"{outside.get(part, part)}{dot}{last}"

    def _modern(self, name: str) -> str:
        """Return the current name for a tensor of an encoder alone, which has no prefix, or of an old conversion."""
        part, dot, last = name.rpartition(".")
        name = f"{part}{dot}{OLD.get(last, last)}"
        inside = {"embeddings", "pooler", *(path.split(".")[0] for path in (*self.parts.values(), self.layers))}
        without_root = name.split(".")[0] in inside and not re.fullmatch(self.foreign, name)
        return f"{self.root}.{name}" if without_root else name
