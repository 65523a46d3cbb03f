"""Tables and the text on the set-up for a paper, against scipy, LaTeX and the files of the folders."""

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from scipy import stats

from electra_lab.analysis.intervals import ENOUGH
from electra_lab.analysis.results import read
from electra_lab.presentation.methods import methods
from electra_lab.presentation.paper import table, tex
from electra_lab.presentation.sweep_page import write_report
from electra_lab.presentation.sweep_summary import Need, closing, search_forecast
from electra_lab.presentation.text import Table
from electra_lab.storage.run_directory import RunDirectory
from electra_lab.version import __version__
from registry.errors import CheckpointError, ConfigError
from tests.electra_lab.presentation.finetuned import CONFIG, scores, write_finetuned
from tests.electra_lab.presentation.synthetic import NAMED, SCALES, write_folder
from tests.helpers import ROOT, exit_code

HOSTILE = r"""\ { } $x_1^2$ & # % ~ < > | " ' ` [a] * -- ?` , = é ± → ≤"""


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize(("metric", "sign"), [("reference_auc", 1), ("own_loss", -1)])
def test_differences_are_those_of_scipy(tmp_path: Path, metric: str, sign: int) -> None:
    folder = write_folder(tmp_path / "a", SCALES, range(5), state={"v1-s0": "missing"})
    rows = rows_of(table(folder, "ablation", "csv", metric))
    values = read(folder).values(metric)
    base = values[rows[0]["variant"]]
    assert [row["variant"] for row in rows] == [*SCALES]
    assert (rows[0]["difference"], rows[0]["holm_p"]) == ("", "")
    for row in rows[1:]:
        seeds = values[row["variant"]]
        expected = stats.ttest_rel([*seeds.values()], [base[seed] for seed in seeds])
        low, high = expected.confidence_interval(0.95)
        assert (row["metric"], int(row["n"])) == (metric, len(seeds))
        assert float(row["mean"]) == pytest.approx(np.mean([*seeds.values()]))
        found = [float(row[key]) for key in ("difference", "low", "high")]
        assert found == pytest.approx([np.mean([seeds[s] - base[s] for s in seeds]), low, high])
        if len(seeds) < ENOUGH:
            assert (row["p"], row["holm_p"]) == ("", "")
        else:
            assert float(row["p"]) == pytest.approx(expected.pvalue)
            assert float(row["holm_p"]) > float(row["p"])
            assert row["reading"] == ("better" if sign * float(row["difference"]) > 0 else "worse")
    text = table(folder, "ablation", "md", metric)
    assert "Of 20 cells: 1 not done." in text
    assert ("lower is better" in text) == (sign < 0)
    assert text.splitlines()[3].split("|")[4].strip() == f"{float(rows[1]['difference']):+.4f}"


def test_a_narrow_column_of_numbers_has_a_rule_of_markdown() -> None:
    lines = Table("", ["a", "n"], [["x", "1"], ["y", "2"]]).markdown().splitlines()
    assert lines == ["| a  |  n |", "| -- | -: |", "| x  |  1 |", "| y  |  2 |"]


def test_one_seed_has_no_interval_and_no_p(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SCALES, (0,))
    for row in rows_of(table(folder, "ablation", "csv"))[1:]:
        assert row["difference"]
        assert not row["low"] + row["high"] + row["p"] + row["holm_p"]
    with pytest.raises(ConfigError, match=r"reference_acuracy.*Did you mean 'reference_accuracy'"):
        table(folder, "ablation", "csv", "reference_acuracy")
    nothing = write_folder(tmp_path / "b", SCALES, (0,), state=dict.fromkeys((f"v{i}-s0" for i in range(4)), "missing"))
    with pytest.raises(ConfigError, match="has no results"):
        table(nothing, "ablation", "tex")


def test_tables_of_a_finetuning_and_a_run(directory: RunDirectory, tmp_path: Path) -> None:
    tuned = write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5, 0.6, 0.8))
    [row] = rows_of(table(tuned, "fine-tuning", "csv"))
    low, high = stats.t.interval(0.95, 2, np.mean([0.5, 0.6, 0.8]), stats.sem([0.5, 0.6, 0.8]))
    assert (row["metric"], row["n"], float(row["median"]), row["seed 2"]) == ("accuracy", "3", 0.6, "0.8")
    assert [float(row["low"]), float(row["high"])] == pytest.approx([low, high])
    assert "+" not in table(tuned, "fine-tuning", "md"), "a sign is for differences"
    values = {row["metric"]: float(row["value"]) for row in rows_of(table(directory.path, "experiment", "csv"))}
    assert values["discriminator AUC"] == directory.records()[-1]["discriminator_auc"]
    directory.metrics.write_text("")
    with pytest.raises(ConfigError, match="has no results"):
        table(directory.path, "experiment", "csv")


