"""Figures for a paper: both widths, text that stays text, and looks that need no colours."""

import re
import shutil
from itertools import product
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from electra_lab.analysis.results import read
from electra_lab.analysis.run_comparison import subjects
from electra_lab.presentation import figures as printed
from electra_lab.presentation import pages, sweep_figures
from electra_lab.presentation.compare_page import Comparison
from electra_lab.presentation.compare_page import page as compared
from electra_lab.presentation.figures import MOST_HEIGHT, PRINT, printing
from electra_lab.presentation.finetuning_page import write_report as report_finetuning
from electra_lab.presentation.pages import LIGHT, look
from electra_lab.presentation.run_page import write_report as report_run
from electra_lab.presentation.sweep_page import write_report
from electra_lab.storage.finetuning_folder import FinetuningFolder
from electra_lab.storage.run_directory import RunDirectory
from registry.errors import ConfigError
from tests.electra_lab.presentation.axes import overlaps
from tests.electra_lab.presentation.finetuned import scores, write_finetuned
from tests.electra_lab.presentation.synthetic import NAMED, SCALES, write_folder


def test_every_chart_of_an_ablation_in_both_widths(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "named", NAMED, (0, 1), state={"v1-s0": "failed", "v2-s1": "unfinished"})
    with printing(tmp_path / "a") as written:
        page = write_report(folder).read_bytes()
    assert page.count(b"var(--series-0)") > 1, "the page has the colours of a page"
    with printing(tmp_path / "b"):
        sweep_figures.leading(read(folder))
    metrics = ("generator_loss", "discriminator_auc", "discriminator_loss")
    assert written.captions.keys() == {"leading", "differences", *(f"curve-{name}" for name in metrics)}
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    endings = ("column.pdf", "column.svg", "page.pdf", "page.svg")
    assert files == sorted(map("-".join, product(written.captions, endings)))
    for file in files:
        content = (tmp_path / "a" / file).read_bytes()
        if file.startswith("leading"):
            assert content == (tmp_path / "b" / file).read_bytes(), "the same folder gives the same bytes"
        inches = 6.75 if "-page." in file else 3.25
        if file.endswith(".pdf"):
            box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
            assert box
            assert float(box[1]) == pytest.approx(72 * inches)
            assert content.count(b"/FontFile2") >= 1, "fonts are embedded"
            assert b"/Type3" not in content
        else:
            text = content.decode()
            assert re.search(r'<svg [^>]*width="([\d.]+)pt"', text)[1] == f"{72 * inches:g}"  # type: ignore[index]
            assert "masked" in text, "labels are text"
            assert {*re.findall('font-family: ([^;"]+)', text)} == {printed.ELSEWHERE}
            assert not set(re.findall("#0102[0-9a-f]{2}", text)), "the colours are those of print"


def test_figures_are_written_to_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--figures"), printing(tmp_path / "file"):
        pytest.fail("it is a file")


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_norm_of_several_runs_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    records = [{"split": "train", "step": step, "gradient_norm": 2.0, "clipped_gradient_norm": 1.0} for step in (1, 2)]
    drawn = dict[str, list[str]]()
    monkeypatch.setattr(pages, "curves", lambda name, title, lines, _: drawn.update({title: [*lines]}))
    pages.training_charts({f"seed {seed}": records for seed in range(seeds)})
    one, several = ["seed 0", "seed 0, clipped"], ["seed 0", "seed 1"]
    title = "Gradient norm before and after clipping" if seeds == 1 else "Gradient norm before clipping"
    assert drawn == {title: one if seeds == 1 else several}


def test_looks_in_print_differ_without_colour() -> None:
    token = printed._medium.set(PRINT[0])
    try:
        looks = [look(i) for i in range(45)]
    finally:
        printed._medium.reset(token)
    assert len({(style["marker"], style["linestyle"]) for style in looks}) == 45
    assert {style["color"] for style in looks} == {*LIGHT}


def test_thirty_long_names_overlap_nowhere(tmp_path: Path, monkeypatch) -> None:
    changes = {f"a variant with a long name, number {i}, of many": {"generator.scale": i} for i in range(30)}
    state = {f"v{i}-s0": "unmeasured" for i in range(1, 30, 7)}
    monkeypatch.setattr("tests.electra_lab.presentation.synthetic._records", lambda *_: iter(()))
    folder = write_folder(tmp_path / "many", changes, (0,), state=state)
    drawn = {}

    def keep(figure: Figure, name: str, says: str) -> None:
        [axes] = figure.axes
        drawn[name, printed.medium().name] = figure.get_size_inches(), overlaps(axes)

    monkeypatch.setattr(pages, "write", keep)
    with printing(tmp_path / "figures"):
        write_report(folder)
    assert drawn.keys() >= {("leading", "column"), ("leading", "page"), ("differences", "column")}
    for place, (size, overlapping) in drawn.items():
        assert (place, overlapping) == (place, [])
        assert size[1] <= MOST_HEIGHT


def test_legends_name_each_variant_once(tmp_path: Path, monkeypatch) -> None:
    named = {}

    def keep(figure: Figure, name: str, says: str) -> None:
        [axes] = figure.axes
        legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        named[name, printed.medium().name] = legends, " ".join(axes.get_ylabel().split())

    monkeypatch.setattr(pages, "write", keep)
    with printing(tmp_path / "figures"):
        sweep_figures.curves(read(write_folder(tmp_path / "scales", SCALES, (0, 1))))
    for width in ("column", "page"):
        assert named["curve-generator_loss", width] == ([*SCALES], "Generator loss, nats (validation text)")


def test_charts_of_a_run_a_finetuning_and_a_comparison(directory: RunDirectory, tmp_path: Path, monkeypatch) -> None:
    written: dict[tuple[str, str], str] = {}
    monkeypatch.setattr(pages, "write", lambda _, name, says: written.setdefault((name, printed.medium().name), says))
    monkeypatch.setattr(Figure, "savefig", lambda _, stream, **options: stream.write("<svg></svg>"))
    with printing(tmp_path / "figures"):
        report_run(directory)
        records = [{"step": step, "split": "validation", "accuracy": 0.1 * step} for step in (1, 2)]
        tuned = write_finetuned(tmp_path / "tuned", scores("accuracy", 0.5, 0.6), records=records)
        report_finetuning(FinetuningFolder(tuned))
        copy = Path(shutil.copytree(directory.path, tmp_path / "copy"))
        compared(Comparison(subjects([directory.path, copy])))
    for name in ("generator_loss", "training-tokens_per_second", "accuracy", "generator_loss-flops"):
        assert {(name, "column"), (name, "page")} <= written.keys()
    directory.metrics.write_text("")  # a run without evaluation
    written.clear()
    with printing(tmp_path / "figures"):
        report_run(directory)
    assert written == {}
