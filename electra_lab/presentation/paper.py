"""Tables of results for a paper: LaTeX with booktabs, CSV, Markdown."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from electra_lab.analysis.intervals import ENOUGH, Difference, Estimate
from electra_lab.analysis.records import last_evaluation, measured
from electra_lab.analysis.results import read
from electra_lab.presentation.finetuning_page import read_results
from electra_lab.presentation.text import Table, escaped, named, number
from electra_lab.presentation.verdict import caution, comparison, p_text
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError, did_you_mean

# The columns of tables, with the keys of a row that they show: two are an interval.
COLUMNS = {
    "variant": ["variant"], "split": ["split"], "metric": ["metric"], "n": ["n"], "value": ["value"], "mean": ["mean"],
    "difference": ["difference"], "gain": ["gain"], "95% interval": ["low", "high"], "Holm p": ["holm_p"],
    "median": ["median"], "SD": ["sd"],
}  # fmt: skip
OF_KIND = {
    "ablation": ["variant", "n", "mean", "difference", "95% interval", "Holm p"],
    "fine-tuning": ["split", "metric", "n", "mean", "95% interval", "median", "SD"],
    "experiment": ["metric", "value", "gain", "95% interval"],
}
WORDS = {"variant", "split", "metric"}  # columns of text
LONG = 32  # letters, from which on names are wrapped in LaTeX
TEX = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}", "[": "{[}", "*": "{*}",
    "→": r"$\rightarrow$", "≤": r"$\le$", "≥": r"$\ge$", "−": "$-$", "_": r"\_\allowbreak{}",
    "=": r"=\allowbreak{}", **{mark: f"\\{mark}" for mark in "{}$&#%"},
}  # fmt: skip
Rows = list[dict[str, Any]]


def table(folder: Path, kind: str, form: Literal["tex", "csv", "md"], metric: str | None = None) -> str:
    """Return the results in the folder of a job as a table. Raises ConfigError if there are none, CheckpointError."""
    rows_of = {"ablation": _of_ablation, "fine-tuning": _of_finetuning, "experiment": _of_run}[kind]
    caption, rows = rows_of(folder, metric)
    if not rows:
        raise ConfigError(f"{folder}: has no results{f' of {metric}' if metric else ''}.")
    if form == "csv":
        text = io.StringIO()
        out = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
        return text.getvalue()
    keys = [COLUMNS[title] for title in OF_KIND[kind]]
    lines = list[list[str]]()
    for row in rows:
        lines.append([_text(row, names) for names in keys])
    if form == "md":
        return Table("", OF_KIND[kind], lines, WORDS).markdown() + f"\n\n{escaped(caption)}\n"
    return _latex(folder.resolve().name, caption, OF_KIND[kind], lines)


def _of_ablation(folder: Path, name: str | None) -> tuple[str, Rows]:
    results = read(folder)
    plan, name = results.plan, name or results.plan.metric
    if name not in plan.metrics:
        raise ConfigError(f"--metric {name}: no measure computes it.{did_you_mean(name, plan.metrics)}")
    metric, rows = plan.metrics[name], Rows()
    for row in comparison(results, name, metric) if results.has(name) else ():
        d: Estimate = row.difference or Difference(0, None)
        values = {"metric": name, "variant": row.variant, "n": row.mean.n, "mean": row.mean.mean}
        values |= {"mean_low": row.mean.low, "mean_high": row.mean.high, "pairs": d.n, "difference": d.mean}
        values |= {"low": d.low, "high": d.high, "p": getattr(d, "p", None)}
        rows.append(values | {"holm_p": row.difference and row.difference.holm, "reading": row.reading})
    caption = (
        f"{name} ({metric.direction}): mean over n seeds; mean difference to the baseline {named(plan.baseline)}, seed "
        "by seed, with its 95% interval; p values with Holm's correction for all comparisons"
    )
    for title, mean in results.trivial(name).items() if rows else ():
        caption += f"; {title}: {number(mean)}"
    if not any(row["p"] is not None for row in rows):
        caption += f". Fewer than {ENOUGH} seeds are not tested"
    pruned = results.count("pruned")
    others = (len(results.cells) - results.count("done") - pruned, "not done"), (pruned, "pruned")
    if states := [f"{count} {state}" for count, state in others if count]:
        caption += f". Of {len(results.cells)} cells: {', '.join(states)}"
    return f"{caption}. {caution(plan.search)}".rstrip(), rows


def _of_finetuning(folder: Path, name: str | None) -> tuple[str, Rows]:
    seeds, results = read_results(FinetuningFolder(folder))
    rows = Rows()
    for split, metrics in results.items():
        for row in [row for row in metrics if row.values and name in (None, row.name)]:
            values = {f"seed {seed}": row.values.get(seed) for seed in seeds}
            values |= {key: value for key, value in row.numbers.items() if key != "values"}
            rows.append({"split": split, "metric": row.metric.title or row.name, "n": len(row.values), **values})
    return "Mean over n seeds, with its 95% t interval; median and standard deviation.", rows


def _of_run(folder: Path, name: str | None) -> tuple[str, Rows]:
    directory = RunDirectory.open(folder)
    record, rows = last_evaluation(directory.records()) or {}, Rows()
    for key, metric in measured(record, directory.provenance().metrics).items():
        if name in (None, key):
            gain = {"gain": record.get(f"{key}_gain"), "low": record.get(f"{key}_gain_low")}
            high = record.get(f"{key}_gain_high")
            rows.append({"metric": metric.title or key, "value": record[key], **gain, "high": high})
    where = f"On {record.get('split')} text, after step {record.get('step')}"
    return f"{where}: the gain over a baseline without training, with its 95% interval.", rows


def _text(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Format the one or two values of a cell."""
    values = [row[key] for key in keys]
    if values[0] is None or isinstance(values[0], str | int):
        return "-" if values[0] is None else str(values[0])
    if keys == ["holm_p"]:
        return p_text(values[0])
    is_change = keys[0] in ("difference", "gain") or (keys[0] == "low" and "median" not in row)
    texts = [number(value, sign=is_change) for value in values]
    return f"[{', '.join(texts)}]" if len(texts) > 1 else texts[0]