def test_a_latex_table_has_the_columns_of_booktabs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a_1", {HOSTILE: {}, **NAMED}, range(5))
    text = table(folder, "ablation", "tex")
    lines = text.splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert len(body) == 1 + len(NAMED)
    for line in (lines[lines.index(r"\toprule") + 1], *body):
        assert len(re.findall(r"(?<!\\)&", line)) == 5
        assert line.endswith(r" \\")
        assert not line.startswith(("[", "*")), "which a line break would take for its argument"
    assert not re.search(r"(?<!\\)[#%]", text.split("\n", 1)[1])
    assert r"\label{tab:a_1}" in text


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", {HOSTILE: {}, **NAMED}, range(5))
    (tmp_path / "t.tex").write_text(table(folder, "ablation", "tex"))
    source = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{t}" + tex(HOSTILE) + r"\end{document}"
    (tmp_path / "doc.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "doc.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert "Overfull" not in ended.stdout


def config(**sections: Any) -> dict[str, Any]:
    return {
        "corpus": {"type": "text_files", "paths": ["/home/me/secret.txt"]},
        "tokenizer": {"type": "wordpiece", "vocab_size": 4096}, "data": {"sequence_length": 128},
        "packing": {"type": "contiguous"}, "embedding": {"tie": "embeddings"},
        "discriminator": {"type": "bert", "dim": 128}, "generator": {"type": "bert", "dim": 64},
        "masking": {"type": "replace_prob", "mask_prob": 0.15}, "sampler": {"type": "mine"},
        "objective": {"type": "electra", "generator_weight": 1.0}, "optimizer": {"type": "adamw"},
        "schedules": {"learning_rate": {"type": "warmup_linear"}}, "train": {"batch_size": 16, "learning_rate": 2e-3},
    } | sections  # fmt: skip


def describe(run: Path, **facts: Any) -> None:
    file = run / "provenance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def changed_environment(run: Path, **facts: Any) -> Mapping[str, Any]:
    before = json.loads((run / "provenance.json").read_text())["environment"]
    packages = before["packages"] | {"tokenizers": "0.23.3"}
    return {**before, "packages": packages, "electra_lab": "0.1.0 (abc)", **facts}


def test_the_set_up_of_an_ablation_is_that_of_its_runs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SCALES, range(5))
    for i, cell in enumerate(read(folder).cells):
        variant = int(cell.plan.id[1])
        options = config(generator={"type": "bert", "dim": 64 * (variant + 1)})
        schedule = {"type": "warmup_linear", "warmup_steps": 10_000, "warmup_share": 0.1}
        options["schedules"] = {"learning_rate": {"type": "constant", "warmup_steps": 7} if variant else schedule}
        describe(cell.run.path, config=options, environment=changed_environment(cell.run.path, threads=1 + i % 2))
    text = methods(folder, "ablation")
    for fact in (
        "14,678 documents with 2,070,185 tokens", "1.3%", "wordpiece (vocab_size 4,096)", "128 tokens",
        "bert (dim 64 to 256)", "500,000 to 2,000,000 parameters", "electra (generator_weight 1)", "mask_prob 0.15",
        "9.97e+11 to 1e+12 FLOPs", "2e+12", "5 seeds (0, 1, 2, 3, 4)", "20 of 20 runs", "generator.scale=0.25; ",
        "Holm's procedure", "threads 1 or 2", "torch 2.13.0+cpu", "commit 5f2dae8da280", "electra_lab 0.1.0 (abc)",
        "reference_auc (higher is better", "learning rate of 0.002",
        "schedule warmup_linear (warmup_share 0.1) or constant (warmup_steps 7)",
    ):  # fmt: skip
        assert fact in text
    assert "secret" not in text, "paths of this machine"
    assert "Not known" not in text
    cited = text.partition("To cite:\n")[2].splitlines()
    assert "- objective electra: Clark et al. 2020, section 2" in cited
    assert "- sampler mine: a plug-in; ask its author" in cited
    assert len(cited) == len({*cited})
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited[0] == f"- {cff['authors'][0]['name']}: {cff['title']}, version {cff['version']}, {cff['url']}"
    assert cff["version"] == __version__


def test_a_search_says_its_trials_space_and_luck(tmp_path: Path) -> None:
    states = "done", "pruned", "pruned"
    begun = [{"number": i, "variant": f"trial {i}", "state": state} for i, state in enumerate(states)]
    space = {"train.learning_rate": {"low": 1e-3, "high": 0.3, "log": True}, "generator.scale": [0.5, 1.0]}
    search = {"trials": 3, "space": space, "prune": True, "begun": begun, "confirmation": "confirm/trial-0"}
    variants = {"base": {}, **{f"trial {i}": {"generator.scale": i} for i in range(3)}}
    gone = dict.fromkeys(("v2-s0", "v3-s0"), "begun")
    folder = write_folder(tmp_path / "a", variants, (0,), search=search, state=gone)
    for cell in gone:
        (folder / "cells" / cell / "pruned.json").write_text('{"error": "pruned after step 2"}')
    luck = "The best of 3 trials is partly luck unless it is confirmed on fresh seeds."
    caption = table(folder, "ablation", "md").splitlines()[-1]
    assert caption.endswith(f"Of 4 cells: 2 pruned. {luck}")
    write_report(folder)
    assert luck in closing(folder)
    text = methods(folder, "ablation")
    assert "TPE sampler varied train.learning_rate (0.001 to 0.3, on a logarithmic scale) and generator.scale (" in text
    assert "3 of at most 3 trials were begun, 2 of them pruned, and compared with the base over 1 seed (0)" in text
    assert "4 variants" not in text
    assert "not confirmed on fresh seeds" in text
    write_folder(folder / "confirm" / "trial-0", {"base": {}, "trial 0": {}}, (5, 6))
    assert "again on fresh seeds: 2 seeds (5, 6)." in methods(folder, "ablation")
    write_report(folder)
    assert "only the comparison on fresh seeds tells what it gains" in (folder / "report.html").read_text()
    plan = read(folder).plan
    needs = {"base": Need("base", {}, 4, 1e9, None, None)}
    for prune in (True, False):
        assert ("pruning saves" in search_forecast(plan, needs, 3, 4, folder, 1, prune=prune)) == prune


