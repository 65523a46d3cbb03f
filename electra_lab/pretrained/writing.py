"""Trained networks as folders that transformers loads: config.json, model.safetensors and a tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor, nn

from electra_lab.data.vocabulary import masks_take_words, special_ids
from electra_lab.model.network import Network
from electra_lab.model.weights import TABLE, head_of, not_finite, own_tensors
from electra_lab.pretrained.families import Family, task_class
from electra_lab.pretrained.hugging_face import CONFIG
from electra_lab.pretrained.trained_model import LAB, Part
from electra_lab.storage.files import disk, new_folder, seal
from registry import heads

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BERT_WORDS = ({"type": "BertPreTokenizer"}, "WordPiece", "##", 100)
POOLING = "1_Pooling"  # as sentence-transformers calls this folder
OPTIONS = {"lowercase": "do_lower_case", "strip_accents": "strip_accents",
           "handle_chinese_chars": "tokenize_chinese_chars"}  # fmt: skip


def write_network(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], part: Part) -> None:
    """Write config.json, the tensors, and the plug-in that defines the backbone, if it is a file."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copymode(folder / CONFIG, folder / "model.safetensors")  # safetensors makes it readable for its owner alone
    if part.plugin and part.plugin_source:
        (folder / part.plugin).write_bytes(part.plugin_source)


def write_finetuned(
    final: Path,
    part: Part,
    network: Network,
    head: nn.Module,
    tokenizer: Tokenizer,
    *,
    kind: str,
    labels: Sequence[str],
    dropout: float,
    longest: int,
    task: Mapping[str, Any],
) -> None:
    """Write a fine-tuned network as a folder that transformers loads, whole or not at all, if it has such a class.

    part     network before it was fine-tuned
    head     layers of the task
    kind     class of the task
    longest  longest input in tokens
    task     options and facts of the task that transformers does not know, such as the windows of longer texts
    """
    exported_as = task_class(part.family, kind, head)
    if exported_as is None:
        return
    family, layers = exported_as
    tuned = replace(part, tensors=own_tensors(network))
    tensors = stored_tensors(tuned, family)
    for layer, stored_layer in layers.items():
        for name, parameter in head.get_submodule(layer).named_parameters():
            tensors[f"{stored_layer}.{name}"] = parameter
    described = describe(tuned, tokenizer, family)
    config = {**described, "architectures": [class_name(family, kind)]}
    config |= dict.fromkeys(family.dropouts if family else Family.dropouts, dropout)
    if kind == "ForSequenceClassification" and not labels:
        labels, config = ["LABEL_0"], config | {"problem_type": "regression"}
    config["task_specific_params"] = {LAB: dict(task)}
    if labels:
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    with disk(final), new_folder(final) as folder:
        write_network(folder, config, tensors, part)
        write_tokenizer(folder, tokenizer, longest)
        seal(folder)


def class_name(family: Family | None, ending: str) -> str:
    return f"{family.prefix if family else 'ElectraLab'}{ending}"


def stored_tensors(part: Part, family: Family | None) -> dict[str, Tensor]:
    """Return the tensors by the names that transformers knows; a tensor that has several names goes by the first."""
    head = part.class_head
    names = family.names(head) if family else None
    tensors: dict[str, Tensor] = {}
    seen = set[int]()
    for name, tensor in part.tensors.items():
        stored = names.stored_name(name) if names else f"{LAB}.network.{name}"
        if stored == name and (other := head_of(name)) and heads.get(other).declared["exports_as"] != "Model":
            continue  # a head that this class does not have
        if id(tensor) not in seen:
            tensors[stored] = tensor
        seen.add(id(tensor))
    return family.tensors_out(tensors, head) if family else tensors


def describe(part: Part, tokenizer: Tokenizer, family: Family | None) -> dict[str, Any]:
    """Return the config.json of a network. Raises CheckpointError, DataError if its tensors are others."""
    backbone, embedding = part.backbone, part.embedding
    config: dict[str, Any] = {"architectures": [class_name(family, part.class_ending)]}
    ids = special_ids(tokenizer)
    if family:
        _refuse_other_sizes(part)
        config |= {
            "model_type": family.model_type,
            **family.common(part),
            **family.write(backbone, embedding, ids, part.class_head),
        }
    else:
        config |= {"model_type": LAB, "backbone": backbone, "embedding": embedding, "plugin": part.plugin}
    return config | {"vocab_size": part.vocabulary_size, "pad_token_id": ids["pad"], "dtype": "float32"}


