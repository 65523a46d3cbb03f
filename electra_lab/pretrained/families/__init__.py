"""The families of transformers' encoders that the lab reads and writes, one file each."""

from electra_lab.pretrained.families.deberta import Deberta
from electra_lab.pretrained.families.electra import Bert, Electra
from electra_lab.pretrained.families.family import Config as Config
from electra_lab.pretrained.families.family import Family as Family
from electra_lab.pretrained.families.family import Sections as Sections
from electra_lab.pretrained.families.family import prepare as prepare
from electra_lab.pretrained.families.family import task_class as task_class
from electra_lab.pretrained.families.family import task_layers as task_layers
from electra_lab.pretrained.families.modernbert import ModernBert

FAMILIES: dict[str, Family] = {family.model_type: family for family in (Electra(), Bert(), ModernBert(), Deberta())}
WRITTEN: dict[str, Family] = {}  # by backbone
for _family in FAMILIES.values():
    WRITTEN.setdefault(_family.backbone, _family)
