"""An existing tokenizer, from a Hugging Face folder, a tokenizer.json, a vocab.txt or a .model of SentencePiece."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Set
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from electra_lab.storage.files import read_bytes, reason, tokenizer_failures
from electra_lab.tokenizers._sentencepiece import LONGEST, tokenizer_of
from electra_lab.tokenizers.wordpiece import bert_wordpiece
from registry import tokenizers
from registry.contracts.data import SPECIAL_TOKENS, TOKENIZER_FILES, UNKNOWN
from registry.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SETTINGS, ADDED, CONFIG = "tokenizer_config.json", "added_tokens.json", "config.json"
ROLES = "special_tokens_map.json"
# Kinds of models whose tokenizer counts the pieces of its .model in another order, as fairseq does.
RENUMBERED = re.compile("xlm-?roberta|xmod|camembert|bart|mbart|plbart|nllb|m2m|xglm|m?luke|layoutxlm", re.IGNORECASE)
# Classes whose vocab.txt is WordPiece of BERT; those whose tokenizer.json is read as it is written; those that take
# add_prefix_space; those that take do_lower_case; and kinds of models with other files called vocab.txt.
BERT = re.compile(
    "(bert|electra|distilbert|mobilebert|squeezebert|convbert|mpnet|funnel|lxmert|layoutlm|splinter|realm|retribert"
    "|dpr\\w*|ernie|megatron-bert)(tokenizer(fast)?)?",
    re.IGNORECASE,
)
AS_WRITTEN = re.compile("PreTrainedTokenizer|TokenizersBackend")
BYTES = re.compile("(roberta|gpt2|longformer|deberta(?!-?v2)|bart|ibert|data2vec)", re.IGNORECASE)
CASED = re.compile("(albert|xlnet|deberta-?v2|rembert|fnet)", re.IGNORECASE)
OTHER_VOCABULARIES = re.compile("roformer|esm|prophetnet|tapas|bert-japanese|phobert|bertweet|cpm|xlm|flaubert")
# The special tokens of kinds whose vocabularies also have those of others; folders may leave them out.
OTHER_ROLES: Mapping[str, Mapping[str, str]] = {
    "xlnet": {"cls": "<cls>", "sep": "<sep>"},
    "funnel": {"cls": "<cls>", "sep": "<sep>", "unk": "<unk>"},
}
NEVER = 1 << 30  # tokens of a text
LARGEST = 1 << 29  # bytes of a file
SAVE = "Save the tokenizer again, for example by save_pretrained of transformers."


@tokenizers.register("pretrained", trained=False)
def pretrained(documents: Iterable[str], /, *, path: Path) -> Tokenizer:
    """An existing tokenizer, such as that of a published model; it is not trained.

    path  a folder with tokenizer.json, vocab.txt, spm.model, sentencepiece.bpe.model or tokenizer.model, or such a file
    """
    return read_tokenizer(path)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer at `path`: a folder with one of TOKENIZER_FILES, or such a file.

    A tokenizer.json keeps its settings, except that it neither pads nor truncates, nor drops merges at random. A
    vocab.txt is WordPiece of BERT and ELECTRA, with the settings and the added tokens of the files next to it. A .model
    is of SentencePiece, with the added tokens of these files and, after them, those special tokens that it lacks.
    Raises DataError.
    """
    file = path
    if os.path.isdir(path):
        files = [path / name for name in TOKENIZER_FILES if os.path.lexists(path / name)]
        if not files:
            raise DataError(f"{path}: has neither {', '.join(TOKENIZER_FILES[:-1])} nor {TOKENIZER_FILES[-1]}. {SAVE}")
        file = files[0]
    readers = {".json": _of_json, ".model": _of_sentencepiece}
    tokenizer = readers.get(file.suffix, _of_vocabulary)(file)
    # Nothing is cut, but texts that a row cannot hold lose the side that the owner chose.
    side = _read(_Settings, file.with_name(SETTINGS)).truncation_side or (tokenizer.truncation or {}).get("direction")
    tokenizer.no_truncation()
    if side == "left":
        tokenizer.enable_truncation(NEVER, direction=side)
    # The special tokens that it has. If its model has no unknown token, it can encode all text without one.
    named, roles = _named(file), dict[str, str]()
    unknown = getattr(tokenizer.model, "unk_token", None)
    missing = []
    for role, names in (SPECIAL_TOKENS | {"unk": (unknown,) if unknown else UNKNOWN}).items():
        of_folder = named.get(role, ()) if role in SPECIAL_TOKENS else ()
        name = next((name for name in (*of_folder, *names) if tokenizer.token_to_id(name) is not None), None)
        if name is not None:
            roles[role] = name
        elif unknown or role != "unk":
            missing.append(" or ".join(names[:2]))
    if missing:
        raise DataError(
            f"{file}: lacks {', '.join(missing)}. The lab needs tokens for padding, the beginning and the end of a "
            "text, the mask, and unknown text if there is any, as tokenizers of BERT, ELECTRA and RoBERTa have them."
        )
    if roles["pad"] in (roles["cls"], roles["sep"], roles["mask"]):
        raise DataError(f"{file}: {roles['pad']} is not for padding alone. The lab needs a token that is.")
    if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
        raise DataError(f"{file}: its ids are not 0 to {tokenizer.get_vocab_size() - 1}, one per token. {SAVE}")
    tokenizer = _marked(tokenizer, roles, {*chain.from_iterable(named.values())})
    with tokenizer_failures(f"{file}: fails on a short text", SAVE):
        tokenizer.decode(tokenizer.encode("a 1", add_special_tokens=False).ids)
    return tokenizer


