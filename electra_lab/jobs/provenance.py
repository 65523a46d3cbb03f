"""The provenance of a run: versions, machine, code, data; and its changes when it is resumed."""

import hashlib
import platform
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

import registry
from electra_lab.assembly.data import open_corpus, recipe_of
from electra_lab.assembly.experiment import Experiment
from electra_lab.config.load import Loaded, dump
from electra_lab.data.build import Recipe
from electra_lab.data.raw_documents import names_of
from electra_lab.data.store import is_store, key_of, read_manifest
from electra_lab.storage.provenance import FORMAT, Change, Code, Data, Environment, Provenance, changes, described
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.training.loop import Settings
from electra_lab.version import __version__
from registry import Corpus, Plugin
from registry.errors import ConfigError, DataError, command
from registry.signature import Strict

CODE = Path(__file__).parents[1], Path(registry.__file__ or "").parent  # the folders of the lab
PACKAGES = ("torch", "tokenizers", "x-transformers", "reformer-pytorch", "numpy", "safetensors", "pydantic")
# Keys that do not affect the steps done so far. Text and plug-ins are compared by their content.
MAY_CHANGE = (
    "train.steps", "train.epochs", "train.tokens", "train.flops", "train.paper_flops", "train.micro_batch_size",
    "train.log_every", "train.on_non_finite", "train.skip_limit", "train.spike",
    "train.activation_checkpointing", "train.graph", "evaluate", "checkpoint", "run", "trackers", "imports", "corpus",
    "data.store", "data.unknown", "tokenizer.path",
)  # fmt: skip


def provenance(loaded: Loaded, experiment: Experiment, folder: Path, id: str | None = None) -> Provenance:
    """Return the provenance of a new run in a folder, by default with a new id."""
    return began(
        id or uuid.uuid4().hex,
        loaded,
        folder,
        loaded.plugins,
        environment_of(experiment),
        data=data_of(experiment),
        init=experiment.init,
        weights=experiment.weights,
        parameters=experiment.parameters,
        metrics=dict(experiment.accumulate(()).metrics),
        **length_of(experiment),
    )


def length_of(experiment: Experiment) -> dict[str, Any]:
    """Return the length of a run, which may change when it is resumed."""
    length = steps_and_flops(experiment.settings)
    return {**length, "paper_flops": experiment.paper_flops, "milestones": experiment.milestones}


def steps_and_flops(settings: Settings) -> dict[str, int]:
    steps, flops = settings.steps, settings.flops
    return {"steps": steps, "flops_per_step": flops.per_step, "flops": flops.total(steps)}


def began(
    id: str, loaded: Loaded[Any], folder: Path, plugins: Sequence[Plugin], environment: Environment, **facts: Any
) -> Provenance:
    """Return the provenance of a training that begins now in a folder; `facts` are the keys specific to its kind."""
    codes = codes_of(plugins)
    config = with_copies(loaded, folder, codes)
    return Provenance(
        format=FORMAT,
        id=id,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=sys.argv,
        electra_lab=__version__,
        git=_git(),
        config_sha256=hashlib.sha256(dump(config).encode()).hexdigest(),
        config=content(config),
        plugins=codes,
        environment=environment,
        platform=platform.platform(),
        **facts,
    )


def codes_of(plugins: Iterable[Plugin]) -> list[Code]:
    return [Code(file=str(plugin.file), sha256=plugin.sha256, package=plugin.package) for plugin in plugins]


def data_of(experiment: Experiment) -> Data:
    store = experiment.store
    return Data(
        store=store.key,
        corpus=store.manifest.identity["corpus"]["fingerprint"],
        files=store.manifest.read.files,
        documents=dict(store.documents),
        tokens=dict(store.tokens),
        overlap=store.overlap,
        vocab_size=experiment.vocabulary.size,
        rows=len(experiment.train),
    )


def environment_of(experiment: Experiment) -> Environment:
    """Return the environment of an experiment: everything besides its config that can affect its numbers."""
    choices = experiment.choices
    return environment(
        experiment.device,
        choices.precision,
        processes=experiment.run.learner.world.size,
        compile=choices.compile,
        attention=choices.attention,
        micro_batch_size=experiment.settings.micro_batch_size,
        reasons=choices.reasons,
    )


