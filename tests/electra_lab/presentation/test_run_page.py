"""The page of a run agrees with its files: facts, results with baselines, curves, tokens with their suspicion."""

import json
import re
from importlib.resources import files
from typing import Any

import pytest

from electra_lab.jobs.pretraining import execute
from electra_lab.presentation.pages import LEAST_SPAN, SERIES, SOFT, STYLE
from electra_lab.presentation.run_page import OWN_TEXT, write_report
from electra_lab.presentation.text import thousandths
from electra_lab.storage.run_directory import RunDirectory
from tests.electra_lab.presentation.axes import Drawn, overlaps
from tests.electra_lab.presentation.test_pages import luminance
from tests.helpers import rewrite_config, write_experiment
from tests.pages import Page

HOSTILE = "<script>alert('&')</script>"


def page(directory: RunDirectory) -> Page:
    return Page(write_report(directory))


def rewrite(directory: RunDirectory, *records: dict[str, Any]) -> None:
    directory.write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def train(step: int, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": "train", **values}


def validation(step: int, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": "validation", "tokens": 64, **values}


def final(step: int, **values: float | None) -> dict[str, Any]:
    return {"step": step, "split": "test", "tokens": 320, **values}


def test_the_page_of_a_run_has_the_numbers_of_its_test(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("finished")
    file = write_experiment(
        folder,
        data=f"{{sequence_length: 16, held_out: 0.3, store: {folder / 'store'}}}",
        train="{steps: 4, batch_size: 4, precision: fp32, log_every: 1}",
        evaluate="{every: 2, examples: 3}",
    )
    finished = RunDirectory(execute.run(file, [], folder / "run", "cpu"))
    written, last = Page(finished.path / "report.html"), finished.records()[-1]
    assert "Measured after step 4 on test text, which was never trained on." in written.text
    shown = {row[0]: row[1] for row in written.table("Results")[1:]}
    titles = {metric.title: name for name, metric in finished.provenance().metrics.items()}
    assert shown == {title: thousandths(last[titles[title]]) for title in shown}
    assert len(shown) >= 8
    assert (written.facts()["steps"], written.facts()["tokens"]) == ("4 of 4", f"{4 * 4 * 16} with padding")
    for tokens in finished.read_json("examples.json"):
        assert all(token["token"] in written.text for token in tokens)
    assert (finished.path / "config.yaml").read_text() in "".join(written.parts)
    assert page(finished).source == written.source


@pytest.mark.usefixtures("drawn")
def test_the_facts_at_the_top_are_those_of_the_run(directory: RunDirectory) -> None:
    """100 tokens at 50/s and 300 at 100/s: 5 s of training, without the time of other parts."""
    rewrite(directory, train(1, tokens=100, tokens_per_second=50.0, seconds=7.0),
            train(2, tokens=400, tokens_per_second=100.0, seconds=9.0),
            validation(1), validation(2), final(2))  # fmt: skip
    written = page(directory)
    assert list(written.facts().items()) == [
        ("parameters", "generator 1,000,000, discriminator 4,000,000"),
        ("device", "cpu, fp32, threads: 1"),
        ("steps", "2 of 400"),
        ("compute", "1e+12 FLOPs in total"),
        ("tokens", "400 with padding"),
        ("time", "5 s of training, 80 tokens/s"),
        ("evaluation", "validation 64 tokens with padding, test 320 tokens with padding"),
        ("data", "14,678 documents, 2,070,185 tokens to train; validation 11 and 837; test 1,012 and 90,210"),
        ("overlap", "1.3% of the 13-token runs of validation and test also occur in training text"),
    ]
    assert written.all("h2")[0].text == "Results"
    assert written.source.index("<dt>time") < written.source.index("<h2>Results")
    assert [title.text for title in written.all("h1")] == ["generator_size"]
    assert "electra_lab run run, started 2026-11-20T13:50:56+0000" in written.text


@pytest.mark.usefixtures("drawn")
def test_what_has_not_happened_yet_is_not_shown(directory: RunDirectory) -> None:
    """Before the first record, tokens and time are left out; before the test, the last validation is shown."""
    directory.metrics.unlink()
    written = page(directory)
    assert list(written.facts()) == ["parameters", "device", "steps", "compute", "data", "overlap"]
    assert written.facts()["steps"] == "0 of 400"
    assert "The run has not been evaluated yet." in written.text
    assert "so there is no curve" in written.text
    rewrite(directory, validation(10, discriminator_auc=0.1), validation(20, discriminator_auc=0.25))
    written = page(directory)
    assert "Measured after step 20 on validation text" in written.text
    assert "The test comes at the end of training." in written.text
    assert written.table("Results")[1][:2] == ["discriminator AUC", "0.250"]


@pytest.mark.usefixtures("drawn")
def test_numbers_are_those_that_the_run_declared_and_dashes_where_there_are_none(directory: RunDirectory) -> None:
    """Text without replacements has no AUC; JSON has null for it."""
    rewrite(directory)
    directory.append({**final(400, generator_loss=None), "discriminator_auc": float("nan"), "unigram_auc": None})
    rows = {title: (number, meaning) for title, number, meaning in page(directory).table("Results")[1:]}
    assert rows["discriminator AUC"][0] == rows["generator loss"][0] == "-"
    assert rows["discriminator AUC"][1].endswith("rare-token detector -; not comparable between runs")
    value = directory.read_json("provenance.json")
    directory.write_json("provenance.json", value | {"metrics": {"word_auc": {"title": "word AUC", "summary": "own"}}})
    rewrite(directory, validation(1, word_auc=0.5, discriminator_auc=0.9))
    assert page(directory).table("Results")[1:] == [["word AUC", "0.500", "own"]]


GAINS = {"discriminator_auc_gain": 0.01, "discriminator_auc_gain_low": -0.01, "discriminator_auc_gain_high": 0.02,
         "discriminator_auc_gain_documents": 12}  # fmt: skip


@pytest.mark.usefixtures("drawn")
def test_the_verdict_stands_at_the_top(directory: RunDirectory) -> None:
    """With advice if something was not learned; an evaluation without gains has no verdict."""
    areas = {"discriminator_auc": 0.535, "unigram_auc": 0.525, "always_original_auc": 0.5}
    rewrite(directory, validation(1, **areas, **GAINS, discriminator_auc_gain_rows=1.0), final(2, **areas, **GAINS))
    written = page(directory)
    claim = "The discriminator has not learned to detect replacements better than its baselines"
    [said] = [paragraph for paragraph in written.all("p") if claim in paragraph.text]
    [strong] = [tag.text for tag in said.all("strong")]
    assert strong.startswith(claim)
    numbers = "AUC 0.535 against 0.525 (rare-token detector); gain +0.010, 95% interval -0.010 to +0.020 over 12 doc"
    assert said.text.startswith(f"{strong}: {numbers}uments. {OWN_TEXT}")
    assert written.source.index(claim) < written.source.index("<dl>") < written.source.index("<h2>Results")
    assert [row[0] for row in written.table("Results")[1:]] == ["discriminator AUC"]
    better = GAINS | {"discriminator_auc_gain": 0.2, "discriminator_auc_gain_low": 0.05}
    rewrite(directory, final(2, **areas, **better))
    written = page(directory)
    assert "The discriminator has learned to detect replacements better than its baselines: AUC" in written.text
    assert "own-text" not in written.text
    rewrite(directory, final(2, **areas))
    assert "learned" not in page(directory).text.split("Config")[0]


def token(token: str, original: str | None = None, probability: float = 0.1) -> dict[str, Any]:
    replaced = original is not None
    return {"token": token, "original": original or token, "replaced": replaced, "probability": probability}


@pytest.mark.usefixtures("drawn")
def test_tokens_are_coloured_by_their_suspicion_and_replaced_ones_show_the_original(directory: RunDirectory) -> None:
    examples = [[token("the", None, 0.0), token("dog", "cat", 1.0), token("sat", None, 0.6)], [token("on", "in", 0.2)]]
    directory.write_json("examples.json", examples)
    texts = [paragraph.all("span") for paragraph in page(directory).all("p") if paragraph["class"] == "text"]
    assert [len(spans) for spans in texts] == [3, 1]
    shown = []
    for span in [*texts[0], *texts[1]]:
        strength = re.fullmatch(r"background: rgba\(var\(--mark\), ([\d.]+)\)", span["style"])
        struck = "".join(tag.text for tag in span.all("s"))
        shown.append((span.own.strip(), struck, span["class"] == "replaced", float(strength[1]), span["title"][-5:]))
    assert shown == [
        ("the", "", False, 0.0, "0.000"), ("dog", "cat", True, 0.85, "1.000"), ("sat", "", False, 0.51, "0.600"),
        ("on", "in", True, 0.17, "0.200"),
    ]  # fmt: skip
    assert texts[0][0]["title"] == "probability of replaced 0.000"
    # The struck-out original stands before the token.
    assert [span.text for span in texts[0]] == ["the", "cat dog", "sat"]


@pytest.mark.parametrize("scheme", [0, 1])
def test_a_token_can_be_read_at_any_strength(scheme: int) -> None:
    """WCAG 2.1, 1.4.3: text has a contrast of 4.5 to 1, also the struck-out original, which has the token's colour."""
    found = dict(re.findall(r"--([\w-]+): ([^;}]+)", STYLE.split("@media (prefers-color-scheme: dark)")[scheme]))
    ink, paper = luminance(found["ink"]), [int(found["paper"][i : i + 2], 16) for i in (1, 3, 5)]
    for strength in (0.0, 0.2, 0.4, 0.6, 0.85):
        mixed = [strength * int(m) + (1 - strength) * p for m, p in zip(found["mark"].split(","), paper, strict=True)]
        dark, light = sorted((ink, luminance("#" + "".join(f"{round(part):02x}" for part in mixed))))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, strength
    assert "replaced s" not in files("electra_lab.presentation").joinpath("run.html.j2").read_text()


@pytest.mark.usefixtures("drawn")
def test_hostile_text_is_text(directory: RunDirectory) -> None:
    directory.write_json("examples.json", [[token(HOSTILE, "</p><img src=x>", 0.5)]])
    config = (directory.path / "config.yaml").read_text()
    rewrite_config(directory.path, config.replace("name: ", f'name: "{HOSTILE}" # ') + f"# </pre>{HOSTILE}\n")
    directory.write_json("provenance.json", directory.read_json("provenance.json") | {"started": HOSTILE})
    written = page(RunDirectory(directory.path.rename(directory.path.with_name("<b onclick=x>"))))
    assert not {"script", "img", "b"} & set(written.tags)
    assert not [name for name, _ in written.attributes if name == "onclick"]
    assert (
        "".join(written.parts).count(HOSTILE) == 7
    )  # title, heading, began, token, name and end of the config, provenance
    assert "</p><img src=x>" in written.parts
    assert "<b onclick=x>" in "".join(written.parts)


TRAIN, VALIDATION = SERIES[0], SERIES[1]


def plotted(drawn: Drawn, name: str) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """Return colour and points of each line by its label, which is also in the legend."""
    axes = drawn[name]
    found = {}
    for line in axes.lines:
        found[str(line.get_label())] = line.get_color(), [tuple(point) for point in line.get_xydata()]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found)
    return found


def test_a_chart_shows_training_validation_and_the_baselines_over_steps(directory: RunDirectory, drawn: Drawn) -> None:
    first = {"generator_loss": 7.0, "unigram_entropy": 6.0, "discriminator_auc": 0.6, "unigram_auc": 0.55}
    second = {"generator_loss": 5.0, "unigram_entropy": 6.5, "discriminator_auc": 0.7, "unigram_auc": 0.56}
    rewrite(directory, train(10, generator_loss=9.0), train(20, generator_loss=8.0),
            validation(20, always_original_auc=0.5, **first), train(30, generator_loss=None),
            validation(40, always_original_auc=0.5, **second))  # fmt: skip
    captions = [caption.text for caption in page(directory).all("figcaption")]
    assert captions == ["Generator loss, nats", "Discriminator AUC"]
    assert drawn.keys() == {"discriminator_auc", "generator_loss"}
    assert plotted(drawn, "generator_loss") == {
        "training": (TRAIN, [(10, 9.0), (20, 8.0)]),
        "validation": (VALIDATION, [(20, 7.0), (40, 5.0)]),
        "word frequencies alone": (SOFT, [(20, 6.0), (40, 6.5)]),
    }
    assert plotted(drawn, "discriminator_auc") == {
        "validation": (VALIDATION, [(20, 0.6), (40, 0.7)]),
        "always 'original'": (SOFT, [(20, 0.5), (40, 0.5)]),
        "rare-token detector": (SOFT, [(20, 0.55), (40, 0.56)]),
    }
    axes = drawn["discriminator_auc"]
    assert axes.get_xlabel() == "step"
    validated, *baselines = (line.get_linestyle() for line in axes.lines)
    assert validated == "-"
    assert len({validated, *baselines}) == 3  # two baselines in one colour differ in their dashes
    assert all(line.get_marker() != "None" for line in axes.lines)  # few points could hide on a line


def test_the_legend_covers_no_curve(directory: RunDirectory, drawn: Drawn) -> None:
    records = []
    for step, value in enumerate((0.5, 0.9, 0.5, 0.9)):
        baselines = {"always_original_auc": 0.5, "unigram_auc": 0.6, "unigram_entropy": value}
        both = {"discriminator_auc": 1.4 - value, "generator_loss": 1 - value}
        records += [train(step, discriminator_auc=value, generator_loss=value), validation(step, **both, **baselines)]
    rewrite(directory, *records)
    page(directory)
    assert {name: overlaps(axes) for name, axes in drawn.items()} == {"discriminator_auc": [], "generator_loss": []}


def test_a_long_curve_has_no_markers_and_one_evaluation_no_chart(directory: RunDirectory, drawn: Drawn) -> None:
    rewrite(directory, *(train(n, generator_loss=float(n)) for n in range(1, 21)))
    page(directory)
    assert [line.get_marker() for line in drawn["generator_loss"].lines] == ["None"]
    once = {"discriminator_auc": 0.6, "always_original_auc": 0.5, "discriminator_loss": 0.4}
    both = train(10, generator_loss=9.0, discriminator_loss=0.5), train(20, generator_loss=8.0)
    rewrite(directory, *both, validation(20, generator_loss=7.0, **once))
    # The generator's loss has two points on the training text.
    assert [caption.text for caption in page(directory).all("figcaption")] == ["Generator loss, nats"]
    assert drawn.keys() == {"generator_loss"}


@pytest.mark.parametrize(("low", "high"), [(0.7, 0.7), (0.7, 0.701), (100.0, 100.5), (-3.0, -2.99)])
def test_a_small_change_does_not_fill_the_chart(directory: RunDirectory, drawn: Drawn, low: float, high: float) -> None:
    """The vertical axis spans at least 2% of the values, with the curve in its middle."""
    rewrite(directory, validation(1, discriminator_auc=low), validation(2, discriminator_auc=high))
    page(directory)
    bottom, top = drawn["discriminator_auc"].get_ylim()
    assert top - bottom == pytest.approx(LEAST_SPAN * max(abs(low), abs(high)))
    assert (top + bottom) / 2 == pytest.approx((low + high) / 2)
