"""Changes of a run when it is resumed: which are allowed, and how they are recorded."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_lab.assembly.experiment import open_corpus, recipe_of
from electra_lab.config.load import Loaded, dump, load
from electra_lab.data.store import is_store, key_of, read_manifest
from electra_lab.storage.provenance import Change, Changes, described, flat
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import Settings
from registry.errors import ConfigError, DataError, command

# Keys that do not affect the steps done so far. Text and plug-ins are compared by their content.
MAY_CHANGE = (
    "train.steps", "train.epochs", "train.tokens", "train.flops", "train.paper_flops", "train.micro_batch_size",
    "train.log_every", "train.on_non_finite", "train.skip_limit", "train.most_rollbacks", "train.spike",
    "train.activation_checkpointing", "evaluate", "checkpoint", "run", "trackers", "imports", "corpus", "data.store",
    "data.engine", "objective.cache",
)  # fmt: skip


def content(loaded: Loaded[Any]) -> dict[str, Any]:
    """Return a config as plain values, in the form of provenance.json."""
    plain: dict[str, Any] = loaded.config.model_dump(mode="json", exclude_none=True)
    return plain


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Return the values that differ, before and now, by dotted key. A missing value is None."""
    then, today = flat(before), flat(now)
    keys = [key for key in then | today if then.get(key) != today.get(key)]
    return {key: (then.get(key), today.get(key)) for key in keys}


def refuse_others(
    found: Changes, path: Path, allowed: Sequence[str] = MAY_CHANGE, overrides: Sequence[str] = ()
) -> None:
    """Raise ConfigError, naming each key that must not change, and the overrides to blame."""
    above = tuple(f"{key}." for key in allowed)
    wrong = {key: values for key, values in found.items() if not f"{key}.".startswith(above)}
    if wrong:
        blamed = [f" (--set {words})" for words in overrides if not f"{words.partition('=')[0]}.".startswith(above)]
        raise ConfigError(
            f"{path}: these values affected earlier steps and cannot change: {described(wrong)}{''.join(blamed)}. "
            f"To use other values, start a new run. Allowed changes: {', '.join(allowed)}."
        )


def keep_changes(
    directory: RunDirectory, loaded: Loaded[Any], step: int, say: Callable[[str], None], **facts: Any
) -> None:
    """Record the changes of the config, and the `facts` of provenance.json that follow from them.

    provenance.json is written first, because it also holds the earlier config.
    """
    began, config, now = directory.provenance(), dump(loaded.config), content(loaded)
    sha = hashlib.sha256(config.encode()).hexdigest()
    earlier = [change.model_copy(update={"step": min(change.step, step)}) for change in began.changes]
    same = (directory.path / "config.yaml").read_text(encoding="utf-8") == config and sha == began.config_sha256
    if same and earlier == began.changes and began.steps == facts.get("steps", began.steps):
        return
    before = began.config or content(load(directory.path / "config.yaml"))  # older releases did not store it
    found = {key: values for key, values in changes(before, now).items() if not _is_new(loaded.config, key, values)}
    if found:
        say(f"changed after step {step}: {described(found)}")
    change = Change(step=step, values=found, config_sha256=began.config_sha256)
    kept = {"config_sha256": sha, "config": now, "changes": [*earlier, change], **facts}
    directory.write_json("provenance.json", began.model_copy(update=kept).model_dump(mode="json"))
    directory.write("config.yaml", config)


def _is_new(config: Any, key: str, values: tuple[Any, Any]) -> bool:
    """Return True for the default of a key that the release that began the run did not have, or left unset."""
    section, _, name = key.rpartition(".")
    field = getattr(type(getattr(config, section, None)), "model_fields", {}).get(name)
    return values[0] is None and field is not None and bool(field.default == values[1])


def refuse_other_data(loaded: Loaded, directory: RunDirectory) -> None:
    """Raise DataError if the text has changed since the run began. Nothing is tokenized."""
    root, key = loaded.config.data.store, directory.provenance().data.store
    kept = root / key
    cure, resume = "", ("resume", directory.path, "--set")
    if is_store(kept):
        cure = f" To continue with the text that it began with: {command(*resume, f'data.store={kept}')}"
    if is_store(root):
        if (other := key_of(read_manifest(root).identity)) == key:
            return
        raise DataError(f"{root}: is not the token store of this run (its key is {other}, the run's is {key}).")
    try:
        found = key_of(recipe_of(loaded, open_corpus(loaded)).identity)
    except DataError as error:
        cure = cure or (
            f" If the text was moved, name its new place: {command(*resume, 'corpus.KEY=VALUE')}. If the token store "
            f"was moved: {command(*resume, f'data.store=FOLDER/{key}')}"
        )
        raise DataError(f"{error}{cure}") from None
    if found != key:
        raise DataError(
            f"{directory.path}: the corpus or the tokenizer has changed since the run began (token store {found}, was "
            f"{key}). The cause may be changed files, another version of tokenizers or, for corpus docstrings, of "
            f"Python or torch.{cure}"
        )


def other_length(settings: Settings, before: int, step: int) -> str:
    """Describe how a changed number of steps, planned as `before`, affects the learning rate after `step`."""
    last = settings.learning_rate * settings.rate(step - 1, before)
    following = settings.learning_rate * settings.rate(step, settings.steps)
    return (
        f"note: {settings.steps:,} steps instead of {before:,}: every schedule continues as in a run of that length; "
        f"the learning rate of the next step is {following:.3g}, that of the last one was {last:.3g}"
    )
