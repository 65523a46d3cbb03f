"""The identity of a run: a hash of everything that its outcome depends on, and of no place on the disk."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from electra_lab.config.finetune import FinetuningConfig
from electra_lab.config.load import Loaded
from electra_lab.config.source import Loc

# The keys that no number depends on, and why they cannot be varied.
NO_RESULT: dict[Loc, str] = {
    ("name",): "is set by the ablation, for every cell",
    ("imports",): "cannot be varied: list plug-ins under the ablation's own `imports`",
    ("data", "store"): "cannot be varied: the place of token stores changes no result",
    ("evaluate", "at_start"): "cannot be varied: it changes no result; write it under `set`",
    ("trackers",): "cannot be varied: trackers change no result; write them under `set`",
}
SEEDS: dict[Loc, str] = {
    ("seed",): "cannot be changed here: list the seeds under `seeds`",
    ("seeds",): "cannot be changed here: list the seeds under the ablation's own `seeds`",
}


def decisive(values: Mapping[str, Any], above: Loc = ()) -> dict[str, Any]:
    """Return a complete config without the keys that no number depends on; `above` is the place of a section."""
    decisive_values = dict[str, Any]()
    for key, value in values.items():
        loc = (*above, key)
        if loc not in NO_RESULT:
            is_list_of_sections = isinstance(value, list) and all(isinstance(part, dict) for part in value)
            parts = [decisive(part, loc) for part in value] if is_list_of_sections else value
            decisive_values[key] = decisive(value, loc) if isinstance(value, dict) else parts
    return decisive_values


def rows_of(loaded: Loaded[Any]) -> dict[str, Any]:
    """Return everything that the rows of text depend on."""
    values: dict[str, Any] = loaded.portable.model_dump(mode="json", include={"corpus", "tokenizer", "data"})
    return decisive(values)


def content_of(loaded: Loaded[Any], config: Any = None) -> str:
    """Return everything that the outcome of a run depends on, except for the seed.

    config  config with paths in the form of a folder; by default they are relative to the file
    """
    values = decisive((config or loaded.portable).model_dump(mode="json"))
    values = {key: value for key, value in values.items() if (key,) not in SEEDS}
    return json.dumps({**values, "plugins": sorted({plugin.sha256 for plugin in loaded.plugins})}, sort_keys=True)


def digest(loaded: Loaded[Any], config: Any = None) -> str:
    """Return a hash that is equal for equal runs, whatever their names and places."""
    return hashlib.sha256(f"[{content_of(loaded, config)}, {seed_of(loaded)}]".encode()).hexdigest()[:10]


def seed_of(loaded: Loaded[Any]) -> int:
    seed: int = loaded.config.seeds[0] if isinstance(loaded.config, FinetuningConfig) else loaded.config.seed
    return seed


def identity_of(words: str, loaded: Loaded[Any]) -> str:
    """Return an id: readable words, the seed and the digest."""
    ascii_words = re.findall(r"[a-z0-9_.=+]+", words.lower())
    readable = "-".join(ascii_words)[:48].strip("-.=+") or "variant"
    return f"{readable}-s{seed_of(loaded)}-{digest(loaded)}"
