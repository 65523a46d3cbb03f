"""Predictions of fine-tuned models: the same as the fine-tuning wrote, and as transformers' pipelines."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification

import electra_lab
from electra_lab.export import model_folder
from electra_lab.inference.finetuned import FineTuned
from electra_lab.jobs.finetuning.facts import described_export
from electra_lab.jobs.finetuning.run import finetune
from electra_lab.pretrained import opening
from electra_lab.pretrained.families import FAMILIES, prepare
from electra_lab.pretrained.families.hugging_face import HuggingFace
from electra_lab.pretrained.hugging_face import read_part
from electra_lab.storage.finetuning_folder import FinetuningFolder
from registry import tasks
from registry.errors import CheckpointError, ConfigError, DataError
from tests.electra_lab.inference.tuned import SPOILED, TASKS, TWICE, all_tuned, spoil
from tests.electra_lab.jobs.finetuning.small import write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.helpers import same_but_for_rounding

EXPORTED = ["labels", "pairs", "numbers", "tags"]


def items(name: str, folder: Path, seed: int = 4) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the predictions that were written for validation data, and the data in the form that users pass."""
    written = FinetuningFolder(folder).predictions(seed, "validation")
    if name.endswith("answers"):
        [file] = folder.parents[1].glob(f"{name.replace(' ', '_')}-validation.json")
        [article] = json.loads(file.read_text())["data"]
        contexts = {paragraph["qas"][0]["id"]: paragraph["context"] for paragraph in article["paragraphs"]}
        return written, [(found["question"], contexts[found["id"]]) for found in written]
    if name == "tags":
        return written, [tuple(found["words"]) for found in written]
    return written, [(found["text"], found["pair"]) if name == "pairs" else found["text"] for found in written]


def opened(folder: Path, **options: Any) -> FineTuned:
    model = electra_lab.load(folder, device="cpu", **options)
    assert isinstance(model, FineTuned)
    return model


@pytest.mark.parametrize(("name", "seed"), [*((name, 4) for name in TASKS), *((name, 7) for name in TWICE)])
def test_predictions_are_those_that_the_fine_tuning_wrote(tuned: dict[str, Path], name: str, seed: int) -> None:
    """For any batches: order, neighbours and padding do not matter. The pre-trained model no longer exists."""
    written, given = items(name, tuned[name], seed)
    model = opened(tuned[name], seed=seed)
    labels = [answer["prediction"] for answer in written]
    assert len({str(label) for label in labels}) > 1 or seed == 7
    backwards = model.predict(given[::-1], batch_size=3)
    for found in (backwards[::-1], [*model.stream("predict", iter(given), batch_size=1)]):
        if name == "numbers":
            assert [answer.prediction for answer in found] == pytest.approx(labels, abs=1e-3)
            continue
        certain = [answer.probability for answer in found]
        if name == "tags":
            certain = [sum(answer.probabilities) / len(answer.probabilities) for answer in found]
        assert [answer.prediction for answer in found] == labels
        assert certain == pytest.approx([answer["certainty"] for answer in written], abs=1e-5)


