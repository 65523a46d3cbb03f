"""The card of an exported fine-tuning: its code answers as `predict` does, and it says how the model was made."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from scipy import stats

import electra_lab
from electra_lab.export.model_folder import copy_folder
from electra_lab.jobs.finetuning.run import finetune
from registry.errors import ConfigError
from tests.electra_lab.export.carded import pasted, serving
from tests.electra_lab.inference.tuned import BERT, write_examples
from tests.electra_lab.jobs.finetuning.small import pretrained, write_finetuning
from tests.electra_lab.jobs.pretraining.tiny import for_a_module
from tests.helpers import ROOT

WORDS = ["the", "cat", "dogs", "sat", "on", "the", "mat", "and", "saw", "2", "9", "5", ",", "Ärger", "zebra-like"]
TOKENIZERS = {"wordpiece": "{type: wordpiece, vocab_size: 120}", "bpe": "{type: bpe, vocab_size: 300}",
              "unigram": "{type: unigram, vocab_size: 110}"}  # fmt: skip
CLASSIFIES = {"type": "text_classification", "head": "transformers"}
SPANS = {"type": "question_answering", "max_answer": 4, "max_query": 12}  # of letters, if these are tokens
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "labels": (CLASSIFIES, {"type": "table", "text": "review", "label": "what"}),
    "pairs": (CLASSIFIES, {"type": "json_lines", "text": "a.b", "pair": "c"}),
    "numbers": ({**CLASSIFIES, "type": "text_regression"}, {"type": "json_lines", "label_type": "number"}),
    "answers": ({**SPANS, "head": "transformers"}, {"type": "squad"}),
    "joint answers": ({**SPANS, "head": "independent", "no_answer": "cls", "threshold": 4.0}, {"type": "squad"}),
}  # fmt: skip
QUICK = {("labels", "unigram"), ("pairs", "bpe"), ("joint answers", "wordpiece")}
LIGHT = {"imports": f"[{ROOT / 'experiments' / 'plugins' / 'light_conv.py'}]"}
LONGEST = 40


def all_cases() -> Iterator[Any]:
    for task in TASKS:
        for tokenizer in TOKENIZERS:
            marks = [] if (task, tokenizer) in QUICK else [pytest.mark.slow]
            yield pytest.param((task, tokenizer, BERT, {}), id=f"{task} {tokenizer}", marks=marks)
    conv = "{type: light_conv, dim: 16, depth: 1, heads: 2}"
    yield pytest.param(("labels", "bpe", conv, LIGHT), id="plug-in", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=all_cases())
def served(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The name of a task, a fine-tuning of two seeds, and the export of the second one with ONNX."""
    name, tokenizer, backbone, sections = request.param
    folder = tmp_path_factory.mktemp("served")
    with for_a_module():
        data = f"{{sequence_length: 16, held_out: 0.3, overlap: 1.0, store: {folder / 'store'}}}"
        options = {"data": data, "embedding": "{dim: 8, max_length: 48}", "generator": "{type: unigram}", **sections}
        options |= {"tokenizer": TOKENIZERS[tokenizer], "discriminator": backbone}
        model = pretrained(folder / "pretrained", **options)
        task, dataset = TASKS[name]
        train = {"epochs": 6, "batch_size": 8, "learning_rate": 2e-2, "layer_decay": 1.0, "precision": "fp32"}
        file = write_finetuning(
            folder, model, name="mine", imports=None, task=task, train=train, evaluate=None, checkpoint=None,
            dataset={**dataset, **write_examples(folder, name, dataset["type"])}, data={"max_length": LONGEST},
            seeds=[4, 7],
        )  # fmt: skip
        path = finetune(file, [], folder / "out", "cpu")
        copy_folder(path / "seed-7" / "model", folder / "export", onnx=True, int8=True, license="mit")
    return name, path, folder / "export"


def arguments(name: str, draw: random.Random) -> tuple[str, ...]:
    """Return the arguments of a card's function: texts of any length, also none."""
    first, second = (" ".join(draw.choices(WORDS, k=draw.randrange(n))) for n in (12, 8))
    around, after = (draw.choice(["", " ", "\t\u00a0", "\u3000\x1c"]) for _ in range(2))
    first, second = f"{around}{first}{after}", f"{after}{second}{around}"
    return {"pairs": (first, second), "labels": (first,), "numbers": (first,)}.get(name, ("who sat?", first))


def length_of(model: Any, texts: Sequence[str]) -> int:
    """Return the number of tokens of an input, special ones included."""
    return 1 + sum(len(encoded.ids) + 1 for encoded in model.encoder.texts(texts))


