"""Any other encoder of transformers, around the backbone `hugging_face`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from electra_lab.pretrained.families.family import Activation, Config, Family, Sections, most_task_layers
from electra_lab.pretrained.families.names import OLD, Names
from registry import backbones
from registry.errors import ConfigError, DataError

if TYPE_CHECKING:
    from electra_lab.pretrained.trained_model import Part

BACKBONE = "hugging_face"
MARK = "electra_lab"  # in config.json, options of the experiment that it lacks; in names of tensors, the heads
TABLE = "embeddings.tokens"
MODEL = "backbone.model."
OTHERS = ("architectures", "dtype", "transformers_version", "_name_or_path")  # of a config, not of the encoder
POSITIONS = f"{MODEL}embeddings.position_embeddings."
# The classes of tasks that are read: the layer on the state of [CLS], its activation, and the last layer.
_ROBERTA = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "ibert",
            "xmod", "mpnet", "esm")  # fmt: skip
_BERT = ("ernie", "megatron-bert", "rembert", "squeezebert")
HEADS: Mapping[str, tuple[str, Activation, str]] = {
    **dict.fromkeys(_ROBERTA, ("classifier.dense", torch.tanh, "classifier.out_proj")),
    **dict.fromkeys(_BERT, (f"{MODEL}pooler.dense", torch.tanh, "classifier")),
    "albert": (f"{MODEL}pooler", torch.tanh, "classifier"),
    "distilbert": ("pre_classifier", F.relu, "classifier"),
}
# Whatever is outside the encoder; parts of it that states do not need; constants that old versions saved.
FOREIGN = (
    r"(?!backbone\.model\.|embeddings\.tokens\.|heads\.).*"
    r"|backbone\.model\.((pooler|contact_head|embeddings\.word_embeddings)\..*"
    r"|(.*\.)?(position_ids|token_type_ids|inv_freq|masked_bias|attention\.bias))"
)


def component() -> Any:
    return backbones.get(BACKBONE).component


@dataclass(frozen=True, kw_only=True)
class EncoderNames(Names):
    """The names of a class: the backbone's with a prefix, except for the token table."""

    table: str

    def stored_name(self, name: str) -> str:
        part, dot, last = name.rpartition(".")
        if part == TABLE:
            return f"{self.root}{self.table}{dot}{last}"
        if name.startswith("heads."):
            return f"{MARK}.{name}"
        return f"{self.root}{name.removeprefix(MODEL)}" if name.startswith(MODEL) else name

    def lab_tensors(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, tensor in stored.items():
            part, dot, last = name.rpartition(".")
            modern = f"{part}{dot}{OLD.get(last, last)}"
            inside = modern.removeprefix(self.root)
            if inside == f"{self.table}.weight":
                lab_name = f"{TABLE}.weight"
            elif modern.startswith(f"{MARK}.heads."):
                lab_name = modern.removeprefix(f"{MARK}.")
            else:
                lab_name = f"{MODEL}{inside}" if modern.startswith(self.root) else modern
            if lab_name in tensors:
                raise ValueError(f"{modern} appears twice, under an old name and a new one.")
            tensors[lab_name] = tensor
        return tensors


class HuggingFace(Family):
    """A family of `backbones/_families.py`, by its model type. It is written as an encoder alone.

    Files keep the lab's heads as further tensors, which AutoModel reports as unexpected.
    """

    backbone = BACKBONE
    classes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type
        self.head_width = 0  # of the file that was read

    @property
    def prefix(self) -> str:  # type: ignore[override]
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        name = MODEL_MAPPING_NAMES[self.model_type]
        return str(name).removesuffix("Model")

    def names(self, head: str) -> Names:
        """Here, the head is the prefix of the encoder's names."""
        return EncoderNames(head, "", {}, {}, foreign=FOREIGN, table=component().family_of(self.model_type).table)

    def head_of(self, config: Mapping[str, Any], stored: Mapping[str, Tensor]) -> str:
        family = component().family_of(self.model_type)
        table = f"{family.table}.weight"
        roots = [name.removesuffix(table) for name in stored if f".{name}".endswith(f".{table}")]
        root = min(roots, key=len, default="")
        if family.renamed and not any(name.startswith(f"{root}layers.0.") for name in stored):
            cure = (
                "Save those of its encoder: safetensors.torch.save_file(AutoModel.from_pretrained(FOLDER).state_dict())"
            )
            raise DataError(f"{self.model_type}: transformers renames the tensors of these files. {cure}.")
        return root

    def read(self, config: Config) -> Sections:
        try:
            values = {key: value for key, value in config.values.items() if key != MARK}
            backbone, embedding, size = component().sections_of(values)
        except ValueError as error:
            raise ConfigError(f"{config.place}: {error}") from None
        self.head_width = backbone["dim"] // backbone["heads"]
        if MARK in config.values:
            marked = config.values[MARK]
            of_lab = Config(marked if isinstance(marked, dict) else {}, f"{config.place}: {MARK}")
            embedding |= {"max_length": of_lab.size("max_length"), "dropout": of_lab.rate("dropout", 0.0)}
        return backbone, embedding, size

    @property
    def task_layers(self) -> Mapping[str, Mapping[str, str]]:  # type: ignore[override]
        dense, _, out = HEADS.get(self.model_type, ("", None, ""))
        return most_task_layers(dense, out) if dense else {}

    def pooling(self, config: Config) -> tuple[Activation, bool]:
        return HEADS[self.model_type][1], False

    def tensors_in(self, tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
        if self.model_type == "esm":  # a constant, which its files lack
            powers = torch.arange(0, self.head_width, 2, dtype=torch.int64).float() / self.head_width
            tensors.setdefault(f"{MODEL}rotary_embeddings.inv_freq", 1.0 / 10_000**powers)
        return tensors

    def common(self, part: "Part") -> dict[str, Any]:
        return {}

    def write(
        self, backbone: Mapping[str, Any], embedding: Mapping[str, Any], ids: Mapping[str, int], head: str
    ) -> dict[str, Any]:
        if self.model_type == "mpnet" and ids["pad"] != 1:
            reason = "MPNet of transformers takes the token 1 for padding, which is another one in this tokenizer"
            raise ConfigError(f"mpnet cannot be exported: {reason}.")
        config = component().config_of(backbone, embedding["max_length"])
        values = {key: value for key, value in config.to_dict().items() if key not in OTHERS}
        roles = {"bos": "cls", "cls": "cls", "eos": "sep", "sep": "sep", "mask": "mask", "pad": "pad"}
        for key in values:
            if key.endswith("_token_id"):
                role = roles.get(key.removesuffix("_token_id"))
                values[key] = ids[role] if role else values[key]
        if "embedding_dropout" in values:
            values["embedding_dropout"] = embedding["dropout"]
        return values | {MARK: {key: embedding[key] for key in ("max_length", "dropout")}}

    def writes(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> bool:
        options = backbone["config"]
        width = options.get("embedding_size", options.get("input_embedding_size", backbone["dim"]))
        return bool(embedding["dim"] == width)

    def limits(self, backbone: Mapping[str, Any], embedding: Mapping[str, Any]) -> list[str]:
        return [
            "`AutoModel` loads the encoder alone. It reports the heads, `electra_lab.heads`, as unexpected, and a "
            "pooler, which pre-training does not have, as new: do not use `pooler_output`. The lab reads the heads."
        ]

    def with_pad(self, part: "Part", pad: int) -> "Part":
        """Positions of RoBERTa's kin begin after the padding token. Rows before that mean nothing: cut, or zeros."""
        if component().family_of(self.model_type).first != component().AFTER_PAD:
            return part
        options = dict(part.backbone["config"])
        further = pad - options.get("pad_token_id", 1)
        options["pad_token_id"] = pad
        if "max_position_embeddings" in options:
            options["max_position_embeddings"] += further
        shifted = dict(part.tensors)
        for name, table in part.tensors.items():
            if name.startswith(POSITIONS) and table.ndim == 2:
                before = table.new_zeros(max(further, 0), table.shape[1])
                shifted[name] = torch.cat([before, table[max(-further, 0) :]])
        return replace(part, backbone={**part.backbone, "config": options}, tensors=shifted)
