"""The tokenizer of a run as transformers reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_lab.data.vocabulary import masks_take_words
from electra_lab.pretrained.hugging_face import TOKENIZER, TOKENIZER_SETTINGS
from registry import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BERT_WORDS = ({"type": "BertPreTokenizer"}, "WordPiece", "##", 100)
OPTIONS = {"lowercase": "do_lower_case", "strip_accents": "strip_accents",
           "handle_chinese_chars": "tokenize_chinese_chars"}  # fmt: skip


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


def write_tokenizer(folder: Path, tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json: plain text has the ids of the run, within [CLS] and [SEP].

    Special tokens that are written in a text are special, as users of transformers expect: "[MASK]" is the mask.
    """
    from tokenizers import AddedToken, Tokenizer, processors

    cls, sep, pad, mask = (
        str(tokenizer.id_to_token(id))
        for id in (vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id, vocabulary.mask_id)
    )
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
        special_tokens=[(cls, vocabulary.cls_id), (sep, vocabulary.sep_id)],
    )
    # Not by its own `save`, whose errors are bare Exceptions.
    (folder / TOKENIZER[0]).write_text(exported.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "padding_side": "right",
        "cls_token": cls,
        "sep_token": sep,
        "pad_token": pad,
        "mask_token": mask,
        **({"unk_token": unknown} if unknown else {}),
        **electra_options(tokenizer)[0],
    }
    (folder / TOKENIZER_SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
