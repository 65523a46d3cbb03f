"""The text output of a run: excerpts around a replacement, marked sentences, findings of the last evaluation."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from electra_lab.assembly.data import open_data
from electra_lab.assembly.experiment import assemble
from electra_lab.assembly.needs import forecast
from electra_lab.config.load import load
from electra_lab.data.splits import SPLITS
from electra_lab.jobs.pretraining import execute
from electra_lab.jobs.pretraining.facts import opening, planned, readable
from electra_lab.metrics import PRETRAINING
from electra_lab.planning.forecast import Duration
from electra_lab.presentation.run_page import OWN_TEXT, Token, closing, excerpt
from electra_lab.storage.run_directory import RunDirectory
from registry import Example, Metric
from tests.electra_lab.jobs.pretraining.tiny import experiment, lines
from tests.electra_lab.storage.test_provenance import PROVENANCE
from tests.helpers import write_experiment


def token(text: str, original: str | None = None, probability: float = 0.1) -> dict[str, Any]:
    return {"token": text, "original": original or text, "replaced": original is not None, "probability": probability}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([token("the"), token("cat"), token("##s"), token("sat")], "the cats sat"),
        ([token("the"), token("dog", "cat", 0.987)], "the [cat > dog, 0.99]"),
        ([token("the", probability=0.75), token("##re")], "the (0.75)re"),
        ([token("a"), token("##s", "##t", 0.5), token("b", probability=0.5)], "a [##t > ##s, 0.50] b"),
        ([], ""),
    ],
)
def test_a_sentence_shows_replacements_and_wrong_suspicions(tokens: list[dict[str, Any]], expected: str) -> None:
    assert excerpt([Token(**values) for values in tokens]) == expected


@pytest.mark.parametrize(("at", "length", "start"), [(None, 50, 0), (3, 50, 0), (20, 50, 14), (49, 50, 22), (5, 10, 0)])
def test_an_excerpt_begins_a_little_before_the_first_replacement(at: int | None, length: int, start: int) -> None:
    """28 tokens, or all of a shorter row, never beyond the row's end."""
    originals = list(range(length))
    inputs = [1000 + n if n == at else n for n in originals]
    example = Example(originals, inputs, [n / 100 for n in originals])
    tokenizer: Any = SimpleNamespace(id_to_token=str, decoder=None)
    (shown,) = readable([example], SimpleNamespace(store=SimpleNamespace(tokenizer=tokenizer)))
    assert [token["original"] for token in shown] == [str(n) for n in originals[start : start + 28]]
    assert [token["replaced"] for token in shown] == [n == at for n in originals[start : start + 28]]
    assert all(token["probability"] == int(token["original"]) / 100 for token in shown)
    if at is not None:
        assert str(1000 + at) in [token["token"] for token in shown]


def ended(folder: Path, **provenance: Any) -> RunDirectory:
    directory = RunDirectory.create(folder / "run", "tiny")
    auc = Metric("", "discriminator AUC", baselines=("unigram_auc",))
    directory.write_json("provenance.json", PROVENANCE | {"metrics": {"discriminator_auc": asdict(auc)}} | provenance)
    return directory


def test_the_end_shows_the_last_evaluation_and_its_examples(tmp_path: Path) -> None:
    directory, report = ended(tmp_path), tmp_path / "run" / "report.html"
    assert closing(directory, report, 3.4).splitlines()[1] == "no evaluation"
    for step, split, auc in ((5, "validation", 0.6), (10, "validation", 0.7), (10, "test", 0.8125), (10, "train", 0.1)):
        directory.append({"step": step, "split": split, "loss": 1.0, "discriminator_auc": auc})
        if split == "validation":
            assert closing(directory, report, 3.4).splitlines()[1] == f"after step {step}, on validation text"
    directory.write_json("examples.json", [[token("the"), token("dog", "cat", 0.9)]])
    lines = closing(directory, report, 1234.4).splitlines()
    assert lines[1] == "after step 10, on test text"
    assert lines[2].split()[:3] == ["discriminator", "AUC", "0.812"]
    assert "test text as the discriminator saw it" in "\n".join(lines)
    assert lines[-3:] == ["  the [cat > dog, 0.90]", "", f"trained in 1,234 s; report {report}"]


