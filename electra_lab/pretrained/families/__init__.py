"""The families of transformers' encoders that the lab reads and writes, one file each."""

from collections.abc import Mapping
from typing import Any

from electra_lab.pretrained.families.deberta import Deberta
from electra_lab.pretrained.families.electra import Bert, Electra
from electra_lab.pretrained.families.family import Config as Config
from electra_lab.pretrained.families.family import Family as Family
from electra_lab.pretrained.families.family import Sections as Sections
from electra_lab.pretrained.families.family import prepare as prepare
from electra_lab.pretrained.families.family import task_class as task_class
from electra_lab.pretrained.families.family import task_layers as task_layers
from electra_lab.pretrained.families.hugging_face import BACKBONE, MARK, HuggingFace, component
from electra_lab.pretrained.families.modernbert import ModernBert

FAMILIES: dict[str, Family] = {family.model_type: family for family in (Electra(), Bert(), ModernBert(), Deberta())}
WRITTEN: dict[str, Family] = {}  # by backbone
for _family in FAMILIES.values():
    WRITTEN.setdefault(_family.backbone, _family)


def reading(config: Mapping[str, Any]) -> Family | None:
    """Return the family of a config.json, None if it has none. Raises ValueError with the reason if it is refused."""
    kind = config["model_type"]
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if (family is None or MARK in config) and component().family_of(kind):
        return HuggingFace(kind)
    return family


def writing(backbone: Mapping[str, Any]) -> Family | None:
    """Return the family that a backbone may be written as."""
    if backbone["type"] == BACKBONE:
        return HuggingFace(backbone["model_type"])
    return WRITTEN.get(backbone["type"])
