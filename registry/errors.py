"""The exceptions of the lab: every error is a sentence with a cure, and knows its exit code; the words for them."""

import errno
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class LabError(Exception):
    """An error that the user can fix. `exit_code` is the command line's exit code for it."""

    exit_code = 1


class ConfigError(LabError):
    """The experiment file, a `--set` or a component's options are wrong."""

    exit_code = 2


class InUse(ConfigError):
    """Another process is using a run directory."""


class DataError(LabError):
    """The corpus or the tokenizer cannot be used."""

    exit_code = 3


class CheckpointError(LabError):
    """No usable checkpoint, or one that does not belong to this run."""

    exit_code = 4


class DivergedError(LabError):
    """A loss or gradient is not finite."""

    exit_code = 5


class OutOfMemoryError(LabError):
    """The device or the machine has too little memory."""

    exit_code = 6


class CellsFailed(LabError):
    """An ablation has ended, but some of its cells failed."""

    exit_code = 7


class Stopped(LabError):
    """A signal arrived, or the time was up; the message says whether anything was saved and how to continue."""


class Preempted(Stopped):
    """A signal other than Ctrl-C arrived, or run.max_minutes is up."""

    exit_code = 75


class Interrupted(Stopped):
    """Ctrl-C arrived."""

    exit_code = 130


class UnknownText(UserWarning):
    """More than a tenth of a text is unknown to a tokenizer."""


class UnknownName(ConfigError):
    """No component of that kind has the name."""


class DuplicateName(ConfigError):
    """Two definitions claim one name."""


class BadSignature(ConfigError):
    """A component's signature does not follow its contract."""


class PluginError(ConfigError):
    """A plug-in cannot be loaded, or its code failed."""


class BadResult(ConfigError):
    """A component returned something that its contract does not allow."""


class Signalled(BaseException):
    """A signal arrived. Not an Exception, so that no library handles it as a failure."""

    def __init__(self, number: int) -> None:
        self.number = number


class Reported(LabError):
    """Another process of the same run has failed and said why; this one ends with the same exit code, in silence."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another process of this run failed; see its message")
        self.exit_code = exit_code


def is_shortage(error: BaseException) -> bool:
    """Return True if an error of torch, of a library or of the system means too little memory.

    On the CPU torch raises a RuntimeError for it, in which oneDNN says only that it "could not create a primitive", and
    cuBLAS and cuDNN name the status ALLOC_FAILED. The errors of numpy and pyarrow are MemoryErrors.
    """
    words = (
        r"can't allocate memory|[Cc]annot allocate memory|not enough memory|out of memory|could not create a primitive"
        r"|STATUS_ALLOC_FAILED|std::bad_alloc"
    )
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and bool(re.search(words, said(error))))
    )


def said(error: BaseException) -> str:
    """Return the message of an error, whose code for it may fail."""
    try:
        return str(error)
    except (KeyboardInterrupt, Signalled):
        raise
    except BaseException as other:
        return f"its message cannot be shown ({type(other).__name__})"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the tail of an error: the nearest of the candidates, and all of them unless they are very many."""
    names = sorted(candidates)
    close = get_close_matches(word, names[:10_000], n=1) or [name for name in names if name.startswith(word)]
    hint = f" Did you mean '{close[0]:.80}'?" if len(close) == 1 else ""
    return f"{hint} Known: {shortened(names) or 'none'}."


def shortened(names: Sequence[str]) -> str:
    """Return the first hundred of many names, and their number."""
    more = [f"... ({len(names):,} in all)"] if len(names) > 100 else []
    return ", ".join([*(f"{name:.80}" for name in names[:100]), *more])


def listed(problems: Sequence[object]) -> str:
    """Return the first twenty of many problems, one on each line, and their number."""
    more = [f"{len(problems) - 20:,} more; there are {len(problems):,}."] if len(problems) > 20 else []
    return "\n".join([*map(str, problems[:20]), *more])


def not_utf8() -> str:
    """Return the reason why the name of a file cannot be written as UTF-8, with its cure."""
    encoding = sys.getfilesystemencoding()  # of an old-fashioned locale, in which other names cannot be read
    return "is not UTF-8. Rename it." if encoding == "utf-8" else f"is not {encoding}. Set PYTHONUTF8=1."


def command(verb: str, *words: object) -> str:
    """Return a command of the lab that can be pasted into a shell, whatever its files are called."""
    texts = [f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words]
    return shlex.join(["electra-lab", verb, *texts])


def guide(name: str) -> str:
    """Return the address of a page of the documentation."""
    return f"https://github.com/electra-lab/electra-lab/blob/main/docs/{name}.md"


def shown(text: str) -> str:
    """Escape unpaired surrogates, and what commands a terminal or reorders its text, except for tab and newline."""
    return re.sub(r"[\0-\b\v-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", lambda m: repr(m[0])[1:-1], text)