def environment(device: torch.device, precision: str, **choices: Any) -> Environment:
    """Return the parts of the machine that can affect numbers; they are compared when a run is resumed."""
    return Environment(
        python=platform.python_version(),
        packages={name: version_of(name) for name in PACKAGES},
        device=device_name(device),
        processor=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        precision=precision,
        electra_lab=_code(),
        **choices,
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def differences(before: Environment, now: Environment) -> list[str]:
    """Describe the changes of the environment: `threads 2 -> 1`."""

    def flat(environment: Environment) -> dict[str, Any]:
        return environment.model_dump(exclude={"packages", "reasons"}) | environment.packages

    then, today = flat(before), flat(now)
    return [f"{key} {then.get(key)} -> {today[key]}" for key in today if then.get(key) != today[key]]


@cache
def _code() -> str:
    """Return the version of the lab with a hash of its code, which may change without a new version."""
    state = hashlib.sha256()
    for folder in CODE:
        for file in sorted(folder.rglob("*.py")):
            state.update(file.relative_to(folder).as_posix().encode() + file.read_bytes())
    return f"{__version__} ({state.hexdigest()[:8]})"


@cache  # imported packages do not change
def version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache  # the running code is that of the first answer
def _git() -> dict[str, Any] | None:
    """Return the commit of the running code, if git tracks it and answers."""
    code = [str(folder) for folder in CODE]

    def git(*arguments: str) -> str:
        command = ["git", "-C", code[0], *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # otherwise it merely lies inside somebody's repository
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", *code))}
    except (OSError, subprocess.SubprocessError):
        return None


def with_copies(loaded: Loaded[Any], folder: Path, codes: Sequence[Code], plugins: Path = Path("plugins")) -> Any:
    """Return the config of a job's folder, which can be run by itself and moved together with other jobs.

    codes    plug-ins that it has copies of; those under `imports` come first
    plugins  place of the copies, relative to the file of the config
    """
    copies = [plugins / code.copy_name for code in codes[: len(loaded.config.imports)]]
    return loaded.within(folder).model_copy(update={"imports": copies})


def content(config: Strict) -> dict[str, Any]:
    """Return a config as plain values, in the form of provenance.json."""
    return config.model_dump(mode="json", exclude_none=True)


def refuse_changes(
    began: Provenance,
    loaded: Loaded[Any],
    folder: Path,
    allowed: Sequence[str] = MAY_CHANGE,
    overrides: Sequence[str] = (),
    file: Path | None = None,
) -> None:
    """Raise ConfigError, naming each key that must not change, and the overrides or the file to blame."""
    above = tuple(f"{key}." for key in allowed)
    changed = changes(began.config, content(with_copies(loaded, folder, began.plugins)))
    wrong = {key: values for key, values in changed.items() if not f"{key}.".startswith(above)}
    if wrong:
        blamed = [f" (--set {words})" for words in overrides if not f"{words.partition('=')[0]}.".startswith(above)]
        raise ConfigError(
            f"{file or folder}: these values affected earlier steps and cannot change: {described(wrong)}"
            f"{''.join(blamed)}. To use other values, start a new run. Allowed changes: {', '.join(allowed)}."
        )


def refuse_other_plugins(before: Sequence[Code], now: Sequence[Code], path: Path) -> None:
    """Raise ConfigError if the plug-ins of a run have changed since it began."""
    for then, code in zip_longest(before, now):
        if then is None or code is None or (then.sha256, then.package) != (code.sha256, code.package):
            place = f"{code.file}{f' ({code.package})' if code.package else ''}" if code else path
            raise ConfigError(f"{place}: the plug-ins have changed since the run began. Restore them.")


def keep_changes(
    directory: RunDirectory, loaded: Loaded[Any], step: int, say: Callable[[str], None], **facts: Any
) -> None:
    """Record the changes of the config, and the `facts` of provenance.json that follow from them.

    provenance.json is written first, because it also holds the earlier config.
    """
    began = directory.provenance()
    with_plugins = with_copies(loaded, directory.path, began.plugins)
    config, now = dump(with_plugins), content(with_plugins)
    sha = hashlib.sha256(config.encode()).hexdigest()
    earlier = [change.model_copy(update={"step": min(change.step, step)}) for change in began.changes]
    same = (directory.path / "config.yaml").read_text(encoding="utf-8") == config and sha == began.config_sha256
    if same and earlier == began.changes and began.steps == facts.get("steps", began.steps):
        return
    if changed := changes(began.config, now):
        say(f"changed after step {step}: {described(changed)}")
    change = Change(step=step, values=changed, config_sha256=began.config_sha256)
    update = {"config_sha256": sha, "config": now, "changes": [*earlier, change], **facts}
    directory.write_json("provenance.json", began.model_copy(update=update).model_dump(mode="json"))
    directory.write("config.yaml", config)


def folder_of_store(root: Path, key: str) -> Path:
    """Return the folder that a run's token store has if `root` is a store or the folder of stores. Raises DataError."""
    if is_store(root) and (other := key_of(read_manifest(root).identity)) != key:
        raise DataError(f"{root}: is not the token store of this run (its key is {other}, the run's is {key}).")
    return root if is_store(root) else root / key


def checked_recipe(loaded: Loaded, directory: RunDirectory) -> tuple[Loaded, Recipe | None]:
    """Return the config of a run, and the recipe of its token store; None if `data.store` names a store.

    If the text is not here, it names the store that the run began with. Raises DataError if there is none, or if the
    text has changed since the run began. Nothing is tokenized.
    """
    root, key = loaded.config.data.store, directory.provenance().data.store
    first_store = root / key
    cure, resume = "", ("resume", directory.path, "--set")
    if is_store(first_store):
        cure = f" To continue with the text that it began with: {command(*resume, f'data.store={first_store}')}"
    if folder_of_store(root, key) == root:
        return loaded, None
    try:
        recipe = recipe_of(loaded, open_corpus(loaded))
    except DataError as error:
        if is_store(first_store):
            data = loaded.config.data.model_copy(update={"store": first_store})
            return replace(loaded, config=loaded.config.model_copy(update={"data": data})), None
        cure = (
            f" If the text was moved, name its new place: {command(*resume, 'corpus.KEY=VALUE')}. If the token store "
            f"was moved: {command(*resume, f'data.store=FOLDER/{key}')}"
        )
        raise DataError(f"{error}{cure}") from None
    if (current := key_of(recipe.identity)) != key:
        raise DataError(
            f"{directory.path}: the corpus or the tokenizer has changed since the run began (token store {current}, "
            f"was {key}). The cause may be changed files, another version of tokenizers or, for corpus docstrings, of "
            f"Python or torch.{cure}"
        )
    return loaded, recipe


def refuse_other_corpus(directory: RunDirectory, corpus: Corpus) -> None:
    """Raise DataError with the names of its files unless a corpus has the text that a run began with."""
    then, now = directory.provenance().data, names_of(corpus)
    if corpus.fingerprint() == then.corpus:
        return
    missing, new = Counter(then.files) - Counter(now), Counter(now) - Counter(then.files)
    named = {"missing": missing, "new": new} if missing or new else {"changed": now}
    differences = "; ".join(f"{how}: {', '.join(files)}" for how, files in named.items() if files)
    raise DataError(
        f"{directory.path}: the corpus has changed since the run began, so its held-out documents are not known "
        f"({differences or 'other content'}). Restore it, or use other texts."
    )


def other_length(settings: Settings, before: int, step: int) -> str:
    """Describe how a changed number of steps, planned as `before`, affects the learning rate after `step`."""
    last = settings.learning_rate * settings.rate(step - 1, before)
    following = settings.learning_rate * settings.rate(step, settings.steps)
    return (
        f"note: {settings.steps:,} steps instead of {before:,}: every schedule continues as in a run of that length; "
        f"the learning rate of the next step is {following:.3g}, that of the last one was {last:.3g}"
    )