def _latex(name: str, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    is_long = max(len(row[0]) for row in rows) > LONG
    align = "".join("l" if title in WORDS else "r" for title in columns)
    align = r"p{0.3\linewidth}" + align[1:] if is_long else align
    size = r"\small" if len(rows) <= 20 else r"\scriptsize"
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table*}", r"\centering", rf"\caption{{{tex(caption)}}}"]
    lines += [
        rf"\label{{tab:{re.sub('[^A-Za-z0-9_-]', '-', name)}}}",
        size + r"\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{{align}}}",
    ]
    lines += [r"\toprule", " & ".join(map(tex, columns)) + r" \\", r"\midrule"]
    for row in rows:
        cells = [tex(text) if title in WORDS else _formula(text) for text, title in zip(row, columns, strict=True)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}"]
    if any(ord(letter) > 0x17F for letter in "".join(lines)):
        lines.insert(1, "% has letters that pdfLaTeX lacks: use LuaLaTeX or XeLaTeX, with a font that has them")
    return "\n".join(lines) + "\n"


def _formula(text: str) -> str:
    """Return a number or an interval as LaTeX."""
    text = re.sub(r"e\+?(-?)0*(\d+)", r"\\times10^{\1\2}", text)
    return "--" if text == "-" else f"${re.sub('(?<=[0-9]),(?=[0-9])', '{,}', text)}$"


def tex(text: str) -> str:
    """Escape text for LaTeX, and let it break after signs."""
    escaped = "".join(TEX.get(letter, letter) for letter in text)
    escaped = re.sub("''(.*?)''", r"``\1''", escaped)
    escaped = re.sub("-(?=-)", "{-}", escaped)  # otherwise a dash
    return re.sub(r",(?=[^\s\d])", r",\\allowbreak{}", escaped)
