"""A trained model as its files describe it. No network is built here: electra_lab.assembly.networks does that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from electra_lab.data.vocabulary import make_vocabulary
from electra_lab.model.weights import head_of
from electra_lab.pretrained.families import Family, writing
from electra_lab.pretrained.families.names import Names
from electra_lab.storage.files import sha256
from registry import heads
from registry.errors import CheckpointError, DataError, LabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from electra_lab.config.finetune import FinetuningConfig
    from electra_lab.storage.provenance import Provenance
    from electra_lab.storage.run_directory import RunDirectory
    from registry import Plugin, Vocabulary

NETWORKS = ("discriminator", "generator")
HEAD_CLASSES = ("ForPreTraining", "ForMaskedLM")  # of transformers; a network is written as the first that it fits
LAB = "electra_lab"  # the model type, and the first part of all names, of networks that transformers does not have


@dataclass(frozen=True)
class Part:
    """A network of a trained model: the sections of an experiment that describe it, and its tensors under our names."""

    name: str  # `discriminator` or `generator`
    path: Path  # the checkpoint or the folder
    format: str  # "run", "seed" of a fine-tuning, "electra_lab", or the model type of a family of transformers
    backbone: dict[str, Any]  # type, dim, depth, heads, options; a generator that learns nothing has no sizes
    embedding: dict[str, Any]  # dim, max_length, dropout
    vocabulary_size: int  # rows of the token table; some tables are padded
    tensors: dict[str, Tensor]
    files: dict[str, Path | str]  # those with the tensors, by name; or their checksums, if they were read already
    plugin: str | None = None  # the file, or the installed package, that defines the backbone
    plugin_source: bytes = field(default=b"", repr=False)  # of a plug-in that is a file
    names: Names | None = None  # of the tensors in files of a family
    read_as: Family | None = None  # the family that the files are of

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, map(head_of, self.tensors))))

    @property
    def other_heads(self) -> tuple[str, ...]:
        """The heads that transformers has no class for: only training uses them."""
        return tuple(name for name in self.heads if heads.get(name).declared["exports_as"] is None)

    @property
    def class_head(self) -> str:
        """The head that decides the class in transformers, or '' for the encoder alone."""
        if self.family:
            return next((head for head in self.family.classes if head in self.heads), "")
        by_class = {heads.get(name).declared["exports_as"]: name for name in self.heads}
        return next((by_class[ending] for ending in HEAD_CLASSES if ending in by_class), "")

    @property
    def class_ending(self) -> str:
        """The end of the name of its class in transformers."""
        head = self.class_head
        if not head:
            return "Model"
        return self.family.classes[head] if self.family else heads.get(head).declared["exports_as"]

    def without_other_heads(self) -> Part:
        left_out = tuple(f"heads.{name}." for name in self.other_heads)
        tensors = {name: tensor for name, tensor in self.tensors.items() if not name.startswith(left_out)}
        return replace(self, tensors=tensors)

    @property
    def learned(self) -> bool:
        """False for a generator that learns nothing, such as word frequencies."""
        return "dim" in self.backbone

    @property
    def family(self) -> Family | None:
        """The family of transformers that has this architecture; None if there is none."""
        family = writing(self.backbone)
        return family if family and family.writes(self.backbone, self.embedding) else None

    @property
    def foreign(self) -> re.Pattern[str] | None:
        """Names of tensors, among ours, for which no network of the lab has a place."""
        if self.format in (LAB, "seed"):  # the layers of a task
            return re.compile(r"(classifier|qa_outputs|head)\..*")
        return re.compile(self.names.foreign) if self.names else None

    def sums(self) -> dict[str, str]:
        """Return the checksum of each file with tensors."""
        return {name: sha256(file) if isinstance(file, Path) else file for name, file in self.files.items()}

    def stored_name(self, name: str) -> str:
        """Return the name that one of our tensors has in the files."""
        if self.names:
            return self.names.stored_name(name)
        return f"{LAB}.network.{name}" if self.format == LAB else name

    def misfit(self, reason: str) -> LabError:
        """Return the error for tensors that do not fit the description."""
        if self.format in ("run", "seed"):
            file = "config.yaml" if self.format == "run" else "provenance.json"
            return CheckpointError(f"{self.path}: does not fit the {file} of its run: {reason}")
        cure = " Export it again." if self.format == LAB else ""
        return DataError(f"{self.path}: does not fit: {reason}{cure}")


@dataclass(frozen=True)
class TunedSeed:
    """The task of a seed of a fine-tuning, and the facts, such as labels, that it learned from its examples."""

    config: FinetuningConfig
    facts: dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """The run that a model comes from."""

    directory: RunDirectory
    provenance: Provenance
    config: dict[str, Any]  # config.yaml
    step: int
    others: tuple[str, ...]  # the tensors of the checkpoint that belong to no network


@dataclass(frozen=True)
class TrainedModel:
    """A discriminator, a generator, or both, with their tokenizer."""

    source: str  # as it was named
    parts: dict[str, Part]
    tokenizer: Tokenizer | None  # None if the folder has none
    length: int | None  # of the rows of training, as later positions were never trained; None if it is not known
    counts: Tensor | None = None  # how often each token occurs in the training text, Int[V]; known only for runs
    plugins: tuple[Plugin, ...] = ()
    run: Origin | None = None
    tuned: TunedSeed | None = None

    def part(self, name: str) -> Part:
        """Return a network; of a model that has one alone, that one."""
        return self.parts.get(name) or next(iter(self.parts.values()))

    def vocabulary(self, device: torch.device) -> Vocabulary:
        """Raises DataError if there is no tokenizer, or if it has more tokens than a network."""
        if self.tokenizer is None:
            path = next(iter(self.parts.values())).path
            raise DataError(f"{path}: has no tokenizer, such as tokenizer.json, vocab.txt or spm.model. Save it there.")
        size = self.tokenizer.get_vocab_size()
        for part in self.parts.values():
            if part.learned and size > part.vocabulary_size:
                has = f"its tokenizer has {size:,} tokens, but its network only {part.vocabulary_size:,}"
                raise DataError(f"{part.path}: {has}.")
        counts = torch.zeros(size, dtype=torch.int64) if self.counts is None else self.counts
        return make_vocabulary(self.tokenizer, counts, device)