def test_the_code_of_the_card_answers_as_predict_does(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, path, folder = served
    functions = pasted(folder, monkeypatch)
    draw, model, answers = random.Random(1), electra_lab.load(path, seed=7, device="cpu"), set()
    assert functions.keys() == {"transformers", "onnxruntime"}
    for number in range(40):
        texts = arguments(name, draw)
        tokens = length_of(model, texts if "answers" in name else [text.strip() for text in texts])
        for predict in functions.values():
            if tokens > LONGEST:
                with pytest.raises(ValueError, match=f"{tokens} tokens.* at most {LONGEST}"):
                    predict(*texts)
                continue
            answer, expected = predict(*texts), model.predict([texts if len(texts) > 1 else texts[0]])[0]
            if expected.probabilities:
                assert [*answer] == [*expected.probabilities]
                assert answer == pytest.approx(expected.probabilities, abs=1e-5)
                assert max(answer, key=answer.__getitem__) == expected.prediction
            else:
                number = isinstance(answer, float)
                assert answer == (pytest.approx(expected.prediction, abs=1e-3) if number else expected.prediction)
            answers.add(str(answer))
    assert len(answers) > 1
    if "answers" in name:
        for predict in functions.values():
            with pytest.raises(ValueError, match="question"):
                predict("9 " * 14, "the")


def test_the_example_serves_the_labs_labels_and_numbers(served: Any) -> None:
    name, path, folder = served
    if "answers" in name:
        pytest.skip("it does not serve answers to questions")
    draw, model = random.Random(2), electra_lab.load(path, seed=7, device="cpu")
    asked = [texts for texts in (arguments(name, draw) for _ in range(40)) if length_of(model, texts) < LONGEST - 2]
    with serving(folder) as post:
        status, answers = post([texts[0] if len(texts) == 1 else texts for texts in asked])
        assert status == 200
        for texts, answer in zip(asked, answers, strict=True):
            expected = model.predict([texts if len(texts) > 1 else texts[0]])[0]
            assert answer == pytest.approx(expected.probabilities or expected.prediction, abs=1e-4)
        status, said = post([["the"] * 2, ["the", "the " * LONGEST]] if name == "pairs" else ["the", "the " * LONGEST])
        assert (status, f"at most {LONGEST}" in said) == (413, True)
        # Refused, and not repeated: the other number of texts, half of a character, a text too long to be tokenized.
        single, other = (["the", "cat"], "the") if name == "pairs" else ("the", ["the", "cat"])
        wrong = [[], [3], [["a", "b", "c"]], [None], [other], [single] * 257, float("nan"), [float("inf")]]
        wrong += [["the", odd] if name != "pairs" else [["the", odd]] for odd in ("\ud83d", "\u00c4" * 1_000_000)]
        refusals = [post(inputs) for inputs in wrong]
        assert [status for status, _ in refusals] == [422] * len(wrong)
        assert max(len(said) for _, said in refusals) < 200
        with pytest.raises(ConfigError):
            electra_lab.load(folder).predict([other if name == "pairs" else tuple(other)])


def test_the_card_says_how_the_model_was_made_and_measured(served: Any) -> None:
    name, path, folder = served
    card = ModelCard.load(folder / "README.md")
    library = "electra_lab" if "load_plugin" in card.text else "transformers"
    assert (card.data.license, card.data.library_name) == ("mit", library)
    task = {"pairs": "text", "labels": "text", "numbers": "text"}.get(name, "question")
    assert card.data.pipeline_tag.startswith(task)
    # The numbers of this seed, the mean and Student's interval within the bounds of the metric.
    leading = next(iter(json.loads((path / "results.json").read_text())["validation"].items()))[1]["values"]
    values = [leading["4"], leading["7"]]
    row = next(line for line in card.text.splitlines() if line.startswith("| validation |"))
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d{4}", row)]
    assert numbers[:2] == [pytest.approx(values[1], abs=1e-4), pytest.approx(sum(values) / 2, abs=1e-4)]
    if values[0] != values[1]:
        low, high = stats.t.interval(0.95, 1, loc=sum(values) / 2, scale=stats.sem(values))
        least = -1.0 if name == "numbers" else 0.0
        assert numbers[2:4] == pytest.approx([max(low, least), min(high, 1.0)], abs=1e-4)
    for said in (
        "mine",
        "train 32, validation 14",
        "6.0 epochs, batches of 8, learning rate 0.02",
        f"max_length: {LONGEST}",
    ):
        assert said in card.text, said
    assert str(path.parent) not in card.text
    # Baselines are not results of the model; they are in the table.
    assert not [metric for metric in card.data.metrics if metric.startswith("constant")]
    assert "`model_int8.onnx` next to it: " in card.text