def _named(file: Path) -> dict[str, tuple[str, ...]]:
    """Return the names of special tokens that the files of a folder, or its kind of tokenizer, give each role."""
    settings, older, config = (_read(_Settings, file.with_name(name)) for name in (SETTINGS, ROLES, CONFIG))
    kind = f"{settings.tokenizer_class or ''} {config.model_type or ''}".lower()
    of_kind = next((names for name, names in OTHER_ROLES.items() if name in kind), {})
    named = {}
    for role in ("cls", "sep", "pad", "mask", "unk", "bos", "eos"):
        named[role] = tuple(filter(None, [settings.named(role), older.named(role), of_kind.get(role)]))
    return named


def _marked(tokenizer: Tokenizer, roles: Mapping[str, str], others: Set[str]) -> Tokenizer:
    """Mark special tokens: their names are text in documents. Other tokens that the owner has added are tokens.

    others  further names that the folder gives them
    """
    from tokenizers import Tokenizer, processors

    already_special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    tokenizer.add_special_tokens([token for token in dict.fromkeys(roles.values()) if token not in already_special])
    named = {*others, *roles.values(), *UNKNOWN, *chain.from_iterable(SPECIAL_TOKENS.values())}
    if already_special - named:
        state = json.loads(tokenizer.to_str())
        for token in state["added_tokens"]:
            token["special"] &= token["content"] in named
        tokenizer = Tokenizer.from_str(json.dumps(state))
    vocabulary = tokenizer.get_vocab()
    if any(next(filter(vocabulary.__contains__, SPECIAL_TOKENS[role]), "") != roles[role] for role in SPECIAL_TOKENS):
        # The template says which they are: see `special_ids`.
        ids = [(role, vocabulary[roles[role]]) for role in SPECIAL_TOKENS]
        special: Any = [{"id": role, "ids": [id], "tokens": [roles[role]]} for role, id in ids]
        template = {"single": "cls $A sep", "pair": "cls $A sep $B:1 sep:1", "special_tokens": special}
        if tokenizer.post_processor and tokenizer.encode("a").tokens[-1] != roles["sep"]:  # as XLNet's
            template |= {"single": "$A", "pair": "$A $B:1"}
        tokenizer.post_processor = processors.TemplateProcessing(**template)
    return tokenizer