def test_the_end_begins_with_the_verdict(tmp_path: Path) -> None:
    directory = ended(tmp_path)
    record = {"step": 10, "split": "test", "discriminator_auc": 0.7, "unigram_auc": 0.5, "discriminator_auc_gain": 0.2}
    interval = {"discriminator_auc_gain_low": 0.1, "discriminator_auc_gain_high": 0.3}
    directory.append(record | interval | {"discriminator_auc_gain_documents": 5})
    lines = closing(directory, tmp_path, 3.4).splitlines()
    assert lines[2].startswith("  The discriminator has learned ")
    assert "0.700 against 0.500" in lines[2]
    assert lines[2].endswith("gain +0.200, 95% interval +0.100 to +0.300 over 5 documents.")
    assert lines[3] == ""
    assert lines[4].split()[:3] == ["discriminator", "AUC", "0.700"]
    assert lines[5:] == ["", f"trained in 3 s; report {tmp_path}"]
    directory.append(record | {"discriminator_auc_gain_documents": 1})
    lines = closing(directory, tmp_path, 3.4).splitlines()
    assert lines[2].startswith("  It is not known whether the discriminator has learned ")
    assert lines[3].startswith(f"  {OWN_TEXT}")
    assert lines[4] == ""
    assert lines[5].split()[:3] == ["discriminator", "AUC", "0.700"]


def test_the_end_says_which_numbers_compare_runs(tmp_path: Path) -> None:
    directory = ended(tmp_path, metrics={name: asdict(metric) for name, metric in PRETRAINING.items()})
    directory.append({"step": 10, "split": "test", "generator_mask_loss": 5.5})
    assert "docs/ablations.md" not in closing(directory, tmp_path, 3.4)
    directory.append({"step": 10, "split": "test", "discriminator_auc": 0.75, "generator_mask_loss": 5.5})
    lines = closing(directory, tmp_path, 3.4).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["generator", "discriminator"]
    assert "docs/ablations.md" in lines[4]


