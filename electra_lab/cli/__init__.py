"""The command line: one file a verb. Heavy imports stay inside the handlers, so that --help is quick."""

from __future__ import annotations

import sys
import traceback

import typer

import registry
from electra_lab.cli import ablate, check, registry_, report, resume, run, schema
from registry.errors import LabError

app = typer.Typer(
    name="electra-lab",
    help="A lab bench for ELECTRA pre-training: describe an experiment in YAML, run it, read what it found.",
    epilog="Exit codes: 0 done, 1 a bug of ours, 2 config, 3 data, 4 checkpoint, 5 diverged, 6 out of memory, "
    "7 some cells of an ablation failed, 75 preempted and saved, 130 interrupted and saved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("ablate")(ablate.ablate)
app.command("report")(report.report)
app.command("check")(check.check)
app.command("schema")(schema.schema)
app.add_typer(registry_.app, name="registry")


def main() -> None:
    """Run a command; an error is one clear sentence and its exit code."""
    try:
        app()
    except LabError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except MemoryError as error:
        print(f"there is not enough memory ({error}). Use a smaller corpus, batch or network.", file=sys.stderr)
        raise SystemExit(6) from None
    except SystemExit as error:  # typer's own way to end; from inside a component it would look like success
        if plugin := registry.blame(error):
            print(plugin, file=sys.stderr)
            raise SystemExit(plugin.exit_code) from None
        raise
    except Exception as error:
        if plugin := registry.blame(error):
            print(plugin, file=sys.stderr)
            raise SystemExit(plugin.exit_code) from None
        traceback.print_exc()
        print(f"\nThis is a bug in electra_lab{_or_in_plugins()}. Please report the lines above.", file=sys.stderr)
        raise SystemExit(1) from None


def _or_in_plugins() -> str:
    """Autograd and CUDA report some mistakes where the component's code no longer shows in the traceback."""
    files = sorted({str(entry.file) for each in registry.ALL for entry in each.plugged_in()})
    return f", or in the plug-ins that were loaded ({', '.join(files)})" if files else ", not in your experiment"