@pytest.mark.parametrize("name", [*EXPORTED, "answers"])
def test_the_exported_model_reads_rows_of_the_fine_tuning(
    tuned: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network has more positions; some texts are longer than the rows."""
    seed = tuned[name] / "seed-4"
    folder, exported = opened(tuned[name]), opened(seed / "model")
    assert folder.length == exported.length == 20 < folder.discriminator.longest(32)
    assert transformers.AutoTokenizer.from_pretrained(seed / "model").model_max_length == 20
    lengths = list[int]()
    monkeypatch.setattr(model_folder, "write_onnx_files", lambda *given: (lengths.append(given[3]), ([], None))[1])
    model_folder.copy_folder(seed / "model", tmp_path / "out", onnx=True)
    assert lengths == [20]
    task = exported.job.task
    labels = {"tags": getattr(task, "tags", []), "labels": getattr(task, "labels", []), "pairs": ["no", "yes"]}.get(
        name
    )
    assert model_folder.with_head(seed / "model", read_part(seed / "model", "discriminator")).labels == (labels or [])
    _, given = items(name, tuned[name])
    for ours, theirs in zip(folder.predict(given), exported.predict(given), strict=True):
        assert ours.prediction == (
            pytest.approx(theirs.prediction, rel=1e-5) if name == "numbers" else theirs.prediction
        )
        assert ours.probabilities is None or ours.probabilities == pytest.approx(theirs.probabilities)


@pytest.mark.parametrize("where", SPOILED)
@pytest.mark.parametrize("name", TASKS)
def test_numbers_that_are_not_finite_are_no_answer(tuned: dict[str, Path], name: str, where: str) -> None:
    model = opened(tuned[name], seed="all")
    for tuned_model in model._learner.objective.models:
        spoil(where, tuned_model.network, tuned_model.head, model.tokenizer.token_to_id("dogs"))
    first, second = ("the cat sat", "on the mat") if len(model.job.names) > 1 else ("the cat sat on the mat", None)
    good, bad = ((text, second) if second else text for text in (first, f"{first} dogs"))
    with pytest.raises(CheckpointError, match=f"{tuned[name]}: .* not finite"):
        model.predict([good, bad])
    if where == "one row":
        assert model.predict(good).answer


@pytest.mark.parametrize("name", EXPORTED)
def test_transformers_pipelines_agree(tuned: dict[str, Path], name: str) -> None:
    """Only the exported folder is used; its rows may have the full length of the network; the word [MASK] is text."""
    exported = tuned[name] / "seed-4" / "model"
    _, given = items(name, tuned[name])
    model = opened(exported)
    kind = "token-classification" if name == "tags" else "text-classification"
    pipeline = transformers.pipeline(kind, model=str(exported), device="cpu")
    if name == "tags":
        texts = [" ".join(words) for words in given]
        fitting = [text for text in texts if len(text.split()) < 18]  # words are single tokens; it cuts longer texts
        assert 0 < len(fitting) < len(texts)
        for text, found in zip(fitting, model.predict(fitting), strict=True):
            theirs = [(e["entity_group"], e["start"], e["end"]) for e in pipeline(text, aggregation_strategy="first")]
            assert [(e["type"], e["start"], e["end"]) for e in found.more["entities"]] == theirs
            assert [text[start:end] for start, end in found.offsets] == found.given["words"]
        return
    texts = [{"text": item[0], "text_pair": item[1]} if isinstance(item, tuple) else item for item in given]
    theirs = pipeline(texts, top_k=None, truncation=True, split_special_tokens=True)
    for found, scores in zip(model.predict(given), theirs, strict=True):
        expected = {score["label"]: score["score"] for score in scores}
        assert (found.probabilities or {"LABEL_0": found.prediction}) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_tokenizer_may_have_a_shorter_limit_than_the_network(tuned: dict[str, Path], tmp_path: Path) -> None:
    """As transformers cuts there, and longer sentences are read in windows of this length."""
    folder = Path(shutil.copytree(tuned["tags"] / "seed-4" / "model", tmp_path / "model"))
    words, file = ("the", "cat", "sat", "on") * 5, folder / "tokenizer_config.json"
    longest = opened(folder).discriminator.longest(32)
    for limit, length in ((8, 8), (longest + 5, longest), (1e30, longest)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": limit}))
        assert opened(folder).length == length
        assert len(opened(folder).predict(words).probabilities) == len(words)


def test_answers_of_the_exported_model(tuned: dict[str, Path]) -> None:
    """transformers 5 has no pipeline for questions, so the best span of the context is taken from its model."""
    folder = tuned["answers"] / "seed-4" / "model"
    _, given = items("answers", tuned["answers"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
    for (question, context), found in zip(given, opened(folder).predict(given), strict=True):
        read = tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt")
        if read["input_ids"].shape[1] > 20:  # the lab reads windows
            continue
        offsets, of_text = read.pop("offset_mapping")[0].tolist(), read.sequence_ids(0)
        with torch.no_grad():
            logits = network(**read)
        inside = torch.tensor([segment == 1 for segment in of_text])
        allowed = inside | torch.tensor([n in (0, len(of_text) - 1) for n in range(len(of_text))])
        start, end = (logit[0].masked_fill(~allowed, -1e9).softmax(-1) * inside for logit in (logits[0], logits[1]))
        chances = (start[:, None] * end).triu()
        first, last = divmod(int(chances.argmax()), len(of_text))
        assert (found.more["start"], found.more["end"]) == (offsets[first][0], offsets[last][1])
        assert found.prediction == context[offsets[first][0] : offsets[last][1]]
        assert found.probability == pytest.approx(float(chances.max()), abs=1e-5)


def test_the_best_seed_one_seed_and_all_seeds(tuned: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FinetuningFolder(tuned["labels"])
    _, given = items("labels", folder.path)
    by_seed = {seed: opened(folder.path, seed=seed).predict(given) for seed in (4, 7)}
    assert by_seed[4] != by_seed[7]
    values = folder.values("validation", "accuracy")
    worst = min(values, key=values.__getitem__)
    file = folder.seed(worst).path / "results.json"
    before = file.read_text()
    file.write_text(before.replace('"accuracy": ', '"accuracy": 1'))  # makes it the best
    assert opened(folder.path).predict(given) == by_seed[worst]
    file.unlink()  # now it is not finished
    [other] = by_seed.keys() - {worst}
    assert opened(folder.path, seed="all").predict(given) == by_seed[other]
    file.write_text(before)
    assert opened(folder.path / "seed-7").predict(given) == by_seed[7]
    monkeypatch.chdir(folder.path / "seed-7")
    assert opened(Path()).predict(given) == by_seed[7]
    for first, second, both in zip(by_seed[4], by_seed[7], opened(folder.path, seed="all").predict(given), strict=True):
        mean = {label: (first.probabilities[label] + second.probabilities[label]) / 2 for label in first.probabilities}
        assert both.probabilities == pytest.approx(mean, abs=1e-6)
    for wrong in (5, "none", True):
        with pytest.raises(ConfigError):
            electra_lab.load(folder.path, seed=wrong)


DAMAGED = [
    ("length", None), ("length", math.inf), ("length", 0),
    ("backbone", 5), ("backbone", {}), ("backbone", {"type": []}),
    ("backbone", {"type": "absent", "dim": 4}), ("embedding", "x"), ("vocab_size", "x"), ("vocab_size", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        *((("network", key), value, r"provenance\.json: does not describe its model") for key, value in DAMAGED),
        (("network", "embedding"), {}, "does not fit the provenance"),
        (("network", "embedding"), {"dim": 4, "max_length": 32, "dropout": 0.0}, "does not fit the provenance"),
        (("facts", "labels"), ["a", "b", "c"], "does not fit the provenance"),
    ],
)
def test_a_seed_that_does_not_fit_its_description(
    tuned, tmp_path: Path, place: tuple[str, str], value: object, reason: str
) -> None:
    folder = Path(shutil.copytree(tuned["labels"], tmp_path / "tuned"))
    file = folder / "seed-4" / "provenance.json"
    provenance = json.loads(file.read_text())
    provenance[place[0]][place[1]] = value
    file.write_text(json.dumps(provenance))
    with pytest.raises(CheckpointError, match=rf"^{folder / 'seed-4'}/.*{reason}"):
        opened(folder, seed=4)


@pytest.mark.parametrize("part", ["network.", "head."])
def test_a_seed_with_numbers_that_are_not_finite(tuned, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    read = opening.read_model

    def spoiled(*arguments: Any) -> Any:
        saved = read(*arguments)
        next(tensor for name, tensor in saved.tensors.items() if name.startswith(part)).fill_(torch.nan)
        return saved

    monkeypatch.setattr(opening, "read_model", spoiled)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        opened(tuned["labels"], seed=4)


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_best_seed_is_that_of_the_metric(tuned, tmp_path: Path, monkeypatch, higher_is_better: bool) -> None:
    folder = FinetuningFolder(Path(shutil.copytree(tuned["labels"], tmp_path / "tuned")))
    monkeypatch.setattr(FinetuningFolder, "values", lambda *_: {4: 0.25, 7: 0.5})
    for seed in (4, 7):
        file = folder.seed(seed).path / "provenance.json"
        provenance = json.loads(file.read_text())
        assert next(iter(provenance["metrics"])) == "accuracy"
        provenance["metrics"]["accuracy"]["higher_is_better"] = higher_is_better
        file.write_text(json.dumps(provenance))
    assert opened(folder.path).job.seed == (7 if higher_is_better else 4)


def test_spans_of_several_seeds_are_averaged(tuned: dict[str, Path]) -> None:
    """A span's probability is the mean over the models' beams."""
    _, given = items("joint answers", tuned["joint answers"])
    by_seed = [opened(tuned["joint answers"], seed=seed).predict(given) for seed in (4, 7)]
    both = opened(tuned["joint answers"], seed="all").predict(given)
    agreed = [found for found in zip(*by_seed, both, strict=True) if found[0].prediction == found[1].prediction != ""]
    assert agreed
    for first, second, mean in agreed:
        if mean.prediction == first.prediction and first.more["start"] == second.more["start"]:
            assert mean.probability == pytest.approx((first.probability + second.probability) / 2, abs=1e-5)


def test_a_bert_of_transformers_has_its_pooler(tuned: dict[str, Path], tmp_path: Path) -> None:
    """Three labels without names, and a number."""
    source = tuned["labels"] / "seed-4" / "model"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes["vocab_size"] = json.loads((source / "config.json").read_text())["vocab_size"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    for outputs in (3, 1):
        torch.manual_seed(0)
        made = BertForSequenceClassification(BertConfig(initializer_range=0.5, num_labels=outputs, **sizes))
        made.save_pretrained(tmp_path / str(outputs))
        tokenizer.save_pretrained(tmp_path / str(outputs))
        with torch.no_grad():
            logits = made.eval()(**tokenizer("the cat", "3 dogs", return_tensors="pt")).logits[0]
        found = opened(tmp_path / str(outputs)).predict(("the cat", "3 dogs"))
        if outputs == 1:
            assert found.prediction == pytest.approx(float(logits[0]), abs=1e-5)
        else:
            assert [*found.probabilities.values()] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
            assert found.prediction == f"LABEL_{int(logits.argmax())}"
    # A tokenizer may be shorter than the network.
    tokenizer.model_max_length = 8
    tokenizer.save_pretrained(tmp_path / "1")
    with torch.no_grad():
        logits = made(**tokenizer("the cat saw 3 dogs " * 9, truncation=True, return_tensors="pt")).logits[0]
    found = opened(tmp_path / "1").predict("the cat saw 3 dogs " * 9)
    assert found.prediction == pytest.approx(float(logits[0]), abs=1e-5)
    file = tmp_path / "3" / "config.json"
    written = json.loads(file.read_text())
    for names in ({"0": "a", "2": "c"}, dict(zip("012", "aab", strict=True)), dict(zip("123", "abc", strict=True)),
                  dict(zip("0123", "abcd", strict=True)), ["a", "b", "c"]):  # fmt: skip
        file.write_text(json.dumps(written | {"id2label": names}))
        with pytest.raises(DataError, match="id2label"):
            opened(tmp_path / "3")
    file.write_text(json.dumps(written))
    file.write_text(file.read_text().replace("ForSequenceClassification", "ForQuestionAnswering"))
    with pytest.raises(DataError, match="ForQuestionAnswering"):
        opened(tmp_path / "3")


def test_items_of_each_kind(tuned: dict[str, Path]) -> None:
    tags, pairs, labels = (opened(tuned[name]) for name in ("tags", "pairs", "labels"))
    text, words = "the  cat,sat 3", ["the", "cat", ",", "sat", "3"]
    plain = tags.predict(text)
    assert (plain.given["words"], plain.prediction) == (words, tags.predict(tuple(words)).prediction)
    assert same_but_for_rounding(tags.predict([{"text": text}, words]), [plain, tags.predict({"words": words})])
    assert tags.predict("").prediction == []
    assert labels.predict([]) == []
    assert labels.predict(["the cat"]) == [labels.predict("the cat")]
    assert pairs.predict({"text": "the cat", "pair": "dogs"}) == pairs.predict(("the cat", "dogs"))
    assert opened(tuned["answers"]).predict(("who?", "")).more == {"start": None, "end": None}
    for model, item in ((pairs, "one"), (labels, ("the", "cat")), (labels, 3), (tags, {"words": "cat"}), (labels, None),
                        (pairs, ("a", "b", "c")), (pairs, ("a", 2))):  # fmt: skip
        with pytest.raises(ConfigError, match="item 2"):
            model.predict(["the cat" if model is not pairs else ("a", "b"), item])
    with pytest.raises(ConfigError, match="'text', 'pair'"):
        pairs.predict({"text": "one"})
    with pytest.raises(ConfigError, match="None"):
        electra_lab.load(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is one seed"):
        electra_lab.load(tuned["labels"] / "seed-4", device="cpu", seed=4)


def test_words_of_many_tokens_and_of_none(tuned: dict[str, Path]) -> None:
    text, tags = "the unheard, sat", opened(tuned["tags"])
    assert len(tags.encoder.texts(["unheard"])[0].ids) > 1
    assert [text[start:end] for start, end in tags.predict(text).offsets] == ["the", "unheard", ",", "sat"]
    for model in (tags, opened(tuned["tags"] / "seed-4" / "model")):
        assert model.predict(("cat", "\u200b")).prediction[1] == "O"


def test_the_encoder_is_that_of_the_pair_and_its_heads_are_gone(tuned: dict[str, Path]) -> None:
    model = opened(tuned["labels"])
    assert model.embed("the cat").shape == (16,)
    for call in (model.detect, model.fill, model.corrupt):
        with pytest.raises(ConfigError, match="electra-lab predict"):
            call("the [MASK] cat")
    state = torch.get_rng_state()
    model.predict("the cat")
    assert torch.equal(torch.get_rng_state(), state)


ENCODERS = {
    "ModernBert": "{type: modernbert, dim: 8, depth: 2, heads: 2, local_attention: 6, global_every: 2, dropout: 0.0}",
    "DebertaV2": "{type: deberta, dim: 8, depth: 2, heads: 2, buckets: 4, max_distance: 8, dropout: 0.0}",
}
ENDINGS = {"pairs": "SequenceClassification", "numbers": "SequenceClassification", "tags": "TokenClassification",
           "answers": "QuestionAnswering"}  # fmt: skip


# The heads of ModernBERT are also in export/test_onnx.py; its layers, in the laws and in pretrained/test_families.py.
@pytest.fixture(scope="module", params=[pytest.param("ModernBert", marks=pytest.mark.slow), "DebertaV2"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Rows are longer than a window, and than the distances with exact buckets."""
    chosen = {name: ({**TASKS[name][0], "head": "transformers"}, TASKS[name][1]) for name in ENDINGS}
    with for_a_module():
        yield request.param, all_tuned(tmp_path_factory.mktemp("encoders"), chosen, ENCODERS[request.param], epochs=2)


def test_they_leave_and_come_back(made: tuple[str, dict[str, Path]], tmp_path: Path) -> None:
    """With their layers and labels; they still give the numbers of the fine-tuning, which equal transformers'."""
    prefix, folders = made
    for name, ending in ENDINGS.items():
        model = folders[name] / "seed-4" / "model"
        kind: Any = getattr(transformers, f"AutoModelFor{ending}")
        plain, report = kind.from_pretrained(model, output_loading_info=True)
        assert type(plain).__name__ == f"{prefix}For{ending}"
        assert not any(report.values()), report
        written, given = items(name, folders[name])
        ours, again = (opened(path).predict(given) for path in (folders[name], model))
        assert [found.prediction for found in ours] == [found["prediction"] for found in written] or name == "numbers"
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        for item, answer, returned in zip(given, ours, again, strict=True):
            text = (" ".join(item),) if name == "tags" else item if isinstance(item, tuple) else (item,)
            fits = len(tokenizer(*text)["input_ids"]) <= 20  # the lab reads longer sentences and contexts in windows
            read = tokenizer(*text, truncation=True, return_tensors="pt", return_token_type_ids=False)
            with torch.no_grad():
                logits = plain.eval()(**read)
            if name == "pairs":
                expected = dict(zip(plain.config.id2label.values(), logits[0][0].softmax(-1).tolist(), strict=True))
                assert returned.probabilities == pytest.approx(expected, abs=1e-5)
                assert answer.probabilities == pytest.approx(expected, abs=1e-5)
            elif name == "numbers":
                assert returned.prediction == pytest.approx(float(logits[0]), abs=1e-4)
                assert answer.prediction == pytest.approx(float(logits[0]), abs=1e-4)
            elif name == "tags" and fits:
                chances, places = logits[0][0].softmax(-1).amax(-1), read.word_ids()
                expected = [float(chances[places.index(word)]) for word in range(len(item))]
                assert answer.probabilities == pytest.approx(expected, abs=1e-5)
                assert returned.probabilities == pytest.approx(expected, abs=1e-5)
            elif name == "answers" and fits:
                assert answer.prediction == returned.prediction
                assert answer.probability == pytest.approx(returned.probability, abs=2e-5)

    # They work in a pipeline, and as the start of another fine-tuning with a new head.
    model = folders["pairs"] / "seed-4" / "model"
    _, given = items("pairs", folders["pairs"])
    pipeline = transformers.pipeline("text-classification", model=str(model), device="cpu")
    scores = pipeline([{"text": text, "text_pair": pair} for text, pair in given], truncation=True)
    assert [score["label"] for score in scores] == [found.prediction for found in opened(model).predict(given)]
    further = finetune(write_finetuning(tmp_path, model, seeds=[0]), ["train.epochs=1"], tmp_path / "out", "cpu")
    assert FinetuningFolder(further).results(0)


@pytest.mark.parametrize(
    ("name", "head", "leaves"),
    [
        ("text_classification", "linear", "none none none none"),
        ("text_classification", "dense", "own lab own lab"),
        ("text_classification", "transformers", "own own own lab"),
        ("text_regression", "transformers", "own own own lab"),
        ("token_classification", None, "own lab own lab"),
        ("token_classification", "transformers", "own own own lab"),
        ("question_answering", "joint", "none none none none"),
        ("question_answering", "independent", "none none none none"),  # has a classifier, as some have no answer
        ("question_answering", "transformers", "own own own lab"),
    ],
)
def test_what_can_leave_is_known_before_training(name: str, head: str | None, leaves: str) -> None:
    """Whether as a class of transformers, of the lab, or not at all: ELECTRA, ModernBERT, DeBERTa, RoBERTa."""
    facts = {"labels": ["a", "b"], "tags": ["O"], "usual": "O", "low": 0, "high": 1, "unanswerable": True}
    families = [*(FAMILIES[name] for name in ("electra", "modernbert", "deberta-v2")), HuggingFace("roberta")]
    for family, expected in zip(families, leaves.split(), strict=True):
        task: Any = tasks.get(name).component(head=head)
        task.set_labels(facts)
        prepare(task, family)
        part: Any = SimpleNamespace(family=family, plugin=None)
        said = described_export(task, task.head(8, 0.1), part)
        prefix = {"own": family.prefix, "lab": "ElectraLab", "none": "none: "}[expected]
        assert f" {prefix}For" in said or said.startswith(prefix)
        may_change = expected == "lab" and family.prefix != "Roberta"  # whose class for texts has another activation
        assert ("{head: transformers}" in said) == (expected == "none" or may_change)