def test_facts_that_are_missing_are_named_and_not_invented(directory: RunDirectory, tmp_path: Path) -> None:
    options = config(sampler=None, generator=None)
    describe(
        directory.path, config=options, paper_flops=None, git=None, environment=changed_environment(directory.path)
    )
    text = methods(directory.path, "experiment")
    missing = next(line for line in text.splitlines() if line.startswith("Not known"))
    assert missing == "Not known from this folder: paper_flops, git.commit."
    assert not {"commit", "Clark et al. (2020) count", "generator is"} & {*re.findall("|".join(
        ("commit", re.escape("Clark et al. (2020) count"), "generator is")), text.replace(missing, ""))}  # fmt: skip
    assert "so nothing is tested" in text
    directory.metrics.write_text("")
    assert "the time of all runs" in methods(directory.path, "experiment")
    empty = write_folder(tmp_path / "b", SCALES, (0,), state=dict.fromkeys((f"v{i}-s0" for i in range(4)), "missing"))
    with pytest.raises(CheckpointError, match="no run is far enough"):
        methods(empty, "ablation")


def test_the_set_up_of_a_finetuning(tmp_path: Path) -> None:
    options = {
        **CONFIG, "model": "/home/me/runs/small", "optimizer": {"type": "adamw"},
        "schedules": {"learning_rate": {"type": "warmup_linear"}},
        "train": {"epochs": 3.0, "batch_size": 32, "learning_rate": 1e-4, "layer_decay": 0.8},
    }  # fmt: skip
    tuned = write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5, 0.6), config=options, **{"config_sha256": ""})
    for seed in (0, 1):
        describe(tuned / f"seed-{seed}", config=options, environment=changed_environment(tuned / f"seed-{seed}"))
    text = methods(tuned, "fine-tuning")
    for fact in (
        "text_classification", "67,349 examples", "discriminator of small (weights: pretrained)", "3 epochs",
        "1,200 steps", "multiplied by 0.8", "3.21e+12 FLOPs", "2 seeds (0 and 1)", "last evaluation",
        "13,034 parameters",
    ):  # fmt: skip
        assert fact in text
    assert "/home" not in text


def write_empty(stream: IO[Any]) -> None:
    """Write an empty picture to a text or a binary stream."""
    try:
        stream.write("<svg></svg>")
    except TypeError:
        stream.write(b"<svg></svg>")


def test_the_command_prints_texts_alone_and_lists_figures(tmp_path: Path, monkeypatch, capsys) -> None:
    folder = write_folder(tmp_path / "a", SCALES, (0, 1))
    assert exit_code("report", str(folder), "--table", "csv", "--metric", "own_loss") == 0
    assert capsys.readouterr().out == table(folder, "ablation", "csv", "own_loss")
    assert exit_code("report", str(folder), "--methods", "--out", str(tmp_path / "m.txt")) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'm.txt'}\n"
    assert (tmp_path / "m.txt").read_text() == (text := methods(folder, "ablation"))
    assert exit_code("report", str(folder), "--methods", "--out", str(tmp_path / "m.tex")) == 0
    latex = (tmp_path / "m.tex").read_text().splitlines()
    comments = [line for line in latex if line.startswith("% ")]
    assert comments[-1] == f"% {text.splitlines()[-1]}"
    assert not re.search(r"(?<!\\)[_&%#$]", "".join(line for line in latex if line not in comments))
    capsys.readouterr()
    assert not (folder / "report.html").exists(), "no page was written"
    monkeypatch.setattr(Figure, "savefig", lambda _, stream, **options: write_empty(stream))
    figures = tmp_path / "figures"
    assert exit_code("report", str(folder), "--figures", str(figures)) == 0
    page, *lines = capsys.readouterr().out.splitlines()
    assert page == str(folder / "report.html")
    assert len(lines) == 5
    assert all(Path(line.partition("  ")[0]).is_file() for line in lines)
    for wrong in (
        [str(folder), "--table", "csv"], ["--table", "csv", "--methods"], ["--methods", "--metric", "own_loss"],
        ["--out", "a.txt"], ["--table", "csv", "--figures", "figures"], ["--methods", "--open"], ["--table", "html"],
    ):  # fmt: skip
        assert exit_code("report", str(folder), *wrong) == 2, wrong
        assert capsys.readouterr().out == ""
