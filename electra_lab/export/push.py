"""`electra-lab push`: a model and its milestones in a repository of the Hugging Face hub.

The discriminator is at the root, where transformers looks for it; its generator is in generator/. A milestone is a
branch. The token comes from huggingface_hub's usual places and is neither printed nor stored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from electra_lab.export.card import CARD, Judge, finetuned_card, with_metadata
from electra_lab.export.export import export
from electra_lab.pretrained.hugging_face import CONFIG, MARK, read_mark
from electra_lab.pretrained.opening import model_of_finetuning
from electra_lab.storage.catalog import jobs_in
from electra_lab.storage.checkpoint import steps
from electra_lab.storage.files import MANIFEST, damage, read_json, refuse_unusable
from electra_lab.storage.finetuning_folder import is_finetuning, is_seed
from electra_lab.storage.records import Step
from electra_lab.storage.run_directory import RunDirectory, is_run
from registry.errors import CheckpointError, ConfigError, DataError

MAIN = "main"
REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
AGAIN = "Run the same command again: it continues, and files that the hub has are not sent again."
REFUSALS = {
    401: "your token is wrong or has expired. Log in with `hf auth login`, or set HF_TOKEN",
    403: "your token may not write there. Use one with write access",
    404: "it does not exist, or your token may not see it. Check its name and the token",
    409: f"another change is in progress. {AGAIN}",
    412: "another person has changed it since this command began. Look at the change, then run the same command again "
    "to push on top of it",
    429: f"there were too many requests. Wait some minutes. {AGAIN}",
}
Files = dict[str, Path | bytes]  # by path in the repository


@dataclass(frozen=True)
class Pushed:
    """A branch: the files that it has, with their sizes in bytes, and where it can be seen once it was sent."""

    branch: str
    step: int | None
    files: dict[str, int]
    url: str | None = None


Send = Callable[[str, Files], str]  # sends the files of a branch, and returns its address


def push(
    model: Path,
    repository: str,
    *,
    step: Step = None,
    public: bool = False,
    milestones: bool = False,
    metadata: Mapping[str, Any],
    judge: Judge | None = None,
    dry_run: bool = False,
    say: Callable[[str], None],
) -> Iterator[Pushed]:
    """Push a model to the hub, and yield each branch once it is there; main is the last one.

    model       run directory, fine-tuning, one of its models, or a folder that `export` wrote
    repository  user/name
    public      True for a public repository; an existing public one is refused otherwise
    milestones  True to push the kept milestones, or without any the other kept checkpoints, each as a branch
    metadata    metadata of the card, by the hub's keys, such as license
    judge       see `export`
    dry_run     True to send nothing and use no network

    Raises ConfigError, CheckpointError, and DataError if the hub refuses or cannot be reached.
    """
    refuse_unusable(model)
    if not REPO.fullmatch(repository) or re.search(r"--|\.\.|\.git$", repository) or len(repository) > 96:
        raise ConfigError(f"{repository!r}: is not the name of a repository. Write it as USER/NAME.")
    branches = _branches(model, step, milestones=milestones)
    send = None if dry_run else _connected(repository, public=public, say=say)
    for branch, chosen in branches.items():
        with _files(model, chosen, metadata, judge) as (files, of_step):
            sizes = {}
            for name, content in sorted(files.items()):
                sizes[name] = len(content) if isinstance(content, bytes) else content.stat().st_size
            yield Pushed(branch, of_step, sizes, send(branch, files) if send else None)


def _branches(model: Path, step: Step, *, milestones: bool) -> dict[str, Step]:
    """Return the checkpoint of each branch, main last. Raises ConfigError, CheckpointError."""
    if not is_run(model) or is_seed(model):
        if step is not None or milestones:
            raise ConfigError(f"{model}: is not a run directory, so it has no checkpoints to choose from.")
        return {MAIN: None}
    if not milestones:
        return {MAIN: step}
    directory = RunDirectory.open(model)
    saved, named = steps(directory.checkpoints), directory.provenance().milestones
    in_order = sorted(named.items(), key=lambda pair: pair[1])
    branches: dict[str, Step] = {name: at for name, at in in_order if at in saved}
    if not named:
        branches = {f"step-{at}": at for at in saved[:-1]}
    if not branches:
        raise CheckpointError(f"{model}: keeps no milestones. Set checkpoint.milestones, or push without --milestones.")
    return {**branches, MAIN: step}


@contextmanager
def _files(
    model: Path, step: Step, metadata: Mapping[str, Any], judge: Judge | None
) -> Iterator[tuple[Files, int | None]]:
    """Yield the files of a branch, which are there within the block, and the step that they are of."""
    if is_finetuning(model) or is_seed(model):
        model = model_of_finetuning(model)
    with TemporaryDirectory(prefix="electra-lab-") as temporary:
        if is_run(model):
            exported = Path(temporary) / "export"
            export(model, exported, step, judge=judge)
        else:
            exported = model
        files, of_step = _of_export(exported)
        if CARD not in files:
            files[CARD] = finetuned_card(exported.resolve()).encode()
        card = files[CARD]
        content = card if isinstance(card, bytes) else card.read_bytes()
        yield files | {CARD: with_metadata(content, metadata).encode()}, of_step


def _of_export(folder: Path) -> tuple[Files, int | None]:
    """Return the files of an export, of one of its networks or of a fine-tuned model. Raises ConfigError, DataError."""
    mark = read_mark(folder)
    if mark is None:
        if not all((folder / name).is_file() for name in (CONFIG, MANIFEST)):
            reason = "is neither a run directory, a fine-tuning, nor a folder that export wrote."
            raise ConfigError(f"{folder}: {reason}{jobs_in(folder)}")
        return _sealed(folder, ""), None
    files: Files = {MARK: folder / MARK}
    for number, network in enumerate(mark.networks):
        files |= _sealed(folder / network, f"{network}/" if number else "")
    return files, mark.step


def _sealed(folder: Path, prefix: str) -> Files:
    """Return the files of a network. Its card may have been edited since. Raises DataError if another is damaged."""
    names = [name for name in read_json(folder / MANIFEST) if name != CARD]
    if other := next((name for name in names if Path(name).is_absolute() or ".." in Path(name).parts), None):
        raise DataError(f"{folder}: {MANIFEST} names {other}, which is not a file there. Export it again.")
    if wrong := damage(folder, names):
        raise DataError(f"{folder}: {wrong}. Export it again.")
    names += [CARD] if (folder / CARD).is_file() else []
    return {f"{prefix}{name}": folder / name for name in names}


def _connected(repository: str, *, public: bool, say: Callable[[str], None]) -> Send:
    """Create the repository if it is not there; return the function that sends a branch.

    A branch is written only if nobody else has written to it since. Raises ConfigError, DataError.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if constants.HF_HUB_OFFLINE:
        raise ConfigError("the hub is switched off by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE. Unset it to push.")
    if get_token() is None:
        raise DataError("there is no token for the hub. Log in with `hf auth login`, or set HF_TOKEN.")
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(library_name="electra_lab")
    with _in_a_sentence(repository):
        api.create_repo(repository, private=not public, exist_ok=True)
        private = bool(api.repo_info(repository).private)
        refs = api.list_repo_refs(repository).branches
    heads: dict[str, str | None] = {branch.name: branch.target_commit for branch in refs}  # the last commit of each
    if not private and not public:
        raise ConfigError(
            f"{repository}: is public already. To push there, add --public; otherwise choose another name."
        )
    if private and public:
        say(f"note: {repository} stays private. Change that in its settings on the hub.")

    def send(branch: str, files: Files) -> str:
        with _in_a_sentence(f"{repository}, branch {branch}"):
            if branch not in heads:
                api.create_branch(repository, branch=branch, exist_ok=True)
                heads[branch] = heads.get(MAIN)
            operations = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
            head, message = heads.get(branch), "electra-lab push"
            api.create_commit(repository, operations, commit_message=message, revision=branch, parent_commit=head)
        return f"{api.endpoint}/{repository}/tree/{branch}"

    return send


@contextmanager
def _in_a_sentence(place: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into a DataError with a cure."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    transport: Any = HfHubHTTPError.__mro__[1]  # the base class of its HTTP client's errors
    try:
        yield
    except (transport, OSError, RuntimeError, ValueError) as error:
        # Threads that send files wrap the error that has a status.
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "response", None) is None:
            cause = cause.__cause__
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        message = getattr(cause, "server_message", None) or lines[-1]
        if token := get_token():
            message = message.replace(token, "***")
        if status >= 500:
            reason = f"the hub has a problem ({status}). Wait some minutes. {AGAIN}"
        elif status or isinstance(error, ValueError):
            reason = f"the hub refused ({status or message}): {REFUSALS.get(status, message)}"
        else:
            reason = f"the connection to the hub failed ({message}). {AGAIN}"
        raise DataError(f"{place}: {reason.rstrip('.')}.") from None