WORDS = (
    "apple bread cider dates eggs figs grape honey icing jelly kiwi lemon mango nuts olive pasta rice salad tea water"
)


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with text that is easily learned: each of ten positions of a document has its own two words."""
    folder, numbers = tmp_path_factory.mktemp("fruit"), random.Random(0)
    file = write_experiment(
        folder,
        data=f"{{sequence_length: 16, held_out: 0.2, store: {folder / 'store'}}}",
        packing="{type: documents}",
        embedding="{dim: 32, max_length: 16, dropout: 0.0}",
        discriminator="{type: bert, dim: 32, depth: 1, heads: 2, dropout: 0.0}",
        generator="{type: bert, scale: 1.0}",
        train="{steps: 30, batch_size: 32, precision: fp32, learning_rate: 1.0e-2}",
    )
    words = WORDS.split()
    texts = []
    for _ in range(300):
        texts.append(" ".join(numbers.choice(words[n : n + 2]) for n in range(0, 20, 2)))
    (folder / "corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
    return file


LEARNED, NOT = "The discriminator has learned", "The discriminator has not learned"


@pytest.mark.parametrize(
    ("overrides", "claims"),
    [
        ([], [LEARNED, "The generator has learned"]),
        (["generator={type: unigram}"], [LEARNED]),
        (["train.steps=1", "train.learning_rate=1.0e-5"], [NOT, "The generator has not learned", OWN_TEXT]),
    ],
)
@pytest.mark.usefixtures("no_report")
def test_a_run_says_whether_it_has_learned(fruit: Path, tmp_path: Path, capsys, overrides, claims) -> None:
    path = execute.run(fruit, overrides, tmp_path / "run", "cpu")
    said = capsys.readouterr().err.split(" on test text\n")[1].split("\n\n")[0]
    for line, claim in zip(said.splitlines(), claims, strict=True):
        assert line.strip().startswith(claim), said
    documents = RunDirectory(path).provenance().data.documents
    for record in lines(path, "validation") + lines(path, "test"):
        assert record["discriminator_auc_gain_documents"] == documents[record["split"]]


def opened(loaded: Any) -> tuple[Any, str]:
    """Return the assembled experiment and its opening words."""
    made = assemble(loaded, open_data(loaded, lambda _: None), torch.device("cpu"))
    return made, opening(loaded, made, Path("run"))


@pytest.mark.parametrize(("best", "noted"), [("discriminator_auc", True), ("generator_mask_loss", False)])
def test_the_beginning_warns_of_a_best_that_does_not_compare_steps(tmp_path: Path, best: str, noted: bool) -> None:
    _, text = opened(load(experiment(tmp_path, checkpoint=f"{{best: {best}}}")))
    assert ("checkpoint.best: " in text and "docs/resuming.md" in text) == noted


def test_the_beginning_says_what_is_trained_on_validated_and_tested(tmp_path: Path) -> None:
    made, text = opened(load(experiment(tmp_path, evaluate="{every: 6}")))
    store, rows, read = made.store, len(made.train), made.settings.steps * made.settings.batch_size
    train, validation, tested = ((store.documents[split], store.tokens[split]) for split in SPLITS)
    unknown = store.counts[store.tokenizer.token_to_id("[UNK]")] / (train[1] - train[0])
    assert f"\n                {unknown:.2%} of the training tokens and " in text
    text = re.sub(r".* are unknown\n", "", text)
    assert (
        f"  data          {train[0]} documents, {train[1]} tokens to train; validation {validation[0]} and "
        f"{validation[1]}; test {tested[0]} and {tested[1]}; vocabulary {made.vocabulary.size}\n"
        f"                {store.overlap:.1%} of the 13-token runs of validation and test also occur in training text\n"
        f"  epochs        {read / rows:.2f}, of {rows} rows each\n"
        f"  evaluation    validation all {validation[1]} tokens every 6 steps; test all {tested[1]} tokens at the end\n"
    ) in text
    assert text.count("13-token") == 1


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        ("tokens: 32, test_tokens: 40", "at the end: validation 32 tokens, test 48 tokens"),
        ("every: 12, tokens: 32, test_tokens: 40", "at the end: validation 32 tokens, test 48 tokens"),
        ("every: 11, tokens: 33, test_tokens: 100000",
         "validation 48 tokens every 11 steps; test all {test} tokens at the end"),
    ],
)  # fmt: skip
def test_the_beginning_says_how_much_is_evaluated(tmp_path: Path, evaluate: str, said: str) -> None:
    made, text = opened(load(experiment(tmp_path, evaluate=f"{{{evaluate}}}")))
    assert f"  evaluation    {said.format(test=made.store.tokens['test'])}\n" in text


def test_a_forecast_in_words_has_the_numbers_of_the_forecast(tmp_path: Path) -> None:
    train = "{steps: 1000, batch_size: 4, micro_batch_size: 2, precision: fp32}"
    loaded, cpu = load(write_experiment(tmp_path, train=train)), torch.device("cpu")
    needs = forecast(loaded, cpu)
    large = replace(needs, state_bytes=3_000_000_000, working_bytes=1_500_000_000, evaluation_bytes=2_000_000)
    took = Duration(step=0.0625, training=5000.0, evaluation=90.0, saving=0.5)
    text = planned(loaded, replace(large, epoch=10_000), cpu, took)
    assert "\n  epochs          0.40, of 10,000 rows each\n" in text
    said = "0.062 s per step on average; evaluations 1.5 min, checkpoints < 1 s"
    assert text.endswith(f"\n  time            about 85 min on this machine: {said}")
    assert text.startswith("tiny: 1,000 steps of 4 x 16 tokens\n")
    # The size of an evaluation is unknown before the text is tokenized.
    unread = planned(loaded, replace(large, evaluates_at_start=True), cpu, took)
    for part in (
        "evaluations at most 1.5 min",
        "; validation also before the first step\n",
        "about 4.50 GB on cpu in fp32: 3.00 GB of weights and optimizer",
        "1.50 GB of a step, 2 rows at a time (train.micro_batch_size)",
        "2.0 MB of evaluation, 32 rows at a time (evaluate.batch_size)",
        f"{needs.flops.per_step:.4g} FLOPs per step, {1000 * needs.flops.per_step:.4g} in total",
        "64 per step, 6.4e+04 in total",
        "200 (at most: a dry run does not read the tokenizer)",
        "\n  evaluation      at the end: validation at most 65,536 tokens, test at most 262,144 tokens; ",
    ):
        assert part in unread
    often = load(tmp_path / "tiny.yaml", ["evaluate.every=100", "evaluate.tokens=1000"])
    evaluation = "validation at most 1,000 tokens every 100 steps; test at most 262,144 tokens at the end"
    assert f"\n  evaluation      {evaluation}\n" in planned(often, large, cpu, took)
    unlimited = planned(loaded, replace(large, vocabulary_size=None, working_bytes=None), cpu, "not here")
    assert "30,522 (assumed: the tokenizer has no limit)" in unlimited
    assert "3.00 GB of weights and optimizer; the memory of a step cannot be predicted from shapes" in unlimited