def _refuse_other_sizes(part: Part) -> None:
    """Raise CheckpointError or DataError if the tensors of a `bert` are not those that its sections describe.

    Networks around other backbones are built before they are written.
    """
    if part.backbone["type"] != "bert":
        return
    width, rows, dim = part.embedding["dim"], part.embedding["max_length"], part.backbone["dim"]
    shapes = {TABLE: (part.vocabulary_size, width), "embeddings.positions.weight": (rows, width)}
    for layer in range(part.backbone["depth"]):
        shapes[f"backbone.layers.{layer}.query.weight"] = (dim, dim)
    layers = {name for name in part.tensors if name.endswith("query.weight")}
    for name in sorted({*shapes, *layers}):
        shape = tuple(part.tensors[name].shape) if name in part.tensors else None
        if shape != shapes.get(name):
            raise part.misfit(f"{part.stored_name(name)} has the shape {shape}, not {shapes.get(name)}.")
    if wrong := not_finite(part.tensors, part.stored_name):
        raise part.misfit(f"{wrong[0]}.")


def electra_options(tokenizer: Tokenizer) -> tuple[dict[str, Any], str | None]:
    """Return the options of transformers' ElectraTokenizer for a tokenizer, and a sentence if its ids are others.

    That class takes the vocabulary alone, and normalizes and splits text as BERT does.
    """
    state = json.loads(tokenizer.to_str())
    model, normalizer = state["model"], state["normalizer"] or {}
    first, *others = normalizer.get("normalizers") or [normalizer]
    options = {OPTIONS[key]: first[key] for key in OPTIONS if first.get("type") == "BertNormalizer"}
    pieces = (model["type"], model.get("continuing_subword_prefix"), model.get("max_input_chars_per_word"))
    as_bert = (state["pre_tokenizer"], *pieces) == BERT_WORDS and first.get("clean_text")
    if as_bert and not others:
        return options, None
    reason = "cannot represent this tokenizer and gives other ids"
    if as_bert and others == [{"type": "NFC"}]:
        reason = "does not compose characters: other ids for Korean and for accents that are separate characters"
    return options, f"`ElectraTokenizer` {reason}. Use `AutoTokenizer`."


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int, pooled: tuple[int, int] | None = None) -> None:
    """Write tokenizer.json and tokenizer_config.json: plain text has the ids of the run, within [CLS] and [SEP].

    Special tokens that are written in a text are special, as users of transformers expect: "[MASK]" is the mask.

    pooled  width of states, and length of the rows of pre-training, for sentence-transformers
    """
    from tokenizers import AddedToken, Tokenizer, processors

    ids = special_ids(tokenizer)
    cls, sep, pad, mask = (str(tokenizer.id_to_token(ids[role])) for role in ("cls", "sep", "pad", "mask"))
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token") or ("[UNK]" if tokenizer.token_to_id("[UNK]") is not None else None)
    if model.get("unk_id") is not None:
        unknown = tokenizer.id_to_token(model["unk_id"])

    exported = Tokenizer.from_str(tokenizer.to_str())
    exported.no_padding()
    exported.no_truncation()
    exported.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (cls, sep, pad)])
    masks_take_words(exported, mask)
    exported.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, ids["cls"]), (sep, ids["sep"])],
    )
    # Not by its own `save`, whose errors are bare Exceptions.
    (folder / "tokenizer.json").write_text(exported.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": (tokenizer.truncation or {}).get("direction", "right"),
        "cls_token": cls,
        "sep_token": sep,
        "pad_token": pad,
        "mask_token": mask,
        **({"unk_token": unknown} if unknown else {}),
        **electra_options(tokenizer)[0],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if pooled:
        _write_pooling(folder, *pooled)


def _write_pooling(folder: Path, width: int, longest: int) -> None:
    """Write the files by which sentence-transformers embeds texts as `embed` does: the mean over all tokens.

    longest  length of the rows of pre-training; `embed` reads longer texts in windows, sentence-transformers cuts them
    """
    (folder / POOLING).mkdir()
    kinds = {"": "sentence_transformers.models.Transformer", POOLING: "sentence_transformers.models.Pooling"}
    modules = [{"idx": n, "name": str(n), "path": path, "type": kinds[path]} for n, path in enumerate(kinds)]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    for name, content in (
        ("modules.json", modules),
        ("sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}),
        (f"{POOLING}/config.json", pooling),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
