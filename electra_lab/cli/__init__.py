"""The command line: one file per verb. Heavy imports stay inside the handlers, so that --help is quick."""

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from electra_lab.cli import registry_
from electra_lab.cli._streams import CLOSED_PIPE, answer, answering, usable
from electra_lab.version import __version__
from registry.component import FailedRequest
from registry.core import Registry
from registry.errors import Reported, Signalled, UnknownText, said, shown

app = typer.Typer(
    name="electra-lab",
    help="The lab for ELECTRA pre-training: describe an experiment in YAML, run it, read its results.",
    epilog="Exit codes: 0 done, 1 internal error, 2 config, 3 data, or output cannot be written, 4 checkpoint, "
    "5 diverged, 6 out of memory, 7 some cells of an ablation failed, 75 preempted and saved, 130 interrupted and "
    "saved, 141 output pipe closed, 143 ended by SIGTERM, 128 + the number of another signal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (  # in the order of the help; each is a function in the file of its name
    "new", "prepare", "run", "resume", "replay", "ablate", "cell", "finetune", "report", "list_", "clean", "compare",
    "check", "export", "push", "bundle", "open_", "detect", "corrupt", "fill", "embed", "score", "predict", "play",
    "schema",
)  # fmt: skip
for verb in VERBS:
    function = vars(import_module(f"electra_lab.cli.{verb}"))[verb]
    app.command(verb.rstrip("_"))(answering()(function))
app.add_typer(registry_.app, name="registry")


def _show_version(version: bool) -> None:
    if version:
        answer(f"electra-lab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command; an error is one clear sentence and its exit code."""
    from electra_lab.jobs.endings import KILLING, handled, raise_signal

    try:
        with usable(), _notes(), handled(raise_signal, KILLING):
            _main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Signalled as arrived:  # temporary files are gone
        raise SystemExit(128 + arrived.number) from None


def _main() -> None:
    stdout = sys.stdout
    try:
        app(prog_name="electra-lab")  # also by `python -m electra_lab`: completion is for this name
    except (KeyboardInterrupt, Signalled):
        raise
    except BaseException as error:
        from electra_lab.jobs.endings import as_lab_error

        # A known problem. That includes a component that calls sys.exit, which would look like success.
        if problem := as_lab_error(error):
            if not isinstance(problem, Reported):
                _complain(said(problem))
            raise SystemExit(problem.exit_code) from None
        # Typer itself ends every command by SystemExit.
        if isinstance(error, SystemExit):
            if sys.stdout is not stdout:  # typer met a closed pipe
                raise SystemExit(CLOSED_PIPE) from None
            raise
        # Anything else is our own mistake, or that of a user who has changed the lab.
        print(shown(traceback.format_exc()), end="", file=sys.stderr)
        frames, folder = traceback.extract_tb(error.__traceback__), Path(__file__).parents[1]
        frame = [frame for frame in frames if folder in Path(frame.filename).parents][-1]
        place = f"at {frame.filename}:{frame.lineno}{_or_in_plugins()}"
        _complain(
            f"\nThis is an internal error of electra_lab, {place}. Unless you changed that file, please report it."
        )
        raise SystemExit(1) from None


@contextmanager
def _notes() -> Iterator[None]:
    """Show warnings of the lab as notes: all of failed requests, the first of unknown text."""
    others, kinds = warnings.showwarning, [FailedRequest, UnknownText]

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if category not in kinds:
            others(message, category, *place)
            return
        _complain(f"note: {message}")
        if category is UnknownText:
            warnings.simplefilter("ignore", UnknownText)

    with warnings.catch_warnings():
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = show  # type: ignore[assignment]  # the place is not read
        yield


def _complain(text: object) -> None:
    """Print an error or a note."""
    print(shown(str(text)), file=sys.stderr)


def _or_in_plugins() -> str:
    """Name the plug-ins: autograd and CUDA report some mistakes where a component no longer shows in the traceback."""
    files = sorted({str(entry.file) for entry in Registry.all_plugged_in()})
    return f", or of the plug-ins that were loaded ({', '.join(files)})" if files else ", not of your experiment"