def _of_json(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer, models

    text = _text(file)
    if re.search(rf'\[\s*"(?:[^"\\]|\\.){{{LONGEST + 1}}}', text):  # of Unigram: the library would crash
        raise DataError(f"{file}: has a token of more than {LONGEST} characters. {SAVE}")
    with tokenizer_failures(f"{file}: is not a tokenizer", SAVE):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return _with_settings(tokenizer, file)


def _with_settings(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    """Return a tokenizer with the settings that transformers' class takes from the file next to it."""
    from tokenizers import normalizers, pre_tokenizers, processors

    settings, config = (_read(_Settings, file.with_name(name)) for name in (SETTINGS, CONFIG))
    kind = settings.tokenizer_class or (settings.model_fields_set and config.model_type) or ""
    normalizer, splitter, does = tokenizer.normalizer, tokenizer.pre_tokenizer, dict[str, Any]()
    if BERT.fullmatch(kind):
        if isinstance(normalizer, normalizers.BertNormalizer) and isinstance(splitter, pre_tokenizers.BertPreTokenizer):
            options = settings.tokenize_chinese_chars, settings.strip_accents, settings.do_lower_case
            tokenizer.normalizer = normalizers.BertNormalizer(normalizer.clean_text, *options)
        else:
            raise DataError(
                f"{file.with_name(SETTINGS)}: tokenizer_class: {kind} would not read as {file.name}. {SAVE}"
            )
    elif BYTES.match(kind) and isinstance(splitter, pre_tokenizers.ByteLevel):
        splitter.add_prefix_space = bool(settings.add_prefix_space)
    elif AS_WRITTEN.match(kind) and tokenizer.post_processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")  # nothing around a text
    elif kind and not AS_WRITTEN.match(kind):
        text = normalizer.normalize_str("A\u00e9") if normalizer else "A\u00e9"
        if CASED.match(kind):
            does = {"do_lower_case": "A" not in text, "keep_accents": "\u00e9" in text}
        steps: Any = splitter if isinstance(splitter, pre_tokenizers.Sequence) else [splitter]
        for step in steps:
            if isinstance(step, pre_tokenizers.Metaspace):
                does["add_prefix_space"] = step.prepend_scheme != "never"
            if isinstance(step, pre_tokenizers.ByteLevel):
                does["add_prefix_space"] = step.add_prefix_space
    asked = settings.model_dump(include={*does} & settings.model_fields_set, exclude_none=True)
    for key, value in asked.items():
        if value != does[key]:
            raise DataError(f"{file.with_name(SETTINGS)}: {key}: {value} is not what the tokenizer.json does. {SAVE}")
    _add(tokenizer, file, settings)
    return tokenizer


class _Added(BaseModel, strict=True):
    """A token that is not in the vocab.txt, with its options as the library names them."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class _Settings(BaseModel, strict=True, extra="allow"):
    """The part of a tokenizer_config.json, or a config.json, that is needed for a vocab.txt or a .model."""

    do_lower_case: bool = True
    strip_accents: bool | None = None  # None means as do_lower_case
    tokenize_chinese_chars: bool = True
    word_tokenizer_type: Literal["basic"] = "basic"  # Japanese models have others, which need their own libraries
    added_tokens_decoder: dict[Annotated[str, Field(pattern=r"^\d+$")], _Added] = {}
    split_by_punct: Literal[False] = False  # DeBERTa has it as an option
    add_prefix_space: bool | None = None
    keep_accents: bool | None = None
    tokenizer_class: str | None = None
    model_type: str | None = None
    truncation_side: Literal["left", "right"] | None = None
    auto_map: dict[str, Any] = {}  # code of the owner that reads text
    additional_special_tokens: list[str | _Added] | None = None
    extra_special_tokens: list[str | _Added] | dict[str, Any] | None = None

    def named(self, role: str) -> str | None:
        """Return the name of a special token."""
        token = (self.model_extra or {}).get(f"{role}_token")
        name = token.get("content") if isinstance(token, dict) else token
        return name if isinstance(name, str) else None


class _OldAdded(RootModel[dict[str, int]], strict=True):
    """An added_tokens.json: the ids of tokens."""


def _of_vocabulary(file: Path) -> Tokenizer:
    vocabulary: dict[str, int] = {}
    # Lines end as on any system. Empty lines at the end are not tokens, but a space of another kind may be one.
    lines = _text(file).replace("\r\n", "\n").replace("\r", "\n").rstrip(" \t\n").split("\n")
    for id, line in enumerate(lines):
        token = line.rstrip() or line  # a token may be a space of some kind, but no token ends with one
        if not token or token in vocabulary:
            reason = f"repeats '{token}' of line {vocabulary[token] + 1}" if token else "is empty"
            cure = "Replace it by a token that occurs in no text, such as [unused0], so that later ids do not change."
            raise DataError(f"{file}:{id + 1}: the line {reason}. {cure}")
        vocabulary[token] = id
    settings, config = (_read(_Settings, file.with_name(name)) for name in (SETTINGS, CONFIG))
    kind = settings.tokenizer_class or config.tokenizer_class or ""
    if "AutoTokenizer" in settings.auto_map:
        kind = "auto_map: AutoTokenizer"
    elif not kind and OTHER_VOCABULARIES.match(config.model_type or ""):
        kind = str(config.model_type)
    elif not kind and sum(token.startswith("\u2581") for token in vocabulary) > len(vocabulary) / 4:
        kind = "SentencePiece"
    if kind and not BERT.fullmatch(kind):
        raise DataError(f"{file}: is read as WordPiece of BERT, which {kind} is not. {SAVE}")
    unknown = next((name for name in (*_named(file)["unk"], "[UNK]") if name in vocabulary), "[UNK]")
    options = settings.do_lower_case, settings.strip_accents, settings.tokenize_chinese_chars
    tokenizer = bert_wordpiece(vocabulary, *options, unknown=unknown)
    _add(tokenizer, file, settings)
    return tokenizer


def _of_sentencepiece(file: Path) -> Tokenizer:
    from tokenizers import AddedToken, normalizers

    settings, config = (_read(_Settings, file.with_name(name)) for name in (SETTINGS, CONFIG))
    for kind in (settings.tokenizer_class, config.tokenizer_class, config.model_type):
        if kind and RENUMBERED.match(kind):
            raise DataError(f"{file}: does not have the ids of {kind}, which numbers pieces in another way. {SAVE}")
    content = _bytes(file)
    try:
        with tokenizer_failures("its data are wrong", SAVE):
            tokenizer = tokenizer_of(content)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    except Exception as error:  # of protobuf, or of any kind, as any byte may be wrong
        raise DataError(f"{file}: is not a SentencePiece model that can be read ({reason(error)}). {SAVE}") from None
    if settings.do_lower_case and "do_lower_case" in settings.model_fields_set:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), tokenizer.normalizer])
    # Found in the text as it is written: the normalizer would put the mark of a word before their names.
    _add(tokenizer, file, settings, normalized=False)
    # Add special tokens that it lacks, in its style: DeBERTa's [MASK] is in none of its files.
    style = 0 if any(tokenizer.token_to_id(names[0]) is not None for names in SPECIAL_TOKENS.values()) else 1
    for names in SPECIAL_TOKENS.values():
        if all(tokenizer.token_to_id(name) is None for name in names):
            tokenizer.add_special_tokens([AddedToken(names[style], normalized=False)])
    return tokenizer


def _add(tokenizer: Tokenizer, file: Path, settings: _Settings, **changed: bool) -> None:
    """Add the tokens after those of the file, which are in the settings or, in older folders, in another file."""
    from tokenizers import AddedToken

    older = _read(_OldAdded, file.with_name(ADDED)).root
    added = {id: _Added(content=token) for token, id in older.items()}
    added |= {int(id): token for id, token in settings.added_tokens_decoder.items()}
    for id, token in sorted(added.items()):
        if id < tokenizer.get_vocab_size():
            owner = tokenizer.id_to_token(id)
            if owner != token.content:
                reason = f"the id {id} is that of '{owner}', not of the added token '{token.content}'"
                raise DataError(f"{file}: {reason}. {SAVE}")
            continue  # it is in the file
        tokenizer.add_tokens([AddedToken(**token.model_dump() | changed)])
        if tokenizer.token_to_id(token.content) != id:
            raise DataError(f"{file}: the id {id} of the added token '{token.content}' is not the next one. {SAVE}")
    older_roles = _read(_Settings, file.with_name(ROLES))
    lists = settings.extra_special_tokens, settings.additional_special_tokens, older_roles.additional_special_tokens
    for extra in next((extras for extras in lists if extras is not None), ()):
        name = extra.content if isinstance(extra, _Added) else extra
        if tokenizer.token_to_id(name) is None:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False)])


M = TypeVar("M", bound=BaseModel)


def _read(kind: type[M], file: Path) -> M:
    """Return a JSON file next to a vocab.txt, or the defaults if there is none. Raises DataError."""
    try:
        return kind.model_validate_json(_text(file) if os.path.lexists(file) else "{}")
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"])
        raise DataError(f"{file}: {key}{first['msg']}. Correct it, or use a tokenizer.json.") from None


def _bytes(file: Path) -> bytes:
    try:
        return read_bytes(file, LARGEST)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({reason(error)}). Name a file or folder on this machine.") from None


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start} is not UTF-8. {SAVE}") from None
