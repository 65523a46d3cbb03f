"""Run shipped experiments, and record their results in experiments/LOG.md.

    python benchmarks/shipped.py reformer_small objectives/mlm

Without names, all that take minutes on a CPU. A row of an earlier run is replaced, the other rows stay.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import torch

from electra_lab.analysis.records import last_number
from electra_lab.presentation.run_page import findings, verdicts
from electra_lab.storage.run_directory import RunDirectory

ROOT = Path(__file__).parent.parent
FOLDER, LOG = ROOT / "experiments", ROOT / "experiments" / "LOG.md"
HEAD = "| experiment | on test text | training | minutes | when |\n|---|---|---|---|---|\n"
FIRST = ("transformer_small", "objectives/mlm")  # others start from them
TOO_LARGE = ("electra_", "rna_electra", "modernbert_base", "deberta_v3_small", "domain_deberta", "ettin")  # for a CPU


def shipped() -> list[str]:
    """Return the names of the experiments that a CPU trains in minutes, those first that others start from."""
    files = [FOLDER.glob("*.yaml"), FOLDER.glob("objectives/*.yaml"), FOLDER.glob("plugins/*.yaml")]
    names = [file.relative_to(FOLDER).with_suffix("").as_posix() for group in files for file in group]
    return sorted((n for n in names if not n.startswith(TOO_LARGE)), key=lambda name: (name not in FIRST, name))


def ran(name: str, folder: Path, changes: Sequence[str]) -> str:
    """Run an experiment in a folder of its name; returns its row."""
    path, earlier = folder / name, folder / "objectives/mlm"
    command = [sys.executable, "-m", "electra_lab", "run", str(FOLDER / f"{name}.yaml"), "--out", str(path)]
    here = [f"objective.run={earlier}"] if name == "objectives/frozen_generator" and earlier.is_dir() else []
    command += ["--device", "cpu", *(word for change in (*here, *changes) for word in ("--set", change))]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    minutes = (time.monotonic() - began) / 60
    directory = RunDirectory(path)
    records, provenance = directory.records(), directory.provenance()
    record = next(record for record in reversed(records) if record.get("split") == "test")
    said = [
        f"{verdict.facts[:1].upper()}{verdict.facts[1:]}." if verdict.learned else str(verdict)
        for verdict in verdicts(record, provenance)
    ]
    said = said or [f"{finding.title} {finding.value:.3f}." for finding in findings(record, provenance.metrics)[:3]]
    steps, tokens = record["step"], last_number(records, "train", "tokens") or 0
    named = " ".join([f"`{name}`", *(f"`--set {change}`" for change in changes)])
    return f"| {named} | {' '.join(said)} | {steps:,} steps, {tokens / 1e6:.1f} M tokens | {minutes:.1f} | {when()} |"


def when() -> str:
    threads = torch.get_num_threads()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{day}, {commit.stdout.strip() or 'no commit'}, {threads} {'thread' if threads == 1 else 'threads'}"


def note(row: str, log: Path) -> None:
    """Put a row into the table, replacing that of the same experiment and changes; the table stays sorted."""
    before, _, rest = log.read_text(encoding="utf-8").partition(HEAD)
    old = list(takewhile(lambda line: line.startswith("|"), rest.splitlines(keepends=True)))
    rows = {line.split("|")[1].strip(): line for line in (*old, f"{row}\n")}
    log.write_text(
        before + HEAD + "".join(rows[name] for name in sorted(rows)) + rest[len("".join(old)) :], encoding="utf-8"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help="such as reformer_small or objectives/mlm")
    options.add_argument("--set", action="append", default=[], metavar="A.B=C", help="noted next to the name")
    options.add_argument("--log", type=Path, default=LOG, help="default: experiments/LOG.md")
    given = options.parse_args()
    names = given.names or shipped()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):  # the run has printed the reason
                note(ran(name, Path(folder), given.set), given.log)
                continue
            failed.append(name)
    sys.exit(f"these failed: {', '.join(failed)}" if failed else None)


if __name__ == "__main__":
    main()
